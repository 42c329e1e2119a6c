//! `cronkeeper history`: lists runs and skips, newest first.

mod show;

use std::io::Write;

use serde::Deserialize;

use super::ask::{AskFailure, ClientArgs};
use crate::job::JobName;
use crate::status::HistoryEntry;

#[derive(Clone, Debug, clap::Args)]
pub struct HistoryArgs {
    /// Show this job only
    #[arg(value_parser = JobName::parse)]
    pub job: Option<JobName>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Maximum number of records
    #[arg(short = 'n', value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub number: u16,
    /// Also print the end of each run's output, as far as it was kept
    #[arg(long)]
    pub output: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// The daemon's answer.
#[derive(Deserialize)]
struct History {
    records: Vec<HistoryEntry>,
}

/// # Errors
/// When no daemon answers, there is no such job, or `out` cannot be written.
pub fn run(args: &HistoryArgs, out: &mut dyn Write) -> Result<(), AskFailure> {
    let path = match &args.job {
        // A job's name needs no escaping in a path.
        Some(job) => format!("/v1/jobs/{job}/history?limit={}", args.number),
        None => format!("/v1/history?limit={}", args.number),
    };
    let History { records } = args.client.client()?.get(&path)?;
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
