//! Several engines over one ledger, whose answers arrive when the test says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{Now, Uptime};
use crate::coordination::Request;
use crate::election::{self, Member, PLACES, Place, Published};
use crate::engine::tests::fixture::{LEASE, at, set};
use crate::engine::{Command, Engine, Event, Report, Start};
use crate::job::{Digest, Job, JobName, JobSet, Label};
use crate::ledger::{self, Change, Commit, CommitId, JobEntry, OwnerState, Running, Snapshot, Write};
use crate::process::{Ending, Exit, Notice, Order, StartFailure, StartStep};
use crate::run::journal::RecoveredRun;
use crate::run::{HistoryRecord, JobRecord, OverAttempts, Owner, RunId, RunRecord, RunState, Version};
use crate::term::{CandidateName, FencingToken, NodeName, SessionId, Term, TermEnd};

/// One node: its engine, and what it has requested and not got yet.
pub struct Node {
    pub engine: Engine,
    pub name: NodeName,
    pub session: Option<SessionId>,
    /// Requests to the ledger, oldest first.
    pub requests: VecDeque<ledger::Request>,
    /// Starts that the warden was ordered to make, and has not made.
    pub ordered: Vec<Start>,
    /// Programs that run, or that are held until their time.
    pub running: Vec<Start>,
    pub reports: Vec<Report>,
    /// The host can start no process.
    pub has_no_means: bool,
    /// Its warden makes no start.
    pub starts_nothing: bool,
    /// Processes of this job die before their program begins.
    pub deadly: Option<JobName>,
    /// Its wall clock is this far ahead.
    pub ahead: Duration,
    /// The engine gets no events.
    pub is_frozen: bool,
    /// Its connection was lost while it was frozen.
    is_disconnected: bool,
    /// Its process is dead.
    is_crashed: bool,
    /// Its member is gone, as the others see it.
    is_gone: bool,
    /// The cluster knows no place of it.
    is_forgotten: bool,
    /// The runs that it gets news of.
    pub watched: BTreeSet<RunId>,
    jobs: JobSet,
    place: Place,
}

/// The durable records.
#[derive(Clone, Default)]
pub struct Ledger {
    pub jobs: BTreeMap<JobName, (JobRecord, Version)>,
    pub running: BTreeMap<RunId, (RunRecord, Version)>,
    pub offers: BTreeSet<(NodeName, RunId)>,
    /// Offers that somebody has removed by hand.
    lost_offers: BTreeSet<(NodeName, RunId)>,
    pub history: Vec<HistoryRecord>,
    /// The node that each attempt names.
    attempts: BTreeMap<(RunId, u32), NodeName>,
    revision: i64,
    /// The candidate that guards the leader's writes.
    leader: Option<NodeName>,
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub ledger: Ledger,
    pub now: Now,
    terms: i64,
    /// Leaders do not get to know which nodes there are.
    pub hides_members: bool,
    /// Nodes do not get to know what is placed on them.
    pub hides_offers: bool,
    /// The store has lost commits until then.
    pub lost_until: Option<Timestamp>,
    /// Each process that was started: run, attempt, node, and its fencing token.
    pub started: Vec<(RunId, u32, NodeName, FencingToken)>,
    /// The service loses writes, while all nodes live and are in touch: no run has two processes at a time.
    pub is_forgetful: bool,
    /// The ledger before each of the last writes, oldest first.
    before: VecDeque<Ledger>,
}

/// So many of the last writes can be lost.
const LOSABLE: usize = 12;

pub fn name(index: usize) -> NodeName {
    NodeName::new(format!("host-{}", char::from(b'a' + u8::try_from(index).unwrap())))
}

/// The jobs as the files of a node define them, with a digest of their own.
fn files(jobs: Vec<Job>) -> JobSet {
    let digest = Digest::of(format!("{jobs:?}").as_bytes());
    JobSet::new(set(jobs).jobs, digest)
}

impl Cluster {
    /// This many nodes with these jobs. None of them leads.
    pub fn new(nodes: usize, wall: &str, jobs: Vec<Job>) -> Self {
        let now = Now { wall: at(wall), up: Uptime::ZERO + Duration::from_secs(1000) };
        let ledger = Ledger { revision: 100, ..Ledger::default() };
        let mut cluster = Self {
            nodes: Vec::new(),
            ledger,
            now,
            terms: 0,
            hides_members: false,
            hides_offers: false,
            lost_until: None,
            started: Vec::new(),
            is_forgetful: false,
            before: VecDeque::new(),
        };
        for index in 0..nodes {
            cluster.nodes.push(Node::new(name(index), files(jobs.clone()), &[], 1));
        }
        for index in 0..nodes {
            cluster.join(index);
        }
        cluster
    }

