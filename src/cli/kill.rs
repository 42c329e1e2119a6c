//! `cronkeeper kill`: ends a run, on whichever node it is.
//!
//! Once each node has its share of a run, the run itself is no longer in flight: its id then means all its shares that
//! are; each is asked to end separately.

use serde::Deserialize;

use super::ask::{AskFailure, ClientArgs};
use super::effects::{Effect, Effects};
use super::follow::{AwaitedRun, follow};
use super::{Io, wait};
use crate::api::client::{AskError, Client, Said};
use crate::api::control::{KillBody, Killing};
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{RunId, RunState};

#[derive(Clone, Debug, clap::Args)]
pub struct KillArgs {
    /// The run's id, as in status and log (for a run on every node: all its shares); or the job, if exactly one run of
    /// it is in flight
    #[arg(value_name = "RUN|JOB", value_parser = Whom::parse)]
    pub whom: Whom,
    /// Also end a run whose node is cut off, even though its process may still be running there
    #[arg(long)]
    pub force: bool,
    /// Wait until the run has ended
    #[arg(long)]
    pub wait: bool,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// What to kill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    Run(RunId),
    /// The job's only run in flight.
    Job(JobName),
}

impl Whom {
    fn parse(text: &str) -> Result<Self, String> {
        match RunId::parse(text) {
            Ok(run) => Ok(Self::Run(run)),
            Err(_) => JobName::parse(text).map(Self::Job).map_err(|bad| bad.to_string()),
        }
    }
}

/// The runs of a job, in its status.
#[derive(Deserialize)]
struct RunsOfJob {
    running: Vec<RunId>,
}

/// Without `--wait`, returns once the request is recorded, which is before the run ends.
///
/// # Errors
/// When no daemon answers, the run is not in flight, several runs of the job are, or the result cannot be written.
pub fn run(args: &KillArgs, io: &mut Io<'_>) -> Result<(), AskFailure> {
    let client = args.client.client()?;
    let run = match &args.whom {
        Whom::Run(run) => run.clone(),
        Whom::Job(job) => only_run(&client, job)?,
    };
    let killed = request(&client, run, args.force)?;
    if !args.json {
        for (run, state) in &killed {
            writeln!(io.out, "{run} {}", effect(*state, args.force))?;
        }
        io.out.flush()?;
    }
    let mut effects = Vec::new();
    for (run, _) in killed {
        let ended = if args.wait { Some(follow(&client, &run)?) } else { None };
        if ended.is_some() && !args.json {
            writeln!(io.out, "{run} has ended")?;
        }
        let effect = if ended.is_some() { "ended" } else { "requested" };
        let record = ended.and_then(AwaitedRun::into_record);
        let (job, node) = (Some(run.job().clone()), run.node().cloned());
        effects.push(Effect { effect, job, node, run: Some(run), record, ..Effect::default() });
    }
    if args.json {
        let effects = Effects::of("kill", effects);
        if args.wait { effects } else { effects.pending() }.write(io.out)?;
    }
    Ok(())
}

/// Requests the end of the run, or else of its shares. Returns what is to end, with its state; never nothing.
fn request(client: &Client, run: RunId, force: bool) -> Result<Vec<(RunId, RunState)>, AskError> {
    let kill = |run: &RunId| {
        let Killing { state } = client.post(&format!("/v1/runs/{run}/kill"), &KillBody { force })?;
        Ok(state)
    };
    let killed = match kill(&run) {
        // No node has got its share since. Some may have it already.
        Ok(state @ RunState::Queued) => Ok(state),
        Err(AskError::NotFound(why)) if run.node().is_none() => Err(AskError::NotFound(why)),
        killed => return Ok(vec![(run, killed?)]),
    };
    let mut all: Vec<_> = killed.iter().map(|state| (run.clone(), *state)).collect();
    for share in shares(client, &run)? {
        match kill(&share) {
            Ok(state) => all.push((share, state)),
            // It has ended by itself.
            Err(AskError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    // What there is to say of a run without shares.
    if all.is_empty() { killed.map(|_| all) } else { Ok(all) }
}

/// The shares of the run that are in flight.
fn shares(client: &Client, run: &RunId) -> Result<Vec<RunId>, AskError> {
    match client.get(&format!("/v1/jobs/{}", run.job())) {
        Ok(RunsOfJob { running }) => Ok(running.into_iter().filter(|share| share.is_share_of(run)).collect()),
        // This node's file does not have the job any more.
        Err(AskError::NotFound(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The only run of the job that is in flight.
fn only_run(client: &Client, job: &JobName) -> Result<RunId, AskError> {
    let RunsOfJob { mut running } = client.get(&format!("/v1/jobs/{job}"))?;
    match (running.pop(), running.as_slice()) {
        (Some(run), []) => Ok(run),
        (Some(last), others) => {
            let all: Vec<&RunId> = others.iter().chain([&last]).collect();
            let error = format!("{} runs of job `{job}` are in flight; name one: {}", all.len(), wait::listed(&all));
            Err(AskError::Refused(Said::of(error)))
        }
        (None, _) => Err(AskError::NotFound(Said::of(format_args!("no run of job `{job}` is in flight")))),
    }
}

fn effect(state: RunState, force: bool) -> &'static str {
    match state {
        RunState::CutOff if !force => "is cut off: its node ends it once it is back; --force abandons it now",
        RunState::CutOff => "is being abandoned",
        RunState::Running => "is being stopped",
        RunState::Queued | RunState::Placed | RunState::Retrying | RunState::Unstarted => {
            "ends without another attempt"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_run_if_it_can_be_one() {
        assert!(matches!(Whom::parse("load.20261120T025900Z"), Ok(Whom::Run(_))));
        assert!(matches!(Whom::parse("load.2026"), Ok(Whom::Job(_))));
        assert!(Whom::parse("-").is_err());
    }
}
