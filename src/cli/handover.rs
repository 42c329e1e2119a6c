//! `cronkeeper handover`: makes the leader resign in favour of another node.

use super::ask::{AskFailure, ClientArgs};
use super::effects::{Effect, Effects};
use super::{Io, wait};
use crate::api::nodes::{HandedOver, HandoverBody};
use crate::status::Status;
use cronkeeper_core::term::NodeName;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The node that is to lead next; nothing changes if it already leads [default: the next in line]
    #[arg(long, value_name = "NODE", value_parser = NodeName::parse)]
    pub to: Option<NodeName>,
    /// Wait until a node leads
    #[arg(long)]
    pub wait: bool,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

impl Args {
    /// Returns once the leader has resigned; at once if the wanted node leads already.
    ///
    /// # Errors
    /// When no daemon answers, nobody leads, the other node cannot take over, or the result cannot be written.
    pub fn run(&self, io: &mut Io<'_>) -> Result<(), AskFailure> {
        let client = self.client.client()?;
        let request = HandoverBody { to: self.to.clone() };
        let HandedOver { node, mut leader } = client.post("/v1/handover", &request)?;
        let led_already = self.to.as_ref() == Some(&node);
        if !self.json {
            let to = leader.as_ref().or(self.to.as_ref()).map_or("the next in line", NodeName::as_str);
            match led_already {
                true => writeln!(io.out, "{node} already leads")?,
                false => writeln!(io.out, "{node} gave leadership to {to}")?,
            }
            io.out.flush()?;
        }
        if self.wait {
            let status = wait::until(&client, io.err, awaited)?;
            leader = status.role.leader_node;
            if let (Some(leader), false) = (&leader, self.json || led_already) {
                writeln!(io.out, "{leader} leads")?;
            }
        }
        if self.json {
            let is_pending = leader.is_none();
            let effect = if led_already { "leads" } else { "resigned" };
            let effect = Effect { effect, node: Some(node), leader, ..Effect::default() };
            Effects::one("handover", effect, is_pending).write(io.out)?;
        }
        Ok(())
    }
}

/// A node leads once it is first in the queue and has read the ledger; of others than the asked node the queue tells.
fn awaited(status: &Status) -> Option<String> {
    let first = status.queue.first().and_then(|first| first.node.as_ref());
    let leads = first.is_some() && first == status.role.leader_node.as_ref();
    (!leads).then(|| "a node to lead".to_owned())
}
