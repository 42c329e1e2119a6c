//! Checks the events of one node against the contract in `cronkeeper_core::coordination`.

use std::collections::BTreeMap;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::coordination;
use cronkeeper_core::election::Event as ElectionEvent;
use cronkeeper_core::ledger::{Change, Commit, CommitId, Event as LedgerEvent};
use cronkeeper_core::term::{CandidateName, FencingToken, SessionId, Term, TermEnd};

/// What the events of a node allow next.
#[derive(Clone, Debug, Default)]
pub struct EventOrder {
    session: Option<SessionId>,
    candidate: Option<CandidateName>,
    /// The node is not drained; absent until this session has reported it.
    may_join: Option<bool>,
    term: Option<Term>,
    newest_token: Option<FencingToken>,
    /// A lease was reported since the last event that begins or ends a session or a term.
    has_lease: bool,
    is_connected: bool,
    /// Commits without an answer.
    open: BTreeMap<CommitId, Writer>,
    has_ended: bool,
}

/// Who may write a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Owner,
    /// The leader of this term.
    Leader(FencingToken),
    /// Nobody any more: the term of the leader that requested it is over.
    Nobody,
}

impl EventOrder {
    /// The node's session, if it has one.
    pub fn session(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    /// The term in which the node leads, or has led last.
    pub fn newest_token(&self) -> Option<FencingToken> {
        self.newest_token
    }

    pub fn requested(&mut self, id: CommitId, change: &Change) {
        let writer = match &self.term {
            _ if !change.is_fenced() => Writer::Owner,
            Some(term) => Writer::Leader(term.token),
            None => Writer::Nobody,
        };
        assert!(self.open.insert(id, writer).is_none(), "the test uses {id:?} twice");
    }

    /// Takes the next event.
    ///
    /// # Errors
    /// The rule that the event breaks.
    pub fn received(&mut self, event: &coordination::Event) -> Result<(), &'static str> {
        check(!self.has_ended, "after `Left` and `Failed` no further event comes")?;
        match event {
            coordination::Event::Election(event) => self.election(event),
            coordination::Event::Ledger(LedgerEvent::Answered { id, answer, .. }) => match self.open.remove(id) {
                None => Err("a commit has one answer"),
                Some(Writer::Nobody) => {
                    check(*answer != Commit::Accepted, "after `Over` no leader's commit is accepted")
                }
                Some(_) => Ok(()),
            },
            coordination::Event::Ledger(_) | coordination::Event::Lock(_) => Ok(()),
        }
    }

    fn election(&mut self, event: &ElectionEvent) -> Result<(), &'static str> {
        match event {
            ElectionEvent::Session { id, .. } => {
                let is_allowed = self.session.as_ref().is_none_or(|known| known == id);
                check(is_allowed, "another session comes only after the old one's `Expired`")?;
                (self.session, self.is_connected, self.has_lease) = (Some(id.clone()), true, false);
            }
            ElectionEvent::Joined { candidate } => {
                check(self.session.is_some(), "`Session` comes before `Joined`")?;
                check(self.term.is_none(), "a leader's `Over` comes before it joins again")?;
                // A node that has a place may learn that it has another one too.
                let may_join = self.candidate.is_some() || self.may_join == Some(true);
                check(may_join, "a node joins only once it is known that it is not drained")?;
                self.candidate = Some(candidate.clone());
            }
            ElectionEvent::Following { candidate, .. } => {
                check(self.candidate.as_ref() == Some(candidate), "`Joined` comes before `Following`")?;
            }
            ElectionEvent::Elected { term, lease_until, .. } => {
                check(self.candidate.as_ref() == Some(&term.candidate), "`Joined` comes before `Elected`")?;
                check(self.term.is_none(), "one term is over before the next begins")?;
                check(self.newest_token.is_none_or(|known| known < term.token), "tokens grow")?;
                (self.newest_token, self.term) = (Some(term.token), Some(term.clone()));
                self.has_lease = *lease_until > Uptime::ZERO;
            }
            ElectionEvent::Wanted(wanted) => self.may_join = Some(wanted.drained.is_none()),
            ElectionEvent::Over { term, why } => self.over(term, *why)?,
            ElectionEvent::Withdrawn => {
                check(self.term.is_none(), "`Over` comes before `Withdrawn`")?;
                self.candidate = None;
            }
            ElectionEvent::Lease { until } => {
                self.has_lease = *until > Uptime::ZERO;
                check(!self.has_lease || self.session.is_some(), "a lease needs a session")?;
            }
            ElectionEvent::Suspended { session, .. } | ElectionEvent::Resumed { session } => {
                check(self.session.as_ref() == Some(session), "the session that is suspended is the node's")?;
                self.is_connected = matches!(event, ElectionEvent::Resumed { .. });
            }
            ElectionEvent::Expired { session } => self.expired(session)?,
            ElectionEvent::Left => (self.session, self.term, self.has_ended) = (None, None, true),
            ElectionEvent::Failed(_) => {
                check(self.term.is_none(), "`Over` comes before `Failed`")?;
                self.has_ended = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn over(&mut self, term: &Term, why: TermEnd) -> Result<(), &'static str> {
        check(self.term.take().as_ref() == Some(term), "only the term of the last `Elected` can be over")?;
        if self.is_connected && !matches!(why, TermEnd::LeaseOver | TermEnd::Stalled) {
            self.fence_open(|token| token == term.token);
        }
        let is_withdrawn = why != TermEnd::SessionExpired || !self.has_lease;
        // The end of a term ends the lease too, until the next event extends it.
        self.has_lease = false;
        check(is_withdrawn, "the lease is withdrawn before a lost session's `Over`")
    }

    fn expired(&mut self, session: &SessionId) -> Result<(), &'static str> {
        check(self.session.take().as_ref() == Some(session), "only the node's session can expire")?;
        check(self.term.is_none(), "`Over` comes before `Expired`")?;
        check(!self.has_lease, "the lease is withdrawn before `Expired`")?;
        self.fence_open(|_| true);
        (self.candidate, self.may_join) = (None, None);
        Ok(())
    }

