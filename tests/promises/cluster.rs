//! Nodes of one cluster, whichever backend they use.

use std::ops::{Deref, DerefMut};

use cronkeeper_core::election::{Candidate, Event, Failure, Request};
use cronkeeper_core::ledger::{
    Commit, ControlEntry, Event as LedgerEvent, Filter, JobEntry, OperatorRequests, Request as LedgerRequest,
    RunLookup, Snapshot, Window,
};
use cronkeeper_core::run::journal::Journal;
use cronkeeper_core::run::{
    HistoryRecord, KnownBy, Outcome, Owner, RunId, RunRecord, Skip, SkipReason, Traces, Version,
};
use cronkeeper_core::term::{FencingToken, NodeName, SessionId, Term};

use crate::port::daemon_end::DaemonEnd;
use crate::port::records;

/// What a backend does for the suite.
pub trait Backend: Send {
    /// Starts a process of the node with this name, on the host that earlier processes of the name ran on, or on
    /// another one.
    ///
    /// # Errors
    /// Where the backend finds out at once that the node cannot take part.
    fn start(&mut self, name: &str, host: Host) -> Result<Started, Failure>;
}

/// A process that has just started.
pub struct Started {
    pub end: DaemonEnd,
    /// Where its daemon records its runs, if the backend reads that.
    pub journal: Option<Box<dyn Journal>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    Own,
    Another,
}

/// Starts nodes.
pub struct Cluster(Box<dyn Backend>);

/// A node that has a session.
pub struct Node {
    end: DaemonEnd,
    journal: Option<Box<dyn Journal>>,
    name: &'static str,
    session: SessionId,
}

impl Cluster {
    pub fn new(backend: impl Backend + 'static) -> Self {
        Self(Box::new(backend))
    }

    /// Starts a process of a node, and waits for its session.
    pub async fn start(&mut self, name: &'static str) -> Node {
        let Started { mut end, journal } = self.0.start(name, Host::Own).expect("the name is free");
        let session = end.session().await;
        Node { end, journal, name, session }
    }

    /// Starts a node that leads.
    pub async fn leader(&mut self, name: &'static str) -> Node {
        self.leading(name).await.0
    }

    /// Starts a node, and waits until it leads.
    pub async fn leading(&mut self, name: &'static str) -> (Node, Term, Snapshot) {
        let mut node = self.start(name).await;
        node.ask(Request::Campaign);
        let (term, snapshot) = node.elected().await;
        (node, term, snapshot)
    }

    /// Starts a node that waits behind another.
    pub async fn follower(&mut self, name: &'static str, behind: &str) -> Node {
        let mut node = self.start(name).await;
        node.ask(Request::Campaign);
        node.following(Some(behind)).await;
        node
    }

    /// Starts, on another host, a node that cannot take part, and waits for the reason.
    pub async fn refused(&mut self, name: &'static str) -> Failure {
        match self.0.start(name, Host::Another) {
            Err(failure) => failure,
            Ok(Started { mut end, .. }) => {
                end.election("failed", |event| match event {
                    Event::Failed(failure) => Some(failure.clone()),
                    _ => None,
                })
                .await
            }
        }
    }
}

impl Deref for Node {
    type Target = DaemonEnd;

    fn deref(&self) -> &DaemonEnd {
        &self.end
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut DaemonEnd {
        &mut self.end
    }
}

impl Node {
    /// Stops as a killed process does.
    pub fn crash(self) {
        self.end.crash();
    }

    /// The node and its session, as a run's record names them.
    pub fn owner(&self) -> Owner {
        Owner { node: NodeName::new(self.name), session: self.session.clone() }
    }

    fn token(&self) -> FencingToken {
        self.newest_token().unwrap_or(FencingToken(0))
    }

    /// A new run of this node.
    pub fn run(&self, job: &str, second: i64) -> RunRecord {
        records::run(job, second, self.name, &self.session, self.token())
    }

