//! The command line: which commands there are, and how one ends.
//!
//! A command writes its result to `out` and what it has to say to `err`, and returns an [`Error`] that
//! [`explain`] alone puts into words. Knows nothing of what the commands do.

pub mod ask;
pub mod check;
pub mod completions;
pub mod credentials;
pub mod environment;
pub mod exec;
pub mod explain;
mod handover;
mod history;
pub mod node_args;
mod host;
pub mod import;
pub mod jobs;
mod leftovers;
pub mod listen;
pub mod kill;
pub mod man;
pub mod next;
pub mod pause;
pub mod release;
pub mod run;
pub mod status;
mod table;
pub mod trigger;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use self::ask::AskFailure;
use crate::api::network::SecretError;
use crate::api::socket::SocketError;
use crate::config::LoadError;
use crate::crontab::ImportError;
use crate::daemon::Stopped;
use crate::election::Failure;
use crate::job::JobName;
use crate::safe_path::Unsafe;
use crate::schedule::ScheduleError;
use crate::solo::{SoloError, StillAlive};
use crate::state_dir::StateDirError;
use crate::telemetry;

/// Where jobs are looked for unless told otherwise.
pub const DEFAULT_JOBS: &str = "/etc/cronkeeper/jobs.yaml";

/// How the program ends, for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Fine,
    /// Not done.
    Failed,
    /// Not understood: options, arguments, environment variables.
    Usage,
    /// Nobody to ask: no daemon, no ZooKeeper.
    Unreachable,
    /// Not now: a lock not had in time, a run that was skipped.
    TempFail,
    /// The configuration is invalid.
    Config,
    /// As the command that was run: 128 + signal, 127 not found, 126 not executable, 124 timeout.
    Command(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Fine => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Unreachable => 69,
            Exit::TempFail => 75,
            Exit::Config => 78,
            Exit::Command(code) => code,
        })
    }
}

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The jobs cannot be read, or are wrong.
    #[error(transparent)]
    Jobs(#[from] LoadError),
    /// A job was named that is not there.
    #[error("no job is called `{name}`")]
    NoSuchJob {
        /// As typed.
        name: String,
        /// The job that was likely meant.
        nearest: Option<String>,
    },
    /// The expression of `--schedule` is wrong.
    #[error("`{}` is no schedule", crate::telemetry::escape::plain(expression))]
    Schedule {
        /// As typed.
        expression: String,
        /// Why.
        source: ScheduleError,
    },
    /// The expression of `--schedule` has an `H`, and no job is named.
    #[error("the times of `H` are fixed by the job's name")]
    HashedWithoutName,
    /// Several jobs are named beside `--schedule`.
    #[error("one expression is of one job at most")]
    SeveralNames,
    /// A time zone was named that there is not.
    #[error(transparent)]
    TimeZone(ScheduleError),
    /// The crontab cannot be read.
    #[error("cannot read {}", path.display())]
    CrontabFile {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What is to be imported is no crontab.
    #[error("{name} is no crontab")]
    NoCrontab {
        /// As it was named.
        name: String,
        /// Why.
        source: ImportError,
    },
    /// The environment holds a `CRONKEEPER_*` variable that means nothing.
    #[error("the environment variable `{name}` means nothing to cronkeeper")]
    UnknownVariable {
        /// As set.
        name: String,
        /// The variable that was likely meant.
        nearest: Option<String>,
    },
    /// The result could not be written.
    #[error("cannot write the result")]
    Output(#[from] io::Error),
    /// The host's name cannot be a node's.
    #[error("the host name cannot be the node's name: {0}")]
    NodeName(String),
    /// A daemon could not be asked.
    #[error(transparent)]
    Ask(#[from] AskFailure),
    /// No log could be set up.
    #[error(transparent)]
    Log(#[from] telemetry::InitError),
    /// The state directory cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The solo backend cannot be used.
    #[error(transparent)]
    Solo(#[from] SoloError),
    /// A file with a secret or certificate cannot be read.
    #[error("cannot read {}", path.display())]
    CredentialFile {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file with a secret or certificate is open to others.
    #[error(transparent)]
    UnsafeFile(Unsafe),
    /// The file of `--zookeeper-auth-file` is not identities, `scheme:credential`, one a line.
    #[error("{} does not hold `scheme:credential`, one identity a line", .0.display())]
    AuthFile(PathBuf),
    /// A certificate or key is none, in the client's words.
    #[error("the options for ZooKeeper cannot be used: {0}")]
    ZooKeeperOptions(String),
    /// A file for the address of `--listen` cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The address of `--listen` cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The API's socket cannot be made.
    #[error(transparent)]
    Socket(SocketError),
    /// The system refused what the daemon cannot do without.
    #[error("{what}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Processes of an earlier daemon do not die.
    #[error(transparent)]
    StillAlive(StillAlive),
    /// The daemon ended otherwise than asked.
    #[error("the node cannot go on: {0}")]
    Stopped(Stopped),
    /// A job's process could not be started.
    #[error("job `{job}` cannot be started: {what}")]
    NotStarted {
        /// Which job.
        job: JobName,
        /// What it failed on.
        what: String,
        /// Its program does not exist.
        is_missing: bool,
        /// Why.
        source: io::Error,
    },
    /// What is to be given up belongs to a daemon that lives.
    #[error("state directory `{path}` is in use by {holder}: nothing is given up")]
    StillRuns {
        /// The directory.
        path: PathBuf,
        /// Who, as it wrote itself down.
        holder: String,
    },
    /// Nothing can be given up until an operator changes something.
    #[error("nothing is given up: {0}")]
    Release(Failure),
    /// A fault of cronkeeper's own.
    #[error("a fault in cronkeeper: a thread panicked")]
    Panicked,
}

/// Where a command writes.
pub struct Io<'a> {
    /// Results.
    pub out: &'a mut dyn Write,
    /// Everything else.
    pub err: &'a mut dyn Write,
}

/// Cron that survives the loss of a host.
#[derive(Debug, Parser)]
#[command(name = "cronkeeper", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take part in the election, and run the jobs while leading
    Run(Box<run::Args>),
    /// Validate a jobs file or folder
    Check(check::Args),
    /// Show coming occurrences
    Next(next::Args),
    /// Show who leads, the queue, and the jobs with their last and next runs
    Status(status::StatusArgs),
    /// Show runs and skips, newest first
    History(history::HistoryArgs),
    /// Run a job now, on the node that leads
    Trigger(trigger::Args),
    /// Keep a job's occurrences from running until it is resumed
    Pause(pause::PauseArgs),
    /// Let a paused job's occurrences run again, from now on
    Resume(pause::ResumeArgs),
    /// Have the leader give leadership up; to be asked of the node that leads
    Handover(handover::Args),
    /// End a run on whichever node has it
    Kill(kill::KillArgs),
    /// Run a job here and now, without a cluster
    Exec(exec::Args),
    /// Give up what a dead daemon of this host still holds
    Release(Box<release::Args>),
    /// Write a crontab as jobs.yaml
    Import(import::Args),
    /// Write a script that completes commands and options in a shell
    Completions(completions::Args),
    /// Write the manual page
    Man(man::Args),
}

/// The whole program, with the arguments, environment and output of this process.
pub fn main() -> ExitCode {
    // Not locked: a thread that panics must get its last words out.
    let mut out = BufWriter::new(io::stdout());
    let mut err = io::stderr();
    run(std::env::args_os(), std::env::vars_os(), &mut Io { out: &mut out, err: &mut err }).into()
}

/// Does what `arguments` ask for. The first of them is the program's name.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    io: &mut Io<'_>,
) -> Exit {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return explain::usage(&error, io),
    };
    let names = variables.into_iter().map(|(name, _)| name.to_string_lossy().into_owned());
    let done = environment::check(&Cli::command(), names)
        .and_then(|()| dispatch(cli.command, io))
        .and_then(|exit| flushed(exit, io.out));
    match done {
        Ok(exit) => exit,
        Err(error) => explain::error(&error, io.err),
    }
}

fn dispatch(command: Command, io: &mut Io<'_>) -> Result<Exit, Error> {
    match command {
        Command::Run(args) => args.run(),
        Command::Check(args) => args.run(io),
        Command::Next(args) => args.run(io),
        Command::Status(args) => status::run(&args, io.out).map_err(Error::from),
        Command::History(args) => history::run(&args, io.out).map_err(Error::from),
        Command::Trigger(args) => return args.run(io),
        Command::Pause(args) => pause::pause(&args, io.out).map_err(Error::from),
        Command::Resume(args) => pause::resume(&args, io.out).map_err(Error::from),
        Command::Handover(args) => args.run(io.out).map_err(Error::from),
        Command::Kill(args) => kill::run(&args, io.out).map_err(Error::from),
        Command::Exec(args) => return args.run(io),
        Command::Release(args) => args.run(io),
        Command::Import(args) => args.run(io),
        Command::Completions(args) => args.run(io),
        Command::Man(args) => args.run(io),
    }
    .map(|()| Exit::Fine)
}

fn flushed(exit: Exit, out: &mut dyn Write) -> Result<Exit, Error> {
    match (exit, out.flush()) {
        // What became of a job is not changed by who reads its output.
        (Exit::Command(_), _) | (_, Ok(())) => Ok(exit),
        (_, Err(error)) => Err(error.into()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Exit code, stdout and stderr of a command line.
    pub fn typed(line: &[&str], variables: &[(&str, &str)]) -> (Exit, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let arguments = std::iter::once("cronkeeper").chain(line.iter().copied()).map(OsString::from);
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let exit = run(arguments, variables, &mut Io { out: &mut out, err: &mut err });
        (exit, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_ends_with_2_and_help_with_0() {
        let (exit, out, err) = typed(&["chekc"], &[]);
        assert_eq!((exit, out.as_str()), (Exit::Usage, ""));
        assert!(err.contains("check"), "{err}");
        let (exit, out, err) = typed(&["--help"], &[]);
        assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
        assert!(out.contains("Validate a jobs file or folder"), "{out}");
        assert_eq!(typed(&[], &[]).0, Exit::Usage);
        assert_eq!(typed(&["--version"], &[]).1, format!("cronkeeper {}\n", env!("CARGO_PKG_VERSION")));
    }
}
