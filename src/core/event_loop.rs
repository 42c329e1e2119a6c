//! The daemon's event loop: gather an event, let the engine decide, perform its commands.
//!
//! The loop itself makes no decisions. Clock, processes, journal, backend, launcher and observer are passed in: the
//! program passes the real ones, the simulation passes models that run on virtual time.

mod controls;
mod liveness;
mod log;
mod notices;
mod observer;
mod perform;
#[cfg(test)]
mod tests;
mod trees;
pub mod variables;

use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

pub use self::controls::{Control, HandoverReply};
use self::liveness::LivenessCheck;
pub use self::observer::Observer;
use self::trees::Trees;
pub use self::trees::{Tree, TreeKind, WardenLeftovers};
use crate::clock::{Clock, Now, Uptime, Wake};
use crate::coordination::{Coordination, Event as BackendEvent, Lease, Request};
use crate::election::{ApiAddress, Defined, Event as Election, Failure, Published, Request as ElectionRequest};
use crate::engine::hooks::HookStart;
use crate::engine::{Engine, Event, Start};
use crate::process::{Launch, Notice, Processes, TreeId, WardenGone};
use crate::run::journal::{Journal, Recovered, Written};
use crate::run::{OverAttempts, RunId};
use crate::schedule;

/// Maximum time between two turns of the loop: a longer gap means that it hangs.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Minimum number of turns within a session timeout.
const HEARTBEATS_PER_SESSION: u32 = 8;

/// A loop that wakes this much too late was stopped or frozen with its process, or got no processor.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// How long the daemon waits at its end for remaining processes to be killed.
///
/// Processes that survive this are left to the next start, or to systemd.
const CLOSING: Duration = Duration::from_secs(5);

/// Why the daemon ended.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Stopped {
    /// An operator requested it, and the node left the cluster in order.
    #[error("asked to")]
    Asked,
    /// The warden is gone, and nobody else ends the processes that it left behind.
    #[error("the warden is gone")]
    WardenGone(WardenLeftovers),
    /// The backend's task ended unexpectedly.
    #[error("the backend is gone")]
    BackendGone,
    /// The node cannot take part until an operator changes something. It waited for its runs to end.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// What a loop is connected to.
pub trait Ports {
    /// Tells the time.
    type Clock: Clock;
    /// Starts and ends process trees.
    type Processes: Processes;
    /// Records what this host runs.
    type Journal: Journal;
    /// Builds the processes of runs and hooks.
    type Launcher: Launcher;
    /// Learns what happens.
    type Observer: Observer;
}

/// Builds the processes of runs and hooks.
pub trait Launcher: Send {
    /// The launch of an attempt whose begin was accepted; `None` if this host does not know the job's user or group.
    fn launch(&self, start: &Start) -> Option<Launch>;

    /// The launch of a hook; `None` if this host does not know the job's user or group.
    fn hook(&self, start: &HookStart) -> Option<Launch>;
}

/// The result of reading the jobs file again, as a loop with these ports receives it.
pub type ReloadedOf<P> = <<P as Ports>::Observer as Observer>::Reloaded;

/// The parts that make up a loop.
pub struct Parts<P: Ports> {
    /// Decides.
    pub engine: Engine,
    /// Tells the time.
    pub clock: P::Clock,
    /// Connects the loop to the election and the ledger.
    pub coordination: Coordination,
    /// Starts and ends process trees.
    pub processes: P::Processes,
    /// What this host remembers of its runs.
    pub journal: P::Journal,
    /// Builds the processes of runs and hooks.
    pub launcher: P::Launcher,
    /// Learns what happens.
    pub observer: P::Observer,
    /// How long runs may continue after the node has begun to drain.
    pub drain_timeout: Duration,
    /// Where other nodes reach this one.
    pub listen: Option<ApiAddress>,
}

