//! Runs the nodes' programs on virtual time: one thread, one event at a time, in an order that the seed fixes.
//!
//! A task is polled a short while after it was woken, and only while its node's process runs. Killing a process drops
//! its tasks; [`Program`] creates a new process from what the old one left on disk.

use std::collections::BTreeMap;
use std::mem::take;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use cronkeeper_core::clock::Uptime;

use super::facts::Fact;
use super::faults::Fault;
use super::world::{Event, Health, Shared, TaskId};

pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The program that a node's process runs.
pub trait Program {
    /// The index, among a process's tasks, of the task that a fault can hold back while the others continue.
    const LOOP: Option<usize> = None;

    /// Creates the tasks of a new process of `node`. The program itself manages the node's disk.
    fn start(&mut self, world: &Shared, node: usize) -> Vec<Task>;

    /// Called when the process is gone, alone or with its host.
    fn killed(&mut self, _world: &Shared, _node: usize, _with_host: bool) {}
}

pub struct Executor<P> {
    pub world: Shared,
    pub program: P,
    tasks: BTreeMap<TaskId, Running>,
    spawned: u64,
    ready: Arc<Mutex<Vec<TaskId>>>,
}

struct Running {
    node: usize,
    is_loop: bool,
    task: Task,
    flag: Arc<Flag>,
    waker: Waker,
}

/// Wakes a task once, however often it is called.
struct Flag {
    id: TaskId,
    woken: AtomicBool,
    ready: Arc<Mutex<Vec<TaskId>>>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        if !self.woken.swap(true, Ordering::Relaxed) {
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
        }
    }
}

impl<P: Program> Executor<P> {
    pub fn new(world: Shared, program: P) -> Self {
        Self { world, program, tasks: BTreeMap::new(), spawned: 0, ready: Arc::default() }
    }

    /// Executes the next event, if one happens until `limit`. Returns the facts that it caused.
    pub fn step(&mut self, limit: Uptime) -> Option<Vec<Fact>> {
        let left = {
            let mut world = self.world.lock();
            let event = world.env.queue.pop(limit)?;
            let event = match event {
                Event::Packet(packet) => world.env.network.pass(packet).map(Event::Packet),
                other => Some(other),
            };
            event.and_then(|event| world.take(event))
        };
        match left {
            Some(Event::Run(id)) => self.poll(id),
            Some(Event::Fault(fault)) => self.fault(fault),
            _ => {}
        }
        self.add_spawned();
        self.schedule_ready();
        Some(take(&mut self.world.lock().env.facts))
    }

    /// Takes over what processes have spawned, unless they are gone.
    fn add_spawned(&mut self) {
        let spawned = take(&mut self.world.lock().spawned);
        for (node, task) in spawned {
            if self.world.lock().nodes[node].health != Health::Down {
                self.add(node, task, false);
            }
        }
    }

    fn schedule_ready(&mut self) {
        let ready = take(&mut *self.ready.lock().unwrap_or_else(PoisonError::into_inner));
        if ready.is_empty() {
            return;
        }
        let env = &mut self.world.lock().env;
        for id in ready {
            let micros = if env.rng.u8(..) == 0 { env.rng.u64(..20_000) } else { env.rng.u64(5..200) };
            env.queue.after(Duration::from_micros(micros), Event::Run(id));
        }
    }

    fn poll(&mut self, id: TaskId) {
        let Some(running) = self.tasks.get_mut(&id) else { return };
        {
            let mut world = self.world.lock();
            if world.nodes[running.node].health != Health::Running {
                return world.defer(running.node, Event::Run(id));
            }
            if running.is_loop && world.hold_back(running.node, id) {
                return;
            }
        }
        running.flag.woken.store(false, Ordering::Relaxed);
        if running.task.as_mut().poll(&mut Context::from_waker(&running.waker)).is_ready() {
            self.tasks.remove(&id);
        }
    }

    /// Starts a new process of `node` if it has none.
    pub fn start(&mut self, node: usize) {
        {
            let mut world = self.world.lock();
            if world.nodes[node].health != Health::Down {
                return;
            }
            world.nodes[node].health = Health::Running;
            world.env.note(|| format!("node-{node} starts"));
        }
        for (place, task) in self.program.start(&self.world, node).into_iter().enumerate() {
            self.add(node, task, P::LOOP == Some(place));
        }
    }

    /// Adds a task to the node's process.
    #[cfg(test)]
    pub fn spawn(&mut self, node: usize, task: Task) {
        self.add(node, task, false);
    }

    fn add(&mut self, node: usize, task: Task, is_loop: bool) {
        self.spawned += 1;
        let id = TaskId(self.spawned);
        let flag = Arc::new(Flag { id, woken: AtomicBool::new(false), ready: self.ready.clone() });
        let waker = Waker::from(flag.clone());
        waker.wake_by_ref();
        self.tasks.insert(id, Running { node, is_loop, task, flag, waker });
        self.schedule_ready();
    }

    pub fn kill(&mut self, node: usize, with_host: bool) {
        {
            let mut world = self.world.lock();
            if world.nodes[node].health == Health::Down {
                return;
            }
            world.env.note(|| format!("node-{node} is killed{}", if with_host { " with its host" } else { "" }));
            world.forget_process(node, with_host);
            world.env.facts.push(Fact::Died { node });
            if with_host {
                world.env.facts.push(Fact::HostDied { node });
            }
        }
        // The futures of a process lock the world when they are dropped, so drop them outside of that lock.
        let (gone, kept) = take(&mut self.tasks).into_iter().partition(|(_, running)| running.node == node);
        self.tasks = kept;
        drop::<BTreeMap<_, _>>(gone);
        self.program.killed(&self.world, node, with_host);
    }

    pub fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill { node, with_host } => self.kill(node, with_host),
            Fault::Start { node } => self.start(node),
            Fault::StallLoop { .. } if P::LOOP.is_none() => {}
            other => self.world.lock().inject(other),
        }
    }

    /// Repairs everything: all links, servers and processes.
    pub fn make_peace(&mut self) {
        let nodes = {
            let mut world = self.world.lock();
            world.env.note(|| "peace".into());
            world.heal_all();
            world.nodes.len()
        };
        for node in 0..nodes {
            self.start(node);
        }
    }

    pub fn now(&self) -> Uptime {
        self.world.lock().env.now()
    }
}
