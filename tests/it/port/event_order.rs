//! Checks the events of one node against the contract in `cronkeeper::coordination`.

use std::collections::BTreeMap;

use cronkeeper::coordination;
use cronkeeper::election::Event as ElectionEvent;
use cronkeeper::ledger::{Change, CommitId, Event as LedgerEvent};
use cronkeeper::term::{CandidateName, FencingToken, SessionId, Term, TermEnd};

/// What the events of a node allow next.
#[derive(Clone, Debug, Default)]
pub struct EventOrder {
    session: Option<SessionId>,
    candidate: Option<CandidateName>,
    term: Option<Term>,
    newest_token: Option<FencingToken>,
    has_lease: bool,
    is_connected: bool,
    /// Commits without an answer; for those that only a leader may write, the term in which they were requested.
    open: BTreeMap<CommitId, Option<FencingToken>>,
    has_ended: bool,
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
        let term = self.term.as_ref().filter(|_| change.is_fenced()).map(|term| term.token);
        assert!(self.open.insert(id, term).is_none(), "the test uses {id:?} twice");
    }

    /// Takes the next event.
    ///
    /// # Errors
    /// The rule that the event breaks.
    pub fn received(&mut self, event: &coordination::Event) -> Result<(), &'static str> {
        check(!self.has_ended, "after `Left` and `Failed` no further event comes")?;
        match event {
            coordination::Event::Election(event) => self.election(event),
            coordination::Event::Ledger(LedgerEvent::Answered { id, .. }) => {
                check(self.open.remove(id).is_some(), "each commit has one answer")
            }
            coordination::Event::Ledger(_) => Ok(()),
        }
    }

    fn election(&mut self, event: &ElectionEvent) -> Result<(), &'static str> {
        match event {
            ElectionEvent::Session { id, .. } => {
                let is_new = self.session.as_ref().is_none_or(|known| known == id);
                check(is_new, "another session comes only after the old one's `Expired`")?;
                (self.session, self.is_connected) = (Some(id.clone()), true);
            }
            ElectionEvent::Joined { candidate } => {
                check(self.session.is_some(), "`Session` comes before `Joined`")?;
                check(self.term.is_none(), "a leader's `Over` comes before it joins again")?;
                self.candidate = Some(candidate.clone());
            }
            ElectionEvent::Following { candidate, .. } => {
                check(self.candidate.as_ref() == Some(candidate), "`Joined` comes before `Following`")?;
            }
            ElectionEvent::Elected { term, .. } => {
                check(self.candidate.as_ref() == Some(&term.candidate), "`Joined` comes before `Elected`")?;
                check(self.term.is_none(), "one term is over before the next begins")?;
                check(self.newest_token.is_none_or(|known| known < term.token), "tokens grow")?;
                (self.newest_token, self.term) = (Some(term.token), Some(term.clone()));
            }
            ElectionEvent::Over { term, why } => self.over(term, *why)?,
            ElectionEvent::Withdrawn => {
                check(self.term.is_none(), "`Over` comes before `Withdrawn`")?;
                self.candidate = None;
            }
            ElectionEvent::Lease { until } => {
                self.has_lease = *until > cronkeeper::clock::Uptime::ZERO;
                check(!self.has_lease || self.session.is_some(), "a lease needs a session")?;
            }
            ElectionEvent::Suspended { session } | ElectionEvent::Resumed { session } => {
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
        let waits = self.is_connected && !matches!(why, TermEnd::LeaseOver | TermEnd::Stalled);
        check(!waits || !self.has_open(term.token), "the answers to a term's commits come before its `Over`")
    }

    fn expired(&mut self, session: &SessionId) -> Result<(), &'static str> {
        check(self.session.take().as_ref() == Some(session), "only the node's session can expire")?;
        check(self.term.is_none(), "`Over` comes before `Expired`")?;
        check(!self.has_lease, "the lease is withdrawn before `Expired`")?;
        let has_open = self.open.values().any(Option::is_some);
        check(!has_open, "the answers to a leader's commits come before `Expired`")?;
        self.candidate = None;
        Ok(())
    }

    fn has_open(&self, token: FencingToken) -> bool {
        self.open.values().any(|term| *term == Some(token))
    }
}

