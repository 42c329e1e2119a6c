//! `cronkeeper handover`: another node is to lead.

use std::io::Write;

use super::ask::{AskFailure, ClientArgs};
use crate::api::control::{HandedOver, HandoverBody};
use crate::term::NodeName;

/// Have the leader give leadership up; to be asked of the node that leads
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Who is to lead [default: the next in line]
    #[arg(long, value_name = "NODE", value_parser = NodeName::parse)]
    pub to: Option<NodeName>,
    /// Whom to ask.
    #[command(flatten)]
    pub whom: ClientArgs,
}

impl Args {
    /// Runs the command. Returns once leadership is given up.
    ///
    /// # Errors
    /// When no daemon answers, it does not lead, leadership cannot be given to that node, or `out` takes no more.
    pub fn run(&self, out: &mut dyn Write) -> Result<(), AskFailure> {
        let request = HandoverBody { to: self.to.clone() };
        let HandedOver { node } = self.whom.client()?.post("/v1/handover", &request)?;
        let to = self.to.as_ref().map_or("the next in line", NodeName::as_str);
        Ok(writeln!(out, "{node} gave leadership to {to}")?)
    }
}
