//! Error messages, hints and exit codes of the command line.
//!
//! This is the only module that turns an [`Error`] into text and an exit code.

mod caret;
pub(super) mod problems;

use std::io::{self, Write};

use super::ask::AskFailure;
use super::{Error, Exit, Io};
use crate::api::client::AskError;
use crate::api::network::SecretError;
use crate::api::socket::SocketError;
use crate::config::LoadError;
use crate::crontab::ImportError;
use crate::telemetry;
use cronkeeper_cluster::safe_path;
use cronkeeper_cluster::solo::{SoloError, StoreError};
use cronkeeper_cluster::state_dir::StateDirError;
use cronkeeper_core::election::Failure;
use cronkeeper_core::escape;
use cronkeeper_core::event_loop::Stopped;
use cronkeeper_core::schedule::{Fault, ScheduleError};

/// Prints an error with its causes and a hint, and returns the exit code.
///
/// A failed write to stderr is ignored: there is no other place for the message.
pub fn error(error: &Error, io: &mut Io<'_>) -> Exit {
    let exit = exit(error);
    if exit != Exit::Fine {
        let mut text = Vec::new();
        let _ = print(error, &mut Io { out: io.out, err: &mut text, is_watched: io.is_watched });
        let _ = write_error(&String::from_utf8_lossy(&text), io);
    }
    exit
}

/// Prints clap's text: a usage error, or the requested help.
pub(super) fn usage(error: &clap::Error, io: &mut Io<'_>) -> Exit {
    let text = error.render();
    let is_help = !error.use_stderr();
    let written = match is_help {
        true => write!(io.out, "{text}").and_then(|()| io.out.flush()),
        false => write_error(&text.to_string(), io),
    };
    match written {
        Ok(()) if is_help => Exit::Fine,
        Err(error) if is_help => self::error(&Error::Output(error), io),
        _ => Exit::Usage,
    }
}

fn write_error(text: &str, io: &mut Io<'_>) -> io::Result<()> {
    io.err.write_all(telemetry::error_on(io::stderr(), text).as_bytes())?;
    io.err.flush()
}

fn print(error: &Error, io: &mut Io<'_>) -> io::Result<()> {
    match error {
        Error::Jobs(error) => print_jobs(error, io),
        Error::NoGoodJobs { source, why } => {
            print_jobs(source, io)?;
            write!(io.err, "cronkeeper: the last good jobs are not used: ")?;
            print_chain(why, io.err)
        }
        error => print_other(error, io.err),
    }
}

fn print_jobs(error: &LoadError, io: &mut Io<'_>) -> io::Result<()> {
    match error {
        LoadError::Invalid { problems: errors, warnings } => problems::print(errors, warnings, io),
        LoadError::Unreadable { source, .. } => {
            write!(io.err, "cronkeeper: ")?;
            print_chain(error, io.err)?;
            writeln!(io.err, "hint: {}", of_unreadable_jobs(source))
        }
    }
}

/// An error with its causes, as one line.
fn print_chain(error: &dyn std::error::Error, err: &mut dyn Write) -> io::Result<()> {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    writeln!(err, "{}", escape::plain(&text))
}

fn print_other(error: &Error, err: &mut dyn Write) -> io::Result<()> {
    write!(err, "cronkeeper: ")?;
    print_chain(error, err)?;
    if let Error::Schedule { expression, source } = error
        && let Some(fault) = source.position()
    {
        writeln!(err, "{}", caret::marked(expression, fault))?;
    }
    match hint(error) {
        Some(hint) => writeln!(err, "hint: {hint}"),
        None => Ok(()),
    }
}

