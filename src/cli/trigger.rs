//! `cronkeeper trigger`: has the leader run a job now, and with `--wait` shows its output and waits for its end.
//!
//! This command generates the uuid of the request, so it can safely send the request again if an answer is lost.
//! Waiting survives restarts of the local daemon and changes of the leader; it fails only if the daemon stays
//! unreachable.

mod interrupt;
mod shares;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::ask::{AskFailure, ClientArgs};
use super::effects::{Effect, Effects};
use super::exec::TIMED_OUT;
use super::follow::{AwaitedRun, follow};
use super::history::instant;
use super::history::show::ending;
use super::logs::{OutputStream, Printer};
use super::wait::{is_transient, retried};
use super::{Error, Exit, Io, waiting};
use crate::api::client::{AskError, Client};
use crate::api::control::{TriggerBody, Triggered};
use crate::api::output::OutputState;
use crate::status::{EndedRun, HistoryEntry};
use cronkeeper_core::duration;
use cronkeeper_core::escape;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{Outcome, Reason, RunId};
use cronkeeper_core::term::NodeName;

/// Time during which a request without an answer is repeated.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The exit code of a run that could not be started, although its program may exist.
const CANNOT_START: u8 = 126;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The job
    #[arg(value_parser = JobName::parse)]
    pub job: JobName,
    /// Set a variable that the job lists under `parameters`; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    pub environment: Vec<(String, String)>,
    /// The time that the run finds in CRONKEEPER_SCHEDULED_AT, for example that of a missed occurrence: written as for
    /// `history --since`, in whole seconds
    #[arg(long, value_name = "TIME", value_parser = scheduled_time)]
    pub scheduled_at: Option<Timestamp>,
    /// Run the job on this node, if its `run_on` is `any` or `every` and the node has the labels of `run_where`; may be
    /// repeated
    #[arg(long, value_name = "NODE", value_parser = node)]
    pub on: Vec<NodeName>,
    /// Show the run's output until it ends, and exit with the job's exit code. If the run has a share on each node,
    /// show one after the other, and exit with the worst code
    #[arg(long)]
    pub wait: bool,
    /// Print what was done as JSON, with --wait once the run has ended; its output is not shown
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Parses `NAME=VALUE`. The node that is asked checks the name, because the job says which ones it takes.
fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected a variable and its value, such as `DAY=2026-11-20`".to_owned()),
    }
}

/// One node of `--on`.
fn node(text: &str) -> Result<NodeName, String> {
    match NodeName::parse(text) {
        Err(_) if text.contains([',', ' ']) => {
            Err("expected the name of one node; repeat `--on` for each further one".to_owned())
        }
        node => node,
    }
}

/// A time on the command line in whole seconds. How long ago it was is counted from the last full second.
fn scheduled_time(text: &str) -> Result<Timestamp, String> {
    let at = instant(text)?;
    let fraction = SignedDuration::new(0, at.subsec_nanosecond());
    match fraction.is_zero() || duration::parse(text).is_ok() {
        true => Ok(at - fraction),
        false => Err(format!("`{}` has a fraction of a second, which no occurrence has", escape::short(text, 60))),
    }
}

impl Args {
    /// # Errors
    /// When no daemon answers, there is no such job, or the result cannot be written.
    pub fn run(&self, io: &mut Io<'_>) -> Result<Exit, Error> {
        let client = self.client.client().map_err(AskFailure::from)?;
        let request = TriggerBody {
            uuid: Some(Uuid::new_v4()),
            environment: self.environment.iter().cloned().collect(),
            scheduled_at: self.scheduled_at,
            on: self.on.iter().cloned().collect(),
        };
        let run = self.send(&client, &request, io)?;
        if !self.json {
            writeln!(io.out, "{run}")?;
            io.out.flush()?;
        }
        match (self.wait, self.json) {
            (true, _) => self.wait_for(&client, &request, run, io),
            (false, true) => self.write_json("requested", run, None, io),
            (false, false) => Ok(Exit::Fine),
        }
    }

    fn wait_for(&self, client: &Client, request: &TriggerBody, mut run: RunId, io: &mut Io<'_>) -> Result<Exit, Error> {
        loop {
            interrupt::tell_about(&run);
            if !self.json {
                show_output(client, &run, io);
            }
            match follow(client, &run)? {
                AwaitedRun::Ended(record) => {
                    let exit = conclude(&record, io)?;
                    if self.json {
                        self.write_json(shares::effect(&record), run, Some(record), io)?;
                    }
                    return Ok(exit);
                }
                AwaitedRun::Shared(shares) => return self.wait_for_shares(client, shares, io),
                AwaitedRun::Gone => {}
            }
            // If an answer was lost, the request may have been sent twice, and another copy may have become the run.
            let other = self.send(client, request, io)?;
            if other == run {
                writeln!(io.err, "cronkeeper: run `{run}` is no longer in the ledger")?;
                return Ok(Exit::Failed);
            }
            run = other;
        }
    }