fn check(is_kept: bool, rule: &'static str) -> Result<(), &'static str> {
    if is_kept { Ok(()) } else { Err(rule) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cronkeeper::clock::Uptime;
    use cronkeeper::ledger::{Commit, Snapshot};

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

    /// The rule that the last of the events breaks; the others must break none.
    fn broken(mut order: EventOrder, events: impl IntoIterator<Item = ElectionEvent>) -> Option<&'static str> {
        let mut results = Vec::new();
        for event in events {
            results.push(order.received(&coordination::Event::Election(event)).err());
        }
        let last = results.pop().expect("there are events");
        assert!(results.iter().all(Option::is_none), "{results:?}");
        last
    }

    /// A leader with a commit that has no answer yet.
    fn waiting() -> EventOrder {
        let mut order = EventOrder::default();
        for event in [opened("1"), joined(), elected(7)] {
            order.received(&coordination::Event::Election(event)).unwrap();
        }
        order.requested(CommitId(1), &first_mark("backup", "1"));
        order
    }

    #[test]
    fn what_the_contract_allows_breaks_no_rule() {
        let session =
            [opened("1"), lease(5), joined(), elected(7), over(7, TermEnd::Resigned), ElectionEvent::Withdrawn];
        let next =
            [joined(), elected(8), lease(0), over(8, TermEnd::SessionExpired), expired("1"), opened("2"), joined()];
        assert_eq!(broken(EventOrder::default(), session.into_iter().chain(next)), None);
        assert_eq!(broken(waiting(), [over(7, TermEnd::LeaseOver)]), None);
        assert_eq!(
            broken(waiting(), [ElectionEvent::Suspended { session: session_of_waiting() }, over(7, TermEnd::Fenced)]),
            None
        );
    }

    fn session_of_waiting() -> SessionId {
        session("1")
    }

    #[test]
    fn what_the_contract_forbids_is_found() {
        let new = EventOrder::default;
        let cases = [
            (broken(new(), [joined()]), "`Session` comes before `Joined`"),
            (broken(new(), [opened("1"), elected(7)]), "`Joined` comes before `Elected`"),
            (broken(new(), [opened("1"), opened("2")]), "another session comes only after the old one's `Expired`"),
            (broken(new(), [lease(5)]), "a lease needs a session"),
            (broken(waiting(), [elected(8)]), "one term is over before the next begins"),
            (broken(waiting(), [joined()]), "a leader's `Over` comes before it joins again"),
            (broken(waiting(), [over(8, TermEnd::LeaseOver)]), "only the term of the last `Elected` can be over"),
            (broken(waiting(), [over(7, TermEnd::Resigned)]), "the answers to a term's commits come before its `Over`"),
            (broken(waiting(), [ElectionEvent::Withdrawn]), "`Over` comes before `Withdrawn`"),
            (broken(waiting(), [ElectionEvent::Left, opened("2")]), "after `Left` and `Failed` no further event comes"),
            (broken(waiting(), [expired("1")]), "`Over` comes before `Expired`"),
            (
                broken(waiting(), [over(7, TermEnd::LeaseOver), expired("1")]),
                "the answers to a leader's commits come before `Expired`",
            ),
            (broken(new(), [opened("1"), lease(5), expired("1")]), "the lease is withdrawn before `Expired`"),
            (
                broken(new(), [opened("1"), joined(), elected(7), over(7, TermEnd::LeaseOver), joined(), elected(7)]),
                "tokens grow",
            ),
        ];
        for (found, rule) in cases {
            assert_eq!(found, Some(rule));
        }
    }

    #[test]
    fn a_second_answer_to_a_commit_is_found() {
        let mut order = waiting();
        let answered = LedgerEvent::Answered { id: CommitId(1), answer: Commit::Accepted };
        let answered = coordination::Event::Ledger(answered);
        assert_eq!(order.received(&answered), Ok(()));
        assert_eq!(order.received(&answered), Err("each commit has one answer"));
    }
}