    /// The same, and the first leads.
    pub fn led(nodes: usize, wall: &str, jobs: Vec<Job>) -> Self {
        let mut cluster = Self::new(nodes, wall, jobs);
        cluster.elect(0);
        cluster.settle();
        cluster
    }

    pub fn node(&mut self, index: usize) -> &mut Node {
        &mut self.nodes[index]
    }

    /// Replaces a node by one with these jobs and labels.
    pub fn become_node(&mut self, index: usize, jobs: Vec<Job>, labels: &[&str], weight: u32) {
        let node = Node::new(name(index), files(jobs), labels, weight);
        if index == self.nodes.len() {
            self.nodes.push(node)
        } else {
            self.nodes[index] = node
        }
        self.join(index);
    }

    /// The node's files define these jobs from now on.
    pub fn redefine(&mut self, index: usize, jobs: Vec<Job>) {
        let jobs = files(jobs);
        self.nodes[index].jobs = jobs.clone();
        self.handle(index, Event::Loaded(jobs));
        self.tell_members();
    }

    /// The node has a session, and a lease.
    pub fn join(&mut self, index: usize) {
        self.ledger.revision += 1;
        let id = SessionId(format!("s{}", self.ledger.revision));
        let node = &mut self.nodes[index];
        (node.session, node.is_gone) = (Some(id.clone()), false);
        self.handle(index, Event::Election(election::Event::Session { id, timeout: LEASE * 2 }));
        self.renew(index);
        self.offer(index);
        self.tell_members();
    }

    /// The node's session ends, for itself and for the others.
    pub fn expire(&mut self, index: usize) {
        let Some(session) = self.nodes[index].session.take() else { return };
        // Its lease ends before.
        self.pass(LEASE);
        self.nodes[index].is_gone = true;
        if self.ledger.leader == Some(name(index)) {
            self.ledger.leader = None;
        }
        for request in std::mem::take(&mut self.nodes[index].requests) {
            match request {
                ledger::Request::Commit { id, .. } => self.handle(index, answered(id, Commit::Unknown, None)),
                // It is read under the next session.
                read => self.nodes[index].requests.push_back(read),
            }
        }
        self.nodes[index].watched.clear();
        self.handle(index, Event::Election(election::Event::Lease { until: Uptime::ZERO }));
        if let Some(term) = self.nodes[index].engine.term().cloned() {
            self.handle(index, Event::Election(election::Event::Over { term, why: TermEnd::SessionExpired }));
        }
        self.handle(index, Event::Election(election::Event::Expired { session }));
        self.tell_members();
    }

    /// The node's process dies, and all that it has started. For the others its session still lasts.
    pub fn crash(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        (node.is_frozen, node.is_crashed) = (true, true);
        (node.running, node.ordered) = (Vec::new(), Vec::new());
        node.requests.clear();
    }

    /// The others see that the node is gone.
    pub fn lose(&mut self, index: usize) {
        self.nodes[index].is_gone = true;
        if self.ledger.leader == Some(name(index)) {
            self.ledger.leader = None;
        }
        self.tell_members();
        let gone = self.nodes[index].session.clone();
        for other in 0..self.nodes.len() {
            let watched: Vec<RunId> = self.nodes[other].watched.iter().cloned().collect();
            for run in watched {
                let found = self.ledger.running.get(&run).cloned();
                if found.as_ref().is_some_and(|(record, _)| Some(&record.owner.session) == gone.as_ref()) {
                    let event = ledger::Event::OwnerGone(run, OwnerState::Gone, found);
                    self.handle(other, Event::Ledger(event));
                }
            }
        }
    }

    /// The node joins anew in its old session, after its lease was over.
    pub fn rejoin(&mut self, index: usize) {
        let Some(id) = self.nodes[index].session.clone() else { return };
        (self.nodes[index].is_gone, self.nodes[index].is_frozen) = (false, false);
        self.handle(index, Event::Election(election::Event::Session { id, timeout: LEASE * 2 }));
        self.renew(index);
        self.tell_members();
    }

    /// The node's process starts again, after it has died.
    pub fn restart(&mut self, index: usize) {
        let old = &self.nodes[index];
        let (jobs, place) = (old.jobs.clone(), old.place.clone());
        let labels: Vec<String> = place.labels.iter().map(ToString::to_string).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let session = old.session.clone();
        self.nodes[index] = Node::new(name(index), jobs, &labels, place.weight);
        let own = |record: &RunRecord| Some(&record.owner.session) == session.as_ref();
        let found = self.ledger.running.values().filter(|(record, _)| own(record) && record.state == RunState::Running);
        // Nothing in this model is started without being recorded, and all that ran is dead.
        let started = |record: &RunRecord| {
            self.started.iter().any(|(run, attempt, ..)| *run == record.id() && *attempt == record.attempt)
        };
        let runs: Vec<RecoveredRun> = found
            .filter(|(record, _)| started(record))
            .map(|(record, version)| RecoveredRun {
                record: record.clone(),
                version: *version,
                pid: None,
                traces: crate::run::Traces::default(),
                end: None,
            })
            .collect();
        self.handle(index, Event::Recovered { runs, over: OverAttempts::default() });
        self.join(index);
    }

