//! `cronkeeper history`: runs and skips, newest first.

mod show;

use std::io::Write;

use serde::Deserialize;

use super::ask::{AskFailure, ClientArgs};
use crate::job::JobName;
use crate::status::HistoryEntry;

/// Show runs and skips, newest first
#[derive(Clone, Debug, clap::Args)]
pub struct HistoryArgs {
    /// Only of this job
    #[arg(value_parser = JobName::parse)]
    pub job: Option<JobName>,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
    /// How many
    #[arg(short = 'n', value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub number: u16,
    /// With the kept end of each run's output
    #[arg(long)]
    pub output: bool,
    /// Whom to ask.
    #[command(flatten)]
    pub whom: ClientArgs,
}

/// What the daemon answers.
#[derive(Deserialize)]
struct History {
    records: Vec<HistoryEntry>,
}

/// Runs the command.
///
/// # Errors
/// When no daemon answers, there is no such job, or `out` takes no more.
pub fn run(args: &HistoryArgs, out: &mut dyn Write) -> Result<(), AskFailure> {
    let path = match &args.job {
        // A job's name has no character that a path could mistake.
        Some(job) => format!("/v1/jobs/{job}/history?limit={}", args.number),
        None => format!("/v1/history?limit={}", args.number),
    };
    let History { records } = args.whom.client()?.get(&path)?;
    if args.json {
        for record in &records {
            serde_json::to_writer(&mut *out, record).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    } else {
        show::write(&records, args.output, out)?;
    }
    Ok(out.flush()?)
}
