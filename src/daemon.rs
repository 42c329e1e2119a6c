//! The daemon's main loop: gather an event, let the engine decide, perform its commands.
//!
//! The loop itself makes no decisions. Clock, processes, journal and backend are passed in: the program passes the real
//! ones, the simulation passes models that run on virtual time.

pub mod cluster_watch;
mod controls;
mod drift;
mod facts;
pub mod launch;
mod liveness;
mod log;
mod members;
mod next_times;
mod notices;
pub mod orphans;
mod perform;
mod processes;
pub mod reload;
mod shown;
pub mod signals;
#[cfg(test)]
mod tests;
mod trees;
pub mod view;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::error;

use self::cluster_watch::{ClusterWatch, NodeHooks};
pub use self::controls::{Control, HandoverReply};
use self::launch::Launcher;
use self::liveness::LivenessCheck;
pub use self::processes::{Processes, WardenGone};
use self::shown::Showing;
pub use self::shown::Shown;
use self::trees::Trees;
pub use self::trees::WardenLeftovers;
use self::view::View;
use crate::archive::Archive;
use crate::config::Loaded;
use crate::output::OutputQueue;
use crate::systemd::{Notifier, Watchdog};
use cronkeeper_core::clock::{Clock, Now, Uptime, Wake};
use cronkeeper_core::coordination::{Coordination, Event as BackendEvent, Lease, Request};
use cronkeeper_core::election::{
    ApiAddress, Defined, Event as Election, Failure, Published, Request as ElectionRequest,
};
use cronkeeper_core::engine::{Engine, Event};
use cronkeeper_core::job::JobSet;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::process::Notice;
use cronkeeper_core::run::journal::{Journal, Recovered};
use cronkeeper_core::schedule;

/// Interval between requests to systemd for more time while draining.
const EXTEND_EVERY: Duration = Duration::from_secs(5);
/// Maximum time between two turns of the loop: a longer gap means that it hangs.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Minimum number of turns within a session timeout.
const HEARTBEATS_PER_SESSION: u32 = 8;

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

/// Logs which jobs the node starts with.
pub fn announce(loaded: &Loaded) {
    log::loaded(loaded, &JobSet::default().difference(&loaded.set), true);
}

/// Settings of the daemon, fixed at its start.
pub struct DaemonSettings {
    /// How long runs may go on after the node has begun to drain.
    pub drain_timeout: Duration,
    /// Builds the processes of runs and hooks.
    pub launcher: Launcher,
    /// Reports the daemon's state to systemd.
    pub notifier: Notifier,
    /// Reports to systemd that the loop turns.
    pub watchdog: Watchdog,
    /// Keeps the ends and skips that the ledger accepted from this node.
    pub archive: Archive,
    /// The hooks of the node.
    pub hooks: NodeHooks,
}

/// The parts that make up a daemon.
pub struct Parts<K, P, J> {
    pub engine: Engine,
    pub clock: K,
    /// Connects the daemon to the election and the ledger.
    pub coordination: Coordination,
    pub processes: P,
    /// What this host remembers of its runs.
    pub journal: J,
    pub settings: DaemonSettings,
    pub view: View,
    pub shown: Shown,
}

/// A running daemon.
pub struct Daemon<K, P, J> {
    engine: Engine,
    clock: K,
    coordination: Coordination,
    processes: P,
    journal: J,
    settings: DaemonSettings,
    trees: Trees,
    liveness: LivenessCheck,
    /// Hooks that could not be sent to the warden. The engine receives these notices after the current commands.
    refused_hooks: VecDeque<Notice>,
    view: View,
    shown: Shown,
    showing: Showing,
    /// When systemd was last asked for more time to stop.
    extended_at: Uptime,
    /// Why the node cannot take part any more. From then on it ignores the backend and waits for its runs.
    failure: Option<Failure>,
    outage: log::Outage,
    cluster: ClusterWatch,
    /// When the passing of time alone leads to a hook of the node.
    cluster_at: Option<Uptime>,
    all_drained: log::AllDrained,
    /// Callers that wait for the result of a handover.
    handovers: Vec<HandoverReply>,
    /// The lease as of the newest event that was processed.
    followed_lease: Lease,
    /// The last event came from the backend, so the warden goes first next time.
    is_wardens_turn: bool,
    heartbeat: Duration,
    /// Keeps the output of runs.
    output: OutputQueue,
    /// Where other nodes reach this one.
    listen: Option<ApiAddress>,
}

impl<K: Clock, P: Processes, J: Journal> Daemon<K, P, J> {
    pub fn new(parts: Parts<K, P, J>) -> Self {
        let Parts { engine, clock, coordination, processes, journal, settings, view, shown } = parts;
        let cluster = ClusterWatch::new(settings.hooks.clone(), clock.now());
        Self {
            engine,
            clock,
            coordination,
            processes,
            journal,
            settings,
            trees: Trees::default(),
            liveness: LivenessCheck::default(),
            refused_hooks: VecDeque::new(),
            view,
            shown,
            showing: Showing::NEVER,
            extended_at: Uptime::ZERO,
            failure: None,
            outage: log::Outage::default(),
            cluster,
            cluster_at: None,
            all_drained: log::AllDrained::default(),
            handovers: Vec::new(),
            followed_lease: Lease::NONE,
            is_wardens_turn: false,
            heartbeat: HEARTBEAT,
            output: OutputQueue::default(),
            listen: None,
        }
    }

    /// Keeps the output of runs; without this call, it is only logged.
    #[must_use]
    pub fn keeping(self, output: OutputQueue) -> Self {
        Self { output, ..self }
    }