/// A loop that is running, or ready to.
pub struct EventLoop<P: Ports> {
    engine: Engine,
    clock: P::Clock,
    coordination: Coordination,
    processes: P::Processes,
    journal: P::Journal,
    launcher: P::Launcher,
    observer: P::Observer,
    drain_timeout: Duration,
    listen: Option<ApiAddress>,
    trees: Trees,
    liveness: LivenessCheck,
    /// Hooks that could not be sent to the warden. The engine receives these notices after the current commands.
    refused_hooks: VecDeque<Notice>,
    /// Why the node cannot take part any more. From then on it ignores the backend and waits for its runs.
    failure: Option<Failure>,
    /// Callers that wait for the result of a handover.
    handovers: Vec<HandoverReply>,
    /// The lease as of the newest event that was processed.
    followed_lease: Lease,
    /// The last event came from the backend, so the warden goes first next time.
    is_wardens_turn: bool,
    heartbeat: Duration,
}

impl<P: Ports> EventLoop<P> {
    /// Puts a loop together. It does nothing before [`run`](Self::run).
    pub fn new(parts: Parts<P>) -> Self {
        let Parts { engine, clock, coordination, processes, journal, launcher, observer, drain_timeout, listen } =
            parts;
        Self {
            engine,
            clock,
            coordination,
            processes,
            journal,
            launcher,
            observer,
            drain_timeout,
            listen,
            trees: Trees::default(),
            liveness: LivenessCheck::default(),
            refused_hooks: VecDeque::new(),
            failure: None,
            handovers: Vec::new(),
            followed_lease: Lease::NONE,
            is_wardens_turn: false,
            heartbeat: HEARTBEAT,
        }
    }

    /// Turns until the daemon stops. `recovered` are the runs of an earlier process; their processes are dead.
    pub async fn run(
        mut self,
        recovered: Recovered,
        mut controls: mpsc::UnboundedReceiver<Control<ReloadedOf<P>>>,
    ) -> Stopped {
        let now = self.clock.now();
        self.report_turn(now);
        // A copy of another directory knows nothing of this node.
        let is_own = matches!(recovered.written, Written::Here | Written::BeforeBoot);
        let over = if is_own { recovered.over } else { OverAttempts::default() };
        let mut stopped = self.turn(now, Event::Recovered { runs: recovered.runs, over });
        self.publish();
        self.request(ElectionRequest::Campaign);
        let mut turned = now.up;
        while stopped.is_none() {
            let latest = self.clock.now().up + self.heartbeat;
            let gathered = self.gather(latest, &mut controls).await;
            let now = self.clock.now();
            // From the last turn on: the process may have been stopped in the middle of it.
            let late = now.up.since(turned + self.heartbeat);
            turned = now.up;
            if late >= STOOD_STILL {
                log::stood_still(late);
            }
            self.report_turn(now);
            let renewed = self.renew_lease(now);
            stopped = renewed.or(self.on_gathered(now, gathered));
            self.ping_warden(now);
            stopped = stopped.or(self.call_node_hooks(now));
            self.observer.on_turn_end(now, &self.engine, &self.clock);
        }
        // The rest of `self`, with the channels to the backend, is dropped only after this: otherwise another node
        // could start a run again while its processes are still alive here.
        let unbegun = close(&self.clock, self.processes, self.trees.ids_of_attempts()).await;
        note_unbegun(&mut self.journal, unbegun.iter().filter_map(|tree_id| self.trees.attempt(*tree_id)));
        match (stopped, self.failure) {
            (None | Some(Stopped::Asked), Some(failure)) => Stopped::Failed(failure),
            (stopped, _) => stopped.unwrap_or(Stopped::Asked),
        }
    }

