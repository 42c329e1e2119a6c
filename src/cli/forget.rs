//! `cronkeeper forget`: a node that is gone for good is no longer counted on.

use super::Io;
use super::ask::{AskFailure, ClientArgs};
use super::effects::{Effect, Effects};
use crate::api::nodes::{ForgetBody, ForgottenNode};
use cronkeeper_core::term::NodeName;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The node, which must not be alive
    #[arg(value_parser = NodeName::parse)]
    pub node: NodeName,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

impl Args {
    /// # Errors
    /// When no daemon answers, the node is alive, there is no such node, or the result cannot be written.
    pub fn run(&self, io: &mut Io<'_>) -> Result<(), AskFailure> {
        let client = self.client.client()?;
        let ForgottenNode { node } = client.post(&format!("/v1/nodes/{}/forget", self.node), &ForgetBody::default())?;
        if self.json {
            let effect = Effect { effect: "forgotten", node: Some(node), ..Effect::default() };
            Effects::one("forget", effect, false).write(io.out)?;
        } else {
            writeln!(io.out, "{node} is forgotten")?;
        }
        Ok(())
    }
}