    /// Publishes where other nodes reach this one.
    #[must_use]
    pub fn listening(self, listen: Option<ApiAddress>) -> Self {
        Self { listen, ..self }
    }

    /// Runs the loop until the daemon stops. `recovered` are the runs of an earlier process; their processes are dead.
    pub async fn run(mut self, recovered: Recovered, mut controls: mpsc::UnboundedReceiver<Control>) -> Stopped {
        let now = self.clock.now();
        self.report_turn(now);
        let mut stopped = self.turn(now, Event::Recovered(recovered.runs));
        self.publish();
        self.request(ElectionRequest::Campaign);
        while stopped.is_none() {
            let gathered = self.gather(&mut controls).await;
            let now = self.clock.now();
            self.report_turn(now);
            let renewed = self.renew_lease(now);
            stopped = renewed.or(self.on_gathered(now, gathered));
            self.ping_warden(now);
            stopped = stopped.or(self.watch_cluster(now));
            self.show(now);
            self.settings.watchdog.turned(now.up, &mut self.settings.notifier);
            self.extend_stop(now);
        }
        // The rest of `self`, with the channels to the backend, is dropped only after this: otherwise another node
        // could start a run again while its processes are still alive here.
        close(&self.clock, self.processes).await;
        match (stopped, self.failure) {
            (None | Some(Stopped::Asked), Some(failure)) => Stopped::Failed(failure),
            (stopped, _) => stopped.unwrap_or(Stopped::Asked),
        }
    }

    /// Waits for the next event.
    ///
    /// Backend and warden take turns while both have events: so thousands of answers do not delay the end of a run, and
    /// a flood of output does not delay an answer. Neither delays what is due by time: see `turn_if_due`.
    async fn gather(&mut self, controls: &mut mpsc::UnboundedReceiver<Control>) -> Gathered {
        let wake = self.wake();
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
        self.shown.turned.send_replace(now.up);
        self.coordination.turned.send_replace(now.up);
    }

    /// Applies a longer lease at once, ahead of all queued events; see [`coordination`](cronkeeper_core::coordination).
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
                self.shown.metrics.answered(now.up, &event);
                self.turn(now, Event::Ledger(event))
            }
            BackendEvent::Lock(event) => self.turn(now, Event::Lock(event)),
        }
    }

    /// Passes at most one event to the engine.
    fn on_gathered(&mut self, now: Now, gathered: Gathered) -> Option<Stopped> {
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
            self.show_lease();
            return stopped;
        }
        self.showing.changed();
        log::election(&event);
        self.outage.follow(now.up, &event);
        for drift in self.view.elected(now, &event, self.engine.jobs()) {
            log::drift(&drift);
        }
        match &event {
            Election::Failed(failure) => return self.fail(now, failure.clone()),
            Election::Session { timeout, .. } => {
                self.heartbeat = HEARTBEAT.min(*timeout / HEARTBEATS_PER_SESSION);
                self.settings.watchdog.set(*timeout, &mut self.settings.notifier);
            }
            Election::Withdrawn => self.on_handover_done(Ok(())),
            Election::NotTransferred { why, .. } => self.on_handover_done(Err(why.clone())),
            Election::Members(members) => self.all_drained.follow(now.up, members),
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
        self.settings.notifier.stopping();
        self.turn(now, Event::Failed { timeout: self.settings.drain_timeout })
    }

    /// Calls the hooks of the node that follow from what it sees. Visits every missing node, so this happens only when a
    /// new state is about to be published, and when the time alone leads to a call.
    fn watch_cluster(&mut self, now: Now) -> Option<Stopped> {
        if self.cluster.is_off() {
            return None;
        }
        if self.engine.is_ending() {
            // Its hooks would not run any more.
            self.cluster_at = None;
            return None;
        }
        let is_news = self.showing.is_due(now.up);
        if !is_news && self.cluster_at.is_none_or(|at| now.up < at) {
            return None;
        }
        let seen = self.view.seen();
        let calls = self.cluster.see(now, &seen);
        self.cluster_at = self.cluster.next_at();
        let mut stopped = None;
        for call in calls {
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

    fn wake(&self) -> Wake {
        let now = self.clock.now();
        let beats = [self.settings.watchdog.next(), self.liveness.next_check(), self.cluster_at, self.showing.due()];
        let at = beats.into_iter().flatten().fold(now.up + self.heartbeat, Uptime::min);
        self.engine.wake(now).or(Wake { wall: None, up: Some(at) })
    }

    /// Extends systemd's stop timeout while the node drains, so that only the drain timeout limits it.
    fn extend_stop(&mut self, now: Now) {
        if self.engine.is_ending() && now.up >= self.extended_at + EXTEND_EVERY {
            self.extended_at = now.up;
            self.settings.notifier.extend_timeout(EXTEND_EVERY * 3);
        }
    }
}

async fn close(clock: &impl Clock, processes: impl Processes) {
    let until = clock.now().up + CLOSING;
    let mut closed = pin!(processes.close());
    while clock.now().up < until {
        // Cancellation safety: `closed` continues where it was, and the next turn starts a new sleep.
        tokio::select! {
            biased;
            () = &mut closed => return,
            () = clock.sleep_until(Wake { wall: None, up: Some(until) }) => {}
        }
    }
    error!(
        target: TARGET,
        "some processes are still running after {} s; the warden continues to kill them without the daemon",
        CLOSING.as_secs(),
    );
}

/// The next event. `Time`: nothing was received until the wake time.
#[expect(clippy::large_enum_variant, reason = "only one exists at a time")]
enum Gathered {
    Time,
    Control(Control),
    Backend(Option<BackendEvent>),
    Notice(Result<Notice, WardenGone>),
}
