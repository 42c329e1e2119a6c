//! `cronkeeper exec`: one run of a job, here and now, as the daemon would start it.
//!
//! The warden starts it, so that nothing of it is left behind, whatever becomes of this process. A thread supervises; the
//! caller's hands the output on. So a reader who takes nothing holds up neither the timeout nor a signal; what waits for
//! him is bounded by the job's `max_output`. A terminal gets it escaped: the job may be another user's. Deliberately absent: the cluster, the ledger, retries, overlap, and
//! hooks, which follow what the ledger has: whoever tries a job out sees how it ends.

mod supervise;

use std::borrow::Cow;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use jiff::Timestamp;
use tokio::sync::watch;

use self::supervise::{Ended, Piece, supervise};
use super::jobs::{JobsFile, find};
use super::{Error, Exit, Io, host};
use crate::accounts::{Account, Accounts};
use crate::clock::Uptime;
use crate::clock::system;
use crate::daemon::launch::Launcher;
use crate::duration;
use crate::engine::Start;
use crate::job::{Job, JobSet};
use crate::run::{Nonce, OnLoss, Owner, Past, RunRecord, RunState, Version};
use crate::telemetry::escape;
use crate::term::{FencingToken, NodeName, SessionId};
use crate::warden::cgroup::hierarchy::Cgroups;
use crate::warden::handle::Warden;
use crate::warden::wire::{self, Deadline, StartFailure, Step, Stream, TreeId};

/// What a command that took longer than its `timeout` ends with.
pub(super) const TIMED_OUT: u8 = 124;

/// Run a job here and now, with its environment and limits, without a cluster. Its hooks are not run. Ends with the command's own
/// exit code.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which; also a disabled one
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
        let launcher = launcher(&loaded.set);
        let start = attempt(job, system::now().wall);
        let launch = launcher.launch(&start).map_err(|unknown| Error::NotStarted {
            job: job.name.clone(),
            what: "its user or group is missing".to_owned(),
            is_missing: false,
            source: io::Error::other(unknown),
        })?;
        let warden =
            Warden::spawn().map_err(|source| Error::System { what: "the warden cannot be started", source })?;
        let (pieces, printed) = channel();
        let (ended, told) = std::thread::scope(|scope| {
            let supervisor = scope.spawn(|| supervise(warden, launch, job, pieces));
            let told = Terminals::found().print(&printed, io);
            (supervisor.join().map_err(|_| Error::Panicked), told)
        });
        if let Some(cgroups) = launcher.cgroups {
            cgroups.remove();
        }
        if let Err(error) = told {
            writeln!(io.err, "cronkeeper: the output of job `{}` could not be handed on: {error}", job.name)?;
        }
        judge(job, ended??, io)
    }
}

/// As this process's user, and in a cgroup where one can be had: this process has no other at hand to put controllers to use.
fn launcher(set: &JobSet) -> Launcher {
    let (_, accounts) = watch::channel(Accounts::of(set));
    let cgroups = Cgroups::make(false);
    Launcher { accounts, cgroups, ..Launcher::plain(NodeName::new(host::plain_name()), Account::own()) }
}

/// The attempt that a leader would begin at this second, under no term.
fn attempt(job: &Arc<Job>, now: Timestamp) -> Start {
    let scheduled_at = now - jiff::SignedDuration::new(0, now.subsec_nanosecond());
    let run = RunRecord {
        v: 1,
        job: job.name.clone(),
        scheduled_at,
        trigger: None,
        state: RunState::Running,
        owner: Owner { node: NodeName::new(host::plain_name()), session: SessionId("none".to_owned()) },
        token: FencingToken(0),
        attempt: 1,
        nonce: Nonce(String::new()),
        begun_at: now,
        on_loss: OnLoss::of(job),
        keep_until: None,
        ready_at: None,
        retry_at: None,
        past: Past::default(),
        dependents: Vec::new(),
        kill: None,
    };
    let (not_after, deadline) = (Uptime::NEVER, Deadline::None);
    Start { tree_id: TreeId(1), run, version: Version::FIRST, job: Arc::clone(job), not_after, deadline }
}

/// Which of this process's streams lead to a terminal.
#[derive(Clone, Copy, Debug)]
struct Terminals {
    out: bool,
    err: bool,
}

impl Terminals {
    fn found() -> Self {
        Self { out: io::stdout().is_terminal(), err: io::stderr().is_terminal() }
    }

    /// Hands the output on until there is no more. A reader who went away is no error: the job runs on.
    fn print(self, pieces: &Receiver<Piece>, io: &mut Io<'_>) -> io::Result<()> {
        let mut told = Ok(());
        while let Ok((stream, line, continues)) = pieces.recv() {
            let (to, is_terminal) = match stream {
                Stream::Stdout => (&mut io.out, self.out),
                Stream::Stderr => (&mut io.err, self.err),
            };
            let line = if is_terminal { escape::on_a_terminal(&line) } else { Cow::Borrowed(&*line) };
            let end = if continues { "" } else { "\n" };
            let written = write!(to, "{line}{end}").and_then(|()| to.flush());
            told = told.and(written.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) }));
        }
        told
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Says what the exit code does not, and finds the exit code.
fn judge(job: &Job, ended: Ended, io: &mut Io<'_>) -> Result<Exit, Error> {
    let supervise::Watched { ending, timed_out } = match ended {
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
        writeln!(io.err, "cronkeeper: job `{name}` took longer than its `timeout` of {timeout} and was ended")?;
        return Ok(Exit::Command(TIMED_OUT));
    }
    let code = match ending.exit {
        wire::Exit::Code(code) => code,
        wire::Exit::Signal { signal, .. } => 128 + signal,
    };
    Ok(Exit::Command(u8::try_from(code).unwrap_or(u8::MAX)))
}

fn not_started(job: &Job, why: StartFailure) -> Error {
    let (step, errno) = match why {
        StartFailure::Step { step, errno } => (step, errno),
        // It was given for ever.
        StartFailure::TooLate => (Step::Prepare, nix::libc::ETIMEDOUT),
    };
    let what = match step {
        Step::Exec => job.command.argv().into_iter().next().unwrap_or_default(),
        Step::Directory => "its working directory".to_owned(),
        Step::User => "its user".to_owned(),
        Step::Limits => "its limits".to_owned(),
        Step::Fork | Step::Prepare => "a process for it".to_owned(),
    };
    let source = io::Error::from_raw_os_error(errno);
    let is_missing = step == Step::Exec && source.kind() == io::ErrorKind::NotFound;
    Error::NotStarted { job: job.name.clone(), what, is_missing, source }
}
