//! `cronkeeper trigger`: a run now, through the leader, and with `--wait` its end.
//!
//! The request bears a uuid drawn here, so that it is sent again wherever an answer is missing. Waiting survives restarts of the
//! daemon asked and changes of the leader; only a daemon that stays away ends it.

use std::thread;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::ask::{AskFailure, ClientArgs};
use super::exec::TIMED_OUT;
use super::{Error, Exit, Io};
use crate::api::client::{AskError, Client};
use crate::api::control::{Fate, TriggerBody, Triggered};
use crate::job::JobName;
use crate::run::{Outcome, Reason, RunId};
use crate::status::{EndedRun, HistoryEntry};

/// How long a request is sent again.
const ASKS_FOR: Duration = Duration::from_secs(20);
/// How long a daemon may be away while a run is waited for: a failover and more.
const AWAY_FOR: Duration = Duration::from_secs(60);
/// Between two tries: nobody tells when a daemon is back.
const PAUSE: Duration = Duration::from_millis(500);

/// Run a job now, on the node that leads
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Which
    #[arg(value_parser = JobName::parse)]
    pub job: JobName,
    /// Wait for the end, and end with the command's own exit code
    #[arg(long)]
    pub wait: bool,
    /// Whom to ask.
    #[command(flatten)]
    pub whom: ClientArgs,
}

/// What a run's end means to the one who waits.
enum Known {
    Ended(Box<HistoryEntry>),
    /// The ledger has nothing of it.
    Gone,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// When no daemon answers, there is no such job, or the result cannot be written.
    pub fn run(&self, io: &mut Io<'_>) -> Result<Exit, Error> {
        let client = self.whom.client().map_err(AskFailure::from)?;
        let request = TriggerBody { uuid: Uuid::new_v4() };
        let run = self.ask(&client, &request)?;
        writeln!(io.out, "{run}")?;
        io.out.flush()?;
        if self.wait { self.wait_for(&client, &request, run, io) } else { Ok(Exit::Fine) }
    }

    fn wait_for(&self, client: &Client, request: &TriggerBody, mut run: RunId, io: &mut Io<'_>) -> Result<Exit, Error> {
        loop {
            if let Known::Ended(record) = follow(client, &run)? {
                return judge(&record, io);
            }
            // Another trigger of the same request, one whose answer was lost, may have come first.
            let other = self.ask(client, request)?;
            if other == run {
                writeln!(io.err, "cronkeeper: run `{run}`: the ledger has nothing of it any more")?;
                return Ok(Exit::Failed);
            }
            run = other;
        }
    }

    fn ask(&self, client: &Client, request: &TriggerBody) -> Result<RunId, AskFailure> {
        let path = format!("/v1/jobs/{}/trigger", self.job);
        let Triggered { run } = patiently(ASKS_FOR, may_pass, || client.post(&path, request))?;
        Ok(run)
    }
}

fn follow(client: &Client, run: &RunId) -> Result<Known, AskFailure> {
    let path = format!("/v1/runs/{run}");
    loop {
        match patiently(AWAY_FOR, |error| error.is_unreachable() || may_pass(error), || client.get(&path))? {
            Fate::Pending => {}
            Fate::Ended { record } => return Ok(Known::Ended(Box::new(record))),
            Fate::Gone => return Ok(Known::Gone),
        }
    }
}

/// True where the daemon was there, and an answer may come the next time. One that was never there is said at once.
fn may_pass(error: &AskError) -> bool {
    matches!(error, AskError::Silent(_) | AskError::Away(_) | AskError::Garbled(_))
}

fn patiently<T>(
    timeout: Duration,
    may_pass: impl Fn(&AskError) -> bool,
    ask: impl Fn() -> Result<T, AskError>,
) -> Result<T, AskError> {
    let until = Instant::now() + timeout;
    loop {
        match ask() {
            Err(error) if may_pass(&error) && Instant::now() < until => thread::sleep(PAUSE),
            answer => return answer,
        }
    }
}

/// Says what the exit code does not.
fn judge(record: &HistoryEntry, io: &mut Io<'_>) -> Result<Exit, Error> {
    match record {
        HistoryEntry::Skip(skip) => {
            writeln!(io.err, "cronkeeper: run `{}` was skipped: {}", skip.run, skip.reason.as_str())?;
            Ok(Exit::TempFail)
        }
        HistoryEntry::Run(run) => {
            if run.outcome != Outcome::Success {
                let reason = run.reason.map(|reason| format!(", {}", reason.as_str())).unwrap_or_default();
                writeln!(io.err, "cronkeeper: run `{}` on {}: {}{reason}", run.run, run.node, run.outcome.as_str())?;
            }
            Ok(exit_of(run))
        }
    }
}

fn exit_of(run: &EndedRun) -> Exit {
    let code = match (run.outcome, run.reason) {
        (Outcome::Timeout, _) => return Exit::Command(TIMED_OUT),
        (_, Some(Reason::NotFound)) => return Exit::Command(127),
        (_, Some(Reason::NotExecutable | Reason::NoDirectory | Reason::NoMemory)) => return Exit::Command(126),
        _ => run.exit_code.or(run.signal.map(|signal| 128 + signal)),
    };
    match (code, run.outcome) {
        (Some(code), _) => Exit::Command(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Outcome::Success) => Exit::Fine,
        (None, _) => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample::{at, job};
    use crate::term::{FencingToken, NodeName};

    fn ended(outcome: Outcome, exit_code: Option<i32>, signal: Option<i32>, reason: Option<Reason>) -> EndedRun {
        let minute = at("2026-11-20T02:40:00Z");
        EndedRun {
            job: job("load"),
            run: RunId::manual(job("load"), minute, crate::run::TriggerSeq(7)),
            scheduled_at: minute,
            triggered_by: Some("uid 0 (root) on host-a".into()),
            node: NodeName::new("host-a"),
            token: FencingToken(42),
            attempt: 1,
            begun_at: minute,
            ended_at: minute,
            duration_ms: None,
            outcome,
            reason,
            exit_code,
            signal,
            leftovers: 0,
            dropped_bytes: 0,
            tail: String::new(),
            earlier_attempts: Vec::new(),
        }
    }

    #[test]
    fn waiting_ends_as_the_command_did() {
        let cases = [
            (ended(Outcome::Success, Some(0), None, None), Exit::Command(0)),
            (ended(Outcome::Success, Some(3), None, None), Exit::Command(3)),
            (ended(Outcome::Failure, Some(4), None, None), Exit::Command(4)),
            (ended(Outcome::Failure, None, Some(11), None), Exit::Command(139)),
            (ended(Outcome::Timeout, None, Some(15), None), Exit::Command(124)),
            (ended(Outcome::Failure, None, None, Some(Reason::NotFound)), Exit::Command(127)),
            (ended(Outcome::Failure, None, None, Some(Reason::NotExecutable)), Exit::Command(126)),
            (ended(Outcome::Interrupted, None, None, Some(Reason::NodeDied)), Exit::Failed),
        ];
        for (run, expected) in cases {
            assert_eq!(exit_of(&run), expected, "{run:?}");
        }
    }

    #[test]
    fn a_run_that_did_not_succeed_is_said_with_its_node_and_reason() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let run = ended(Outcome::Interrupted, None, None, Some(Reason::NodeDied));
        judge(&HistoryEntry::Run(Box::new(run)), &mut Io { out: &mut out, err: &mut err }).unwrap();
        let said = "cronkeeper: run `load.20261120T024000Z.m7` on host-a: interrupted, node-died\n";
        assert_eq!((out.is_empty(), String::from_utf8(err).unwrap().as_str()), (true, said));
    }
}
