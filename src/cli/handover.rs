//! `cronkeeper handover`: makes the leader resign in favour of another node.

use std::io::Write;

use super::ask::{AskFailure, ClientArgs};
use crate::api::control::{HandedOver, HandoverBody};
use crate::term::NodeName;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The node that leads next [default: the next in line]
    #[arg(long, value_name = "NODE", value_parser = NodeName::parse)]
    pub to: Option<NodeName>,
    #[command(flatten)]
    pub client: ClientArgs,
}

impl Args {
    /// Returns once the leader has resigned.
    ///
    /// # Errors
    /// When no daemon answers, it does not lead, the other node cannot take over, or `out` cannot be written.
    pub fn run(&self, out: &mut dyn Write) -> Result<(), AskFailure> {
        let request = HandoverBody { to: self.to.clone() };
        let HandedOver { node } = self.client.client()?.post("/v1/handover", &request)?;
        let to = self.to.as_ref().map_or("the next in line", NodeName::as_str);
        Ok(writeln!(out, "{node} gave leadership to {to}")?)
    }
}
