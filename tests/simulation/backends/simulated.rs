//! Nodes of one cluster on the simulated ensemble or on the weakest store, on virtual time, with the delays of several
//! seeds.

use std::collections::BTreeMap;
use std::mem::take;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use cronkeeper_core::coordination::Coordination;
use cronkeeper_core::election::Failure;
use cronkeeper_core::run::journal::Recovered;
use cronkeeper_core::term::NodeName;
use fastrand::Rng;

use crate::backend::{Disk, NodeProcess, backend};
use crate::executor::Task;
use crate::port::daemon_end::{DaemonEnd, Process};
use crate::promises::cluster::{Backend, Cluster, Host, Started};
use crate::testbed::{T, Testbed};
use crate::world::Shared;

const SEEDS: u64 = 10;
/// Enough hosts for any promise.
const HOSTS: usize = 6;

/// Shows that a promise holds on the ensemble.
pub fn hold<P: Future<Output = ()>>(promise: impl Fn(Cluster) -> P) {
    hold_on(backend, promise);
}

/// The nodes' backends on one service.
pub type Open = fn(NodeProcess<'_>) -> (Task, Coordination);

/// Shows that a promise holds on a service.
pub fn hold_on<P: Future<Output = ()>>(open: Open, promise: impl Fn(Cluster) -> P) {
    for seed in 0..SEEDS {
        let mut testbed = Testbed::new(seed, HOSTS);
        testbed.executor.world.lock().env.network.calm();
        let orders = Orders::default();
        let world = testbed.executor.world.clone();
        let hosts = Hosts { open, world, orders: orders.clone(), hosts: BTreeMap::new(), used: 0, started: seed };
        let mut promise = pin!(promise(Cluster::new(hosts)));
        let limit = testbed.now() + 1000 * T;
        loop {
            // Polled after each event: the test sees all that a node's daemon could see.
            if promise.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                break;
            }
            orders.carry_out(&mut testbed);
            let went_on = testbed.executor.step(limit).is_some();
            assert!(went_on, "seed {seed}: nothing happens any more:\n{}", testbed.transcript());
        }
    }
}

/// What the promise wants done to processes. Carried out between its polls.
#[derive(Clone, Default)]
struct Orders(Arc<Mutex<Vec<Order>>>);

enum Order {
    Start(usize, Task),
    Kill(usize),
}

impl Orders {
    fn add(&self, order: Order) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(order);
    }

    fn carry_out(&self, testbed: &mut Testbed) {
        for order in take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            match order {
                Order::Start(host, task) => {
                    testbed.executor.start(host);
                    testbed.executor.spawn(host, task);
                }
                Order::Kill(host) => testbed.executor.kill(host, false),
            }
        }
    }
}

struct Hosts {
    open: Open,
    world: Shared,
    orders: Orders,
    /// The host of each node, and its disk.
    hosts: BTreeMap<String, (usize, Arc<Mutex<Disk>>)>,
    used: usize,
    /// Distinguishes the random numbers of the processes.
    started: u64,
}

impl Backend for Hosts {
    fn start(&mut self, name: &str, host: Host) -> Result<Started, Failure> {
        let known = self.hosts.get(name).filter(|_| host == Host::Own).cloned();
        let (host, disk) = known.unwrap_or_else(|| {
            let new = (self.used, Arc::default());
            self.used += 1;
            self.hosts.entry(name.to_owned()).or_insert_with(|| new.clone());
            new
        });
        self.started += 1000;
        let rng = Rng::with_seed(self.started);
        let (world, name, recovered) = (&self.world, NodeName::new(name), &Recovered::default());
        let (task, coordination) = (self.open)(NodeProcess { world, node: host, name, disk: &disk, recovered, rng });
        self.orders.add(Order::Start(host, task));
        let orders = self.orders.clone();
        let process = Process::new(move || orders.add(Order::Kill(host)));
        Ok(Started { end: DaemonEnd::new(coordination, process, None), journal: None })
    }
}
