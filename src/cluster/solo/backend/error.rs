//! Errors of the backend, and how it handles them.

use std::io;

use tokio::time::Instant;

use super::{Backend, RETRY, Timers};
use crate::solo::reap::ReapError;
use crate::solo::store::StoreError;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::coordination::Request;
use cronkeeper_core::ledger::Commit;
use cronkeeper_core::term::TermEnd;
use cronkeeper_core::{election, ledger};

/// An error that keeps the backend from carrying out a request.
#[derive(Debug, thiserror::Error)]
pub(in crate::solo) enum BackendError {
    #[error("the ledger: {0}")]
    Store(#[from] StoreError),
    #[error("the state directory: {0}")]
    Files(#[from] io::Error),
    #[error(transparent)]
    Reap(#[from] ReapError),
    #[error("the lock file of this node's member was removed")]
    MemberGone,
}

impl BackendError {
    /// True if a retry cannot help.
    fn is_lasting(&self) -> bool {
        match self {
            Self::Store(error) => error.is_lasting(),
            Self::MemberGone => true,
            Self::Files(_) | Self::Reap(_) => false,
        }
    }
}

impl Backend {
    /// Answers pending commits as unknown, so that requests behind them need not wait.
    ///
    /// Reads are moved behind requests about the queue, and are carried out as soon as possible. If the backend has
    /// failed, nothing is answered any more, because the daemon then ends and nobody waits.
    pub(super) fn release_requests(&mut self) {
        let mut reads = Vec::new();
        for request in std::mem::take(&mut self.pending) {
            match request {
                Request::Ledger(ledger::Request::Commit { id, .. }) => {
                    self.emit_ledger(ledger::Event::Answered {
                        id,
                        answer: Commit::Unknown,
                        before: None,
                        token: None,
                    });
                }
                Request::Election(request) if is_about_the_queue(&request) => {
                    self.pending.push_back(Request::Election(request));
                }
                Request::Ledger(read) if !self.failed => reads.push(Request::Ledger(read)),
                Request::Ledger(_) | Request::Election(_) | Request::Lock(_) => {}
            }
        }
        self.pending.extend(reads);
    }

    pub(super) fn on_result(&mut self, result: Result<(), BackendError>) {
        match result {
            Ok(()) => {}
            Err(error) if error.is_lasting() => self.fail(&error),
            Err(error) => self.suspend(&error),
        }
    }

    fn suspend(&mut self, error: &BackendError) {
        // Processes that cannot be killed delay the settling of their runs, but writing still works.
        let is_lost = !matches!(error, BackendError::Reap(_));
        let error = self.located(error);
        if is_lost && !self.suspended {
            self.suspended = true;
            self.emit(election::Event::Suspended { session: self.session(), error: Some(error.clone()) });
        }
        let now = Instant::now();
        self.timers.retry = Some(now + RETRY);
        self.emit(election::Event::Unreachable { retry: RETRY, error });
    }

    /// The error with the place where it occurred.
    fn located(&self, error: &BackendError) -> String {
        let ledger = self.background.ledger.display();
        match error {
            BackendError::Store(error) => format!("the ledger {ledger}: {error}"),
            BackendError::Files(error) => match self.background.ledger.parent() {
                Some(folder) => format!("the state directory {}: {error}", folder.display()),
                None => error.to_string(),
            },
            BackendError::Reap(_) | BackendError::MemberGone => error.to_string(),
        }
    }

    /// Ends the term for good, because its files can no longer be used.
    ///
    /// While this node's member file exists, its runs may continue. Without it, another node may start them again, so
    /// the lease is revoked too.
    fn fail(&mut self, error: &BackendError) {
        if self.failed {
            return;
        }
        self.release_requests();
        if matches!(error, BackendError::MemberGone) {
            self.emit(election::Event::Lease { until: Uptime::ZERO });
        }
        self.contender.withdraw(TermEnd::EntryGone, &self.service.events);
        self.watch.end();
        self.job_locks.stop_waiting();
        self.timers = Timers::from(self.timers.poll);
        self.emit(election::Event::Failed(election::Failure::StateDir(self.located(error))));
        self.failed = true;
    }
}

fn is_about_the_queue(request: &election::Request) -> bool {
    matches!(request, election::Request::Campaign | election::Request::Resign | election::Request::Leave)
}
