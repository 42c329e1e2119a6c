//! The end of a session: its causes, its last events, and the requests kept for the next.
//!
//! A session that is gone leaves its unsent requests to the next one, and emits its last events in the order that the
//! daemon relies on.

use std::time::Duration;

use super::SessionLoop;
use super::link::ReportedLink;
use crate::recipes::committer::Committer;
use crate::recipes::context::SessionError;
use crate::recipes::node::Deferred;
use crate::tree::Session;
use cronkeeper_core::clock::Clock;
use cronkeeper_core::election::{Event, Failure};
use cronkeeper_core::term::TermEnd;

/// A node that ends waits at most this long for its entries to be removed.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The reason why a session ended.
pub enum SessionEnd {
    /// The session is gone; the node continues under the next.
    Expired,
    /// The daemon is done.
    Done,
    /// The node cannot continue until an operator acts.
    Failed(Failure),
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    pub(super) fn note_error(&mut self, error: SessionError) {
        match error {
            SessionError::Again(_) | SessionError::NoAuth(_) => {}
            // The server reports it; the client may not know yet.
            SessionError::SessionOver => self.link.ended = Some(SessionEnd::Expired),
            SessionError::NoRoot => {
                let (root, service) = self.service_path();
                self.link.ended = Some(SessionEnd::Failed(Failure::NoRoot { root, service }));
            }
            SessionError::RootInCluster { cluster } => {
                let (root, service) = self.service_path();
                self.link.ended = Some(SessionEnd::Failed(Failure::RootInCluster { root, cluster, service }));
            }
        }
    }

    /// The root, and the service as configured.
    fn service_path(&self) -> (String, String) {
        let options = &self.node.options;
        (options.root.clone(), options.service.clone())
    }

    pub(super) fn fail_auth(&mut self, detail: String) {
        let service = self.node.options.service.clone();
        self.link.ended = Some(SessionEnd::Failed(Failure::Refused { service, detail }));
    }

    pub(super) fn leave(&mut self) {
        let until = self.now() + LEAVE_WITHIN;
        self.node.desired.leave.get_or_insert(until);
    }

    /// Forgets this session in the state directory, and those whose entries were removed when the member was created:
    /// none of them has entries any more.
    pub(super) fn forget_own(&mut self) {
        let mut gone = if self.membership.is_present() { self.removable() } else { Vec::new() };
        gone.push(self.id.clone());
        self.node.note_left(&gone);
    }

    /// The entries are removed, or the time for that is over.
    pub(super) fn left(&mut self) {
        self.node.emit(Event::Left);
        self.link.ended = Some(SessionEnd::Done);
    }

    /// Emits the last events of a session in the order that the daemon relies on, and keeps its unsent requests.
    pub(super) fn end(mut self, ended: SessionEnd) -> SessionEnd {
        let SessionEnd::Expired = ended else { return ended };
        self.forget_failures();
        let committer = std::mem::replace(&mut self.committer, Committer::new(self.context.clone()));
        let (answers, unsent) = committer.into_rest();
        for (id, answer) in answers {
            self.answer(id, answer);
        }
        let unsent = unsent.into_iter().filter(|(id, _)| !self.standstill.unreceived.is_done(*id)).collect::<Vec<_>>();
        self.node.backlog.extend(unsent.into_iter().map(|(id, change)| Deferred::Commit(id, change)));
        let unread =
            std::mem::take(&mut self.reading.requested).into_iter().chain(std::mem::take(&mut self.reading.waiting));
        let unread = unread.chain(std::mem::take(&mut self.reading.refused));
        self.node.backlog.extend(unread.map(Deferred::Read));
        self.revoke_lease();
        self.lose_term(TermEnd::SessionExpired);
        self.forget_refusals();
        self.link.is_connected = false;
        self.emit_term_over_when_answered();
        if std::mem::take(&mut self.node.desired.resign) {
            self.node.emit(Event::Withdrawn);
        }
        if self.link.reported != ReportedLink::Nothing {
            self.node.emit(Event::Expired { session: self.id.clone() });
        }
        if self.node.desired.leave.is_some() {
            self.node.emit(Event::Left);
            return SessionEnd::Done;
        }
        SessionEnd::Expired
    }
}