    pub fn is_crashed(&self, index: usize) -> bool {
        self.nodes[index].is_crashed
    }

    /// True if nobody leads, and the node can.
    pub fn may_lead(&self, index: usize) -> bool {
        let node = &self.nodes[index];
        self.ledger.leader.is_none()
            && node.session.is_some()
            && !node.is_gone
            && node.engine.term().is_none()
            && !node.is_frozen
    }

    /// Every node is alive and answers, and one of them leads.
    pub fn make_peace(&mut self) {
        for index in 0..self.nodes.len() {
            if self.nodes[index].is_crashed {
                self.lose(index);
                self.restart(index);
            }
            self.thaw(index);
            if self.nodes[index].session.is_none() {
                self.join(index);
            }
            self.offer(index);
        }
        self.settle();
        if self.ledger.leader.is_none() {
            let next = (0..self.nodes.len()).find(|&index| self.may_lead(index)).expect("somebody can lead");
            self.elect(next);
        }
        self.settle();
    }

    /// The node leads, with the ledger as it is.
    pub fn elect(&mut self, index: usize) {
        self.terms += 1;
        self.ledger.revision += 1;
        self.ledger.leader = Some(name(index));
        let token = FencingToken(self.ledger.revision);
        let term = Term { token, candidate: CandidateName(format!("_c_{}-lock-{token}", name(index))) };
        let entry =
            |(record, version): &(JobRecord, Version)| JobEntry { record: Some(record.clone()), version: *version };
        let running = self.ledger.running.values().map(|(record, version)| Running {
            owner: self.owner_state(&record.owner),
            record: record.clone(),
            version: *version,
        });
        let snapshot = Snapshot {
            jobs: self.ledger.jobs.iter().map(|(job, found)| (job.clone(), entry(found))).collect(),
            running: running.collect(),
            lost_until: self.lost_until,
            ..Snapshot::default()
        };
        let (lease_until, took) = (self.now.up + LEASE, Duration::ZERO);
        let elected = election::Event::Elected { term, lease_until, snapshot: Box::new(snapshot), took };
        self.handle(index, Event::Election(elected));
        self.tell_members();
    }

    /// The service loses its last writes, and all nodes that live connect to its new servers.
    pub fn rewind(&mut self, writes: usize) {
        let kept = self.before.len().saturating_sub(writes);
        if let Some(old) = self.before.drain(kept..).next() {
            // What names a write is used once, and elections are not undone here.
            let (revision, leader) = (self.ledger.revision, self.ledger.leader.clone());
            self.ledger = Ledger { revision, leader, ..old };
        }
        self.reconnect();
    }

    /// All nodes that live have lost the connection, and have it again. Those that are frozen notice it later.
    pub fn reconnect(&mut self) {
        (0..self.nodes.len()).for_each(|index| self.reconnect_one(index));
        (0..self.nodes.len()).for_each(|index| self.offer(index));
        self.tell_members();
    }

    fn reconnect_one(&mut self, index: usize) {
        self.nodes[index].is_disconnected = self.nodes[index].is_frozen;
        let Some(session) = self.nodes[index].session.clone() else { return };
        let lost = election::Event::Suspended { session: session.clone(), error: None };
        self.handle(index, Event::Election(lost));
        self.handle(index, Event::Election(election::Event::Resumed { session }));
        let watched = self.nodes[index].watched.iter().cloned().map(ledger::Request::ReadRun);
        let watched: Vec<ledger::Request> = watched.collect();
        self.nodes[index].requests.extend(watched);
    }

    /// The node's process goes on.
    pub fn thaw(&mut self, index: usize) {
        self.nodes[index].is_frozen = false;
        if std::mem::take(&mut self.nodes[index].is_disconnected) {
            self.reconnect_one(index);
        }
        self.offer(index);
    }

    fn owner_state(&self, owner: &Owner) -> OwnerState {
        let is_it = |node: &Node| !node.is_gone && node.session.as_ref() == Some(&owner.session);
        if self.nodes.iter().any(is_it) { OwnerState::Alive } else { OwnerState::Gone }
    }

