//! `cronkeeper status`: who leads, who follows whom, what runs, what comes next. What is wrong comes first.

mod show;

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use super::ask::{AskFailure, ClientArgs};
use crate::api::client::{AskError, Client};
use crate::status::Status;

/// How often `--watch` looks. What a status shows changes with time alone (the lease, what comes next), so there is no
/// event to wait for.
const EVERY: Duration = Duration::from_secs(2);

/// Show who leads, the queue, and the jobs with their last and next runs
#[derive(Clone, Debug, Default, clap::Args)]
pub struct StatusArgs {
    /// One JSON document; with --watch one a line
    #[arg(long)]
    pub json: bool,
    /// Show it again every two seconds, also while the daemon restarts
    #[arg(long)]
    pub watch: bool,
    /// Whom to ask.
    #[command(flatten)]
    pub whom: ClientArgs,
}

/// Runs the command.
///
/// # Errors
/// When no daemon answers, or `out` takes no more.
pub fn run(args: &StatusArgs, out: &mut dyn Write) -> Result<(), AskFailure> {
    let client = args.whom.client()?;
    if args.watch {
        return watch(args, &client, out);
    }
    let status = client.get("/v1/status")?;
    write(args, &status, out)?;
    Ok(out.flush()?)
}

/// Ends with the reader's interest, by a signal or a closed pipe. A daemon that is away is a thing to watch, too.
fn watch(args: &StatusArgs, client: &Client, out: &mut dyn Write) -> Result<(), AskFailure> {
    let clears = io::stdout().is_terminal() && !args.json;
    loop {
        let status = client.get::<Status>("/v1/status");
        if clears {
            write!(out, "\x1b[H\x1b[2J")?;
        }
        match status {
            Ok(status) => write(args, &status, out)?,
            Err(error) => write_absence(args, &error, out)?,
        }
        if !clears && !args.json {
            writeln!(out)?;
        }
        out.flush()?;
        thread::sleep(EVERY);
    }
}

fn write(args: &StatusArgs, status: &Status, out: &mut dyn Write) -> io::Result<()> {
    if !args.json {
        return show::write(status, out);
    }
    if args.watch {
        serde_json::to_writer(&mut *out, status)?
    } else {
        serde_json::to_writer_pretty(&mut *out, status)?
    }
    writeln!(out)
}

fn write_absence(args: &StatusArgs, error: &AskError, out: &mut dyn Write) -> io::Result<()> {
    if args.json {
        writeln!(out, "{}", serde_json::json!({ "error": error.to_string() }))
    } else {
        writeln!(out, "{error}")
    }
}
