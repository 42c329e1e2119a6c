//! Measures how many nodes of a long queue wake up when the first one disappears.
//!
//! The nodes' backends run in this process, a hundred of them; the servers count the notifications that they send.

use std::sync::Arc;

use cronkeeper_cluster::zookeeper::session::{Aside, ConnectionSettings, Connector};
use cronkeeper_cluster::zookeeper::{ClaimError, LedgerReader, NodeIdentity, Options, SessionStore, StoreError, serve};
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::coordination::{Coordination, Event as BackendEvent, Request, channels};
use cronkeeper_core::election::{Event, Request as Ask};
use cronkeeper_core::term::NodeName;
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use crate::SESSIONS;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

/// Stores nothing.
struct NoStore;

impl SessionStore for NoStore {
    fn claim(&mut self, _cluster: &str) -> Result<(), ClaimError> {
        Ok(())
    }

    fn record(&mut self, _owner: i64) -> Result<(), StoreError> {
        Ok(())
    }

    fn removable(&self) -> Vec<i64> {
        Vec::new()
    }
}

struct Contender {
    coordination: Coordination,
    backend: JoinHandle<()>,
}

/// Watches of a leader: on its candidate, on its member, and on the two parent znodes where operators leave requests.
const OF_LEADER: usize = 4;

/// How many notifications all servers together send when the leader of a queue this long dies. The run fails unless the
/// queue costs the servers exactly one watch for each follower and the leader's own.
/// than one watch for each follower and the leader's own fails the run.
pub fn woken(ensemble: &Ensemble, nodes: usize) -> usize {
    // Its own threads, because the requests to the servers block this one.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be had").block_on(async {
        let mut queue = Vec::new();
        for n in 0..nodes {
            let mut contender = Contender::start(&ensemble.connect_string(), n);
            contender.await_place().await;
            queue.push(contender);
        }
        until("one watch each, and the leader's", || watches(ensemble) == nodes - 1 + OF_LEADER);
        let before = notifications(ensemble);
        queue.remove(0).backend.abort();
        queue[0].await_leading().await;
        until("the dead node's watches are gone", || watches(ensemble) == nodes - 2 + OF_LEADER);
        let sent = notifications(ensemble) - before;
        leave(queue).await;
        sent
    })
}

impl Contender {
    fn start(connect: &str, n: usize) -> Self {
        let identity = NodeIdentity {
            node: NodeName::new(format!("queued-{n:03}")),
            host: "localhost".into(),
            pid: std::process::id(),
            user: "bench".into(),
            version: "bench".into(),
            started_at: Timestamp::now(),
        };
        let settings = ConnectionSettings {
            connect: connect.into(),
            session_timeout: SESSIONS[0],
            ..ConnectionSettings::default()
        };
        let aside = Aside::new(settings.clone()).expect("plain settings are good");
        let (coordination, service) = channels(Arc::new(LedgerReader::new(aside)));
        let options =
            Options { service: connect.into(), chroot: "/".into(), uuid: Box::new(Uuid::new_v4), forget_after: None };
        let connector = Connector::new(settings).expect("plain settings are good");
        let serving = serve(connector, SystemClock::default(), identity, Box::new(NoStore), service, options);
        let contender = Self { coordination, backend: tokio::spawn(serving) };
        contender.ask(Ask::Campaign);
        contender
    }

    fn ask(&self, request: Ask) {
        self.coordination.requests.send(Request::Election(request)).expect("the backend lives");
    }

    async fn await_place(&mut self) {
        self.until(|event| matches!(event, Event::Following { .. } | Event::Elected { .. })).await;
    }

    async fn await_leading(&mut self) {
        self.until(|event| matches!(event, Event::Elected { .. })).await;
    }

    async fn until(&mut self, wanted: impl Fn(&Event) -> bool) {
        let waiting = async {
            loop {
                match self.coordination.events.recv().await.expect("the backend lives") {
                    BackendEvent::Election(event) if wanted(&event) => return,
                    _ => {}
                }
            }
        };
        timeout(LONG, waiting).await.expect("it happens in time");
    }
}

/// From the last to the first, so that none wakes another.
async fn leave(queue: Vec<Contender>) {
    for mut contender in queue.into_iter().rev() {
        contender.ask(Ask::Leave);
        contender.until(|event| *event == Event::Left).await;
    }
}

fn watches(ensemble: &Ensemble) -> usize {
    (0..ensemble.len()).map(|i| ensemble.watch_count(i)).sum()
}

/// Of all kinds, since the servers were started.
fn notifications(ensemble: &Ensemble) -> usize {
    const KINDS: [&str; 4] = ["created", "deleted", "changed", "children"];
    let of = |i: usize| {
        let figures = ensemble.figures(i);
        let sum = |kind: &str| figures.get(&format!("zk_sum_node_{kind}_watch_count"))?.parse::<f64>().ok();
        KINDS.iter().filter_map(|kind| sum(kind)).sum::<f64>() as usize
    };
    (0..ensemble.len()).map(of).sum()
}