    /// The node's place is removed.
    pub fn forget(&mut self, index: usize) {
        self.nodes[index].is_forgotten = true;
        self.tell_members();
    }

    /// The leader reads which nodes are alive, and which places there are.
    pub fn tell_members(&mut self) {
        if self.hides_members {
            return;
        }
        let places: BTreeMap<NodeName, Place> = self
            .nodes
            .iter()
            .filter(|node| !node.is_forgotten)
            .map(|node| (node.name.clone(), node.place.clone()))
            .collect();
        let members: Vec<Member> = self.nodes.iter().filter(|node| !node.is_gone).map(Node::member).collect();
        for index in 0..self.nodes.len() {
            if self.ledger.leader == Some(name(index)) {
                self.handle(index, Event::Election(election::Event::Places(places.clone())));
                self.handle(index, Event::Election(election::Event::Members(members.clone())));
            }
        }
    }

    /// True if the node has nothing to do for a while: it has done what it woke up for, and looks for nothing.
    pub fn is_at_rest(&mut self, index: usize) -> bool {
        self.handle(index, Event::Tick);
        self.settle();
        let wake = self.nodes[index].engine.wake(self.now);
        wake.up.is_none_or(|up| up > self.now.up + Duration::from_millis(100))
            && wake.wall.is_none_or(|wall| wall > self.now.wall)
    }

    pub fn renew(&mut self, index: usize) {
        if self.nodes[index].session.is_some() {
            let until = self.now.up + LEASE;
            self.handle(index, Event::Election(election::Event::Lease { until }));
        }
    }

    /// Passes an event to the node, and takes its commands.
    pub fn handle(&mut self, index: usize, event: Event) {
        let node = &mut self.nodes[index];
        if node.is_frozen {
            return;
        }
        let (mut killed, mut cancelled) = (Vec::new(), Vec::new());
        let now = Now { wall: self.now.wall + node.ahead, ..self.now };
        for command in node.engine.handle(now, event) {
            match command {
                Command::Ask(Request::Ledger(
                    ledger::Request::Watch(run) | ledger::Request::Follow(run) | ledger::Request::WatchOwn(run),
                )) => {
                    node.watched.insert(run.clone());
                    node.requests.push_back(ledger::Request::ReadRun(run));
                }
                Command::Ask(Request::Ledger(request)) => node.requests.push_back(request),
                Command::Start(start) => node.ordered.push(*start),
                Command::Order(Order::Cancel { tree_id }) => {
                    let held = node.running.iter().position(|start| start.tree_id == tree_id);
                    if let Some(held) = held.filter(|&held| node.running[held].not_before > Some(self.now.up)) {
                        node.running.remove(held);
                        cancelled.push(tree_id);
                    }
                }
                Command::Order(Order::Kill { tree_id } | Order::Stop { tree_id, .. })
                    if node.running.iter().any(|start| start.tree_id == tree_id) =>
                {
                    killed.push(tree_id);
                }
                Command::Report(report) => node.reports.push(report),
                _ => {}
            }
        }
        for tree_id in cancelled {
            let why = StartFailure::TooLate;
            self.handle(index, Event::Warden(Notice::NotStarted { tree_id, why }));
        }
        for tree_id in killed {
            self.end_tree(index, tree_id, Exit::Signal { signal: 9, core: false });
        }
    }

    /// Answers the node's oldest request. Returns false if there is none.
    pub fn answer_one(&mut self, index: usize) -> bool {
        self.answer(index, false)
    }

    /// Carries out the node's oldest request, if that shares a run out, but the node does not learn what became of it. Nor
    /// does it of an acceptance, if the service loses writes.
    pub fn lose_one(&mut self, index: usize) -> bool {
        let Some(ledger::Request::Commit { change, .. }) = self.nodes[index].requests.front() else { return false };
        let is_lost = match change {
            Change::ShareOut { .. } => true,
            Change::Accept { .. } => self.is_forgetful,
            _ => false,
        };
        is_lost && self.answer(index, true)
    }

