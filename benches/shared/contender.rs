//! Nodes whose backends run in the bench's own process, a hundred of them: they queue and are places, and run no jobs.
//! They are on ZooKeeper.
#![allow(dead_code, reason = "each bench uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use cronkeeper_cluster::recipes::{ClaimError, LedgerReader, NodeIdentity, Options, SessionStore, StoreError, serve};
use cronkeeper_cluster::zookeeper::Znodes;
use cronkeeper_cluster::zookeeper::session::{Aside, ConnectionSettings, Connector};
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::coordination::{Coordination, Event as BackendEvent, Request, channels};
use cronkeeper_core::election::{Event, Request as Ask};
use cronkeeper_core::job::Labels;
use cronkeeper_core::ledger::forgetting::ForgetAfter;
use cronkeeper_core::term::{NodeName, SessionId};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::LONG;

/// Session timeout of the contenders.
const SESSION: Duration = Duration::from_secs(4);

/// Stores nothing.
struct NoStore;

impl SessionStore for NoStore {
    fn claim(&mut self, _cluster: &str) -> Result<(), ClaimError> {
        Ok(())
    }

    fn record(&mut self, _session: &SessionId) -> Result<(), StoreError> {
        Ok(())
    }

    fn removable(&self) -> Vec<SessionId> {
        Vec::new()
    }
}

/// A node that queues.
pub struct Contender {
    coordination: Coordination,
    pub backend: JoinHandle<()>,
}

impl Contender {
    /// The one with this number.
    pub fn start(connect: &str, n: usize) -> Self {
        let identity = NodeIdentity {
            node: NodeName::new(format!("queued-{n:03}")),
            host: "localhost".into(),
            pid: std::process::id(),
            user: "bench".into(),
            version: "bench".into(),
            started_at: Timestamp::now(),
        };
        let settings =
            ConnectionSettings { connect: connect.into(), session_timeout: SESSION, ..ConnectionSettings::default() };
        let aside = Aside::new(settings.clone()).expect("plain settings are good");
        let (coordination, service) = channels(Arc::new(LedgerReader::new(Znodes(aside))));
        let options = Options {
            service: connect.into(),
            root: "/".into(),
            uuid: Box::new(Uuid::new_v4),
            forget_after: ForgetAfter::default(),
            labels: Labels::default(),
            weight: 1,
        };
        let connector = Connector::new(settings).expect("plain settings are good");
        let serving = serve(Znodes(connector), SystemClock::default(), identity, Box::new(NoStore), service, options);
        let contender = Self { coordination, backend: tokio::spawn(serving) };
        contender.ask(Ask::Campaign);
        contender
    }

    fn ask(&self, request: Ask) {
        self.coordination.requests.send(Request::Election(request)).expect("the backend lives");
    }

    pub async fn await_place(&mut self) {
        self.until(|event| matches!(event, Event::Following { .. } | Event::Elected { .. })).await;
    }

    pub async fn await_leading(&mut self) {
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
pub async fn leave(queue: Vec<Contender>) {
    for mut contender in queue.into_iter().rev() {
        contender.ask(Ask::Leave);
        contender.until(|event| *event == Event::Left).await;
    }
}
