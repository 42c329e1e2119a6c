//! `cronkeeper exec`: runs a job once, here and now, as the daemon would start it.
//!
//! The warden starts the job, so that no process of it is left behind even if this process is killed. One thread
//! supervises the run, and the caller's thread prints the output. A reader that stops reading therefore delays neither
//! the timeout nor a signal; the output that waits for it is bounded by the job's `max_output`. On a terminal the
//! output is escaped, because the job may belong to another user.
//!
//! Deliberately absent: the cluster, the ledger, retries and overlap. Hooks are absent too, because they follow records
//! in the ledger, and the caller sees how the run ended anyway.

mod supervise;

use std::borrow::Cow;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use tokio::sync::watch;

use self::supervise::{OutputPiece, StartedOrFailed, supervise};
use super::jobs::{JobsFile, find};
use super::{Error, Exit, Io, host};
use crate::accounts::{Account, Accounts};
use crate::daemon::launch::Launcher;
use crate::warden::cgroup::hierarchy::Cgroups;
use crate::warden::handle::Warden;
use cronkeeper_core::clock::system;
use cronkeeper_core::clock::{Now, Uptime};
use cronkeeper_core::duration;
use cronkeeper_core::engine::Start;
use cronkeeper_core::escape;
use cronkeeper_core::job::{Job, JobSet};
use cronkeeper_core::process::{self, Deadline, StartFailure, StartStep, Stream, TreeId};
use cronkeeper_core::run::{Nonce, OnLoss, Owner, Parameters, Past, RunRecord, RunState, Version};
use cronkeeper_core::start_problem::StartProblem;
use cronkeeper_core::term::{FencingToken, NodeName, SessionId};

/// Exit code when the job exceeded its `timeout`, as with timeout(1).
pub(super) const TIMED_OUT: u8 = 124;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job; may be disabled
    #[arg(value_name = "JOB")]
    name: String,
    #[command(flatten)]
    jobs: JobsFile,
}

impl Args {
    /// Runs the job to its end.
    ///
    /// # Errors
    /// When there is no such job, or it cannot be started.
    pub fn run(self, io: &mut Io<'_>) -> Result<Exit, Error> {
        let loaded = self.jobs.load()?;
        let job = find(&loaded.set, &self.name)?;
        if !job.lock.is_empty() {
            let name = &job.name;
            writeln!(io.err, "cronkeeper: `exec` does not take the locks of job `{name}`; `cronkeeper lock` does")?;
        }
        let launcher = launcher(&loaded.set);
        let start = attempt(job, system::now());
        let launch = launcher.launch(&start).map_err(|unknown| Error::NotStarted {
            job: job.name.clone(),
            what: "its user or group is missing".to_owned(),
            is_missing: false,
            source: io::Error::other(unknown),
        })?;
        let warden =
            Warden::spawn().map_err(|source| Error::System { what: "the warden cannot be started", source })?;
        let (output, received) = channel();
        let (ended, printed) = std::thread::scope(|scope| {
            let supervisor = scope.spawn(|| supervise(warden, launch, job, output));
            let printed = Terminals::detect().print(&received, io);
            (supervisor.join().map_err(|_| Error::Panicked), printed)
        });
        if let Some(cgroups) = launcher.cgroups {
            cgroups.remove();
        }
        if let Err(error) = printed {
            writeln!(io.err, "cronkeeper: cannot print the output of job `{}`: {error}", job.name)?;
        }
        conclude(job, ended??, io)
    }
}

/// A launcher as this process's user, with a cgroup per run if cgroups can be created.
///
/// Without controllers: enabling them would move this process into another cgroup.
fn launcher(set: &JobSet) -> Launcher {
    let (_, accounts) = watch::channel(Accounts::of(set));
    let cgroups = Cgroups::make(false);
    Launcher { accounts, cgroups, ..Launcher::plain(NodeName::new(host::plain_name()), Account::own()) }
}

/// The attempt that a leader would begin at this second, but without a term.
fn attempt(job: &Arc<Job>, now: Now) -> Start {
    let scheduled_at = now.wall - jiff::SignedDuration::new(0, now.wall.subsec_nanosecond());
    let run = RunRecord {
        v: 1,
        job: job.name.clone(),
        scheduled_at,
        trigger: None,
        on: None,
        share_among: None,
        parameters: Parameters::default(),
        state: RunState::Running,
        owner: Owner { node: NodeName::new(host::plain_name()), session: SessionId("none".to_owned()) },
        token: FencingToken(0),
        attempt: 1,
        nonce: Nonce(String::new()),
        begun_at: now.wall,
        on_loss: OnLoss::of(job),
        keep_until: None,
        ready_at: None,
        no_node_since: None,
        retry_at: None,
        past: Past::default(),
        dependents: Vec::new(),
        notify: std::collections::BTreeSet::new(),
        placement: None,
        kill: None,
    };
    Start {
        tree_id: TreeId(1),
        run,
        version: Version::FIRST,
        job: Arc::clone(job),
        lock: None,
        not_before: None,
        not_after: Uptime::NEVER,
        deadline: Deadline::None,
    }
}

