//! A node, whatever session it has: what the daemon wants of it, and what it keeps from one session to the next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::damage::{Damage, Damages, NewDamage, Source};
use super::give_up::Leftover;
use super::store::SessionStore;
use crate::state_dir::KEPT_SESSIONS;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::server::ServerTime;
use cronkeeper_core::coordination::{self, Service};
use cronkeeper_core::election::{self, Defined, Member, PLACES, Place, Published};
use cronkeeper_core::job::Labels;
use cronkeeper_core::ledger::forgetting::ForgetAfter;
use cronkeeper_core::ledger::{self, Change, Commit, CommitId};
use cronkeeper_core::run::millis;
use cronkeeper_core::run_lock;
use cronkeeper_core::term::{FencingToken, NodeName, SessionId};

/// This node's identity, as published in its member and its candidate.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    pub node: NodeName,
    pub host: String,
    pub pid: u32,
    /// Name of the account that it runs as.
    pub user: String,
    /// Version of the cronkeeper program.
    pub version: String,
    /// When the process started.
    pub started_at: Timestamp,
}

/// Further settings of the backend.
pub struct Options {
    /// The service's address, for messages.
    pub service: String,
    /// The root that the address names, for messages; `/` if it names none.
    pub root: String,
    /// Draws the uuid of a session's candidates, and of a new cluster.
    pub uuid: Box<dyn FnMut() -> Uuid + Send>,
    /// How long what is gone keeps its records.
    pub forget_after: ForgetAfter,
    /// The node's labels, as jobs ask for them.
    pub labels: Labels,
    /// The node's share of what is spread over nodes; 0: nothing is spread to it.
    pub weight: u32,
}

/// The state of a node that lasts longer than a session.
pub struct Node {
    pub identity: NodeIdentity,
    /// Records sessions and the cluster's id in the state directory.
    pub store: Box<dyn SessionStore>,
    /// The channels to and from the daemon.
    pub service: Service,
    pub options: Options,
    pub desired: Desired,
    /// Requests of the daemon that wait for a session.
    pub backlog: VecDeque<Deferred>,
    /// The cluster's id; absent until a session has read it.
    pub cluster: Option<String>,
    /// This process's own earlier sessions, whose entries may be removed.
    pub earlier: Vec<SessionId>,
    /// The last of this node's sessions whose entries are gone, unless the servers lose that.
    pub left: VecDeque<SessionId>,
    /// Those of them that dead processes had, until the runs are settled that the servers may have given back to them.
    pub left_by_dead: Vec<SessionId>,
    /// The newest reading of the servers' clock.
    pub time: Option<ServerTime>,
    /// The node has been in the queue, so what the servers refuse from now on is not a mistake in its setup.
    pub has_joined: bool,
    /// It was said that another session has the node's name.
    pub waits_for_name: bool,
    /// The warning about paths that are open to others was logged, or there was no need for it.
    pub has_reported_open_paths: bool,
    /// The paths that cannot be read, written or trusted.
    pub damages: Damages,
    /// The fencing token of this process's newest term.
    pub newest_token: Option<FencingToken>,
    /// The nodes that were alive when they were last read, and when their processes had started.
    pub alive: BTreeMap<NodeName, Timestamp>,
}

/// The state that the daemon wants, as last requested.
#[derive(Default)]
pub struct Desired {
    /// The node should be in the queue.
    pub campaign: bool,
    /// The node should leave the queue; the daemon is notified when it has.
    pub resign: bool,
    /// The node should leave the cluster, at the latest at this instant.
    pub leave: Option<Uptime>,
    /// Runs are in flight here.
    pub busy: bool,
    /// The data to publish to the other nodes.
    pub published: Published,
    /// The jobs of this node's file; absent until the daemon has loaded it.
    pub defined: Option<Arc<Defined>>,
}

/// A request that waits for a session. Fenced changes never wait: without a session there is no candidate to guard
/// them.
pub enum Deferred {
    /// A change that no candidate guards.
    Commit(CommitId, Change),
    Read(ledger::Request),
}

impl Node {
    pub fn new(identity: NodeIdentity, store: Box<dyn SessionStore>, service: Service, options: Options) -> Self {
        let left_by_dead = store.left();
        let left = left_by_dead.iter().cloned().collect();
        Self {
            identity,
            store,
            service,
            options,
            desired: Desired::default(),
            backlog: VecDeque::new(),
            cluster: None,
            earlier: Vec::new(),
            left,
            left_by_dead,
            time: None,
            has_joined: false,
            waits_for_name: false,
            has_reported_open_paths: false,
            damages: Damages::default(),
            newest_token: None,
            alive: BTreeMap::new(),
        }
    }

    /// Records that the entries of these sessions are gone.
    pub fn note_left(&mut self, sessions: &[SessionId]) {
        self.store.note_left(sessions);
        self.earlier.retain(|session| !sessions.contains(session));
        self.left.extend(sessions.iter().cloned());
        self.left.drain(..self.left.len().saturating_sub(KEPT_SESSIONS));
    }

