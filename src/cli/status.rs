//! `cronkeeper status`: shows the leader, the queue, the runs and the jobs, or checks that all is well.

mod check;
mod screen;
mod select;
mod show;

pub(in crate::cli) use show::run_state;

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use self::screen::Screen;
use self::select::Selection;
use super::ask::{AskFailure, ClientArgs};
use super::{Exit, json};
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
    /// Refresh every two seconds, also while the daemon restarts
    #[arg(long)]
    pub watch: bool,
    /// Print only what is wrong; exit with 1 if the node is not ready, nobody leads, the jobs file was rejected, a
    /// job's mark is in the future, or a path is damaged. Jobs that fail and runs that are cut off do not count: --failing shows them
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
    let status = args.selection.of(status);
    if !args.json {
        return show::write(&status, all, Screen::of_stdout(args.watch), out);
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
