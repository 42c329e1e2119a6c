//! `cronkeeper kill`: end a run on whichever node has it.

use std::io::Write;

use super::ask::{AskFailure, ClientArgs};
use crate::api::control::{KillBody, Killing};
use crate::run::{RunId, RunState};

/// End a run on whichever node has it
#[derive(Clone, Debug, clap::Args)]
pub struct KillArgs {
    /// Which, as status and log name it
    #[arg(value_parser = RunId::parse)]
    pub run: RunId,
    /// Also one whose node is cut off, though its process may go on there
    #[arg(long)]
    pub force: bool,
    /// Whom to ask.
    #[command(flatten)]
    pub whom: ClientArgs,
}

/// Runs `kill`. Returns once the request is written, which is before the run has ended.
///
/// # Errors
/// When no daemon answers, the run is not in flight, or `out` takes no more.
pub fn run(args: &KillArgs, out: &mut dyn Write) -> Result<(), AskFailure> {
    let request = KillBody { force: args.force };
    let Killing { state } = args.whom.client()?.post(&format!("/v1/runs/{}/kill", args.run), &request)?;
    let said = match state {
        RunState::CutOff if !args.force => "is cut off: its node ends it when it is back; --force gives it up now",
        RunState::CutOff => "is given up",
        RunState::Running => "is told to end",
        RunState::Queued | RunState::Retrying | RunState::Unstarted => "ends without another attempt",
    };
    Ok(writeln!(out, "{} {said}", args.run)?)
}
