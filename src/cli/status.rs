//! `cronkeeper status`: shows the leader, the queue, the runs and the jobs, or checks that all is well.

mod check;
mod screen;
mod select;
mod show;

pub(in crate::cli) use select::Selection;
pub(in crate::cli) use show::{run_state, session_ended};

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use self::screen::Screen;
use super::ask::{AskFailure, ClientArgs};
use super::{Exit, json, nodes};
use crate::api::client::{AskError, Client};
use crate::status::Status;

/// Interval of `--watch`. There is no event to wait for: the lease and the times until the next runs change all the
/// time.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default, clap::Args)]
pub struct StatusArgs {
    /// Print JSON: one document, or with --watch one per line
    #[arg(long)]
    pub json: bool,
    /// Refresh every two seconds, even while the daemon restarts
    #[arg(long)]
    pub watch: bool,
    /// Print only what is wrong; exit with 1 if the node is not ready, nobody leads, the jobs file was rejected, a
    /// job's mark is in the future, or a path is damaged. Failing jobs and cut-off runs do not count: --failing shows
    /// them
    #[arg(long, conflicts_with_all = ["json", "watch", "failing", "patterns"])]
    pub check: bool,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// # Errors
/// When no daemon answers, or `out` cannot be written.
pub fn run(args: &StatusArgs, out: &mut dyn Write) -> Result<Exit, AskFailure> {
    let client = args.client.client()?;
    if args.watch {
        return watch(args, &client, out);
    }
    let status = client.get("/v1/status")?;
    args.selection.check(&status)?;
    if args.check {
        return check::run(&status, out);
    }
    write(args, status, out)?;
    out.flush()?;
    Ok(Exit::Fine)
}

/// Shows the status until a signal or a closed pipe ends it. An unreachable daemon is shown, and does not end it.
fn watch(args: &StatusArgs, client: &Client, out: &mut dyn Write) -> Result<Exit, AskFailure> {
    let clears = io::stdout().is_terminal() && !args.json;
    loop {
        let status = client.get::<Status>("/v1/status");
        if clears {
            write!(out, "\x1b[H\x1b[2J")?;
        }
        match status {
            Ok(status) => write(args, status, out)?,
            Err(error) => write_unreachable(args, &error, out)?,
        }
        if !clears && !args.json {
            writeln!(out)?;
        }
        out.flush()?;
        thread::sleep(WATCH_INTERVAL);
    }
}

fn write(args: &StatusArgs, status: Status, out: &mut dyn Write) -> io::Result<()> {
    let all = status.jobs.len();
    let counted = status.jobs.iter().filter(|job| args.selection.includes(&job.name)).count();
    // Everything that the nodes run counts.
    let nodes = nodes::table(&status);
    let status = args.selection.of(status);
    if !args.json {
        let shown = show::Shown { status: &status, all, counted, nodes };
        return show::write(shown, Screen::of_stdout(args.watch), out);
    }
    if args.watch { json::line(&status, out) } else { json::pretty(&status, out) }
}

fn write_unreachable(args: &StatusArgs, error: &AskError, out: &mut dyn Write) -> io::Result<()> {
    if args.json {
        json::line(&serde_json::json!({ "error": error.to_string() }), out)
    } else {
        writeln!(out, "{error}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;
    use cronkeeper_core::ledger::filter::JobPattern;
    use cronkeeper_core::run::Outcome;

    /// The text for `--job PATTERN`, and with `--failing`.
    fn selected(status: &Status, pattern: &str, failing: bool) -> String {
        let patterns = vec![JobPattern::parse(pattern).unwrap()];
        let args = StatusArgs { selection: Selection { failing, patterns }, ..StatusArgs::default() };
        let mut out = Vec::new();
        write(&args, status.clone(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn those_that_fail_are_counted_among_the_jobs_that_are_named() {
        let mut status = sample::leader();
        status.jobs[0].last.as_mut().expect("it has run").outcome = Outcome::Failure;
        assert!(selected(&status, "nightly-*", false).contains("\nFAILING  1 of 1 job: "));
        assert!(selected(&status, "*a*", false).contains("\nFAILING  1 of 2 jobs: "));
        assert!(selected(&status, "*a*", true).contains("\nFAILING  1 of 2 jobs: "));
        assert!(!selected(&status, "load", false).contains("FAILING"));
    }

    #[test]
    fn the_nodes_are_shown_with_the_runs_of_all_jobs() {
        let mut status = sample::leader();
        status.places = sample::places();
        let shown = selected(&status, "nightly-*", false);
        assert!(shown.lines().any(|line| line.starts_with("host-a  gpu,zone=eu  8       1 ")), "{shown}");
    }
}