    fn answer(&mut self, index: usize, is_lost: bool) -> bool {
        let node = &mut self.nodes[index];
        if node.is_frozen || node.session.is_none() {
            return false;
        }
        let Some(request) = node.requests.pop_front() else { return false };
        match request {
            ledger::Request::Commit { id, change } => {
                let (answer, token) = self.write(index, &change);
                let answer = if is_lost && answer != Commit::Fenced { Commit::Unknown } else { answer };
                self.handle(index, answered(id, answer, token));
                if answer == Commit::Accepted {
                    self.notify(index, &change);
                }
            }
            ledger::Request::ReadRun(run) => {
                let found = self.ledger.running.get(&run).cloned();
                self.handle(index, Event::Ledger(ledger::Event::Run(run, found)));
            }
            ledger::Request::ReadOpenOffers(node) => {
                let open = self.ledger.offers.iter().filter(|(on, _)| *on == node).map(|(_, run)| run.clone());
                let open = open.collect();
                let event = ledger::Event::OpenOffers(node, open);
                self.handle(index, Event::Ledger(event));
            }
            ledger::Request::ReadInFlight => {
                let all = self.ledger.running.keys().cloned().collect();
                self.handle(index, Event::Ledger(ledger::Event::InFlight(all, self.lost_until)));
            }
            ledger::Request::ReadAgain(run) => {
                let found = match self.ledger.running.get(&run) {
                    Some((record, version)) => ledger::RunLookup::InFlight(Box::new(record.clone()), *version),
                    None if self.ledger.history.iter().any(|record| record.id() == run) => ledger::RunLookup::Ended,
                    None => {
                        let found = self.ledger.jobs.get(run.job());
                        let entry = |(record, version): &(JobRecord, Version)| {
                            Box::new(JobEntry { record: Some(record.clone()), version: *version })
                        };
                        ledger::RunLookup::Absent(found.map(entry))
                    }
                };
                self.handle(index, Event::Ledger(ledger::Event::Again(run, found)));
            }
            ledger::Request::ReadJob(job) => {
                let found = self.ledger.jobs.get(&job);
                let entry = found.map(|(record, version)| JobEntry { record: Some(record.clone()), version: *version });
                self.handle(index, Event::Ledger(ledger::Event::Job(job, entry, None)));
            }
            _ => {}
        }
        true
    }

    fn write(&mut self, index: usize, change: &Change) -> (Commit, Option<FencingToken>) {
        let writer = name(index);
        let term = self.nodes[index].engine.term().map(|term| term.token);
        let is_of_term = term.is_some_and(|token| !change.is_of_another_term(token));
        if change.is_fenced() && (self.ledger.leader.as_ref() != Some(&writer) || !is_of_term) {
            return (Commit::Fenced, None);
        }
        let is_alive = !self.nodes[index].is_gone;
        if !self.ledger.may(change, is_alive) {
            return (Commit::Superseded, None);
        }
        self.before.push_back(self.ledger.clone());
        if self.before.len() > LOSABLE {
            self.before.pop_front();
        }
        self.ledger.revision += 1;
        self.ledger.carry_out(change, self.is_forgetful);
        let token = matches!(change, Change::Accept { .. }).then_some(FencingToken(self.ledger.revision));
        (Commit::Accepted, token)
    }

    /// Notifies those affected by a change.
    fn notify(&mut self, writer: usize, change: &Change) {
        for write in change.writes() {
            match write {
                Write::Offer { node, .. } => {
                    let index = (0..self.nodes.len()).find(|&index| name(index) == *node);
                    index.into_iter().for_each(|index| self.offer(index));
                }
                Write::Ring(ledger::Bell::Leader(run)) => self.tell_leader(&run),
                Write::Run { record, .. } => self.tell_watchers(writer, &record.id()),
                Write::RemoveRun { run, .. } => self.tell_watchers(writer, &run),
                _ => {}
            }
        }
    }

    fn tell_leader(&mut self, run: &RunId) {
        let leader = (0..self.nodes.len()).find(|&index| self.ledger.leader == Some(name(index)));
        if let Some(leader) = leader.filter(|&leader| !self.nodes[leader].watched.contains(run)) {
            self.handle(leader, Event::Ledger(ledger::Event::Rung([run.clone()].into())));
        } else if let Some(leader) = leader {
            let found = self.ledger.running.get(run).cloned();
            self.handle(leader, Event::Ledger(ledger::Event::Run(run.clone(), found)));
        }
    }

    fn tell_watchers(&mut self, writer: usize, run: &RunId) {
        for index in (0..self.nodes.len()).filter(|&index| index != writer) {
            if self.nodes[index].watched.contains(run) && self.nodes[index].session.is_some() {
                let found = self.ledger.running.get(run).cloned();
                self.handle(index, Event::Ledger(ledger::Event::Run(run.clone(), found)));
            }
        }
    }

    /// Passes to the node what is placed on it.
    pub fn offer(&mut self, index: usize) {
        let own = self.ledger.offers.iter().filter(|(node, _)| *node == name(index)).map(|(_, run)| run.clone());
        let listed: BTreeSet<RunId> = own.collect();
        let found = listed.iter().filter_map(|run| self.ledger.running.get(run).cloned()).collect();
        if self.nodes[index].session.is_some() && !self.hides_offers {
            self.handle(index, Event::Ledger(ledger::Event::Offers { listed, found }));
        }
    }