/// Which of this process's streams are terminals.
#[derive(Clone, Copy, Debug)]
struct Terminals {
    out: bool,
    err: bool,
}

impl Terminals {
    fn detect() -> Self {
        Self { out: io::stdout().is_terminal(), err: io::stderr().is_terminal() }
    }

    /// Prints the output until the run ends. A closed pipe is not an error: the job continues without a reader.
    fn print(self, received: &Receiver<OutputPiece>, io: &mut Io<'_>) -> io::Result<()> {
        let mut printed = Ok(());
        while let Ok((stream, lines, continues)) = received.recv() {
            let (to, is_terminal) = match stream {
                Stream::Stdout => (&mut io.out, self.out),
                Stream::Stderr => (&mut io.err, self.err),
            };
            let shown: Vec<_> = match is_terminal {
                true => lines.iter().map(|line| escape::on_a_terminal(line)).collect(),
                false => lines.iter().map(|line| Cow::Borrowed(&**line)).collect(),
            };
            let text = shown.join("\n");
            let end = if continues { "" } else { "\n" };
            let written = write!(to, "{text}{end}").and_then(|()| to.flush());
            printed = printed.and(written.or_else(|error| if is_closed(&error) { Ok(()) } else { Err(error) }));
        }
        printed
    }
}

fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Determines the exit code, and prints what the code does not show.
fn conclude(job: &Job, ended: StartedOrFailed, io: &mut Io<'_>) -> Result<Exit, Error> {
    let supervise::SupervisedEnd { ending, timed_out } = match ended {
        Ok(ended) => ended,
        Err(why) => return Err(not_started(job, why)),
    };
    let name = &job.name;
    if ending.dropped_bytes > 0 {
        let (bytes, limit) = (ending.dropped_bytes, job.max_output);
        writeln!(
            io.err,
            "cronkeeper: job `{name}`: {bytes} bytes of output beyond `max_output` ({limit} bytes) were dropped"
        )?;
    }
    if ending.leftovers > 0 {
        let count = ending.leftovers;
        writeln!(io.err, "cronkeeper: job `{name}`: {count} of its processes outlived the command and were killed")?;
    }
    if let Some(timeout) = job.timeout.filter(|_| timed_out) {
        let timeout = duration::format(timeout);
        writeln!(io.err, "cronkeeper: job `{name}` exceeded its `timeout` of {timeout} and was stopped")?;
        return Ok(Exit::Command(TIMED_OUT));
    }
    let code = match ending.exit {
        process::Exit::Code(code) => code,
        process::Exit::Signal { signal, .. } => 128 + signal,
    };
    Ok(Exit::Command(u8::try_from(code).unwrap_or(u8::MAX)))
}

fn not_started(job: &Job, why: StartFailure) -> Error {
    let (step, errno) = match why {
        StartFailure::Step { step, errno } => (step, errno),
        // Cannot happen: the start has no deadline.
        StartFailure::TooLate => (StartStep::Prepare, nix::libc::ETIMEDOUT),
    };
    let what = match step {
        StartStep::Exec => job.command.argv().into_iter().next().unwrap_or_default(),
        StartStep::Directory => "its working directory".to_owned(),
        StartStep::User => "its user".to_owned(),
        StartStep::Limits => "its limits".to_owned(),
        StartStep::Fork | StartStep::Prepare => "a process for it".to_owned(),
        StartStep::Environment(_) | StartStep::Secret(_) | StartStep::Interpreter(_) => {
            let problem = StartProblem::of(Some(job), &job.command, step, errno);
            let what = problem.subject().unwrap_or_default();
            let source = io::Error::other(problem.error);
            let is_missing = matches!(step, StartStep::Interpreter(_));
            return Error::NotStarted { job: job.name.clone(), what, is_missing, source };
        }
    };
    let source = io::Error::from_raw_os_error(errno);
    let is_missing = step == StartStep::Exec && source.kind() == io::ErrorKind::NotFound;
    Error::NotStarted { job: job.name.clone(), what, is_missing, source }
}
