//! The command line: the list of commands, their errors and exit codes.
//!
//! A command writes its result to `out` and its messages to `err`. On failure it returns an [`Error`]; only [`explain`]
//! turns that into text and an exit code. This module does not know what the commands do.

pub mod ask;
pub mod barrier;
pub mod check;
pub mod completions;
pub mod credentials;
pub mod drain;
mod effects;
pub mod environment;
pub mod exec;
pub mod explain;
mod follow;
mod forget;
pub mod guide;
mod handover;
mod history;
mod host;
pub mod import;
pub mod jobs;
mod json;
pub mod kill;
pub mod latch;
mod leftovers;
pub mod listen;
pub mod lock;
pub mod lock_failure;
pub mod locks;
pub mod logs;
pub mod man;
pub mod next;
pub mod node_args;
mod nodes;
mod notify;
pub mod pause;
mod progress;
pub mod recount;
pub mod release;
pub mod run;
pub mod schema;
pub mod service;
pub mod status;
mod stores;
mod table;
mod token;
pub mod trigger;
mod wait;
mod waiting;

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::ask::AskFailure;
use self::credentials::CredentialError;
use self::lock_failure::LockFailure;
use self::run::start_jobs::NotUsed;
use crate::api::network::SecretError;
use crate::api::socket::SocketError;
use crate::config::LoadError;
use crate::crontab::ImportError;
use crate::option_file::{NotAFolder, OptionFile, OptionName};
use crate::telemetry;
use cronkeeper_cluster::safe_path::Unsafe;
use cronkeeper_cluster::solo::{SoloError, StillAlive};
use cronkeeper_cluster::state_dir::StateDirError;
use cronkeeper_core::election::Failure;
use cronkeeper_core::event_loop::Stopped;
use cronkeeper_core::job::{JobName, MOST_LABELS};
use cronkeeper_core::schedule::ScheduleError;

/// Path of the jobs file without `--jobs`.
pub const DEFAULT_JOBS: &str = "/etc/cronkeeper/jobs.yaml";

/// Exit status of the program, for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Fine,
    Failed,
    /// Wrong options, arguments or environment variables.
    Usage,
    /// No daemon, or no ZooKeeper, can be reached.
    Unreachable,
    /// The triggered run was skipped.
    TempFail,
    /// The node's own configuration is invalid.
    Config,
    /// The job's own code: 128 + signal, 127 not found, 126 not executable, 124 timeout.
    Command(u8),
}