fn exit(error: &Error) -> Exit {
    match error {
        Error::Jobs(_)
        | Error::NoGoodJobs { .. }
        | Error::CrontabFile { .. }
        | Error::NoCrontab { .. }
        | Error::CredentialFile { .. }
        | Error::UnsafeOption { .. }
        | Error::UnsafeFile(_)
        | Error::AuthFile(_)
        | Error::Credential(_)
        | Error::ZooKeeperOptions(_)
        | Error::Secret(_)
        | Error::Release(_)
        | Error::Folder(_)
        | Error::Solo(SoloError::Refused(_))
        | Error::Socket(SocketError::Unsafe(..) | SocketError::NoSocket(_))
        | Error::Stopped(Stopped::Failed(_)) => Exit::Config,
        Error::Socket(SocketError::Failed(_, error)) if is_settled(error) => Exit::Config,
        Error::Solo(error) if is_refused(error) => Exit::Config,
        Error::StateDir(error) | Error::Solo(SoloError::StateDir(error)) if error.is_configuration() => Exit::Config,
        Error::NoSuchJob { .. }
        | Error::NoSuchChannel { .. }
        | Error::NoChannels { .. }
        | Error::Schedule { .. }
        | Error::ServiceSettings { .. }
        | Error::TwoServices { .. }
        | Error::NoService
        | Error::NeverLeadsAlone
        | Error::TooManyLabels { .. }
        | Error::TimeZone(_)
        | Error::HashedWithoutName
        | Error::SeveralNames
        | Error::UnknownVariable { .. }
        | Error::EmptyVariable { .. }
        | Error::NodeName(_) => Exit::Usage,
        Error::Ask(AskFailure::Ask(AskError::Secret(_) | AskError::Folder(_))) => Exit::Config,
        Error::Ask(AskFailure::Ask(AskError::NotFound(_) | AskError::NoAuthority(_) | AskError::TokenInClear(_))) => {
            Exit::Usage
        }
        Error::Ask(AskFailure::Ask(error)) if error.is_unreachable() => Exit::Unreachable,
        Error::Ask(AskFailure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Fine,
        // In `cronkeeper next | head`, `head` closes the pipe once it has read enough.
        Error::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Fine,
        Error::Output(_)
        | Error::Ask(_)
        | Error::Log(_)
        | Error::StateDir(_)
        | Error::Solo(_)
        | Error::Listen { .. }
        | Error::Page { .. }
        | Error::Socket(_)
        | Error::System { .. }
        | Error::StillAlive(_)
        | Error::StillRuns { .. }
        | Error::NotNotified { .. }
        | Error::Stopped(_)
        | Error::Panicked => Exit::Failed,
        Error::Lock(failure) => failure.exit(),
        Error::NotStarted { is_missing: true, .. } => Exit::Command(127),
        Error::NotStarted { is_missing: false, .. } => Exit::Command(126),
    }
}

/// The remedy, unless the text of the error already names it.
fn hint(error: &Error) -> Option<String> {
    let text = match error {
        Error::NoSuchJob { nearest, .. }
        | Error::NoSuchChannel { nearest, .. }
        | Error::UnknownVariable { nearest, .. } => {
            return nearest.as_ref().map(|nearest| format!("did you mean `{nearest}`?"));
        }
        Error::NoChannels { .. } => "write them under `notify` at the top of the file",
        Error::EmptyVariable { .. } => {
            "give it a value, or remove it; systemd reads it from the environment file, by default \
             /etc/cronkeeper/cronkeeper.env"
        }
        Error::Solo(SoloError::Refused(failure))
        | Error::Stopped(Stopped::Failed(failure))
        | Error::Release(failure) => return remedy(failure),
        Error::CredentialFile { .. } | Error::Secret(SecretError::Unreadable(..)) => UNREADABLE,
        Error::Schedule { source: ScheduleError::Expression { fault: Fault::Unmarked { .. }, .. }, .. } => return None,
        Error::Schedule { expression, .. }
            if expression.split_whitespace().count() == 1 && !expression.starts_with('@') =>
        {
            "put the expression in quotes, so that the shell passes it as one argument"
        }
        Error::Schedule { expression, source } => source.hint(expression)?,
        Error::HashedWithoutName => "name the job too: `cronkeeper next --schedule 'H * * * *' JOB`",
        Error::CrontabFile { source, .. } if source.kind() == io::ErrorKind::IsADirectory => {
            "import its files one by one; `--jobs` takes a directory of jobs files"
        }
        Error::NoCrontab { source: ImportError::NoLine { looks_like, .. }, .. } => (*looks_like)?.hint(),
        Error::AuthFile(_) => "for the scheme `digest` a line is `digest:user:password`",
        Error::ZooKeeperOptions(_) => "check the options that begin with `--zookeeper`, and their files",
        Error::NoService => {
            "set CRONKEEPER_ZOOKEEPER, CRONKEEPER_POSTGRES, CRONKEEPER_ETCD or CRONKEEPER_REDIS in the environment file, by default \
             /etc/cronkeeper/cronkeeper.env"
        }
        Error::NeverLeadsAlone => "name the service, or remove `--lead` (CRONKEEPER_LEAD)",
        Error::TooManyLabels { .. } => "give a node only labels that jobs ask for in `run_where`",
        Error::NodeName(_) => "name it with `--node NAME` or CRONKEEPER_NODE",
        Error::Ask(AskFailure::Ask(AskError::NoDaemon(_))) => {
            "is `cronkeeper run` running here? `--runtime-dir` names the directory of its socket"
        }
        Error::Ask(AskFailure::Ask(AskError::Unreachable { .. })) => {
            "is `cronkeeper run` running there, with `--listen`? a firewall may be in between"
        }
        Error::Ask(AskFailure::Ask(AskError::Silent(_))) => {
            "it may hang or be stopped: see `systemctl status cronkeeper` and the daemon's log"
        }
        Error::StateDir(error) | Error::Solo(SoloError::StateDir(error)) => return of_state_dir(error),
        // The text of the error names the remedy.
        Error::Solo(error) if is_refused(error) => return None,
        Error::Solo(SoloError::Ledger { .. } | SoloError::Unread { .. } | SoloError::System { .. }) => STATE_DIR_OWNER,
        Error::Socket(SocketError::Failed(_, error)) if is_settled(error) => {
            "`--runtime-dir` (CRONKEEPER_RUNTIME_DIR) must name a directory that exists and belongs to the user that \
             cronkeeper runs as, by a path of less than 90 bytes"
        }
        Error::Listen { .. } => "another process may use the port; choose another with `--listen`",
        Error::Page { .. } => "the directory must exist, and this user must be able to write to it",
        Error::NotStarted { is_missing: true, source, .. } if source.raw_os_error().is_some() => {
            "a program without a slash is searched for in the job's own PATH; \
             a script needs the interpreter that it names"
        }
        Error::StillRuns { .. } => "stop it with SIGTERM; it then releases everything itself",
        Error::StillAlive(_) | Error::Solo(SoloError::StillAlive(_)) => {
            "it survived SIGKILL, or could not be checked in time, so nothing was released; \
             /proc/PID/stack shows what it waits for"
        }
        Error::Stopped(Stopped::WardenGone(_)) => {
            "something killed or stopped it: see the log before this line, and the kernel log for a lack of memory"
        }
        Error::Lock(failure) => failure.hint()?,
        Error::Stopped(Stopped::BackendGone) | Error::Panicked => "please report this, with the log before this line",
        // Printed with their hints by `print_jobs`.
        Error::Jobs(_)
        | Error::NoCrontab { .. }
        | Error::NoGoodJobs { .. }
        | Error::UnsafeOption { .. }
        | Error::UnsafeFile(_)
        | Error::Credential(_)
        | Error::TimeZone(_)
        | Error::SeveralNames
        | Error::CrontabFile { .. }
        | Error::Output(_)
        | Error::Ask(_)
        | Error::Log(_)
        | Error::Folder(_)
        | Error::Secret(_)
        | Error::Socket(_)
        | Error::System { .. }
        | Error::ServiceSettings { .. }
        | Error::TwoServices { .. }
        | Error::NotStarted { .. }
        | Error::NotNotified { .. }
        | Error::Stopped(Stopped::Asked) => return None,
    };
    Some(text.to_owned())
}

const UNREADABLE: &str = "the user that cronkeeper runs as must be able to read it";

fn of_unreadable_jobs(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            "name the jobs file with `--jobs PATH` or CRONKEEPER_JOBS; `check` takes it as an argument"
        }
        _ => UNREADABLE,
    }
}