    fn write_json(
        &self,
        effect: &'static str,
        run: RunId,
        record: Option<Box<HistoryEntry>>,
        io: &mut Io<'_>,
    ) -> Result<Exit, Error> {
        let is_pending = record.is_none();
        let effect = Effect { effect, job: Some(self.job.clone()), run: Some(run), record, ..Effect::default() };
        Effects::one("trigger", effect, is_pending).write(io.out)?;
        Ok(Exit::Fine)
    }

    fn send(&self, client: &Client, request: &TriggerBody, io: &mut Io<'_>) -> Result<RunId, AskFailure> {
        let path = format!("/v1/jobs/{}/trigger", self.job);
        let tell = |error: &AskError| {
            let limit = duration::format(REQUEST_TIMEOUT);
            // What cannot be said does not end the request.
            let _ = writeln!(io.err, "cronkeeper: {error}; asking again for up to {limit}");
        };
        let Triggered { run, notes } = retried(REQUEST_TIMEOUT, is_transient, tell, || client.post(&path, request))?;
        for note in notes {
            // What cannot be said does not undo the request.
            let _ = writeln!(io.err, "cronkeeper: {}", escape::plain(&note));
        }
        Ok(run)
    }
}

/// Prints the output of a run until it ends. The exit code does not depend on it, so a failure ends only the printing.
fn show_output(client: &Client, run: &RunId, io: &mut Io<'_>) {
    let (mut output, mut printer) = (OutputStream::new(client, run.clone(), None), Printer::plain());
    let mut said = None;
    loop {
        let mut page = match output.page(true) {
            Ok(page) => page,
            // The wait for the end of the run deals with these.
            Err(AskError::NotFound(_) | AskError::Away(_) | AskError::NoDaemon(_) | AskError::Unreachable { .. }) => {
                return;
            }
            Err(error) => {
                // Without stderr there is no other place for the message.
                let _ = writeln!(io.err, "cronkeeper: the output cannot be shown: {error}");
                return;
            }
        };
        if page.state == OutputState::Open && page.attempts.is_empty() {
            let awaited = waiting::awaited(client, run);
            if let Some(text) = awaited.as_ref().filter(|_| said != awaited) {
                // What cannot be said does not end the wait.
                let _ = writeln!(io.err, "cronkeeper: run `{run}`: {text}");
            }
            said = awaited;
        }
        // Why a run has no output is part of how it ended, which is said in any case.
        page.note.take_if(|_| !page.tail_is_whole);
        let printed = printer.print(&page, io);
        if printed.is_err() || matches!(page.state, OutputState::End | OutputState::Absent) {
            let _ = printer.finish(io);
            return;
        }
    }
}

/// Determines the exit code, and prints what the code does not show.
fn conclude(record: &HistoryEntry, io: &mut Io<'_>) -> Result<Exit, Error> {
    match record {
        HistoryEntry::Skip(skip) => {
            writeln!(io.err, "cronkeeper: run `{}` was skipped: {}", skip.run, escape::plain(&skip.explained()))?;
            Ok(Exit::TempFail)
        }
        HistoryEntry::Run(run) => {
            if run.outcome != Outcome::Success {
                let ending = ending(run.outcome, run.reason, run.exit_code, run.signal);
                let detail =
                    run.detail.as_deref().map(|detail| format!(": {}", escape::plain(detail))).unwrap_or_default();
                let by = run.killed_by.as_deref().map(|by| format!(", by {}", escape::plain(by))).unwrap_or_default();
                let node = record.about();
                writeln!(io.err, "cronkeeper: run `{}` on {node}: {ending}{by}{detail}", run.run)?;
            }
            Ok(exit_of(run))
        }
    }
}