    /// Creates the job's record and begins its run at `second`.
    pub async fn begin(&mut self, job: &str, second: i64) -> RunRecord {
        let run = self.run(job, second);
        self.begin_run(&run).await;
        run
    }

    /// Creates the record of the run's job and begins the run.
    pub async fn begin_run(&mut self, run: &RunRecord) {
        self.mark(&run.job.to_string()).await;
        assert_eq!(self.commit(records::begin(0, run)).await, Commit::Accepted);
        if let Some(journal) = &mut self.journal {
            journal.begun(run, Version::FIRST, &Traces::default()).expect("the journal can be written");
            // Its pid is nobody's: no process has a negative one.
            journal.started(&run.id(), 1, -1, 0, &KnownBy::Environment).expect("the journal can be written");
        }
    }

    /// Creates the job's record.
    pub async fn mark(&mut self, job: &str) {
        assert_eq!(self.commit(records::first_mark(job, "1")).await, Commit::Accepted);
    }

    /// A record of one skipped occurrence.
    pub fn skip(&self, job: &str, second: i64, reason: SkipReason) -> Skip {
        records::skip(job, second, reason, self.name, self.token())
    }

    /// Ends a run that this node has, whose record nobody has changed.
    pub async fn end(&mut self, run: &RunRecord) {
        self.end_as(run, Outcome::Success).await;
    }

    /// The same with this outcome. Returns the outcome of the end that was written before.
    pub async fn end_as(&mut self, run: &RunRecord, outcome: Outcome) -> Option<Outcome> {
        let id = self.request(records::end_as(run, outcome));
        let (answer, before) = self.answer_with_before(id).await;
        assert_eq!(answer, Commit::Accepted);
        if let Some(journal) = &mut self.journal {
            journal.settled(&run.id()).expect("the journal can be written");
        }
        before
    }

    pub async fn read_job(&mut self, job: &str) -> (Option<JobEntry>, Option<ControlEntry>) {
        self.ask_ledger(LedgerRequest::ReadJob(records::job(job)));
        self.ledger("the job", |event| match event {
            LedgerEvent::Job(_, entry, control) => Some((entry.clone(), control.clone())),
            _ => None,
        })
        .await
    }

    /// The newest records of a job's history, newest first.
    pub async fn history(&self, job: &str) -> Vec<HistoryRecord> {
        self.reader()
            .history(Filter::of_job(records::job(job)), Window::of(1000))
            .await
            .expect("the history can be read")
            .records
    }

    /// Waits for an event about this run. Returns its record, if it is in flight.
    pub async fn run_event(&mut self, wanted: &RunId) -> Option<(RunRecord, Version)> {
        self.ledger("the run", |event| match event {
            LedgerEvent::Run(run, row) if run == wanted => Some(row.clone()),
            _ => None,
        })
        .await
    }

    /// What there is of a run.
    pub async fn look_up(&mut self, run: &RunRecord) -> RunLookup {
        let wanted = run.id();
        self.ask_ledger(LedgerRequest::ReadAgain(wanted.clone()));
        self.ledger("what there is of a run", |event| match event {
            LedgerEvent::Again(of, found) if *of == wanted => Some(found.clone()),
            _ => None,
        })
        .await
    }

    /// Waits for requests of operators, or links.
    pub async fn requests(&mut self, wanted: impl Fn(&OperatorRequests) -> bool) -> OperatorRequests {
        self.ledger("requests", |event| match event {
            LedgerEvent::OperatorRequests(requests) if wanted(requests) => Some(requests.clone()),
            _ => None,
        })
        .await
    }

    /// The nodes in the queue, the leader first.
    pub async fn queue(&self) -> Vec<NodeName> {
        let queue = self.reader().queue().await.expect("the queue can be read");
        queue.candidates.into_iter().filter_map(|Candidate { node, .. }| node).collect()
    }
}