const STATE_DIR_OWNER: &str = "the state directory must belong to the user that cronkeeper runs as, \
    on a disk with free space; choose another with `--state-dir`";

/// True for a failure that lasts until an operator changes the path, or what is there.
fn is_settled(error: &io::Error) -> bool {
    safe_path::is_settled(error) || matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
}

fn of_state_dir(error: &StateDirError) -> Option<String> {
    match error {
        StateDirError::Create { source, .. } if safe_path::is_settled(source) => Some(STATE_DIR_OWNER.to_owned()),
        error if error.is_configuration() => None,
        StateDirError::Create { .. } | StateDirError::Read { .. } | StateDirError::Write { .. } => {
            Some(STATE_DIR_OWNER.to_owned())
        }
        StateDirError::Damaged { .. } => Some(
            "restore it, or start with an empty directory once the node's session has ended and none of its jobs is \
             running"
                .to_owned(),
        ),
        StateDirError::Unsafe { .. }
        | StateDirError::InUse { .. }
        | StateDirError::OtherBackend { .. }
        | StateDirError::OtherCluster { .. }
        | StateDirError::OtherNode { .. } => None,
    }
}

/// True if the cause is a file of the state directory that others can access.
fn is_refused(error: &SoloError) -> bool {
    match error {
        SoloError::System { source, .. } | SoloError::Ledger { source: StoreError::File(source), .. } => {
            safe_path::refused(source).is_some()
        }
        _ => false,
    }
}

