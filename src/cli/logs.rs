//! `cronkeeper logs`: shows the output of a run, on whichever node it ran.
//!
//! The lines go to stdout as the job wrote them; what this command says itself, and what is missing, goes to stderr.

mod shares;
mod stream;

use jiff::Timestamp;

use self::stream::Style;
pub(super) use self::stream::{OutputStream, Printer};
use super::ask::{AskFailure, ClientArgs};
use super::{Error, Exit, Io, waiting};
use crate::api::client::{AskError, Client};
use crate::api::history::{History, path};
use crate::api::output::OutputState;
use crate::status::{HistoryEntry, RunStatus, Status, shown};
use cronkeeper_core::clock::{earlier, system};
use cronkeeper_core::duration;
use cronkeeper_core::escape;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::Filter;
use cronkeeper_core::ledger::filter::Ending;
use cronkeeper_core::run::RunId;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A run's id, or a job for its newest run, preferring one in flight
    #[arg(value_name = "RUN|JOB", value_parser = target)]
    pub target: String,
    /// Wait for more output until the run ends
    #[arg(short, long)]
    pub follow: bool,
    /// Show only lines since this instant (RFC 3339), or not older than this duration
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<Timestamp>,
    /// Begin each line with the time at which it was received, and its stream
    #[arg(short, long)]
    pub timestamps: bool,
    /// Print one JSON object per line
    #[arg(long, conflicts_with = "timestamps")]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// A run's id may be longer than any job's name.
fn target(text: &str) -> Result<String, String> {
    let is_run = RunId::parse(text).is_ok();
    if is_run { Ok(text.to_owned()) } else { JobName::parse(text).map(String::from).map_err(|bad| bad.to_string()) }
}

fn since(text: &str) -> Result<Timestamp, String> {
    if let Ok(ago) = duration::parse(text) {
        return Ok(earlier(system::now().wall, ago));
    }
    text.parse()
        .map_err(|_| "expected an instant such as `2026-11-20T02:30:00Z`, or a duration such as `10m`".to_owned())
}

impl Args {
    /// Ends with 1 if the run is unknown or has several shares, or if a part of its output is missing.
    ///
    /// # Errors
    /// When no daemon answers, there is no such job, or the output cannot be written.
    pub fn run(&self, io: &mut Io<'_>) -> Result<Exit, Error> {
        let client = self.client.client().map_err(AskFailure::from)?;
        // A name that reads as a run's id may be a job's all the same.
        let run = RunId::parse(&self.target).ok();
        if let Some(run) = run {
            match self.show(&client, run, io) {
                Err(Error::Ask(AskFailure::Ask(AskError::NotFound(why)))) => match self.newest_run(&client) {
                    Ok(Newest { run: Some(run), unread, waiting }) => {
                        return self.show_newest(&client, run, unread, waiting, io);
                    }
                    _ => {
                        writeln!(io.err, "cronkeeper: {why}")?;
                        return Ok(Exit::Failed);
                    }
                },
                shown => return shown,
            }
        }
        let Newest { run, unread, waiting } = self.newest_run(&client)?;
        let Some(run) = run else {
            let but = unread.map(|why| format!(", but the ledger cannot be read{}", reason(&why)));
            let but = but.unwrap_or_default();
            writeln!(io.err, "cronkeeper: no run of job `{}` is known{but}", self.target)?;
            return Ok(Exit::Failed);
        };
        self.show_newest(&client, run, unread, waiting, io)
    }

    fn show_newest(
        &self,
        client: &Client,
        run: RunId,
        unread: Option<String>,
        waiting: Option<Waiting>,
        io: &mut Io<'_>,
    ) -> Result<Exit, Error> {
        let waiting = waiting.map(|Waiting { run: waiting, why }| {
            let why = escape::plain(&why);
            format!("cronkeeper: run `{waiting}` has no output yet: {why}; showing run `{run}`\n")
        });
        let is_read = unread.is_none();
        let unread = unread.map(|why| {
            let why = reason(&why);
            format!("cronkeeper: the ledger cannot be read{why}; showing {run}, but the job may have run since\n")
        });
        let share = run.node().map(|node| {
            let all = run.clone().on(None);
            format!("cronkeeper: showing the share of {node}; `cronkeeper logs {all}` has those of all nodes\n")
        });
        let first: String = waiting.into_iter().chain(unread).chain(share).collect();
        let shown = self.show_after(&first, client, run, io)?;
        Ok(if is_read { shown } else { Exit::Failed })
    }

    fn show(&self, client: &Client, run: RunId, io: &mut Io<'_>) -> Result<Exit, Error> {
        self.show_after("", client, run, io)
    }

    /// `first`: what is said before the output, once there is an answer that can be shown.
    fn show_after(&self, first: &str, client: &Client, run: RunId, io: &mut Io<'_>) -> Result<Exit, Error> {
        let mut first = Some(first);
        let mut output = OutputStream::new(client, run.clone(), self.since);
        let mut printer = Printer::new(if self.json { Style::Json } else { Style::Text { times: self.timestamps } });
        let (mut is_reachable, mut has_output, mut said) = (true, false, None);
        loop {
            let page = output.page(self.follow).map_err(AskFailure::from)?;
            io.err.write_all(first.take().unwrap_or_default().as_bytes())?;
            let mut shares = page.shares.iter();
            match (shares.next(), shares.next()) {
                (None, _) => {}
                (Some(only), None) => return self.show(client, only.clone(), io),
                (Some(_), Some(_)) => {
                    shares::list(client, &run, &page.shares, io)?;
                    return Ok(Exit::Failed);
                }
            }
            printer.print(&page, io).map_err(AskFailure::from)?;
            has_output |= !page.lines.is_empty();
            if page.state == OutputState::Open && !has_output {
                let awaited = waiting::awaited(client, &run);
                if let Some(why) = awaited.as_ref().filter(|_| said != awaited) {
                    writeln!(io.err, "cronkeeper: run `{run}` has no output yet: {}", escape::plain(why))?;
                }
                said = awaited;
            }
            match page.state {
                OutputState::End | OutputState::Absent => break,
                OutputState::Open if !self.follow => {
                    is_reachable = page.missing.is_empty();
                    break;
                }
                OutputState::Open | OutputState::More => {}
            }
        }
        printer.finish(io).map_err(AskFailure::from)?;
        Ok(if is_reachable && printer.is_complete() { Exit::Fine } else { Exit::Failed })
    }
}

