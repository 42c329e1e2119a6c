//! Errors in words for people, and the exit code that goes with each: the only place that does either.

mod caret;

use std::error::Error as _;
use std::io::{self, Write};

use super::ask::AskFailure;
use super::{Error, Exit, Io};
use crate::api::client::AskError;
use crate::api::network::SecretError;
use crate::api::socket::SocketError;
use crate::config::LoadError;
use crate::daemon::Stopped;
use crate::election::Failure;
use crate::safe_path;
use crate::solo::{SoloError, StoreError};
use crate::state_dir::StateDirError;

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
    if let Error::Schedule { expression, source } = error
        && let Some(place) = source.offset()
    {
        writeln!(err, "{}", caret::pointed(expression, place))?;
    }
    match hint(error) {
        Some(hint) => writeln!(err, "hint: {hint}"),
        None => Ok(()),
    }
}

fn exit(error: &Error) -> Exit {
    match error {
        Error::Jobs(_)
        | Error::CrontabFile { .. }
        | Error::NoCrontab { .. }
        | Error::CredentialFile { .. }
        | Error::UnsafeFile(_)
        | Error::AuthFile(_)
        | Error::ZooKeeperOptions(_)
        | Error::Secret(_)
        | Error::Release(_)
        | Error::Solo(SoloError::Refused(_))
        | Error::Socket(SocketError::Unsafe(..))
        | Error::Stopped(Stopped::Failed(_)) => Exit::Config,
        Error::Solo(error) if is_refused(error) => Exit::Config,
        Error::StateDir(error) | Error::Solo(SoloError::StateDir(error)) if error.is_configuration() => Exit::Config,
        Error::NoSuchJob { .. }
        | Error::Schedule { .. }
        | Error::TimeZone(_)
        | Error::HashedWithoutName
        | Error::SeveralNames
        | Error::UnknownVariable { .. }
        | Error::NodeName(_) => Exit::Usage,
        Error::Ask(AskFailure::Ask(AskError::NotFound(_))) => Exit::Usage,
        Error::Ask(AskFailure::Ask(error)) if error.is_unreachable() => Exit::Unreachable,
        Error::Ask(AskFailure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Fine,
        // `cronkeeper next | head` has what it wanted.
        Error::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Fine,
        Error::Output(_)
        | Error::Ask(_)
        | Error::Log(_)
        | Error::StateDir(_)
        | Error::Solo(_)
        | Error::Listen { .. }
        | Error::Socket(_)
        | Error::System { .. }
        | Error::StillAlive(_)
        | Error::StillRuns { .. }
        | Error::Stopped(_)
        | Error::Panicked => Exit::Failed,
        Error::NotStarted { is_missing: true, .. } => Exit::Command(127),
        Error::NotStarted { is_missing: false, .. } => Exit::Command(126),
    }
}

/// What to change. Where the text of the error says so itself there is nothing to add.
fn hint(error: &Error) -> Option<String> {
    let said = match error {
        Error::NoSuchJob { nearest, .. } | Error::UnknownVariable { nearest, .. } => {
            return nearest.as_ref().map(|nearest| format!("did you mean `{nearest}`?"));
        }
        Error::Solo(SoloError::Refused(failure))
        | Error::Stopped(Stopped::Failed(failure))
        | Error::Release(failure) => return Some(remedy(failure)),
        Error::Jobs(LoadError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            "say where the jobs are with `--jobs PATH` or CRONKEEPER_JOBS; `check` takes the path itself"
        }
        Error::Jobs(LoadError::Unreadable { .. })
        | Error::CredentialFile { .. }
        | Error::Secret(SecretError::Unreadable(..)) => "the user that cronkeeper runs as must be able to read it",
        Error::Schedule { expression, .. }
            if expression.split_whitespace().count() == 1 && !expression.starts_with('@') =>
        {
            "put the expression in quotes, so that the shell hands it over as one"
        }
        Error::Schedule { expression, source } => source.hint(expression)?,
        Error::HashedWithoutName => "name the job too: `cronkeeper next --schedule 'H * * * *' JOB`",
        Error::NoCrontab { .. } => "a crontab of the system, with a user in each entry, needs `--system`",
        Error::AuthFile(_) => "for the scheme digest it reads `digest:user:password`",
        Error::ZooKeeperOptions(_) => "certificates and keys are read as PEM",
        Error::NodeName(_) => "name it with `--node NAME` or CRONKEEPER_NODE",
        Error::Ask(AskFailure::Ask(AskError::NoDaemon(_))) => {
            "is `cronkeeper run` running here? `--runtime-dir` says where its socket is"
        }
        Error::Ask(AskFailure::Ask(AskError::Silent(_))) => "what it waits for stands in its log",
        Error::StateDir(error) | Error::Solo(SoloError::StateDir(error)) => return of_state_dir(error),
        // It says so itself.
        Error::Solo(error) if is_refused(error) => return None,
        Error::Solo(SoloError::Ledger { .. } | SoloError::Unread { .. } | SoloError::System { .. }) => BELONGS,
        Error::Listen { .. } => "another process may have the port; `--listen` names another",
        Error::NotStarted { is_missing: true, .. } => {
            "a program without a slash is searched in the job's own PATH; a script needs the interpreter it names"
        }
        Error::StillRuns { .. } => "end it with SIGTERM, and it gives all up itself",
        Error::StillAlive(_) | Error::Solo(SoloError::StillAlive(_)) => {
            "it does not die of SIGKILL, or could not be looked at in time, so nothing is given up; see what it waits for in /proc/PID/stack"
        }
        Error::Stopped(Stopped::WardenGone(_)) => {
            "something killed or stopped it: see the log before it, and the kernel's for a lack of memory"
        }
        Error::Stopped(Stopped::BackendGone) | Error::Panicked => "please report it, with the log before it",
        Error::Jobs(LoadError::Invalid { .. })
        | Error::UnsafeFile(_)
        | Error::TimeZone(_)
        | Error::SeveralNames
        | Error::CrontabFile { .. }
        | Error::Output(_)
        | Error::Ask(_)
        | Error::Log(_)
        | Error::Secret(_)
        | Error::Socket(_)
        | Error::System { .. }
        | Error::NotStarted { .. }
        | Error::Stopped(Stopped::Asked) => return None,
    };
    Some(said.to_owned())
}

const BELONGS: &str = "the state directory must belong to the user that cronkeeper runs as, on a disk with room; `--state-dir` names another";

fn of_state_dir(error: &StateDirError) -> Option<String> {
    match error {
        error if error.is_configuration() => None,
        StateDirError::Create { .. } | StateDirError::Read { .. } | StateDirError::Write { .. } => {
            Some(BELONGS.to_owned())
        }
        StateDirError::Damaged { .. } => Some(
            "restore it, or begin with an empty directory once the node's session has ended and none of its jobs runs"
                .to_owned(),
        ),
        StateDirError::Unsafe { .. }
        | StateDirError::InUse { .. }
        | StateDirError::OtherBackend { .. }
        | StateDirError::OtherCluster { .. } => None,
    }
}

/// True where a file of the state directory is open to others.
fn is_refused(error: &SoloError) -> bool {
    match error {
        SoloError::System { source, .. } | SoloError::Ledger { source: StoreError::File(source), .. } => {
            safe_path::refused(source).is_some()
        }
        _ => false,
    }
}

/// What an operator changes so that the node can take part.
fn remedy(failure: &Failure) -> String {
    match failure {
        Failure::NameTaken { .. } => {
            "give every node a name of its own with `--node NAME` or CRONKEEPER_NODE".to_owned()
        }
        Failure::Refused { .. } => {
            "check `--zookeeper-auth-file`, the certificates (where they are the only identity, those of all nodes need the same subject), \
             and the ACL of the path in the connect string"
                .to_owned()
        }
        Failure::NoChroot { chroot, .. } => {
            format!("create `{chroot}` with ZooKeeper's shell, or correct `--zookeeper`")
        }
        Failure::OtherCluster { .. } => {
            "correct `--zookeeper`, or give the node an empty `--state-dir` if it is to change clusters".to_owned()
        }
        Failure::StateDir(_) => BELONGS.to_owned(),
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
    fn a_socket_that_is_closed_to_the_user_is_not_looked_for_elsewhere() {
        let forbidden = Error::Ask(AskFailure::Ask(AskError::Forbidden("api.sock".into())));
        assert_eq!((exit(&forbidden), hint(&forbidden)), (Exit::Unreachable, None));
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