fn exit_of(run: &EndedRun) -> Exit {
    let code = match (run.outcome, run.reason) {
        (Outcome::Timeout, _) => return Exit::Command(TIMED_OUT),
        (_, Some(Reason::NotFound)) => return Exit::Command(127),
        (_, Some(reason)) if reason.prevented_start().is_some() => return Exit::Command(CANNOT_START),
        _ => run.exit_code.or(run.signal.map(|signal| 128 + signal)),
    };
    match (code, run.outcome) {
        (Some(code), _) => Exit::Command(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Outcome::Success) => Exit::Fine,
        // Without memory for a process; one that ran out of its own has ended somehow.
        (None, _) if run.reason == Some(Reason::NoMemory) => Exit::Command(CANNOT_START),
        (None, _) => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::status::sample::{at, job};
    use cronkeeper_core::term::FencingToken;

    pub(super) fn ended(
        outcome: Outcome,
        exit_code: Option<i32>,
        signal: Option<i32>,
        reason: Option<Reason>,
    ) -> EndedRun {
        let minute = at("2026-11-20T02:40:00Z");
        EndedRun {
            job: job("load"),
            run: RunId::manual(job("load"), minute, cronkeeper_core::run::TriggerSeq(7)),
            scheduled_at: minute,
            triggered_by: Some("uid 0 (root) on host-a".into()),
            triggered_for: None,
            parameters: BTreeMap::new(),
            killed_by: None,
            node: NodeName::new("host-a"),
            token: FencingToken(42),
            attempt: 1,
            begun_at: minute,
            started_at: None,
            ended_at: minute,
            duration_ms: None,
            outcome,
            reason,
            exit_code,
            signal,
            leftovers: 0,
            dropped_bytes: 0,
            detail: None,
            tail: String::new(),
            earlier_attempts: Vec::new(),
        }
    }

    #[test]
    fn several_nodes_are_named_one_by_one() {
        assert_eq!(node("host-a"), Ok(NodeName::new("host-a")));
        assert!(node("host-a,host-b").unwrap_err().ends_with("repeat `--on` for each further one"));
        assert!(node("host/a").unwrap_err().starts_with("`host/a` is not a node name: "));
    }

    #[test]
    fn a_time_with_a_fraction_is_refused_and_never_cut() {
        let expected = "`2026-01-01T00:00:00.5Z` has a fraction of a second, which no occurrence has";
        assert_eq!(scheduled_time("2026-01-01T00:00:00.5Z"), Err(expected.to_owned()));
        assert!(scheduled_time("2026-01-01 00:00:00.25").is_err());
        assert_eq!(scheduled_time("2026-01-01"), Ok(at("2026-01-01T00:00:00Z")));
        assert_eq!(scheduled_time("2026-01-01T01:00:00.0+01:00"), Ok(at("2026-01-01T00:00:00Z")));
        assert_eq!(scheduled_time("2d").map(|at| at.subsec_nanosecond()), Ok(0));
    }

    #[test]
    fn waiting_ends_with_the_exit_code_of_the_job() {
        let cases = [
            (ended(Outcome::Success, Some(0), None, None), Exit::Command(0)),
            (ended(Outcome::Success, Some(3), None, None), Exit::Command(3)),
            (ended(Outcome::Failure, Some(4), None, None), Exit::Command(4)),
            (ended(Outcome::Failure, None, Some(11), None), Exit::Command(139)),
            (ended(Outcome::Timeout, None, Some(15), None), Exit::Command(124)),
            (ended(Outcome::Failure, None, None, Some(Reason::NotFound)), Exit::Command(127)),
            (ended(Outcome::Failure, None, None, Some(Reason::NotExecutable)), Exit::Command(126)),
            (ended(Outcome::Failure, None, None, Some(Reason::NoEnvironment)), Exit::Command(126)),
            (ended(Outcome::Failure, None, None, Some(Reason::NoSecret)), Exit::Command(126)),
            (ended(Outcome::Failure, None, None, Some(Reason::NoUser)), Exit::Command(126)),
            (ended(Outcome::Failure, None, None, Some(Reason::NoMemory)), Exit::Command(126)),
            (ended(Outcome::Failure, None, Some(9), Some(Reason::NoMemory)), Exit::Command(137)),
            (ended(Outcome::Killed, None, None, Some(Reason::Operator)), Exit::Failed),
            (ended(Outcome::Interrupted, None, None, Some(Reason::NodeDied)), Exit::Failed),
        ];
        for (run, expected) in cases {
            assert_eq!(exit_of(&run), expected, "{run:?}");
        }
    }

    #[test]
    fn an_unsuccessful_run_is_reported_with_its_node_and_reason() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let run = ended(Outcome::Interrupted, None, None, Some(Reason::NodeDied));
        conclude(&HistoryEntry::Run(Box::new(run)), &mut Io { out: &mut out, err: &mut err, is_watched: false })
            .unwrap();
        let expected = "cronkeeper: run `load.20261120T024000Z.m7` on host-a: interrupted, node-died\n";
        assert_eq!((out.is_empty(), String::from_utf8(err).unwrap().as_str()), (true, expected));
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let failed = HistoryEntry::Run(Box::new(ended(Outcome::Failure, Some(3), None, None)));
        conclude(&failed, &mut Io { out: &mut out, err: &mut err, is_watched: false }).unwrap();
        assert!(String::from_utf8(err).unwrap().ends_with(" on host-a: failure, exit 3\n"));
    }
}
