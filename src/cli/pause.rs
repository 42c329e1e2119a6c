//! `cronkeeper pause` and `cronkeeper resume`: stop and restart a job's scheduled runs.

use std::io::Write;

use super::ask::{AskFailure, ClientArgs};
use crate::api::control::{PauseBody, Paused, ResumeBody, Resumed};
use crate::job::JobName;

#[derive(Clone, Debug, clap::Args)]
pub struct PauseArgs {
    /// The job
    #[arg(value_parser = JobName::parse)]
    pub job: JobName,
    /// The reason, shown in the status
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    pub client: ClientArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct ResumeArgs {
    /// The job
    #[arg(value_parser = JobName::parse)]
    pub job: JobName,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// # Errors
/// When no daemon answers, there is no such job, or `out` cannot be written.
pub fn pause(args: &PauseArgs, out: &mut dyn Write) -> Result<(), AskFailure> {
    let request = PauseBody { reason: args.reason.clone() };
    let Paused { paused } = args.client.client()?.post(&format!("/v1/jobs/{}/pause", args.job), &request)?;
    Ok(writeln!(out, "{} is paused by {}", args.job, paused.by)?)
}

/// Returns once the leader has resumed the job.
///
/// # Errors
/// When no daemon answers, no leader resumes the job in time, there is no such job, or `out` cannot be written.
pub fn resume(args: &ResumeArgs, out: &mut dyn Write) -> Result<(), AskFailure> {
    let Resumed { was_paused } =
        args.client.client()?.post(&format!("/v1/jobs/{}/resume", args.job), &ResumeBody::default())?;
    let effect = if was_paused { "is resumed" } else { "was not paused" };
    Ok(writeln!(out, "{} {effect}", args.job)?)
}
