//! Operators who trigger jobs, pause and resume them, drain and undrain nodes, and ask for handovers, at any node and
//! any moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cronkeeper_core::clock::{Clock, Wake};
use cronkeeper_core::coordination::Reader;
use cronkeeper_core::election::Candidate;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::Operator;
use cronkeeper_core::run::{Drain, HandoverRequest, Parameters, Pause, Resume, TriggerRecord};
use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::backend::node_name;
use super::clock::NodeClock;
use super::jobs::{Cast, PARAMETER};
use super::world::Shared;

/// All requests so far. Some are repeated elsewhere, with the same uuid.
#[derive(Clone, Default)]
pub struct PastRequests(Arc<Mutex<Vec<(JobName, Uuid)>>>);

/// An operator at one node.
pub struct SimulatedOperator {
    pub world: Shared,
    pub node: usize,
    /// Number of nodes.
    pub nodes: usize,
    pub reader: Arc<dyn Reader>,
    pub operator: Arc<dyn Operator>,
    pub clock: NodeClock,
    pub rng: Rng,
    pub is_calm: Arc<AtomicBool>,
    pub past_requests: PastRequests,
    pub jobs: Cast,
}

impl SimulatedOperator {
    pub async fn work(mut self) {
        loop {
            let wait = if self.is_calm() { 1_000..2_000 } else { 500..15_000 };
            let next = self.clock.now().up + Duration::from_millis(self.rng.u64(wait));
            while self.clock.now().up < next {
                self.clock.sleep_until(Wake { wall: None, up: Some(next) }).await;
            }
            self.act().await;
        }
    }

    fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    async fn act(&mut self) {
        if self.is_calm() {
            // In peace every job must run again.
            for job in self.jobs.names() {
                self.resume(job.clone()).await;
            }
            for node in 0..self.nodes {
                self.undrain(node).await;
            }
            return;
        }
        let Some(job) = self.drawn_job() else { return };
        if self.rng.bool() {
            // Exactly when jobs are due, so that the requests cross the leader's decisions.
            self.await_second().await;
        }
        match self.rng.u8(..12) {
            0 | 1 => self.pause(job).await,
            2 | 3 => self.resume(job).await,
            4 => self.drain().await,
            5 | 6 => {
                let node = self.rng.usize(..self.nodes);
                self.undrain(node).await;
            }
            7 => self.hand_over().await,
            _ => self.trigger(job).await,
        }
    }

    fn drawn_job(&mut self) -> Option<JobName> {
        let mut names = self.jobs.names();
        names.nth(self.rng.usize(..names.len())).cloned()
    }

    /// Waits until a few milliseconds around the next whole second.
    async fn await_second(&mut self) {
        let now = self.clock.now();
        let left = 1_000_000_000 - now.wall.subsec_nanosecond().unsigned_abs();
        let up = now.up + Duration::from_nanos(left.into()) + Duration::from_micros(self.rng.u64(..4_000));
        self.clock.sleep_until(Wake { wall: None, up: Some(up) }).await;
    }

    fn now(&self) -> Timestamp {
        let now = self.clock.now().wall;
        now - SignedDuration::new(0, now.subsec_nanosecond())
    }

    async fn trigger(&mut self, job: JobName) {
        let (job, uuid) = self.drawn(job);
        let (parameters, scheduled_at) = self.given(uuid);
        let record = TriggerRecord::new(uuid, job.clone(), self.name(), self.now()).with(parameters, scheduled_at);
        // A job that runs on other nodes than the leader may be triggered on nodes by name.
        let is_on_one =
            ["any", "every"].iter().any(|kind| job.as_str().starts_with(kind)) && uuid.as_u128().is_multiple_of(5);
        let on = is_on_one.then(|| node_name(self.rng.usize(..self.nodes)));
        let record = record.on(on.into_iter().collect());
        let answer = self.operator.trigger(record).await;
        self.note(|| format!("triggers {job} by {uuid}: {answer:?}"));
    }

    /// What the request with this uuid sets, if anything; for a request that is repeated elsewhere it is something else.
    fn given(&self, uuid: Uuid) -> (Parameters, Option<Timestamp>) {
        let drawn = uuid.as_u128();
        let value = format!("{uuid} 'at' node-{}", self.node);
        let variables = drawn.is_multiple_of(2).then(|| (PARAMETER.to_owned(), value)).into_iter().collect();
        let parameters = Parameters::check("any", &[PARAMETER.to_owned()].into(), variables).expect("they are small");
        let seconds = i64::try_from(drawn % 1_000_000_000).unwrap_or_default();
        let scheduled_at = drawn.is_multiple_of(3).then(|| Timestamp::from_second(seconds).expect("it is near"));
        (parameters, scheduled_at)
    }

    /// A new request, or one that was made before.
    fn drawn(&mut self, job: JobName) -> (JobName, Uuid) {
        let mut past = self.past_requests.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = past.len().saturating_sub(3);
        if self.rng.u8(..3) == 0 && !past.is_empty() {
            return past[self.rng.usize(recent..past.len())].clone();
        }
        let request = (job, Uuid::from_u128(self.rng.u128(..)));
        past.push(request.clone());
        request
    }

    async fn pause(&mut self, job: JobName) {
        let length = SignedDuration::from_secs(self.rng.i64(1..30));
        let until = self.rng.bool().then(|| self.now() + length);
        let pause = Pause { by: self.name(), at: self.now(), reason: None, until };
        let id = Uuid::from_u128(self.rng.u128(..));
        let answer = self.operator.pause(job.clone(), id, pause).await;
        self.note(|| format!("pauses {job}: {answer:?}"));
    }

    async fn resume(&self, job: JobName) {
        let resume = Resume { by: self.name(), at: self.now() };
        let answer = self.operator.request_resume(job.clone(), resume).await;
        self.note(|| format!("resumes {job}: {answer:?}"));
    }

    async fn drain(&mut self) {
        let node = self.rng.usize(..self.nodes);
        let drain = Drain { by: self.name(), at: self.now(), reason: None };
        let answer = self.operator.drain(node_name(node), drain).await;
        self.note(|| format!("drains node-{node}: {answer:?}"));
    }

    async fn undrain(&mut self, node: usize) {
        let answer = self.operator.undrain(node_name(node)).await;
        self.note(|| format!("undrains node-{node}: {answer:?}"));
    }

    /// Asks whoever is first in the queue to hand over.
    async fn hand_over(&mut self) {
        let first = self.reader.queue().await.ok().and_then(|queue| queue.candidates.into_iter().next());
        let Some(Candidate { candidate, node: Some(leader) }) = first else { return };
        let to = Some(node_name(self.rng.usize(..self.nodes))).filter(|to| *to != leader && self.rng.bool());
        let (id, by, at) = (Uuid::from_u128(self.rng.u128(..)), self.name(), self.now());
        let request = HandoverRequest { id, candidate, to: to.clone(), by, at };
        let answer = self.operator.request_handover(leader.clone(), request).await;
        self.note(|| format!("asks {leader} to hand over to {to:?}: {answer:?}"));
    }

    fn name(&self) -> String {
        format!("operator at node-{}", self.node)
    }

    fn note(&self, what: impl FnOnce() -> String) {
        let node = self.node;
        self.world.lock().env.note(|| format!("the operator at node-{node} {}", what()));
    }
}