/// A job's newest run, as far as it could be read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Newest {
    run: Option<RunId>,
    /// Why not all could be read.
    unread: Option<String>,
    /// The newest run in flight, if it has not begun and an older one is shown.
    waiting: Option<Waiting>,
}

/// A run that has no output yet.
#[derive(Debug, PartialEq, Eq)]
struct Waiting {
    run: RunId,
    /// What it waits for.
    why: String,
}

/// Why the ledger cannot be read, as the end of a sentence.
fn reason(why: &str) -> String {
    shown(why).map(|why| format!(": {}", escape::plain(why))).unwrap_or_default()
}

impl Args {
    /// The job's newest run: one in flight that has begun, else the one that ended last. A run that has not begun
    /// counts only with `--follow`, or if the job has no other run.
    fn newest_run(&self, client: &Client) -> Result<Newest, AskFailure> {
        // A run's id may be longer than any job's name.
        let Ok(of_job) = JobName::parse(&self.target).map(Filter::of_job) else { return Ok(Newest::default()) };
        // This request fails if there is no such job, so it comes first.
        let mut newest: History = client.get(&path(&of_job, 1, false))?;
        let status: Status = client.get("/v1/status")?;
        let unread = status.unread.clone().or_else(|| newest.ledger_error.take());
        let (begun, waiting) = in_flight(&status, &self.target);
        if let Some(begun) = begun.or(waiting.filter(|_| self.follow)) {
            // What the asked node runs itself it knows, and says with its output that the ledger cannot be read.
            let unread = unread.filter(|_| begun.node != status.node);
            return Ok(Newest { run: Some(begun.run.clone()), unread, waiting: behind(&status, begun, waiting) });
        }
        if let [HistoryEntry::Skip(_)] = newest.records.as_slice() {
            let endings = Ending::ALL.into_iter().filter(|ending| *ending != Ending::Skipped).collect();
            newest = client.get(&path(&Filter { endings, ..of_job }, 1, false))?;
        }
        let ended = newest.records.into_iter().find_map(|record| match record {
            HistoryEntry::Run(run) => Some(run.run),
            HistoryEntry::Skip(_) => None,
        });
        let behind = waiting.filter(|_| ended.is_some()).and_then(|waiting| waits(&status, waiting));
        Ok(Newest { run: ended.or_else(|| waiting.map(|run| run.run.clone())), unread, waiting: behind })
    }
}

/// The job's newest run in flight that has begun, and the newest that has not.
fn in_flight<'s>(status: &'s Status, job: &str) -> (Option<&'s RunStatus>, Option<&'s RunStatus>) {
    let of_job = status.runs.iter().filter(|run| run.run.job().as_str() == job);
    let (begun, waiting): (Vec<_>, Vec<_>) = of_job.partition(|run| run.has_begun());
    let newest = |runs: Vec<&'s RunStatus>| runs.into_iter().max_by_key(|run| run.since);
    (newest(begun), newest(waiting))
}

/// The run that waits, if it is newer than the one that is shown.
fn behind(status: &Status, shown: &RunStatus, waiting: Option<&RunStatus>) -> Option<Waiting> {
    waits(status, waiting.filter(|waiting| waiting.since >= shown.since && waiting.run != shown.run)?)
}

fn waits(status: &Status, run: &RunStatus) -> Option<Waiting> {
    Some(Waiting { run: run.run.clone(), why: waiting::before_start(status, &run.run)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;
    use cronkeeper_core::run::RunState;
    use cronkeeper_core::term::NodeName;

    #[test]
    fn a_run_that_has_not_begun_is_named_with_what_it_waits_for_and_an_older_one_is_shown() {
        let mut status = sample::leader();
        (status.places, status.members) = (sample::places(), sample::queue().members);
        let first = status.runs[0].clone();
        let share = |node: &str, state, second: &str| RunStatus {
            run: first.run.clone().on(Some(NodeName::new(node))),
            node: NodeName::new("host-a"),
            since: sample::at(&format!("2026-11-20T02:59:{second}Z")),
            state,
            ..first.clone()
        };
        status.runs = vec![share("host-a", RunState::Running, "01"), share("host-c", RunState::Queued, "02")];
        let (begun, waiting) = in_flight(&status, "load");
        assert_eq!((begun, waiting), (Some(&status.runs[0]), Some(&status.runs[1])));
        let expected = Waiting { run: status.runs[1].run.clone(), why: "waits for host-c: away".into() };
        assert_eq!(behind(&status, &status.runs[0], waiting), Some(expected));
        let older = share("host-c", RunState::Queued, "00");
        assert_eq!(behind(&status, &status.runs[0], Some(&older)), None, "what is shown is newer");

        status.runs[0].state = RunState::Retrying;
        assert_eq!(in_flight(&status, "load").0, Some(&status.runs[0]), "its first attempt has output");
        status.runs[0].state = RunState::Placed;
        assert_eq!(in_flight(&status, "load").0, None);
        assert_eq!(in_flight(&status, "nightly-backup"), (None, None));
    }
}