    /// Waits for the next event, until `latest` if nothing is due and nothing happens.
    ///
    /// Backend and warden take turns while both have events: so thousands of answers do not delay the end of a run, and
    /// a flood of output does not delay an answer. Neither delays what is due by time: see `turn_if_due`.
    async fn gather(
        &mut self,
        latest: Uptime,
        controls: &mut mpsc::UnboundedReceiver<Control<ReloadedOf<P>>>,
    ) -> Gathered<ReloadedOf<P>> {
        let wake = self.wake(latest);
        let takes_part = self.failure.is_none();
        // Cancellation safety of both `select!`s: the receivers keep what was not received, `notice` is documented as
        // cancel safe, and the next turn starts a new sleep.
        let gathered = if self.is_wardens_turn {
            tokio::select! {
                biased;
                Some(control) = controls.recv() => Gathered::Control(control),
                notice = self.processes.notice() => Gathered::Notice(notice),
                event = self.coordination.events.recv(), if takes_part => Gathered::Backend(event),
                () = self.clock.sleep_until(wake) => Gathered::Time,
            }
        } else {
            tokio::select! {
                biased;
                Some(control) = controls.recv() => Gathered::Control(control),
                event = self.coordination.events.recv(), if takes_part => Gathered::Backend(event),
                notice = self.processes.notice() => Gathered::Notice(notice),
                () = self.clock.sleep_until(wake) => Gathered::Time,
            }
        };
        self.is_wardens_turn = matches!(gathered, Gathered::Backend(_));
        gathered
    }

    /// Reports that the loop turns. The backend renews the lease only while it does.
    fn report_turn(&mut self, now: Now) {
        self.observer.on_turn(now);
        self.coordination.turned.send_replace(now.up);
    }

    /// Applies a longer lease at once, ahead of all queued events; see [`coordination`](crate::coordination).
    fn renew_lease(&mut self, now: Now) -> Option<Stopped> {
        let lease = *self.coordination.lease.borrow();
        let is_news = lease.until > self.engine.lease_until() && !lease.is_of_another_time(&self.followed_lease);
        if is_news && self.failure.is_none() {
            return self.on_election(now, Election::Lease { until: lease.until });
        }
        None
    }

    fn on_backend_event(&mut self, now: Now, event: BackendEvent) -> Option<Stopped> {
        self.followed_lease.follow(&event);
        match event {
            // `renew_lease` has already applied this lease or a longer one.
            BackendEvent::Election(Election::Lease { until })
                if until > Uptime::ZERO && until <= self.engine.lease_until() =>
            {
                self.turn_if_due(now)
            }
            BackendEvent::Election(event) => self.on_election(now, event),
            BackendEvent::Ledger(event) => {
                self.observer.on_ledger(now, &event);
                self.turn(now, Event::Ledger(event))
            }
            BackendEvent::Lock(event) => self.turn(now, Event::Lock(event)),
        }
    }

    /// Passes at most one event to the engine.
    fn on_gathered(&mut self, now: Now, gathered: Gathered<ReloadedOf<P>>) -> Option<Stopped> {
        match gathered {
            Gathered::Time => self.on_time(now),
            Gathered::Control(control) => self.on_control(now, control),
            Gathered::Backend(None) => Some(Stopped::BackendGone),
            Gathered::Backend(Some(event)) => self.on_backend_event(now, event),
            Gathered::Notice(Err(WardenGone)) => Some(Stopped::WardenGone(self.leftovers())),
            Gathered::Notice(Ok(notice)) => {
                self.liveness.on_notice();
                self.on_notice(now, notice)
            }
        }
    }

    /// Handles a turn without any event: nothing could be received until the wake time.
    fn on_time(&mut self, now: Now) -> Option<Stopped> {
        match self.liveness.is_dead_after_check(now.up) {
            true => Some(self.give_up_on_warden()),
            false => self.turn(now, Event::Tick),
        }
    }

    fn turn(&mut self, now: Now, event: Event) -> Option<Stopped> {
        let commands = self.engine.handle(now, event);
        let mut stopped = self.perform(now, commands);
        while let Some(notice) = self.refused_hooks.pop_front() {
            let commands = self.engine.handle(now, Event::Warden(notice));
            stopped = stopped.or(self.perform(now, commands));
        }
        stopped
    }

