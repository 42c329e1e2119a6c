//! `cronkeeper kill`: ends a run, on whichever node it is.

use std::io::Write;

use super::ask::{AskFailure, ClientArgs};
use crate::api::control::{KillBody, Killing};
use crate::run::{RunId, RunState};

#[derive(Clone, Debug, clap::Args)]
pub struct KillArgs {
    /// The run's id, as in status and log
    #[arg(value_parser = RunId::parse)]
    pub run: RunId,
    /// Also end a run whose node is cut off, although its process may still be running there
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Returns once the request is recorded, which is before the run ends.
///
/// # Errors
/// When no daemon answers, the run is not in flight, or `out` cannot be written.
pub fn run(args: &KillArgs, out: &mut dyn Write) -> Result<(), AskFailure> {
    let request = KillBody { force: args.force };
    let Killing { state } = args.client.client()?.post(&format!("/v1/runs/{}/kill", args.run), &request)?;
    let effect = match state {
        RunState::CutOff if !args.force => "is cut off: its node ends it once it is back; --force abandons it now",
        RunState::CutOff => "is being abandoned",
        RunState::Running => "is being stopped",
        RunState::Queued | RunState::Retrying | RunState::Unstarted => "ends without another attempt",
    };
    Ok(writeln!(out, "{} {effect}", args.run)?)
}
