//! `cronkeeper history`: lists runs and skips, newest first, of all nodes.
//!
//! The daemon answers at most 1,000 records at a time; the command asks again until it has what was wanted.

mod csv;
mod pages;
pub(super) mod show;

use jiff::Timestamp;

use self::pages::Pages;
use self::show::Gap;
use super::ask::{AskFailure, ClientArgs};
use super::status::Selection;
use super::{Exit, Io, json};
use crate::api::client::Client;
use crate::api::nodes::no_such_node;
use crate::status::Status;
use cronkeeper_core::clock::system;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::Filter;
use cronkeeper_core::ledger::filter::{self, Ending, JobPattern};
use cronkeeper_core::term::NodeName;

#[derive(Clone, Debug, clap::Args)]
pub struct HistoryArgs {
    /// Show only this job
    #[arg(value_parser = JobName::parse)]
    pub job: Option<JobName>,
    /// Show only these jobs: a name, or a pattern with `*` and `?`; may be repeated
    #[arg(long = "job", value_name = "PATTERN", value_parser = JobPattern::parse)]
    pub jobs: Vec<JobPattern>,
    /// Show only runs that did not succeed
    #[arg(long)]
    pub failed: bool,
    /// Show only this outcome, or `skipped`; may be repeated
    #[arg(long = "outcome", value_name = "OUTCOME", value_parser = Ending::parse)]
    pub outcomes: Vec<Ending>,
    /// Show only runs of this node, and skips that it decided
    #[arg(long, value_name = "NODE", value_parser = NodeName::parse)]
    pub node: Option<NodeName>,
    /// Show only what ended at this time or later: `2d` for two days ago, `2026-11-20` (UTC), or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub since: Option<Timestamp>,
    /// Show only what ended at this time or earlier
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub until: Option<Timestamp>,
    /// Print one JSON object per line
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values, with a heading; the parameters of a trigger are a JSON object
    #[arg(long, conflicts_with = "output")]
    pub csv: bool,
    /// Maximum number of records
    #[arg(short = 'n', value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub number: u32,
    /// Also print the end of each run's output, if it was kept
    #[arg(long)]
    pub output: bool,
    /// Show only what the asked node ran and decided itself; asks neither other nodes nor the ledger
    #[arg(long)]
    pub local: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// A time on the command line: an instant, a date, or how long ago.
pub(super) fn instant(text: &str) -> Result<Timestamp, String> {
    filter::instant(text, system::now().wall)
}

impl HistoryArgs {
    fn filter(&self) -> Filter {
        let failed = self.failed.then(Ending::failed).into_iter().flatten();
        Filter {
            job: self.job.clone(),
            jobs: self.jobs.clone(),
            endings: self.outcomes.iter().copied().chain(failed).collect(),
            node: self.node.clone(),
            since: self.since,
            until: self.until,
            before: None,
        }
    }

    /// Fails if no job is named as asked for, and the history has none either: one that was removed from the jobs file
    /// keeps its records.
    fn check_jobs(&self, client: &Client) -> Result<(), AskFailure> {
        let status: Status = client.get("/v1/status")?;
        let selection = Selection { failing: false, patterns: self.jobs.clone() };
        let Err(none) = selection.check(&status) else { return Ok(()) };
        let filter = Filter { jobs: self.jobs.clone(), ..Filter::default() };
        let mut pages = Pages::new(client, filter, 1, self.local);
        while let Some(page) = pages.next_page()? {
            if !page.is_empty() {
                return Ok(());
            }
        }
        Err(none.into())
    }

    /// Ends with 1 if a question about the past, such as `--failed --since 2d`, is answered with gaps: what is not shown
    /// may have happened all the same.
    ///
    /// # Errors
    /// When no daemon answers, there is no such job, or the output cannot be written.
    pub fn run(&self, io: &mut Io<'_>) -> Result<Exit, AskFailure> {
        let client = self.client.client()?;
        if self.csv {
            writeln!(io.out, "{}", csv::HEADING)?;
        }
        let (mut records, mut count) = (Vec::new(), 0);
        let mut pages = Pages::new(&client, self.filter(), self.number as usize, self.local);
        while let Some(mut page) = pages.next_page()? {
            count += page.len();
            match (self.csv, self.json) {
                (true, _) => page.iter().try_for_each(|record| csv::write(record, io.out))?,
                (_, true) => page.iter().try_for_each(|record| json::line(record, io.out))?,
                _ => records.append(&mut page),
            }
        }
        let lacks = pages.lacks();
        let gap = lacks.gap().map(|before| Gap { before, nodes: lacks.nodes() });
        if !self.csv && !self.json {
            show::write(&records, gap.as_ref(), self.output, io.out)?;
        }
        io.out.flush()?;
        lacks.write(io.err)?;
        if count == 0 && !self.jobs.is_empty() {
            self.check_jobs(&client)?;
        }
        let is_question = self.filter().is_restricted();
        if let Some(node) = self.node.as_ref().filter(|_| count == 0) {
            let known = client.get::<Status>("/v1/status").map(|status| status.known_nodes());
            if let Some(known) = known.ok().filter(|known| !known.contains(node)) {
                let why = no_such_node(node, known.iter());
                writeln!(io.err, "cronkeeper: {why}, and the history has no record of it")?;
                return Ok(Exit::Failed);
            }
        }
        Ok(if is_question && gap.is_some() { Exit::Failed } else { Exit::Fine })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::api::history::path;
    use crate::cli::{Cli, Command};

    fn asked(line: &str) -> String {
        let line = format!("cronkeeper history {line}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::History(args) => path(&args.filter(), 7, args.local),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_options_are_in_the_request() {
        assert_eq!(asked("load"), "/v1/jobs/load/history?limit=7");
        assert_eq!(asked("load --local"), "/v1/jobs/load/history?limit=7&local=true");
        assert_eq!(
            asked(
                "--job l* --job b --failed --outcome skipped --node a --since 2026-11-20 --until 2026-11-20T01:00:00+01:00"
            ),
            "/v1/history?limit=7&job=l%2A&job=b&outcome=skipped&outcome=failure&outcome=timeout&outcome=killed\
             &outcome=interrupted&outcome=abandoned&node=a&since=2026-11-20T00%3A00%3A00Z&until=2026-11-20T00%3A00%3A00Z"
        );
    }

    #[test]
    fn a_wrong_value_is_refused_before_anybody_is_asked() {
        for line in ["--outcome bad", "--since x", "--job ä", "-n 0", "-n 100001", "--json --csv", "--csv --output"] {
            let line = format!("cronkeeper history {line}");
            assert!(Cli::try_parse_from(line.split_whitespace()).is_err(), "{line}");
        }
    }
}
