//! How a life ends: what ends it, and what is said and kept then.
//!
//! A session that is gone leaves to the next what was not sent, and tells the daemon the rest in the order it relies on.

use std::time::Duration;

use super::SessionLoop;
use crate::clock::Clock;
use crate::election::{Event, Failure};
use crate::term::TermEnd;
use crate::zookeeper::client::Connect;
use crate::zookeeper::committer::Committer;
use crate::zookeeper::context::SessionError;
use crate::zookeeper::node::Waiting;

/// How long a node that ends waits for its entries to be removed.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// How a session ended.
pub enum SessionEnd {
    /// It is gone; the node lives on under the next.
    Expired,
    /// The daemon is done.
    Done,
    /// An operator must act.
    Failed(Failure),
}

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    pub(super) fn note_error(&mut self, error: SessionError) {
        match error {
            SessionError::Again(_) | SessionError::NoAuth(_) => {}
            // The server's word; the client may not know yet.
            SessionError::SessionOver => self.ended = Some(SessionEnd::Expired),
            SessionError::NoChroot => {
                let (chroot, service) = (self.node.options.chroot.clone(), self.node.options.service.clone());
                self.ended = Some(SessionEnd::Failed(Failure::NoChroot { chroot, service }));
            }
        }
    }

    pub(super) fn fail_auth(&mut self, detail: String) {
        let service = self.node.options.service.clone();
        self.ended = Some(SessionEnd::Failed(Failure::Refused { service, detail }));
    }

    pub(super) fn leave(&mut self) {
        let until = self.now() + LEAVE_WITHIN;
        self.node.desired.leave.get_or_insert(until);
    }

    /// Nothing stands of this session any more, nor of those that were removed when the member was made.
    pub(super) fn forget_own(&mut self) {
        let mut gone = if self.is_member { self.removable() } else { Vec::new() };
        gone.push(self.context.me.owner);
        self.node.store.forget(&gone);
    }

    /// Done, or as much as the time allowed.
    pub(super) fn left(&mut self) {
        self.node.tell(Event::Left);
        self.ended = Some(SessionEnd::Done);
    }

    /// The last words of a session, in the order that the daemon relies on.
    pub(super) fn end(mut self, ended: SessionEnd) -> SessionEnd {
        let SessionEnd::Expired = ended else { return ended };
        self.forget_failures();
        let committer = std::mem::replace(&mut self.committer, Committer::new(self.context.clone()));
        let (answers, unsent) = committer.into_rest();
        for (id, answer) in answers {
            self.answer(id, answer);
        }
        let unsent = unsent.into_iter().filter(|(id, _)| !self.unheard.is_done(*id)).collect::<Vec<_>>();
        self.node.backlog.extend(unsent.into_iter().map(|(id, change)| Waiting::Commit(id, change)));
        let unread = std::mem::take(&mut self.asked).into_iter().chain(std::mem::take(&mut self.unread));
        let unread = unread.chain(std::mem::take(&mut self.refused));
        self.node.backlog.extend(unread.map(Waiting::Read));
        self.revoke_lease();
        self.lose_term(TermEnd::SessionExpired);
        self.forget_refusals();
        self.is_connected = false;
        self.tell_over();
        if std::mem::take(&mut self.node.desired.resign) {
            self.node.tell(Event::Withdrawn);
        }
        if self.is_told {
            self.node.tell(Event::Expired { session: self.id.clone() });
        }
        if self.node.desired.leave.is_some() {
            self.node.tell(Event::Left);
            return SessionEnd::Done;
        }
        SessionEnd::Expired
    }
}
