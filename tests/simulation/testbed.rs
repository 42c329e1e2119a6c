//! A world in which a test stages single events by hand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cronkeeper_core::clock::Uptime;

use super::executor::{Executor, Program, Task};
use super::transcript::Transcript;
use super::world::{Shared, Timing};
use super::zookeeper::Connector;

/// The session timeout.
pub const T: Duration = Duration::from_secs(4);
pub const TICK: Duration = Duration::from_secs(1);

pub struct Testbed {
    pub executor: Executor<Idle>,
}

/// Processes that run what the test spawns in them.
pub struct Idle;

impl Program for Idle {
    fn start(&mut self, _world: &Shared, _node: usize) -> Vec<Task> {
        Vec::new()
    }
}

impl Testbed {
    /// An ensemble that has elected its leader, and running nodes.
    pub fn new(seed: u64, nodes: usize) -> Self {
        let timing = Timing { tick: TICK, session_timeout: T, sync_limit: 5 };
        let world = Shared::new(seed, nodes, timing, Transcript::on());
        let mut testbed = Self { executor: Executor::new(world, Idle) };
        testbed.run(Duration::from_secs(5));
        for node in 0..nodes {
            testbed.executor.start(node);
        }
        testbed
    }

    pub fn connector(&self, node: usize) -> Connector {
        Connector { world: self.executor.world.clone(), node }
    }

    pub fn now(&self) -> Uptime {
        self.executor.now()
    }

    pub fn run(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.executor.step(until).is_some() {}
    }

    /// Runs until `done`.
    pub fn run_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let limit = self.now() + 100 * T;
        while !done(self) {
            assert!(self.executor.step(limit).is_some(), "it never came to that:\n{}", self.transcript());
        }
    }

    /// Starts something in a process; its result is available later.
    pub fn begin<O: Send + 'static>(
        &mut self,
        node: usize,
        future: impl Future<Output = O> + Send + 'static,
    ) -> Arc<Mutex<Option<O>>> {
        let slot = Arc::new(Mutex::new(None));
        let result = slot.clone();
        let task = async move {
            let output = future.await;
            *slot.lock().unwrap() = Some(output);
        };
        self.executor.spawn(node, Box::pin(task));
        result
    }

    /// Runs something in a process, to its end.
    pub fn on<O: Send + 'static>(&mut self, node: usize, future: impl Future<Output = O> + Send + 'static) -> O {
        let result = self.begin(node, future);
        self.run_until(|_| result.lock().unwrap().is_some());
        result.lock().unwrap().take().unwrap()
    }

    pub fn transcript(&self) -> String {
        self.executor.world.lock().env.transcript.text()
    }
}