    fn on_election(&mut self, now: Now, event: Election) -> Option<Stopped> {
        if let Election::Lease { .. } = event {
            let stopped = self.turn(now, Event::Election(event));
            self.observer.on_lease(&self.engine);
            return stopped;
        }
        self.observer.on_election(now, &event, &self.engine);
        match &event {
            Election::Failed(failure) => return self.fail(now, failure.clone()),
            Election::Session { timeout, .. } => self.heartbeat = HEARTBEAT.min(*timeout / HEARTBEATS_PER_SESSION),
            Election::Withdrawn => self.on_handover_done(Ok(())),
            Election::NotTransferred { why, .. } => self.on_handover_done(Err(why.clone())),
            _ => {}
        }
        let was_drained = self.engine.is_drained();
        let stopped = self.turn(now, Event::Election(event));
        if self.engine.is_drained() != was_drained {
            self.publish();
        }
        stopped
    }

    /// Stops the node because it cannot take part any more.
    ///
    /// The node drains as if an operator had stopped it: runs that no other node can start meanwhile need not die.
    fn fail(&mut self, now: Now, failure: Failure) -> Option<Stopped> {
        self.failure = Some(failure);
        self.observer.on_stopping();
        self.turn(now, Event::Failed { timeout: self.drain_timeout })
    }

    fn call_node_hooks(&mut self, now: Now) -> Option<Stopped> {
        let mut stopped = None;
        for call in self.observer.hooks_to_call(now, &self.engine) {
            stopped = stopped.or(self.turn(now, Event::CallHook(call)));
        }
        stopped
    }

    fn request(&mut self, request: ElectionRequest) {
        // A backend that is gone has also closed its channel of events, which ends the loop.
        let _ = self.coordination.requests.send(Request::Election(request));
    }

    fn publish(&mut self) {
        let listen = self.listen.clone();
        let published = Published { tzdata: schedule::tzdata_version(), listen, ..self.engine.published() };
        let defined = Defined::of(self.engine.jobs());
        self.request(ElectionRequest::Define(Arc::new(defined)));
        self.request(ElectionRequest::Publish(published));
    }

    fn wake(&self, latest: Uptime) -> Wake {
        let beats = [self.liveness.next_check(), self.observer.next_at()];
        let at = beats.into_iter().flatten().fold(latest, Uptime::min);
        self.engine.wake(self.clock.now()).or(Wake { wall: None, up: Some(at) })
    }
}

/// Kills everything. Returns the trees whose programs certainly never began; none if it takes too long.
async fn close(clock: &impl Clock, processes: impl Processes, trees: Vec<TreeId>) -> Vec<TreeId> {
    let until = clock.now().up + CLOSING;
    let mut closed = pin!(processes.close(trees));
    while clock.now().up < until {
        // Cancellation safety: `closed` continues where it was, and the next turn starts a new sleep.
        tokio::select! {
            biased;
            unbegun = &mut closed => return unbegun,
            () = clock.sleep_until(Wake { wall: None, up: Some(until) }) => {}
        }
    }
    log::left_running();
    Vec::new()
}

/// Has the journal forget attempts whose programs never began, so that they are begun again.
///
/// The next process can no longer know it of those that the warden had not started, or whose time has come by then.
fn note_unbegun<'a>(journal: &mut impl Journal, unbegun: impl Iterator<Item = (&'a RunId, u32)>) {
    let unbegun: BTreeSet<(&RunId, u32)> = unbegun.collect();
    if unbegun.is_empty() {
        return;
    }
    for run in journal.open_runs().into_iter().filter(|run| run.end.is_none()) {
        let run_id = run.record.id();
        if unbegun.contains(&(&run_id, run.record.attempt))
            && let Err(error) = journal.unstarted(&run_id)
        {
            log::state_failed(&run_id, "record that the run was never started", &error);
        }
    }
}

/// The next event. `Time`: nothing was received until the wake time.
#[expect(clippy::large_enum_variant, reason = "only one exists at a time")]
enum Gathered<R> {
    Time,
    Control(Control<R>),
    Backend(Option<BackendEvent>),
    Notice(Result<Notice, WardenGone>),
}