    /// The warden of the node makes its oldest start.
    pub fn start_one(&mut self, index: usize) -> bool {
        let node = &self.nodes[index];
        if node.ordered.is_empty() || node.is_frozen || node.starts_nothing {
            return false;
        }
        let start = self.nodes[index].ordered.remove(0);
        let tree_id = start.tree_id;
        if self.now.up >= start.not_after {
            let why = StartFailure::TooLate;
            self.handle(index, Event::Warden(Notice::NotStarted { tree_id, why }));
            return true;
        }
        self.check_start(index, &start);
        if self.nodes[index].has_no_means {
            let why = StartFailure::Step { step: StartStep::Fork, errno: 11 };
            self.handle(index, Event::Warden(Notice::NotStarted { tree_id, why }));
            return true;
        }
        if self.nodes[index].deadly.as_ref() == Some(&start.run.job) {
            self.end_tree(index, tree_id, Exit::Signal { signal: 9, core: false });
            return true;
        }
        self.nodes[index].running.push(start.clone());
        if start.not_before.is_some_and(|at| at > self.now.up) {
            self.handle(index, Event::Warden(Notice::Held { tree_id, pid: 4242 }));
        } else {
            self.begin_program(index, &start);
        }
        true
    }

    /// A process is started only for the attempt that the ledger has as this node's, or has lost since, and only once.
    fn check_start(&self, index: usize, start: &Start) {
        if self.is_forgetful {
            return;
        }
        let run = start.run.id();
        let found = self.ledger.running.get(&run).map(|(record, _)| record);
        let recorded = found.unwrap_or_else(|| panic!("{run} is not in flight"));
        assert_eq!((recorded.attempt, recorded.state), (start.run.attempt, RunState::Running), "{run}");
        assert_eq!(recorded.owner.node, name(index), "{run}");
    }

    fn begin_program(&mut self, index: usize, start: &Start) {
        let (run, attempt, token) = (start.run.id(), start.run.attempt, start.run.fencing_token());
        for (other, before, node, earlier) in &self.started {
            if *other == run {
                assert_ne!(*before, attempt, "{run} was started twice, on {node} and {}", name(index));
                assert!(*earlier < token, "the token of {run}, attempt {attempt}, is not larger");
            }
        }
        let has_begun = |held: &Start| held.tree_id != start.tree_id && held.run.id() == run;
        let mut others = self.nodes.iter().filter(|node| node.running.iter().any(has_begun));
        if let Some(other) = others.find(|_| self.is_forgetful) {
            panic!("attempt {attempt} of {run} starts on {}, and another runs on {}", name(index), other.name);
        }
        self.started.push((run, attempt, name(index), token));
        let (tree_id, at) = (start.tree_id, self.now.up);
        self.handle(index, Event::Warden(Notice::Started { tree_id, pid: 4242, at, known_by: Default::default() }));
    }

    /// The node's oldest program ends.
    pub fn end_one(&mut self, index: usize, exit: Exit) -> bool {
        let is_begun = |start: &Start| start.not_before.is_none_or(|at| at <= self.now.up);
        let Some(start) = self.nodes[index].running.iter().find(|start| is_begun(start)) else { return false };
        let tree_id = start.tree_id;
        self.end_tree(index, tree_id, exit);
        true
    }

    fn end_tree(&mut self, index: usize, tree_id: crate::process::TreeId, exit: Exit) {
        self.nodes[index].running.retain(|start| start.tree_id != tree_id);
        let ending = Ending {
            tree_id,
            exit,
            ended_by: None,
            at: self.now.up,
            leftovers: 0,
            tail: String::new(),
            dropped_bytes: 0,
            unsent: None,
            out_of_memory: false,
        };
        self.handle(index, Event::Warden(Notice::Ended(Box::new(ending))));
    }

    /// Time passes; leases are renewed, and held programs begin.
    pub fn pass(&mut self, by: Duration) {
        self.now = Now { wall: self.now.wall + by, up: self.now.up + by };
        for index in 0..self.nodes.len() {
            let begun = |start: &&Start| start.not_before.is_some_and(|at| at <= self.now.up);
            let begun: Vec<Start> = self.nodes[index].running.iter().filter(begun).cloned().collect();
            for start in begun {
                let is_known = |(run, attempt, ..): &(RunId, u32, NodeName, FencingToken)| {
                    *run == start.run.id() && *attempt == start.run.attempt
                };
                // A frozen host begins nothing, and too late nothing is begun.
                if self.nodes[index].is_frozen || self.started.iter().any(is_known) {
                    continue;
                }
                if self.now.up < start.not_after {
                    self.begin_program(index, &start);
                } else {
                    let tree_id = start.tree_id;
                    self.nodes[index].running.retain(|held| held.tree_id != tree_id);
                    let why = StartFailure::TooLate;
                    self.handle(index, Event::Warden(Notice::NotStarted { tree_id, why }));
                }
            }
            self.renew(index);
            self.handle(index, Event::Tick);
        }
    }

