//! What one event leads to, gathered in order.

use jiff::Timestamp;

use super::{Command, Report};
use crate::clock::{Now, earlier};
use crate::coordination::Request;
use crate::job::Job;
use crate::warden::wire::Order;
use crate::{election, ledger};

/// One turn: the instant it is about, and what it leads to.
pub(super) struct Turn {
    pub now: Now,
    /// The time of day by which occurrences are due: see [`Clocks::due`](super::clocks::Clocks::due).
    pub due: Timestamp,
    pub commands: Vec<Command>,
}

impl Turn {
    pub fn election(&mut self, request: election::Request) {
        self.commands.push(Command::Ask(Request::Election(request)));
    }

    pub fn ledger(&mut self, request: ledger::Request) {
        self.commands.push(Command::Ask(Request::Ledger(request)));
    }

    pub fn order(&mut self, order: Order) {
        self.commands.push(Command::Order(order));
    }

    /// The instant up to which occurrences of `job` are to be decided on: its splay ago.
    pub fn due_for(&self, job: &Job) -> Timestamp {
        earlier(self.due, job.splay.delay())
    }

    pub fn tell(&mut self, report: Report) {
        self.commands.push(Command::Tell(report));
    }
}