    /// Commits of these terms must not be accepted any more. They may still be answered: the daemon may have requested
    /// them before it received the event.
    fn fence_open(&mut self, is_over: impl Fn(FencingToken) -> bool) {
        for writer in self.open.values_mut() {
            if matches!(writer, Writer::Leader(token) if is_over(*token)) {
                *writer = Writer::Nobody;
            }
        }
    }
}

fn check(is_kept: bool, rule: &'static str) -> Result<(), &'static str> {
    if is_kept { Ok(()) } else { Err(rule) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cronkeeper_core::election::Failure;
    use cronkeeper_core::ledger::Snapshot;
    use cronkeeper_core::run::{Drain, NodeControl};

    use super::*;
    use crate::port::records::first_mark;

    fn session(id: &str) -> SessionId {
        SessionId(id.into())
    }

    fn term(token: i64) -> Term {
        Term { token: FencingToken(token), candidate: CandidateName("c".into()) }
    }

    fn opened(id: &str) -> ElectionEvent {
        ElectionEvent::Session { id: session(id), timeout: Duration::from_secs(4) }
    }

    fn joined() -> ElectionEvent {
        ElectionEvent::Joined { candidate: CandidateName("c".into()) }
    }

    fn elected(token: i64) -> ElectionEvent {
        let (lease_until, snapshot) = (Uptime::ZERO, Box::<Snapshot>::default());
        ElectionEvent::Elected { term: term(token), lease_until, snapshot, took: Duration::ZERO }
    }

    fn over(token: i64, why: TermEnd) -> ElectionEvent {
        ElectionEvent::Over { term: term(token), why }
    }

    fn lease(seconds: u64) -> ElectionEvent {
        ElectionEvent::Lease { until: Uptime::ZERO + Duration::from_secs(seconds) }
    }

    fn expired(id: &str) -> ElectionEvent {
        ElectionEvent::Expired { session: session(id) }
    }

    fn answered(answer: Commit) -> coordination::Event {
        coordination::Event::Ledger(LedgerEvent::Answered { id: CommitId(1), answer, before: None, token: None })
    }

    fn wanted(drained: Option<Drain>) -> ElectionEvent {
        ElectionEvent::Wanted(NodeControl { drained, ..NodeControl::default() })
    }

    /// The rule that the last of the events breaks; the others must break none. Each session tells at once that nothing
    /// is wanted of the node.
    fn broken(order: &mut EventOrder, events: impl IntoIterator<Item = ElectionEvent>) -> Option<&'static str> {
        let mut results = Vec::new();
        for event in events {
            let is_session = matches!(event, ElectionEvent::Session { .. });
            let broken = order.received(&coordination::Event::Election(event)).err();
            if is_session && broken.is_none() {
                assert_eq!(order.received(&coordination::Event::Election(wanted(None))), Ok(()));
            }
            results.push(broken);
        }
        let last = results.pop().expect("there are events");
        assert!(results.iter().all(Option::is_none), "{results:?}");
        last
    }

    /// A leader with a commit that has no answer yet.
    fn waiting() -> EventOrder {
        let mut order = EventOrder::default();
        assert_eq!(broken(&mut order, [opened("1"), joined(), elected(7)]), None);
        order.requested(CommitId(1), &first_mark("backup", "1"));
        order
    }

    #[test]
    fn what_the_contract_allows_breaks_no_rule() {
        let first = [opened("1"), lease(5), joined(), elected(7), over(7, TermEnd::Resigned), ElectionEvent::Withdrawn];
        let next = [opened("1"), joined(), elected(8), lease(0), over(8, TermEnd::SessionExpired), expired("1")];
        let last = [opened("2"), joined(), elected(9), ElectionEvent::Left];
        assert_eq!(broken(&mut EventOrder::default(), first.into_iter().chain(next).chain(last)), None);
        for why in [TermEnd::LeaseOver, TermEnd::Stalled] {
            let mut late = waiting();
            assert_eq!(broken(&mut late, [over(7, why)]), None);
            assert_eq!(late.received(&answered(Commit::Accepted)), Ok(()));
        }
        let mut cut_off = waiting();
        let suspended = ElectionEvent::Suspended { session: session("1"), error: None };
        assert_eq!(broken(&mut cut_off, [suspended, over(7, TermEnd::Fenced)]), None);
        assert_eq!(cut_off.received(&answered(Commit::Accepted)), Ok(()));
    }

    #[test]
    fn what_the_contract_forbids_is_found() {
        let new = EventOrder::default;
        let following = ElectionEvent::Following {
            candidate: CandidateName("c".into()),
            predecessor: CandidateName("b".into()),
            predecessor_node: None,
            leader_node: None,
        };
        let drained = wanted(NodeControl::unreadable().drained);
        let failed = ElectionEvent::Failed(Failure::StateDir("full".into()));
        let cases = [
            (new(), vec![joined()], "`Session` comes before `Joined`"),
            (new(), vec![opened("1"), drained, joined()], "a node joins only once it is known that it is not drained"),
            (new(), vec![opened("1"), following], "`Joined` comes before `Following`"),
            (new(), vec![opened("1"), elected(7)], "`Joined` comes before `Elected`"),
            (new(), vec![opened("1"), opened("2")], "another session comes only after the old one's `Expired`"),
            (new(), vec![opened("1"), expired("2")], "only the node's session can expire"),
            (new(), vec![lease(5)], "a lease needs a session"),
            (
                new(),
                vec![opened("1"), ElectionEvent::Suspended { session: session("2"), error: None }],
                "the session that is suspended is the node's",
            ),
            (waiting(), vec![elected(8)], "one term is over before the next begins"),
            (waiting(), vec![joined()], "a leader's `Over` comes before it joins again"),
            (waiting(), vec![over(8, TermEnd::LeaseOver)], "only the term of the last `Elected` can be over"),
            (waiting(), vec![ElectionEvent::Withdrawn], "`Over` comes before `Withdrawn`"),
            (waiting(), vec![failed], "`Over` comes before `Failed`"),
            (waiting(), vec![ElectionEvent::Left, opened("2")], "after `Left` and `Failed` no further event comes"),
            (waiting(), vec![expired("1")], "`Over` comes before `Expired`"),
            (
                waiting(),
                vec![lease(5), over(7, TermEnd::SessionExpired)],
                "the lease is withdrawn before a lost session's `Over`",
            ),
            (new(), vec![opened("1"), lease(5), expired("1")], "the lease is withdrawn before `Expired`"),
            (
                new(),
                vec![opened("1"), joined(), elected(7), over(7, TermEnd::LeaseOver), joined(), elected(7)],
                "tokens grow",
            ),
        ];
        for (mut order, events, rule) in cases {
            assert_eq!(broken(&mut order, events), Some(rule));
        }
    }

    #[test]
    fn a_commit_that_is_accepted_after_its_term_is_found() {
        let ends = [vec![over(7, TermEnd::Resigned)], vec![over(7, TermEnd::LeaseOver), expired("1")]];
        for events in ends {
            for (answer, expected) in
                [(Commit::Fenced, Ok(())), (Commit::Accepted, Err("after `Over` no leader's commit is accepted"))]
            {
                let mut order = waiting();
                assert_eq!(broken(&mut order, events.clone()), None);
                assert_eq!(order.received(&answered(answer)), expected);
            }
        }
    }

    #[test]
    fn a_second_answer_to_a_commit_is_found() {
        let mut order = waiting();
        assert_eq!(order.received(&answered(Commit::Accepted)), Ok(()));
        assert_eq!(order.received(&answered(Commit::Accepted)), Err("a commit has one answer"));
    }
}