    /// Answers and starts everything, until nothing is left to do at this instant.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut is_quiet = true;
            for index in 0..self.nodes.len() {
                is_quiet &= !self.answer_one(index) && !self.start_one(index);
            }
            if is_quiet {
                return;
            }
        }
        panic!("the nodes do not come to rest");
    }

    /// Time passes in steps of a few milliseconds, and everything is answered at once.
    pub fn run_for(&mut self, time: Duration) {
        let step = Duration::from_millis(5);
        let until = self.now.up + time;
        while self.now.up < until {
            self.pass(step);
            self.settle();
        }
    }

    /// The nodes on which programs of the job were started, in order.
    pub fn started_on(&self, job: &str) -> Vec<String> {
        let of_job = self.started.iter().filter(|(run, ..)| run.job().as_str() == job);
        of_job.map(|(_, _, node, _)| node.to_string()).collect()
    }

    /// Of the node's shares of the job: how many are on record, as ended, skipped, or in flight.
    pub fn shares(&self, job: &JobName, node: &NodeName) -> BTreeMap<Timestamp, usize> {
        let mut found: BTreeMap<Timestamp, usize> = BTreeMap::new();
        for record in self.ledger.history.iter().filter(|record| record.job() == job) {
            match record {
                HistoryRecord::Run(end) if end.run.on.as_ref() == Some(node) => {
                    *found.entry(end.run.scheduled_at).or_default() += 1;
                }
                HistoryRecord::Skip(skip) if skip.on.as_ref().is_none_or(|on| on == node) => {
                    (skip.first.as_second()..=skip.last.as_second())
                        .for_each(|second| *found.entry(Timestamp::from_second(second).unwrap()).or_default() += 1);
                }
                HistoryRecord::Run(_) | HistoryRecord::Skip(_) => {}
            }
        }
        for run in self.ledger.running.keys().filter(|run| run.job() == job && run.node() == Some(node)) {
            *found.entry(run.scheduled_at()).or_default() += 1;
        }
        found
    }

    /// What was skipped, as `job reason`, with the node whose share it was.
    pub fn skipped(&self) -> Vec<String> {
        let skips = self.ledger.history.iter().filter_map(|record| match record {
            HistoryRecord::Skip(skip) => {
                let on = skip.on.as_ref().map_or(String::new(), |node| format!("@{node}"));
                Some(format!("{}{on} {}", skip.job, skip.reason.as_str()))
            }
            HistoryRecord::Run(_) => None,
        });
        skips.collect()
    }

    /// True if some node has reported that the occurrence is skipped.
    pub fn has_reported_skip(&self, job: &JobName, occurrence: Timestamp) -> bool {
        let mut reports = self.nodes.iter().flat_map(|node| &node.reports);
        reports.any(|report| {
            let Report::Skipped { skip, .. } = report else { return false };
            skip.job == *job && (skip.first..=skip.last).contains(&occurrence)
        })
    }

    /// Of the job: how many occurrences are on record, as ended, skipped, or in flight.
    pub fn recorded(&self, job: &JobName) -> BTreeMap<Timestamp, usize> {
        let mut found: BTreeMap<Timestamp, usize> = BTreeMap::new();
        for record in self.ledger.history.iter().filter(|record| record.job() == job) {
            match record {
                HistoryRecord::Run(end) => *found.entry(end.run.scheduled_at).or_default() += 1,
                // These jobs are due every second.
                HistoryRecord::Skip(skip) => (skip.first.as_second()..=skip.last.as_second())
                    .for_each(|second| *found.entry(Timestamp::from_second(second).unwrap()).or_default() += 1),
            }
        }
        for run in self.ledger.running.keys().filter(|run| run.job() == job) {
            *found.entry(run.scheduled_at()).or_default() += 1;
        }
        found
    }
}

impl Node {
    fn new(node: NodeName, jobs: JobSet, labels: &[&str], weight: u32) -> Self {
        let labels = labels.iter().map(|label| Label::parse_own(label).unwrap()).collect();
        let place = Place { labels, weight, ..Place::default() };
        Self {
            engine: Engine::new(node.clone(), jobs.clone()).with_place(place.clone()),
            name: node,
            session: None,
            requests: VecDeque::new(),
            ordered: Vec::new(),
            running: Vec::new(),
            reports: Vec::new(),
            has_no_means: false,
            starts_nothing: false,
            deadly: None,
            ahead: Duration::ZERO,
            is_frozen: false,
            is_disconnected: false,
            is_crashed: false,
            is_gone: true,
            is_forgotten: false,
            watched: BTreeSet::new(),
            jobs,
            place,
        }
    }

