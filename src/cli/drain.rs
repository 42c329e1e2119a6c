//! `cronkeeper drain` and `cronkeeper undrain`: keep a node from leading, for maintenance.

use super::ask::{AskFailure, ClientArgs};
use super::effects::{Effect, Effects};
use super::{Io, wait};
use crate::api::client::Client;
use crate::api::nodes::{DrainBody, Drained, UndrainBody, Undrained};
use crate::status::{Status, drain_in_words};
use cronkeeper_core::escape;
use cronkeeper_core::run::Drain;
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::NodeName;

#[derive(Clone, Debug, clap::Args)]
pub struct DrainArgs {
    /// The node [default: the one that is asked]
    #[arg(value_parser = NodeName::parse)]
    pub node: Option<NodeName>,
    /// The reason, shown in the status
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait until none of its runs is in flight
    #[arg(long)]
    pub wait: bool,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct UndrainArgs {
    /// The node [default: the one that is asked]
    #[arg(value_parser = NodeName::parse)]
    pub node: Option<NodeName>,
    /// Wait until it is in the queue again
    #[arg(long)]
    pub wait: bool,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Returns once the node is out of the queue, or some seconds have passed.
///
/// # Errors
/// When no daemon answers, there is no such node, or the result cannot be written.
pub fn drain(args: &DrainArgs, io: &mut Io<'_>) -> Result<(), AskFailure> {
    let client = args.client.client()?;
    let node = named_or_asked(&client, args.node.as_ref())?;
    let request = DrainBody { reason: args.reason.clone() };
    let Drained { node, drained, replaced, mut is_out } = client.post(&format!("/v1/nodes/{node}/drain"), &request)?;
    if !args.json {
        for line in said(&node, &drained, replaced.as_ref()) {
            writeln!(io.out, "{}", escape::plain(&line))?;
        }
        io.out.flush()?;
    }
    let status = if args.wait {
        is_out = true;
        wait::until(&client, io.err, |status| in_flight(status, &node))?
    } else {
        client.get("/v1/status")?
    };
    if !is_out {
        writeln!(io.err, "cronkeeper: {node} has not left the queue yet; it leaves once it has read the request")?;
    }
    if status.is_all_drained() {
        writeln!(io.err, "cronkeeper: every node is drained now: nobody leads, and no job runs")?;
    }
    if args.json {
        let (asked, replaced) = (Some(drained.into()), replaced.map(Into::into));
        let effect = Effect { effect: "drained", node: Some(node), asked, replaced, ..Effect::default() };
        Effects::one("drain", effect, !is_out).write(io.out)?;
    }
    Ok(())
}

/// # Errors
/// When no daemon answers, there is no such node, or the result cannot be written.
pub fn undrain(args: &UndrainArgs, io: &mut Io<'_>) -> Result<(), AskFailure> {
    let client = args.client.client()?;
    let node = named_or_asked(&client, args.node.as_ref())?;
    let Undrained { node, was } = client.post(&format!("/v1/nodes/{node}/undrain"), &UndrainBody::default())?;
    if !args.json {
        let effect = if was.is_some() { "may lead again" } else { "was not drained" };
        writeln!(io.out, "{node} {effect}")?;
        io.out.flush()?;
    }
    if args.wait {
        wait::until(&client, io.err, |status| out_of_queue(status, &node))?;
    }
    if args.json {
        let effect = if was.is_some() { "undrained" } else { "not-drained" };
        let replaced = was.map(Into::into);
        let effect = Effect { effect, node: Some(node), replaced, ..Effect::default() };
        Effects::one("undrain", effect, false).write(io.out)?;
    }
    Ok(())
}

/// Who drained the node, when and why, and what that has changed.
fn said(node: &NodeName, drained: &Drain, replaced: Option<&Drain>) -> Vec<String> {
    let now = drain_in_words(node, drained);
    match replaced {
        None => vec![now],
        Some(replaced) if replaced == drained => vec![format!("{now}; nothing has changed")],
        Some(replaced) => vec![now, format!("before that, {}", drain_in_words(node, replaced))],
    }
}

/// The node that the operator named, else the one that answers.
fn named_or_asked(client: &Client, named: Option<&NodeName>) -> Result<NodeName, AskFailure> {
    match named {
        Some(node) => Ok(node.clone()),
        None => Ok(client.get::<Status>("/v1/status")?.node),
    }
}

/// What a drained node still has to do.
fn in_flight(status: &Status, node: &NodeName) -> Option<String> {
    if status.queue.iter().any(|queued| queued.node.as_ref() == Some(node)) {
        return Some(format!("{node} to leave the queue"));
    }
    let runs = status.runs.iter().filter(|run| run.node == *node && run.state.has_process() && run.ended.is_none());
    let runs: Vec<_> = runs.map(|run| &run.run).collect();
    (!runs.is_empty()).then(|| format!("{} on {node}: {}", counted(runs.len(), "run"), wait::listed(&runs)))
}

fn out_of_queue(status: &Status, node: &NodeName) -> Option<String> {
    let is_queued = status.queue.iter().any(|queued| queued.node.as_ref() == Some(node));
    (!is_queued).then(|| format!("{node} to join the queue"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;
    use cronkeeper_core::run::RunState;

    #[test]
    fn a_drain_of_a_drained_node_says_what_was_before_unless_that_is_the_same() {
        let node = NodeName::new("host-a");
        let at = sample::at("2026-11-20T02:00:00Z");
        let of = |reason: &str| Drain { by: "alice".into(), at, reason: Some(reason.into()) };
        let disks = "host-a was drained by alice at 2026-11-20 02:00:00Z: disks";
        assert_eq!(said(&node, &of("disks"), None), [disks]);
        assert_eq!(said(&node, &of("disks"), Some(&of("disks"))), [format!("{disks}; nothing has changed")]);
        let fans = "before that, host-a was drained by alice at 2026-11-20 02:00:00Z: fans";
        assert_eq!(said(&node, &of("disks"), Some(&of("fans"))), [disks, fans]);
    }

    #[test]
    fn a_drained_node_is_awaited_until_it_is_out_of_the_queue_and_has_no_run() {
        let (mut status, node) = (sample::leader(), NodeName::new("host-a"));
        assert_eq!(in_flight(&status, &node).as_deref(), Some("host-a to leave the queue"));
        assert_eq!(out_of_queue(&status, &node), None);
        status.queue.remove(0);
        assert_eq!(in_flight(&status, &node).as_deref(), Some("1 run on host-a: load.20261120T025900Z"));
        status.runs[0].state = RunState::Retrying;
        assert_eq!(in_flight(&status, &node), None, "another node begins its next attempt");
        assert_eq!(out_of_queue(&status, &node).as_deref(), Some("host-a to join the queue"));
    }
}