/// What an operator must change so that the node can take part.
fn remedy(failure: &Failure) -> Option<String> {
    Some(match failure {
        // The failure says it.
        Failure::Unusable { .. } => return None,
        Failure::NameTaken { .. } => "give each node its own name with `--node NAME` or CRONKEEPER_NODE".to_owned(),
        Failure::Refused { .. } => {
            "check `--zookeeper-auth-file`, the certificates (where they are the only identity, those of all nodes \
             need the same subject), and the ACL of the path in the connect string"
                .to_owned()
        }
        Failure::NoRoot { root, .. } => {
            format!("create `{root}` with ZooKeeper's shell, or correct `--zookeeper`")
        }
        Failure::RootInCluster { cluster, .. } => {
            let beside = cluster.trim_end_matches('/');
            let join = match beside {
                "" => "leave the path out to join that cluster".to_owned(),
                path => format!("use `{path}` to join that cluster"),
            };
            format!("give this cluster another path, for example `{beside}/cron`, or {join}")
        }
        Failure::OtherCluster { .. } => {
            "correct the address of the coordination service, or restore its records from a backup, or give the node an \
             empty `--state-dir` to move it to another cluster"
                .to_owned()
        }
        Failure::StateDir(_) => STATE_DIR_OWNER.to_owned(),
    })
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
    fn a_forbidden_socket_is_unreachable_without_a_hint() {
        let forbidden = Error::Ask(AskFailure::Ask(AskError::Forbidden("api.sock".into())));
        assert_eq!((exit(&forbidden), hint(&forbidden)), (Exit::Unreachable, None));
    }

    #[test]
    fn a_closed_pipe_is_not_an_error() {
        let mut err = Vec::new();
        let mut io = Io { out: &mut Closed, err: &mut err, is_watched: false };
        let line = ["cronkeeper", "next", "--schedule", "@daily"].map(Into::into);
        assert_eq!(super::super::run(line, [], &mut io), Exit::Fine);
        assert_eq!(super::super::run(["cronkeeper", "--help"].map(Into::into), [], &mut io), Exit::Fine);
        assert!(err.is_empty());
    }
}
