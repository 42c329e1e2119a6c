//! What keeps the backend from going on, and what it does about it.

use std::io;

use tokio::time::Instant;

use super::{Backend, RETRY, Timers};
use crate::clock::Uptime;
use crate::coordination::Request;
use crate::ledger::Commit;
use crate::solo::reap::ReapError;
use crate::solo::store::StoreError;
use crate::term::TermEnd;
use crate::{election, ledger};

/// What keeps the backend from going on.
#[derive(Debug, thiserror::Error)]
pub(in crate::solo) enum Trouble {
    #[error("the ledger: {0}")]
    Store(#[from] StoreError),
    #[error("the state directory: {0}")]
    Files(#[from] io::Error),
    #[error(transparent)]
    Reap(#[from] ReapError),
    #[error("the lock file of this node's member was removed")]
    MemberGone,
}

impl Trouble {
    /// True where trying again cannot help.
    fn is_lasting(&self) -> bool {
        match self {
            Self::Store(error) => error.is_lasting(),
            Self::MemberGone => true,
            Self::Files(_) | Self::Reap(_) => false,
        }
    }
}

impl Backend {
    /// Answers what cannot be written with what is known of it, so that what comes after is not kept waiting. What is only to be
    /// read comes after what concerns the queue, and is read as soon as it can be; of a backend that failed nobody waits for
    /// it, for the daemon ends on that.
    pub(super) fn let_go(&mut self) {
        let mut reads = Vec::new();
        for request in std::mem::take(&mut self.line) {
            match request {
                Request::Ledger(ledger::Request::Commit { id, .. }) => {
                    self.answer(ledger::Event::Answered { id, answer: Commit::Unknown });
                }
                Request::Election(request) if is_about_the_queue(&request) => {
                    self.line.push_back(Request::Election(request));
                }
                Request::Ledger(read) if !self.failed => reads.push(Request::Ledger(read)),
                Request::Ledger(_) | Request::Election(_) => {}
            }
        }
        self.line.extend(reads);
    }

    pub(super) fn note(&mut self, result: Result<(), Trouble>) {
        match result {
            Ok(()) => {}
            Err(trouble) if trouble.is_lasting() => self.fail(&trouble),
            Err(trouble) => self.wait_out(&trouble),
        }
    }

    fn wait_out(&mut self, trouble: &Trouble) {
        // Processes that do not die keep a run from being settled, but nothing from being written.
        if !self.suspended && !matches!(trouble, Trouble::Reap(_)) {
            self.suspended = true;
            self.tell(election::Event::Suspended { session: self.session() });
        }
        self.timers.retry = Some(Instant::now() + RETRY);
        self.tell(election::Event::Unreachable { retry: RETRY, error: trouble.to_string() });
    }

    /// What the term rests on is gone: it is over. A member that still stands covers what runs here; without it the right to run
    /// anything that another may start again is gone too.
    fn fail(&mut self, trouble: &Trouble) {
        if std::mem::replace(&mut self.failed, true) {
            return;
        }
        if matches!(trouble, Trouble::MemberGone) {
            self.tell(election::Event::Lease { until: Uptime::ZERO });
        }
        self.contender.withdraw(TermEnd::EntryGone, &self.service.events);
        self.watch.end();
        self.timers = Timers::from(self.timers.look);
        self.tell(election::Event::Failed(election::Failure::StateDir(trouble.to_string())));
        self.let_go();
    }
}

fn is_about_the_queue(request: &election::Request) -> bool {
    matches!(request, election::Request::Campaign | election::Request::Resign | election::Request::Leave)
}