    /// Sessions whose entries may be removed at once: this process's own earlier ones, and those of dead processes.
    pub fn removable(&self) -> Vec<SessionId> {
        self.store.removable().into_iter().chain(self.earlier.iter().cloned()).collect()
    }

    /// What the node's earlier sessions may have left.
    pub fn leftover(&self) -> Leftover {
        let successor = Some(self.service.events.clone());
        let left = self.left.iter().cloned().collect();
        Leftover { sessions: self.removable(), left, successor, ..Leftover::of_the_dead(self.store.as_ref()) }
    }

    /// What the servers may have given back to sessions that had left nothing. Not urgent, so it does not delay the start.
    pub fn leftover_by_dead(&self) -> Leftover {
        let successor = Some(self.service.events.clone());
        let dead = self.left_by_dead.iter().cloned().collect();
        Leftover { dead, successor, ..Leftover::of_the_dead(self.store.as_ref()) }
    }

    /// Handles a request without a session. Returns true if the daemon is done.
    pub fn handle_without_session(&mut self, request: coordination::Request) -> bool {
        match request {
            coordination::Request::Election(request) => return self.note_without_session(request),
            coordination::Request::Ledger(ledger::Request::Commit { id, change }) => {
                if change.is_fenced() {
                    self.answer(id, Commit::Fenced);
                } else {
                    self.backlog.push_back(Deferred::Commit(id, change));
                }
            }
            // Watches end with the term, and there is none.
            coordination::Request::Ledger(
                ledger::Request::Watch(_) | ledger::Request::Follow(_) | ledger::Request::WatchOwn(_),
            ) => {}
            coordination::Request::Ledger(read) => self.backlog.push_back(Deferred::Read(read)),
            // Locks end with the session, and there is none.
            coordination::Request::Lock(_) => {}
        }
        false
    }

    fn note_without_session(&mut self, request: election::Request) -> bool {
        let is_leave = request == election::Request::Leave;
        if let election::Request::Transfer(to) = &request {
            self.emit(election::Event::NotTransferred { to: to.clone(), why: election::TransferError::NotLeading });
        }
        self.note(request);
        if std::mem::take(&mut self.desired.resign) {
            self.emit(election::Event::Withdrawn);
        }
        if is_leave {
            self.emit(election::Event::Left);
        }
        is_leave
    }

    /// Records what the daemon wants. The caller handles [`election::Request::Leave`].
    pub fn note(&mut self, request: election::Request) {
        match request {
            election::Request::Campaign => self.desired.campaign = true,
            election::Request::Resign => {
                self.desired.campaign = false;
                self.desired.resign = true;
            }
            election::Request::Busy(busy) => self.desired.busy = busy,
            election::Request::Publish(published) => self.desired.published = published,
            election::Request::Define(defined) => self.desired.defined = Some(defined),
            election::Request::Leave => self.desired.campaign = false,
            // Handled by the session that leads.
            election::Request::Transfer(_) => {}
        }
    }

    /// Emits an event of the election to the daemon. That the daemon is gone shows in its closed request channel.
    pub fn emit(&self, event: election::Event) {
        self.service.emit(coordination::Event::Election(event));
    }

    /// Emits an event of the ledger to the daemon.
    pub fn emit_ledger(&self, event: ledger::Event) {
        self.service.emit(coordination::Event::Ledger(event));
    }

    /// Emits an event of this node's locks to the daemon.
    pub fn emit_lock(&self, event: run_lock::Event) {
        self.service.emit(coordination::Event::Lock(event));
    }

    /// Replaces the damaged paths that `source` has found.
    pub fn found_damage(&mut self, source: Source, found: impl IntoIterator<Item = Damage>) {
        let news = self.damages.found(source, found);
        self.report_damage(news);
    }

    /// Adds a damaged path.
    pub fn damaged(&mut self, source: Source, damage: Damage) {
        let news = self.damages.add(source, damage);
        self.report_damage(news);
    }

    /// Removes a path that is no longer damaged.
    pub fn mended(&mut self, source: Source, path: &str) {
        let news = self.damages.mend(source, path);
        self.report_damage(news);
    }

    fn report_damage(&self, news: Option<NewDamage>) {
        if let Some(NewDamage { all, new }) = news {
            self.emit(election::Event::Damaged { all, new });
        }
    }

    /// Answers a commit that was not accepted, as far as is known.
    pub fn answer(&self, id: CommitId, answer: Commit) {
        self.emit_ledger(ledger::Event::Answered { id, answer, before: None, token: None });
    }

    /// The data of the node's member.
    pub fn member(&self, session_timeout: Duration) -> Member {
        let session_timeout_ms = Some(millis(session_timeout));
        let NodeIdentity { node, host, pid, version, started_at, .. } = self.identity.clone();
        let published = Published { places: PLACES, ..self.desired.published.clone() };
        Member {
            v: 1,
            node,
            host,
            pid,
            version,
            started_at,
            session_timeout_ms,
            published,
            opened: None,
            session: None,
        }
    }

    /// The node as a place to run jobs.
    pub fn place(&self) -> Place {
        Place { v: 1, labels: self.options.labels.clone(), weight: self.options.weight, stopped: None }
    }
}