    fn member(&self) -> Member {
        Member {
            v: 1,
            node: self.name.clone(),
            host: self.name.to_string(),
            pid: 1,
            version: "0.1.0".into(),
            started_at: at("09:00:00"),
            session_timeout_ms: None,
            published: Published { places: PLACES, ..self.engine.published() },
            opened: None,
            session: self.session.clone(),
        }
    }
}

impl Ledger {
    /// Removes all offers by hand. Their runs stay placed.
    pub fn lose_offers(&mut self) {
        self.lost_offers.append(&mut self.offers);
    }

    /// The store loses that all runs were accepted.
    pub fn lose_acceptances(&mut self) {
        for (run, (record, _)) in &mut self.running {
            record.state = RunState::Placed;
            self.offers.insert((record.owner.node.clone(), run.clone()));
        }
    }

    /// All runs are as a leader writes them that takes them back.
    pub fn take_back(&mut self) {
        for (record, version) in self.running.values_mut() {
            record.state = RunState::Unstarted;
            *version = version.next();
        }
    }

    /// All runs are as a leader writes them that knows them to have been accepted where they are placed.
    pub fn accept_all(&mut self) {
        self.offers.clear();
        for (record, version) in self.running.values_mut() {
            record.state = RunState::Running;
            *version = version.next();
        }
    }

    /// True if every condition of the change holds.
    fn may(&self, change: &Change, is_member: bool) -> bool {
        change.writes().iter().all(|write| match write {
            Write::Job { job, at, .. } => self.jobs.get(*job).map(|(_, version)| *version) == *at,
            Write::Run { at, record } => self.running.get(&record.id()).map(|(_, version)| *version) == *at,
            Write::RemoveRun { run, at } => self.running.get(run).is_some_and(|(_, version)| version == at),
            Write::Member(_) => is_member,
            Write::NotEnded(run) => !self.history.iter().any(|record| record.id() == *run),
            _ => true,
        })
    }

    fn carry_out(&mut self, change: &Change, is_forgetful: bool) {
        for write in change.writes() {
            match write {
                Write::Job { job, at, record } => {
                    let version = at.map_or(Version::FIRST, Version::next);
                    self.jobs.insert(job.clone(), (record.clone(), version));
                }
                Write::Run { at, record } => {
                    if record.state != RunState::Queued {
                        let attempt = (record.id(), record.attempt);
                        let node = self.attempts.entry(attempt).or_insert_with(|| record.owner.node.clone());
                        assert_eq!(*node, record.owner.node, "an attempt names one node, forever: {change:?}");
                    }
                    let version = at.map_or(Version::FIRST, Version::next);
                    self.running.insert(record.id(), (record.clone(), version));
                }
                Write::RemoveRun { run, .. } => drop(self.running.remove(&run)),
                Write::History { record, .. } => {
                    // A skip record grows.
                    self.history.retain(|known| known.id() != record.id());
                    self.history.push(*record);
                }
                Write::Offer { node, run } => {
                    self.lost_offers.remove(&(node.clone(), run.clone()));
                    self.offers.insert((node.clone(), run));
                }
                Write::RemoveOffer { node, run } => drop(self.offers.remove(&(node.clone(), run))),
                _ => {}
            }
        }
        if let Change::ChangeOwner { run, .. } | Change::Accept { run, .. } = change
            && run.state != RunState::Placed
        {
            // Its node removes an offer of what is not placed there any more.
            self.offers.retain(|(_, offered)| *offered != run.id());
        }
        if let (Change::End { end, .. }, true) = (change, is_forgetful) {
            // So does one where the service has it placed, because it has lost that the run went to another node; or
            // because an end from before a loss has met the version in which the leader placed the run again.
            self.offers.retain(|(_, offered)| *offered != end.run.id());
        }
        let placed = self.running.values().filter(|(record, _)| record.state == RunState::Placed);
        let placed: BTreeSet<_> = placed.map(|(record, _)| (record.owner.node.clone(), record.id())).collect();
        self.lost_offers.retain(|offer| placed.contains(offer));
        let offered: BTreeSet<_> = self.offers.union(&self.lost_offers).cloned().collect();
        assert_eq!(placed, offered, "after {change:?}");
    }
}

fn answered(id: CommitId, answer: Commit, token: Option<FencingToken>) -> Event {
    Event::Ledger(ledger::Event::Answered { id, answer, before: None, token })
}
