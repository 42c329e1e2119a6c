//! `cronkeeper logs`: shows the output of a run, on whichever node it ran.
//!
//! The lines go to stdout as the job wrote them; what this command says itself, and what is missing, goes to stderr.

mod shares;
mod stream;

use jiff::Timestamp;

use self::stream::Style;
pub(super) use self::stream::{OutputStream, Printer};
use super::ask::{AskFailure, ClientArgs};
use super::{Error, Exit, Io};
use crate::api::client::{AskError, Client};
use crate::api::history::{History, path};
use crate::api::output::OutputState;
use crate::status::{HistoryEntry, RunStatus, shown};
use cronkeeper_core::clock::{earlier, system};
use cronkeeper_core::duration;
use cronkeeper_core::escape;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::Filter;
use cronkeeper_core::ledger::filter::Ending;
use cronkeeper_core::run::RunId;
use cronkeeper_core::term::NodeName;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A run's id, or a job for its newest run (one that is in flight first)
    #[arg(value_name = "RUN|JOB", value_parser = target)]
    pub target: String,
    /// Wait for more output until the run ends
    #[arg(short, long)]
    pub follow: bool,
    /// Leave out lines before this instant (RFC 3339), or older than this duration
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
                Err(Error::Ask(AskFailure::Ask(AskError::NotFound(why)))) => match newest_run(&client, &self.target) {
                    Ok(Newest { run: Some(run), unread }) => return self.show_newest(&client, run, unread, io),
                    _ => {
                        writeln!(io.err, "cronkeeper: {why}")?;
                        return Ok(Exit::Failed);
                    }
                },
                shown => return shown,
            }
        }
        let Newest { run, unread } = newest_run(&client, &self.target)?;
        let Some(run) = run else {
            let but = unread.map(|why| format!(", but the ledger cannot be read{}", reason(&why)));
            let but = but.unwrap_or_default();
            writeln!(io.err, "cronkeeper: no run of job `{}` is known{but}", self.target)?;
            return Ok(Exit::Failed);
        };
        self.show_newest(&client, run, unread, io)
    }

    fn show_newest(&self, client: &Client, run: RunId, unread: Option<String>, io: &mut Io<'_>) -> Result<Exit, Error> {
        let Some(why) = unread else { return self.show(client, run, io) };
        let why = reason(&why);
        writeln!(io.err, "cronkeeper: the ledger cannot be read{why}; shown is {run}, and the job may have run since")?;
        self.show(client, run, io).map(|_| Exit::Failed)
    }

    fn show(&self, client: &Client, run: RunId, io: &mut Io<'_>) -> Result<Exit, Error> {
        let mut output = OutputStream::new(client, run.clone(), self.since);
        let mut printer = Printer::new(if self.json { Style::Json } else { Style::Text { times: self.timestamps } });
        let mut is_reachable = true;
        loop {
            let page = output.page(self.follow).map_err(AskFailure::from)?;
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

/// What is read of the status.
#[derive(serde::Deserialize)]
struct Runs {
    node: NodeName,
    runs: Vec<RunStatus>,
    #[serde(default)]
    unread: Option<String>,
}

/// A job's newest run, as far as it could be read.
struct Newest {
    run: Option<RunId>,
    /// Why not all could be read.
    unread: Option<String>,
}

/// Why the ledger cannot be read, as the end of a sentence.
fn reason(why: &str) -> String {
    shown(why).map(|why| format!(": {}", escape::plain(why))).unwrap_or_default()
}

/// The job's newest run: one in flight, else the one that ended last.
fn newest_run(client: &Client, job: &str) -> Result<Newest, AskFailure> {
    // A run's id may be longer than any job's name.
    let Ok(of_job) = JobName::parse(job).map(Filter::of_job) else { return Ok(Newest { run: None, unread: None }) };
    // First, because it fails if there is no such job.
    let mut newest: History = client.get(&path(&of_job, 1, false))?;
    let Runs { node, runs, unread } = client.get("/v1/status")?;
    let in_flight = runs.into_iter().filter(|run| run.run.job().as_str() == job).max_by_key(|run| run.since);
    let unread = unread.or_else(|| newest.ledger_error.take());
    if let Some(in_flight) = in_flight {
        // What the asked node runs itself it knows, and says with its output that the ledger cannot be read.
        let unread = unread.filter(|_| in_flight.node != node);
        return Ok(Newest { run: Some(in_flight.run), unread });
    }
    if let [HistoryEntry::Skip(_)] = newest.records.as_slice() {
        let endings = Ending::ALL.into_iter().filter(|ending| *ending != Ending::Skipped).collect();
        newest = client.get(&path(&Filter { endings, ..of_job }, 1, false))?;
    }
    let ended = newest.records.into_iter().find_map(|record| match record {
        HistoryEntry::Run(run) => Some(run.run),
        HistoryEntry::Skip(_) => None,
    });
    Ok(Newest { run: ended, unread })
}