impl Exit {
    /// The exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 69,
            Self::TempFail => 75,
            Self::Config => 78,
            Self::Command(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Jobs(#[from] LoadError),
    /// Neither the jobs file nor the last good jobs can be used.
    #[error("{source}")]
    NoGoodJobs { source: LoadError, why: NotUsed },
    #[error("there is no job `{name}`")]
    NoSuchJob {
        name: String,
        /// The most similar name, if one is similar enough.
        nearest: Option<String>,
    },
    #[error("there is no channel `{name}`")]
    NoSuchChannel {
        name: String,
        /// The most similar name, if one is similar enough.
        nearest: Option<String>,
    },
    #[error("{} has no channels", path.display())]
    NoChannels { path: PathBuf },
    /// Test messages were not delivered.
    #[error("{failed} of {of} test messages were not delivered")]
    NotNotified { failed: usize, of: usize },
    /// The expression of `--schedule` cannot be parsed.
    #[error("`{}` is not a valid schedule", cronkeeper_core::escape::plain(expression))]
    Schedule { expression: String, source: ScheduleError },
    /// The expression of `--schedule` has an `H`, but no job is named.
    #[error("`H` takes its value from the job's name, and no job is named")]
    HashedWithoutName,
    #[error("`--schedule` takes at most one job name")]
    SeveralNames,
    /// A time zone is unknown.
    #[error(transparent)]
    TimeZone(ScheduleError),
    #[error("cannot read {}", path.display())]
    CrontabFile { path: PathBuf, source: io::Error },
    #[error("{name} is not a crontab")]
    NoCrontab {
        /// The path, or `stdin`.
        name: String,
        source: ImportError,
    },
    /// The environment has a `CRONKEEPER_*` variable that is neither an option nor handed to jobs.
    #[error("unknown environment variable `{name}`")]
    UnknownVariable {
        name: String,
        /// The most similar variable, if one is similar enough.
        nearest: Option<String>,
    },
    /// A `CRONKEEPER_*` variable sets an option to nothing.
    #[error("environment variable `{name}` is empty")]
    EmptyVariable { name: String },
    #[error("cannot write the result")]
    Output(#[from] io::Error),
    /// The host's name, the default node name, is not a valid one.
    #[error("the host name cannot be used as the node name: {0}")]
    NodeName(String),
    /// A request to a daemon failed.
    #[error(transparent)]
    Ask(#[from] AskFailure),
    #[error(transparent)]
    Log(#[from] telemetry::InitError),
    /// What an option names can never be a directory.
    #[error(transparent)]
    Folder(#[from] NotAFolder),
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    #[error(transparent)]
    Solo(#[from] SoloError),
    /// A file with a secret or certificate cannot be read.
    #[error("{}: cannot read {}", file.option, file.path.display())]
    CredentialFile { file: OptionFile, source: io::Error },
    /// A file that an option names is open to others.
    #[error("{option}: {found}")]
    UnsafeOption { option: OptionName, found: Unsafe },
    /// A file that no option names is open to others.
    #[error(transparent)]
    UnsafeFile(Unsafe),
    /// The file of `--zookeeper-auth-file` has another format.
    #[error("{}: {} must hold one `scheme:credential` per line", .0.option, .0.path.display())]
    AuthFile(OptionFile),
    /// A certificate or key for ZooKeeper cannot be used.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The ZooKeeper client rejects its options; the text is the client's.
    #[error("the options for ZooKeeper cannot be used: {0}")]
    ZooKeeperOptions(String),
    /// `--cluster` without a service.
    #[error("no service is named")]
    NoService,
    /// `--lead false` without a service.
    #[error("`--lead false` needs a coordination service: without one, only this host can lead")]
    NeverLeadsAlone,
    #[error("{given} labels are given; a node has at most {MOST_LABELS}")]
    TooManyLabels { given: usize },
    /// Each is an option, or a variable.
    #[error("`{one}` and `{other}` name two services; keep one")]
    TwoServices { one: &'static str, other: &'static str },
    /// The text names no value, which may be a password.
    #[error("`{option}` ({variable}) cannot be used: {why}")]
    ServiceSettings { option: &'static str, variable: &'static str, why: String },
    /// A file for the address of `--listen` cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Socket(SocketError),
    /// A page of the manual cannot be written.
    #[error("cannot write {}", path.display())]
    Page { path: PathBuf, source: io::Error },
    /// A system call that the daemon cannot do without failed.
    #[error("{what}")]
    System { what: &'static str, source: io::Error },
    /// Processes of an earlier daemon do not die.
    #[error(transparent)]
    StillAlive(StillAlive),
    /// The daemon ended, though no operator requested it.
    #[error("the node cannot continue: {0}")]
    Stopped(Stopped),
    #[error("job `{job}` cannot be started: {what}")]
    NotStarted {
        job: JobName,
        /// The program, or the step that failed.
        what: String,
        /// The job's program does not exist.
        is_missing: bool,
        source: io::Error,
    },
    /// `release` was called while a daemon runs on the state directory.
    #[error("state directory `{path}` is in use by {holder}: nothing was released")]
    StillRuns {
        path: PathBuf,
        /// Process and node, as the holder recorded them.
        holder: String,
    },
    /// `release` cannot do anything until an operator changes something.
    #[error("nothing was released: {0}")]
    Release(Failure),
    /// A command around locks failed.
    #[error(transparent)]
    Lock(#[from] LockFailure),
    /// A bug in cronkeeper.
    #[error("internal error: a thread panicked")]
    Panicked,
}

/// Output streams of a command.
pub struct Io<'a> {
    /// Results.
    pub out: &'a mut dyn Write,
    /// Everything else.
    pub err: &'a mut dyn Write,
    /// A person reads `err`, at a terminal.
    pub is_watched: bool,
}

/// Cron that survives the loss of a host.
#[derive(Debug, Parser)]
#[command(name = "cronkeeper", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

// The help shows these comments, and not those of the commands' own `Args`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon: take part in the election and, as leader, run the jobs
    Run(Box<run::Args>),
    /// Validate a jobs file or directory
    Check(Box<check::Args>),
    /// Show upcoming occurrences
    Next(next::Args),
    /// Show the leader, the queue, and the jobs with their last and next runs
    ///
    /// QUEUE: the nodes in the order in which they will lead; each waits for the one above it. CANDIDATE: the end of
    /// the name of a node's entry under /leader in the service. MEMBER: the nodes that are alive; JOBS is the digest of
    /// a node's jobs, equal on nodes with the same jobs. RUNNING: the runs in flight; ATTEMPT counts how often the
    /// program of a run was started. A run that is CUT OFF was in flight on a node that is gone, and may still be
    /// running there. It stays so until the time shown, or until that node's daemon is back, `cronkeeper release` has
    /// run on its host, or `cronkeeper kill --force` has ended it. JOB: LAST, ON and ENDED describe the job's newest
    /// run, and `!` marks a job that needs attention. LEDGER: this node cannot read the ledger, the cluster's record of
    /// runs and occurrences in the service. Times are UTC.
    Status(status::StatusArgs),
    /// Show the nodes, with their labels and what the leader has placed on them
    ///
    /// RUNS: the runs that have a process on the node. PLACED: the runs that it has not accepted yet. Jobs with
    /// `run_on: any` are spread over the nodes that have the labels they ask for, in proportion to WEIGHT.
    Nodes(nodes::NodesArgs),
    /// Show runs and skips, newest first
    History(history::HistoryArgs),
    /// Show the output of a run, whichever node it is on
    Logs(logs::Args),
    /// Run a job now, where its `run_on` says
    ///
    /// While the asked node cannot reach the service, or answers too late, the command repeats its request for up to 20
    /// seconds, then fails; it reports the first failure on stderr. However often it is sent, it counts as one request.
    /// After a failure, `cronkeeper history` shows whether the job has run after all.
    Trigger(trigger::Args),
    /// Skip the occurrences of jobs until they are resumed, or for some time
    Pause(pause::PauseArgs),
    /// Resume paused jobs; the occurrences that they skipped are not made up for
    Resume(pause::ResumeArgs),
    /// Make a job count from now on again, after a clock that was ahead has silenced it
    ///
    /// If occurrences of a job were decided while the clock was ahead, the job is not due again before that time,
    /// because what is due earlier may already have run; `cronkeeper status` says so. Once the clock is correct, this
    /// command makes the job count from now on. Occurrences that ran or were skipped while the clock was ahead are in
    /// the history, and do not run again when their time comes. If the history does not show all of them, the command
    /// changes nothing.
    Recount(recount::Args),
    /// Make the leader resign, whichever node is asked
    Handover(handover::Args),
    /// Keep a node from leading and from new runs; its runs in flight finish
    Drain(drain::DrainArgs),
    /// Let a drained node lead again
    Undrain(drain::UndrainArgs),
    /// Send a test message to the channels of the jobs file
    ///
    /// Sends a test message to each channel, from this host and with this host's files, and prints what the service
    /// answers. No daemon is needed.
    Notify(notify::Args),
    /// Forget a node that is gone for good: jobs on every node stop waiting for it
    Forget(forget::Args),
    /// End a run, on whichever node it is
    Kill(kill::KillArgs),
    /// Run a job here and now, without a cluster
    ///
    /// The job gets its own environment and limits. Its hooks are not run. The exit code is that of the job.
    Exec(exec::Args),
    /// Run a command while holding a lock
    ///
    /// The lock is fair, and shared with clients of Curator and kazoo. The command finds the lock's path in
    /// CRONKEEPER_LOCK_PATH, and in CRONKEEPER_FENCING_TOKEN a number that grows with every holder. When the command
    /// ends, all processes that it has left behind are killed. The exit code is that of the command.
    Lock(Box<lock::Args>),
    /// Show who holds which lock and who waits
    Locks(Box<locks::Args>),
    /// Wait until a number of counts have arrived
    Latch(Box<latch::Args>),
    /// Wait until a number of processes have arrived
    Barrier(Box<barrier::Args>),
    /// Release what a dead daemon on this host still holds
    ///
    /// First kills what is left of its runs, then frees what it holds in the cluster, so that no other node waits for
    /// its session to time out. Meant for ExecStopPost: takes at most three seconds. It needs the same --zookeeper,
    /// --node and --state-dir as the daemon, and its credentials; a shell does not have the environment of the systemd
    /// service.
    ///
    /// It also ends a run that `cronkeeper status` shows as CUT OFF although its host is up and only the daemon there
    /// is dead: the run ends as interrupted, as it does when the daemon is started again.
    Release(Box<release::Args>),
    /// Convert a crontab to jobs.yaml, on stdout
    ///
    /// Reports each line that it cannot convert on stderr, and keeps it as a comment in the result.
    Import(import::Args),
    /// Print the JSON Schema of jobs.yaml, for editors
    ///
    /// An editor with yaml-language-server takes it from a comment in the first line of the file:
    /// `# yaml-language-server: $schema=PATH`.
    Schema(schema::Args),
    /// Make a token for the API, with its line for --api-token-file
    ///
    /// The line has only the token's digest: the token itself is printed once, and is nowhere else.
    Token(token::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print the manual, or write its pages into a directory
    Man(man::Args),
}

/// Runs the program with the arguments, environment and output of this process.
pub fn main() -> ExitCode {
    if let Some(exit) = completions::answered() {
        return exit.into();
    }
    // stderr is not locked: a thread that panics must be able to print its message.
    let mut out = BufWriter::new(io::stdout());
    let mut err = io::stderr();
    let is_watched = err.is_terminal();
    run(std::env::args_os(), std::env::vars_os(), &mut Io { out: &mut out, err: &mut err, is_watched }).into()
}

/// Runs the command in `arguments`. The first argument is the program's name.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    io: &mut Io<'_>,
) -> Exit {
    let found = guide::command().try_get_matches_from(arguments);
    let one_named = found.as_ref().map_or(Ok(()), stores::check_one_named);
    let parsed = found.and_then(|found| Cli::from_arg_matches(&found));
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let variables = variables.into_iter().map(|(name, value)| (text(name), text(value)));
    let checked = environment::check(&Cli::command(), variables);
    let cli = match (parsed, &checked) {
        (Ok(cli), _) => cli,
        // clap would name the option, which nobody has typed.
        (Err(error), Err(empty @ Error::EmptyVariable { .. })) if error.use_stderr() => {
            return explain::error(empty, io);
        }
        (Err(mut error), _) => {
            // A suggestion for an option that the command does not have: no job has such a name, and only a command to
            // run may have one.
            if error.kind() == ErrorKind::UnknownArgument && !takes_command(&error) {
                error.remove(ContextKind::Suggested);
            }
            if may_have_password(&error) {
                error.insert(ContextKind::InvalidValue, ContextValue::String("…".to_owned()));
            }
            return explain::usage(&error, io);
        }
    };
    let done = checked.and(one_named).and_then(|()| dispatch(cli.command, io)).and_then(|exit| flushed(exit, io.out));
    match done {
        Ok(exit) => exit,
        Err(error) => explain::error(&error, io),
    }
}

/// True if the message would quote the address of a service that may contain a password.
fn may_have_password(error: &clap::Error) -> bool {
    let of = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    of(ContextKind::InvalidArg).starts_with("--zookeeper ") && of(ContextKind::InvalidValue).contains('@')
}

/// True if the usage of the command has a command to run, with options of its own.
fn takes_command(error: &clap::Error) -> bool {
    error.get(ContextKind::Usage).is_some_and(|usage| usage.to_string().contains("COMMAND"))
}

fn dispatch(command: Command, io: &mut Io<'_>) -> Result<Exit, Error> {
    match command {
        Command::Run(args) => args.run(),
        Command::Check(args) => return args.run(io),
        Command::Next(args) => args.run(io),
        Command::Status(args) => return status::run(&args, io.out).map_err(Error::from),
        Command::Nodes(args) => args.run(io),
        Command::History(args) => return args.run(io).map_err(Error::from),
        Command::Logs(args) => return args.run(io),
        Command::Trigger(args) => return args.run(io),
        Command::Pause(args) => pause::pause(&args, io).map_err(Error::from),
        Command::Resume(args) => pause::resume(&args, io).map_err(Error::from),
        Command::Recount(args) => args.run(io).map_err(Error::from),
        Command::Handover(args) => args.run(io).map_err(Error::from),
        Command::Drain(args) => drain::drain(&args, io).map_err(Error::from),
        Command::Undrain(args) => drain::undrain(&args, io).map_err(Error::from),
        Command::Notify(args) => args.run(io),
        Command::Forget(args) => args.run(io).map_err(Error::from),
        Command::Kill(args) => kill::run(&args, io).map_err(Error::from),
        Command::Exec(args) => return args.run(io),
        Command::Lock(args) => return args.run(io),
        Command::Locks(args) => args.run(io),
        Command::Latch(args) => return args.run(io),
        Command::Barrier(args) => return args.run(),
        Command::Release(args) => args.run(io),
        Command::Import(args) => args.run(io),
        Command::Schema(args) => args.run(io),
        Command::Token(args) => args.run(io),
        Command::Completions(args) => args.run(io),
        Command::Man(args) => args.run(io),
    }
    .map(|()| Exit::Fine)
}

fn flushed(exit: Exit, out: &mut dyn Write) -> Result<Exit, Error> {
    match (exit, out.flush()) {
        // The exit code of a job does not depend on whether somebody reads its output.
        (Exit::Command(_), _) | (_, Ok(())) => Ok(exit),
        (_, Err(error)) => Err(error.into()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Runs a command line; returns exit code, stdout and stderr.
    pub fn typed(line: &[&str], variables: &[(&str, &str)]) -> (Exit, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let arguments = std::iter::once("cronkeeper").chain(line.iter().copied()).map(OsString::from);
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let exit = run(arguments, variables, &mut Io { out: &mut out, err: &mut err, is_watched: false });
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
        assert!(out.contains("Validate a jobs file or directory"), "{out}");
        assert_eq!(typed(&[], &[]).0, Exit::Usage);
        assert_eq!(typed(&["--version"], &[]).1, format!("cronkeeper {}\n", env!("CARGO_PKG_VERSION")));
    }
}
