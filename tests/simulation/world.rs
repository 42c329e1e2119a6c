//! The simulated world in one place; its parts report what happens through [`Env`].
//!
//! The world is one state machine over its events. The programs that run in it share it through a lock that is never
//! contended, because one thread runs everything. The world only notes, sends or wakes; programs run outside of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::ConnectError;
use cronkeeper_core::clock::{Now, Uptime, Wake};
use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::oneshot;

use super::clock::{TimerId, Timers};
use super::executor::Task;
use super::facts::Fact;
use super::faults::Fault;
use super::network::{Conn, Host, Network, Packet};
use super::queue::Queue;
use super::transcript::Transcript;
use super::triggered_stall::TriggeredStalls;
use super::warden::{self, Wardens};
use super::weak_store::{StoreEvent, WeakStore};
use super::zookeeper::wire::{Body, Request};
use super::zookeeper::{Answered, ClientId, Clients, Ensemble, Input, Server, States, Tree};

/// The events of the world.
pub enum Event {
    /// A packet arrives at the far end of its link.
    Packet(Packet),
    Server(usize, Input),
    /// Servers without a leader start an election.
    Elect,
    /// A timer of a client; the number identifies stale alarms.
    Client(ClientId, u64),
    Timer(TimerId),
    Store(StoreEvent),
    Warden(warden::Step),
    /// A task has a reason to run.
    Run(TaskId),
    Fault(Fault),
}

/// A task of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// The timing of the ensemble.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub tick: Duration,
    pub session_timeout: Duration,
    /// Ticks after which servers that cannot reach each other separate.
    pub sync_limit: u32,
}

/// What every part of the world needs: time, random numbers, links, and the reported facts.
pub struct Env {
    pub queue: Queue<Event>,
    pub rng: Rng,
    pub network: Network,
    pub facts: Vec<Fact>,
    pub transcript: Transcript,
    pub timing: Timing,
    /// How many of the ensemble's transactions are committed, as far as some server knows.
    pub committed: usize,
    pub electing: bool,
    /// How many packets were sent.
    pub packets: u64,
    sessions: i64,
}

pub struct World {
    pub env: Env,
    pub ensemble: Ensemble,
    pub store: WeakStore,
    pub clients: Clients,
    pub nodes: Vec<Node>,
    pub timers: Timers,
    pub wardens: Wardens,
    pub triggered_stalls: TriggeredStalls,
    /// Tasks that processes have spawned, for the executor.
    pub spawned: Vec<(usize, Task)>,
}

/// A node: a host with one process and its warden.
pub struct Node {
    pub health: Health,
    /// Offset of its time of day.
    pub skew: SignedDuration,
    /// Events that came while it was paused.
    inbox: Vec<Event>,
    /// While the process's loop hangs: the tasks that wait to continue.
    held: Option<Vec<TaskId>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Running,
    Paused,
    Down,
}

#[derive(Clone)]
pub struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub fn new(seed: u64, nodes: usize, timing: Timing, transcript: Transcript) -> Self {
        let mut env = Env {
            queue: Queue::new(),
            rng: Rng::with_seed(seed),
            network: Network::new(),
            facts: Vec::new(),
            transcript,
            timing,
            committed: 0,
            electing: false,
            packets: 0,
            sessions: 0,
        };
        let ensemble = Ensemble::new(&mut env);
        let node = |_| Node { health: Health::Down, skew: SignedDuration::ZERO, inbox: Vec::new(), held: None };
        let world = World {
            env,
            ensemble,
            store: WeakStore::default(),
            clients: Clients::default(),
            nodes: (0..nodes).map(node).collect(),
            timers: Timers::default(),
            wardens: Wardens::new(nodes),
            triggered_stalls: TriggeredStalls::default(),
            spawned: Vec::new(),
        };
        Self(Arc::new(Mutex::new(world)))
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The true time of day at an uptime.
pub fn wall_at(up: Uptime) -> Timestamp {
    const BOOT: Timestamp = Timestamp::constant(1_795_132_800, 0);
    BOOT + up.since(Uptime::ZERO)
}

impl Env {
    pub fn now(&self) -> Uptime {
        self.queue.now()
    }

    /// The true time of day.
    pub fn wall(&self) -> Timestamp {
        wall_at(self.now())
    }

    pub fn wall_ms(&self) -> i64 {
        self.wall().as_millisecond()
    }

    pub fn new_session(&mut self) -> i64 {
        self.sessions += 1;
        0x1000_0000 + self.sessions
    }

    pub fn send(&mut self, from: Host, to: Host, conn: Conn, body: Body) {
        self.packets += 1;
        let packet = Packet { from, to, conn, body };
        let at = self.network.arrival(self.queue.now(), &mut self.rng, &packet);
        self.queue.at(at, Event::Packet(packet));
    }

    /// Adds a line to the transcript; the text is only made if a transcript is kept.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        self.transcript.note(self.queue.now(), text);
    }
}

impl World {
    pub fn node_now(&self, node: usize) -> Now {
        Now { wall: self.env.wall() + self.nodes[node].skew, up: self.env.now() }
    }

