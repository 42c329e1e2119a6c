//! `cronkeeper pause` and `cronkeeper resume`: no scheduled runs of a job meanwhile.

use std::io::Write;

use super::ask::{AskFailure, ClientArgs};
use crate::api::control::{PauseBody, Paused, ResumeBody, Resumed};
use crate::job::JobName;

/// Keep a job's occurrences from running until it is resumed
#[derive(Clone, Debug, clap::Args)]
pub struct PauseArgs {
    /// Which
    #[arg(value_parser = JobName::parse)]
    pub job: JobName,
    /// Why, for whoever looks at the status
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Whom to ask.
    #[command(flatten)]
    pub whom: ClientArgs,
}

/// Let a paused job's occurrences run again, from now on
#[derive(Clone, Debug, clap::Args)]
pub struct ResumeArgs {
    /// Which
    #[arg(value_parser = JobName::parse)]
    pub job: JobName,
    /// Whom to ask.
    #[command(flatten)]
    pub whom: ClientArgs,
}

/// Runs `pause`.
///
/// # Errors
/// When no daemon answers, there is no such job, or `out` takes no more.
pub fn pause(args: &PauseArgs, out: &mut dyn Write) -> Result<(), AskFailure> {
    let request = PauseBody { reason: args.reason.clone() };
    let Paused { paused } = args.whom.client()?.post(&format!("/v1/jobs/{}/pause", args.job), &request)?;
    Ok(writeln!(out, "{} is paused by {}", args.job, paused.by)?)
}

/// Runs `resume`. Returns once the leader has done it.
///
/// # Errors
/// When no daemon answers, no leader does it in time, there is no such job, or `out` takes no more.
pub fn resume(args: &ResumeArgs, out: &mut dyn Write) -> Result<(), AskFailure> {
    let Resumed { was_paused } =
        args.whom.client()?.post(&format!("/v1/jobs/{}/resume", args.job), &ResumeBody::default())?;
    let said = if was_paused { "is resumed" } else { "was not paused" };
    Ok(writeln!(out, "{} {said}", args.job)?)
}
