//! Errors in words for people, and the exit code that goes with each: the only place that does either.

use std::error::Error as _;
use std::io::{self, Write};

use super::{Error, Exit, Io};
use crate::config::LoadError;

/// Says what went wrong, its causes, and what might help. What cannot be said is lost: there is nowhere else to say it.
pub fn error(error: &Error, err: &mut dyn Write) -> Exit {
    let exit = exit(error);
    if exit != Exit::Fine {
        let _ = say(error, err);
    }
    exit
}

/// clap's own words: an error of usage, or the help that was asked for.
pub(super) fn usage(error: &clap::Error, io: &mut Io<'_>) -> Exit {
    let text = error.render();
    let is_help = !error.use_stderr();
    let stream = if is_help { &mut io.out } else { &mut io.err };
    let written = write!(stream, "{text}").and_then(|()| stream.flush());
    match written {
        Ok(()) if is_help => Exit::Fine,
        Err(error) if is_help => self::error(&Error::Output(error), io.err),
        _ => Exit::Usage,
    }
}

fn say(error: &Error, err: &mut dyn Write) -> io::Result<()> {
    if let Error::Jobs(LoadError::Invalid { problems }) = error {
        return problems.iter().try_for_each(|problem| writeln!(err, "{problem}"));
    }
    write!(err, "cronkeeper: {error}")?;
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(err, ": {error}")?;
        cause = error.source();
    }
    writeln!(err)?;
    match hint(error) {
        Some(hint) => writeln!(err, "hint: {hint}"),
        None => Ok(()),
    }
}

fn exit(error: &Error) -> Exit {
    match error {
        Error::Jobs(_) => Exit::Config,
        Error::NoSuchJob { .. } | Error::Schedule { .. } | Error::UnknownVariable { .. } => Exit::Usage,
        // `cronkeeper next | head` has what it wanted.
        Error::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Fine,
        Error::Output(_) => Exit::Failed,
    }
}

fn hint(error: &Error) -> Option<String> {
    match error {
        Error::Jobs(LoadError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => Some(
            "say where the jobs are with `--jobs PATH` or CRONKEEPER_JOBS; `check` takes the path itself".to_owned(),
        ),
        Error::NoSuchJob { nearest, .. } | Error::UnknownVariable { nearest, .. } => {
            nearest.as_ref().map(|nearest| format!("did you mean `{nearest}`?"))
        }
        Error::Schedule { expression, .. } if expression.split_whitespace().count() == 1 => {
            Some("put the expression in quotes, so that the shell hands it over as one".to_owned())
        }
        Error::Jobs(_) | Error::Schedule { .. } | Error::Output(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_enough_is_no_error() {
        let mut err = Vec::new();
        let mut io = Io { out: &mut Closed, err: &mut err };
        let line = ["cronkeeper", "next", "--schedule", "@daily"].map(Into::into);
        assert_eq!(super::super::run(line, [], &mut io), Exit::Fine);
        assert_eq!(super::super::run(["cronkeeper", "--help"].map(Into::into), [], &mut io), Exit::Fine);
        assert!(err.is_empty());
    }
}