    /// Executes an event; returns it if the executor must handle it.
    pub fn take(&mut self, event: Event) -> Option<Event> {
        if let Some(node) = self.node_of(&event) {
            match self.nodes[node].health {
                Health::Down => return None,
                Health::Paused => {
                    self.nodes[node].inbox.push(event);
                    return None;
                }
                Health::Running => {}
            }
        }
        match event {
            Event::Packet(packet) => match packet.to {
                Host::Server(_) => self.ensemble.take(&mut self.env, packet),
                Host::Node(_) => self.clients.take(&mut self.env, packet),
            },
            Event::Server(id, input) => self.ensemble.servers[id].take(&mut self.env, input),
            Event::Elect => self.ensemble.elect(&mut self.env),
            Event::Client(id, count) => self.clients.alarm(&mut self.env, id, count),
            Event::Timer(id) => self.timers.fire(id),
            Event::Store(event) => self.take_store_event(event),
            Event::Warden(step) => self.wardens.step(&mut self.env, step),
            Event::Run(_) | Event::Fault(_) => return Some(event),
        }
        None
    }

    /// The node whose process must run to notice the event.
    fn node_of(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Packet(Packet { to: Host::Node(node), .. }) => Some(*node),
            Event::Client(id, _) => self.clients.node(*id),
            Event::Timer(id) => self.timers.node(*id),
            Event::Store(StoreEvent::Answers { node, .. } | StoreEvent::GivesUp { node, .. }) => Some(*node),
            _ => None,
        }
    }

    /// Keeps an event until the node's process runs again.
    pub fn defer(&mut self, node: usize, event: Event) {
        self.nodes[node].inbox.push(event);
    }

    pub fn resume(&mut self, node: usize) {
        if self.nodes[node].health != Health::Paused {
            return;
        }
        self.nodes[node].health = Health::Running;
        if self.nodes[node].held.is_some() {
            // A process that is paused does not turn anyway.
            self.env.facts.push(Fact::LoopStalled { node });
        }
        let mut inbox = std::mem::take(&mut self.nodes[node].inbox);
        // Chance decides whether the timers or the sockets are read first.
        if self.env.rng.bool() {
            inbox.sort_by_key(|event| matches!(event, Event::Packet(_)));
        }
        for event in inbox {
            self.env.queue.after(Duration::ZERO, event);
        }
    }

    /// True if the loop of the node's process hangs; the task then runs when the loop continues.
    pub fn hold_back(&mut self, node: usize, task: TaskId) -> bool {
        self.nodes[node].held.as_mut().map(|held| held.push(task)).is_some()
    }

    /// True while the node's process runs and its loop does not hang.
    pub fn has_loop(&self, node: usize) -> bool {
        self.nodes[node].health == Health::Running && self.nodes[node].held.is_none()
    }

    /// The loop of the node's process hangs, as on a disk that does not answer, while its other tasks continue.
    pub fn stall_loop(&mut self, node: usize) {
        if self.nodes[node].health != Health::Down && self.nodes[node].held.is_none() {
            self.nodes[node].held = Some(Vec::new());
            // Warden and loop hanging together is a frozen host.
            self.wardens.go_on(&mut self.env, node);
            if self.nodes[node].health == Health::Running {
                self.env.facts.push(Fact::LoopStalled { node });
            }
        }
    }

    pub fn resume_loop(&mut self, node: usize) {
        let Some(held) = self.nodes[node].held.take() else { return };
        self.env.facts.push(Fact::LoopResumed { node });
        for task in held {
            self.env.queue.after(Duration::ZERO, Event::Run(task));
        }
    }

    /// Forgets the node's process, which is gone.
    pub fn forget_process(&mut self, node: usize, with_host: bool) {
        self.nodes[node].health = Health::Down;
        self.nodes[node].inbox.clear();
        self.nodes[node].held = None;
        self.clients.kill(&mut self.env, node, with_host);
        self.timers.forget(node);
    }

    pub fn step_clock(&mut self, node: usize, by: SignedDuration) {
        self.nodes[node].skew += by;
        self.env.facts.push(Fact::ClockSet { node, by });
        for waker in self.timers.wake_wall(node) {
            waker.wake();
        }
    }

    pub fn sleep(&mut self, node: usize, wake: Wake, waker: Waker) -> TimerId {
        let now = self.node_now(node);
        let at = wake.up.into_iter().chain(wake.wall.map(|wall| now.up_at(wall))).min();
        let id = self.timers.add(node, wake, waker);
        if let Some(at) = at {
            self.env.queue.at(at, Event::Timer(id));
        }
        id
    }

    pub fn connect(&mut self, node: usize) -> (ClientId, oneshot::Receiver<Result<(), ConnectError>>, States) {
        self.clients.connect(&mut self.env, node)
    }

    pub fn request(&mut self, id: ClientId, request: Request) -> oneshot::Receiver<Answered> {
        self.look_at(id, &request);
        self.clients.request(&mut self.env, id, request)
    }

    /// What the service has: the store if it is used, otherwise what the ensemble's leader has.
    pub fn tree(&self) -> Option<&Tree> {
        self.store.tree().or_else(|| self.ensemble.leader().map(Server::tree))
    }

    /// The node that a session is of.
    pub fn node_of_session(&self, session: i64) -> Option<usize> {
        self.clients.node_of(session).or_else(|| self.store.node_of(session))
    }

    pub fn release(&mut self, id: ClientId) {
        self.clients.release(&mut self.env, id);
    }

    pub fn abandon(&mut self, id: ClientId) {
        self.clients.abandon(&mut self.env, id);
    }
}
