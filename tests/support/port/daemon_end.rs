//! One node's end of a backend: requests in, events out, each event checked against the contract on their order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cronkeeper_core::coordination::{self, Coordination, Request};
use cronkeeper_core::ledger::{Change, Commit, CommitId, Snapshot};
use cronkeeper_core::run::Outcome;
use cronkeeper_core::term::{FencingToken, NodeName, SessionId, Term, TermEnd};
use cronkeeper_core::{election, ledger, run_lock};

use super::event_order::EventOrder;

pub struct DaemonEnd {
    // Declared first, so that it is dropped before the process is killed.
    coordination: Coordination,
    _process: Process,
    /// Longest wait for an event. Absent where the test's clock is virtual: there the runner bounds the wait.
    limit: Option<Duration>,
    order: EventOrder,
    /// Every event so far.
    pub seen: VecDeque<coordination::Event>,
    commits: u64,
}

/// Kills the process of a backend when it is dropped.
pub struct Process(Option<Box<dyn FnOnce() + Send>>);

impl Process {
    pub fn new(kill: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(kill)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(kill) = self.0.take() {
            kill();
        }
    }
}

impl DaemonEnd {
    pub fn new(coordination: Coordination, process: Process, limit: Option<Duration>) -> Self {
        let (order, seen) = (EventOrder::default(), VecDeque::new());
        Self { coordination, _process: process, limit, order, seen, commits: 0 }
    }

    /// Stops as a killed process does.
    pub fn crash(self) {
        drop(self);
    }

    pub fn ask(&self, request: election::Request) {
        self.coordination.requests.send(Request::Election(request)).expect("the backend lives");
    }

    pub fn ask_ledger(&self, request: ledger::Request) {
        self.coordination.requests.send(Request::Ledger(request)).expect("the backend lives");
    }

    pub fn ask_lock(&self, request: run_lock::Request) {
        self.coordination.requests.send(Request::Lock(request)).expect("the backend lives");
    }

    pub fn reader(&self) -> &dyn coordination::Reader {
        self.coordination.reader.as_ref()
    }

    pub fn operator(&self) -> Arc<dyn ledger::Operator> {
        self.coordination.operator.clone()
    }

    /// The session that the node has, as far as its events say.
    pub fn current_session(&self) -> Option<&SessionId> {
        self.order.session()
    }

    /// The token under which the node leads, or led last.
    pub fn newest_token(&self) -> Option<FencingToken> {
        self.order.newest_token()
    }

    /// Waits for an event and keeps those before it in `seen`.
    pub async fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(&coordination::Event) -> Option<T>) -> T {
        let waiting = async {
            loop {
                let event = self.coordination.events.recv().await.expect("the backend lives");
                let broken = self.order.received(&event);
                let found = wanted(&event);
                self.seen.push_back(event);
                if let Err(rule) = broken {
                    panic!("the order of events is broken: {rule}; seen {:#?}", self.seen);
                }
                if let Some(found) = found {
                    return found;
                }
            }
        };
        match self.limit {
            None => waiting.await,
            Some(limit) => match tokio::time::timeout(limit, waiting).await {
                Ok(found) => found,
                Err(_) => panic!("not in time: {what}; seen {:#?}", self.seen),
            },
        }
    }

    pub async fn election<T>(&mut self, what: &str, mut wanted: impl FnMut(&election::Event) -> Option<T>) -> T {
        self.until(what, |event| match event {
            coordination::Event::Election(event) => wanted(event),
            coordination::Event::Ledger(_) | coordination::Event::Lock(_) => None,
        })
        .await
    }

    pub async fn ledger<T>(&mut self, what: &str, mut wanted: impl FnMut(&ledger::Event) -> Option<T>) -> T {
        self.until(what, |event| match event {
            coordination::Event::Ledger(event) => wanted(event),
            coordination::Event::Election(_) | coordination::Event::Lock(_) => None,
        })
        .await
    }

    /// Waits for an event about a lock.
    pub async fn lock<T>(&mut self, what: &str, mut wanted: impl FnMut(&run_lock::Event) -> Option<T>) -> T {
        self.until(what, |event| match event {
            coordination::Event::Lock(event) => wanted(event),
            coordination::Event::Election(_) | coordination::Event::Ledger(_) => None,
        })
        .await
    }

    /// True if such an election event has come already.
    pub fn seen_election(&self, wanted: impl Fn(&election::Event) -> bool) -> bool {
        self.seen.iter().any(|event| match event {
            coordination::Event::Election(event) => wanted(event),
            coordination::Event::Ledger(_) | coordination::Event::Lock(_) => false,
        })
    }

    pub async fn elected(&mut self) -> (Term, Snapshot) {
        self.election("elected", |event| match event {
            election::Event::Elected { term, snapshot, .. } => Some((term.clone(), (**snapshot).clone())),
            _ => None,
        })
        .await
    }

    pub async fn over(&mut self) -> (Term, TermEnd) {
        self.election("over", |event| match event {
            election::Event::Over { term, why } => Some((term.clone(), *why)),
            _ => None,
        })
        .await
    }

    pub async fn following(&mut self, node: Option<&str>) {
        let node = node.map(NodeName::new);
        self.election("following", |event| match event {
            election::Event::Following { predecessor_node, .. } => (*predecessor_node == node).then_some(()),
            _ => None,
        })
        .await;
    }

    /// Waits for a session.
    pub async fn session(&mut self) -> SessionId {
        self.election("session", |event| match event {
            election::Event::Session { id, .. } => Some(id.clone()),
            _ => None,
        })
        .await
    }

    /// Requests a commit without waiting for its answer.
    pub fn request(&mut self, change: Change) -> CommitId {
        self.commits += 1;
        let id = CommitId(self.commits);
        self.order.requested(id, &change);
        self.ask_ledger(ledger::Request::Commit { id, change });
        id
    }

    /// The answer to a commit, if it has come already.
    pub fn known_answer(&self, id: CommitId) -> Option<Commit> {
        self.seen.iter().find_map(|event| answer_to(id, event)).map(|(answer, _)| answer)
    }

    pub async fn answer(&mut self, id: CommitId) -> Commit {
        self.answer_with_before(id).await.0
    }

    /// The answer to the commit of an end, with the outcome of the end that was written before.
    pub async fn answer_with_before(&mut self, id: CommitId) -> (Commit, Option<Outcome>) {
        match self.seen.iter().find_map(|event| answer_to(id, event)) {
            Some(answer) => answer,
            None => self.until("an answer", |event| answer_to(id, event)).await,
        }
    }

    /// The answer to an acceptance, with the attempt's fencing token.
    pub async fn answer_with_token(&mut self, id: CommitId) -> (Commit, Option<FencingToken>) {
        let of_answer = |event: &coordination::Event| match event {
            coordination::Event::Ledger(ledger::Event::Answered { id: of, answer, token, .. }) => {
                (*of == id).then_some((*answer, *token))
            }
            _ => None,
        };
        match self.seen.iter().find_map(of_answer) {
            Some(answer) => answer,
            None => self.until("an answer", of_answer).await,
        }
    }

    pub async fn commit(&mut self, change: Change) -> Commit {
        let id = self.request(change);
        self.answer(id).await
    }
}

fn answer_to(id: CommitId, event: &coordination::Event) -> Option<(Commit, Option<Outcome>)> {
    match event {
        coordination::Event::Ledger(ledger::Event::Answered { id: of, answer, before, .. }) => {
            (*of == id).then_some((*answer, *before))
        }
        _ => None,
    }
}
