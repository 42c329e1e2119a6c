//! The loop where the parts meet: gather one event, let the engine decide, perform what follows.
//!
//! It has no rules of its own. It runs on whatever clock, processes, journal and backend it is given: in the program
//! the real ones, in the simulation others on virtual time.

mod drift;
mod facts;
pub mod launch;
mod log;
mod notices;
pub mod orphans;
mod perform;
mod processes;
mod liveness;
pub mod reload;
pub mod signals;
#[cfg(test)]
mod tests;
mod trees;
pub mod view;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tracing::error;

use self::launch::Launcher;
use self::liveness::LivenessCheck;
pub use self::processes::{Processes, WardenGone};
use self::reload::Reloaded;
pub use self::trees::Left;
use self::trees::Trees;
use self::view::View;
use crate::clock::{Clock, Now, Uptime, Wake};
use crate::config::Loaded;
use crate::coordination::{Coordination, Event as Told, Lease, Request};
use crate::election::{Defined, Event as Election, Failure, Published, Request as Ask, TransferError};
use crate::engine::{Engine, Event};
use crate::job::JobSet;
use crate::run::journal::{Journal, Recovered};
use crate::schedule;
use crate::status::Status;
use crate::systemd::{Notifier, Watchdog};
use crate::telemetry::TARGET;
use crate::term::NodeName;
use crate::warden::wire::Notice;

/// How often systemd is asked for more time while draining.
const EXTEND_EVERY: Duration = Duration::from_secs(5);
/// The state is shown this often at most.
const SHOW_EVERY: Duration = Duration::from_millis(250);
/// The loop turns at least this often, so that its standing still can be seen; and so often within a session timeout.
const HEARTBEAT: Duration = Duration::from_secs(2);
const BEATS_A_SESSION: u32 = 8;

/// How long the end waits for what still runs to be killed. What does not die by then is for the next start, or for systemd.
const CLOSING: Duration = Duration::from_secs(5);

/// What the operator, by a signal or the jobs file, asks of the daemon.
#[derive(Debug)]
pub enum Control {
    /// The jobs file was read again.
    Reloaded(Reloaded),
    /// End once the runs have.
    Drain,
    /// End now.
    Stop,
    /// Let another node lead: this one, or the next in line.
    HandOver {
        /// Who is to lead.
        to: Option<NodeName>,
        /// Who wants to hear that it is done, or why not.
        answer: Option<Answer>,
    },
    /// Log the state.
    LogState,
}

/// Hears how a handover went. Dropped: the daemon ended first.
pub type Answer = oneshot::Sender<Result<(), TransferError>>;

/// Why the daemon ended.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Stopped {
    /// It was asked to, and left in order.
    #[error("asked to")]
    Asked,
    /// See [`WardenGone`]. What is left has nobody to end it.
    #[error("the warden is gone")]
    WardenGone(Left),
    /// The backend's task ended by itself.
    #[error("the backend is gone")]
    BackendGone,
    /// The node cannot take part until an operator changes something; what ran here was waited for.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Says which jobs the node starts with.
pub fn announce(loaded: &Loaded) {
    log::loaded(loaded, &JobSet::default().difference(&loaded.set));
}

/// What the daemon is told once, at its start.
pub struct Settings {
    /// How long runs may take after the node was told to end.
    pub drain_timeout: Duration,
    /// Of the program that started the daemon's processes.
    pub launcher: Launcher,
    /// Where systemd hears from the daemon.
    pub notifier: Notifier,
    /// When systemd wants to hear that the loop turns.
    pub watchdog: Watchdog,
}

/// What a daemon is made of.
pub struct Parts<K, P, J> {
    /// What decides.
    pub engine: Engine,
    /// What tells the time.
    pub clock: K,
    /// What elects and remembers.
    pub coordination: Coordination,
    /// What runs.
    pub processes: P,
    /// What is remembered here.
    pub journal: J,
    /// What is fixed from the start.
    pub settings: Settings,
    /// What is known for people.
    pub view: View,
    /// Where they see it.
    pub shown: Shown,
}

/// A running daemon.
pub struct Daemon<K, P, J> {
    engine: Engine,
    clock: K,
    coordination: Coordination,
    processes: P,
    journal: J,
    settings: Settings,
    /// What each tree is, for its lines of output.
    trees: Trees,
    liveness: LivenessCheck,
    /// Hooks that could not be handed to the warden: the engine is told once it has heard of all else.
    refused: VecDeque<Notice>,
    view: View,
    shown: Shown,
    /// Something changed since the state was shown last.
    is_stale: bool,
    shown_at: Uptime,
    /// When systemd was last told that stopping takes longer.
    extended_at: Uptime,
    /// Why the node cannot take part any more: the backend is not heard, only what still runs is waited for.
    failure: Option<Failure>,
    /// Who wait to hear how a handover goes.
    handovers: Vec<Answer>,
    /// The lease as of the newest event that was heard.
    heard: Lease,
    /// The backend was heard last: it is the warden's turn.
    is_wardens_turn: bool,
    heartbeat: Duration,
}

/// Where the state is shown.
pub struct Shown {
    /// The node, as an operator sees it.
    pub status: watch::Sender<Arc<Status>>,
    /// When the loop turned last.
    pub turned: watch::Sender<Uptime>,
}

impl<K: Clock, P: Processes, J: Journal> Daemon<K, P, J> {
    /// A daemon of these parts.
    pub fn new(parts: Parts<K, P, J>) -> Self {
        let Parts { engine, clock, coordination, processes, journal, settings, view, shown } = parts;
        Self {
            engine,
            clock,
            coordination,
            processes,
            journal,
            settings,
            trees: Trees::default(),
            liveness: LivenessCheck::default(),
            refused: VecDeque::new(),
            view,
            shown,
            is_stale: true,
            shown_at: Uptime::ZERO,
            extended_at: Uptime::ZERO,
            failure: None,
            handovers: Vec::new(),
            heard: Lease::NONE,
            is_wardens_turn: false,
            heartbeat: HEARTBEAT,
        }
    }

    /// Takes part until told to end. `recovered` are the runs of an earlier process, seen dead.
    pub async fn run(mut self, recovered: Recovered, mut controls: mpsc::UnboundedReceiver<Control>) -> Stopped {
        let now = self.clock.now();
        self.note_turn(now);
        let mut stopped = self.turn(now, Event::Recovered(recovered.runs));
        self.publish();
        self.ask(Ask::Campaign);
        while stopped.is_none() {
            let gathered = self.gather(&mut controls).await;
            let now = self.clock.now();
            self.note_turn(now);
            let renewed = self.renew_lease(now);
            stopped = renewed.or(self.take(now, gathered));
            self.ask_warden(now);
            self.show(now);
            self.settings.watchdog.turned(now.up, &mut self.settings.notifier);
            self.extend_stop(now);
        }
        // What this node holds, the backend's end with it, is given up only afterwards.
        close(&self.clock, self.processes).await;
        match (stopped, self.failure) {
            (None | Some(Stopped::Asked), Some(failure)) => Stopped::Failed(failure),
            (stopped, _) => stopped.unwrap_or(Stopped::Asked),
        }
    }

    /// Waits for the next thing to happen. Backend and warden take turns where both have more to say: thousands of answers do not
    /// delay the end of a run, nor a flood of output an answer. It does not hold the clock up either: see `noticed`.
    async fn gather(&mut self, controls: &mut mpsc::UnboundedReceiver<Control>) -> Gathered {
        let wake = self.wake();
        let hears = self.failure.is_none();
        // Cancellation safety, of both: the receivers keep what was not received, `notice` says it is cancel safe, and a
        // forgotten wait is asked for anew in the next turn.
        let gathered = if self.is_wardens_turn {
            tokio::select! {
                biased;
                Some(control) = controls.recv() => Gathered::Control(control),
                notice = self.processes.notice() => Gathered::Notice(notice),
                told = self.coordination.events.recv(), if hears => Gathered::Told(told),
                () = self.clock.sleep_until(wake) => Gathered::Time,
            }
        } else {
            tokio::select! {
                biased;
                Some(control) = controls.recv() => Gathered::Control(control),
                told = self.coordination.events.recv(), if hears => Gathered::Told(told),
                notice = self.processes.notice() => Gathered::Notice(notice),
                () = self.clock.sleep_until(wake) => Gathered::Time,
            }
        };
        self.is_wardens_turn = matches!(gathered, Gathered::Told(_));
        gathered
    }

    /// The lease is fed by this: see the backend.
    fn note_turn(&mut self, now: Now) {
        self.shown.turned.send_replace(now.up);
        self.coordination.turned.send_replace(now.up);
    }

    /// A longer lease counts at once, whatever waits before it among the events; see [`coordination`](crate::coordination).
    fn renew_lease(&mut self, now: Now) -> Option<Stopped> {
        let lease = *self.coordination.lease.borrow();
        let is_news = lease.until > self.engine.lease_until() && !lease.is_of_another_time(&self.heard);
        if is_news && self.failure.is_none() {
            return self.elected(now, Election::Lease { until: lease.until });
        }
        None
    }

    /// An event of the backend.
    fn told(&mut self, now: Now, event: Told) -> Option<Stopped> {
        self.heard.follow(&event);
        match event {
            // A longer one has overtaken it.
            Told::Election(Election::Lease { until }) if until > Uptime::ZERO && until <= self.engine.lease_until() => {
                self.turn_if_due(now)
            }
            Told::Election(event) => self.elected(now, event),
            Told::Ledger(event) => self.turn(now, Event::Ledger(event)),
        }
    }

    /// One event at most to the engine.
    fn take(&mut self, now: Now, gathered: Gathered) -> Option<Stopped> {
        match gathered {
            Gathered::Time => self.time_passed(now),
            Gathered::Control(control) => self.control(now, control),
            Gathered::Told(None) => Some(Stopped::BackendGone),
            Gathered::Told(Some(event)) => self.told(now, event),
            Gathered::Notice(Err(WardenGone)) => Some(Stopped::WardenGone(self.left())),
            Gathered::Notice(Ok(notice)) => {
                self.liveness.heard();
                self.noticed(now, notice)
            }
        }
    }

    /// The loop turned by itself: there was nothing to hear.
    fn time_passed(&mut self, now: Now) -> Option<Stopped> {
        match self.liveness.looked(now.up) {
            true => Some(self.give_warden_up()),
            false => self.turn(now, Event::Tick),
        }
    }

    fn turn(&mut self, now: Now, event: Event) -> Option<Stopped> {
        let commands = self.engine.handle(now, event);
        let mut stopped = self.perform(now, commands);
        while let Some(notice) = self.refused.pop_front() {
            let commands = self.engine.handle(now, Event::Warden(notice));
            stopped = stopped.or(self.perform(now, commands));
        }
        stopped
    }

    fn control(&mut self, now: Now, control: Control) -> Option<Stopped> {
        match control {
            Control::Reloaded(reloaded) => return self.reloaded(now, reloaded),
            Control::Drain => return self.drain(now),
            Control::Stop => return self.turn(now, Event::Stop),
            Control::HandOver { to, answer } => return self.hand_over(now, to, answer),
            Control::LogState => log::state(&self.view.status(now, &self.engine)),
        }
        None
    }

    fn drain(&mut self, now: Now) -> Option<Stopped> {
        self.settings.notifier.stopping();
        let stopped = self.turn(now, Event::Drain { timeout: self.settings.drain_timeout });
        if self.engine.own_runs() > 0 {
            self.publish();
        }
        stopped
    }

    fn hand_over(&mut self, now: Now, to: Option<NodeName>, answer: Option<Answer>) -> Option<Stopped> {
        if self.engine.term().is_none() {
            answered(answer, Err(TransferError::NotLeading));
            return None;
        }
        // Of two that are asked for together, both hear how the first one went. Who asked over the API and left is not kept.
        self.handovers.retain(|waiting| !waiting.is_closed());
        self.handovers.extend(answer);
        self.turn(now, Event::HandOver { to })
    }

    fn handed_over(&mut self, how: Result<(), TransferError>) {
        for answer in self.handovers.drain(..) {
            answered(Some(answer), how.clone());
        }
    }

    fn reloaded(&mut self, now: Now, reloaded: Reloaded) -> Option<Stopped> {
        self.is_stale = true;
        self.view.reloaded(now, &reloaded);
        self.settings.notifier.reloading();
        let stopped = self.take_in(now, reloaded);
        self.settings.notifier.ready();
        stopped
    }

    fn take_in(&mut self, now: Now, reloaded: Reloaded) -> Option<Stopped> {
        match reloaded {
            Ok(loaded) => {
                let difference = self.engine.jobs().difference(&loaded.set);
                log::loaded(&loaded, &difference);
                let stopped = self.turn(now, Event::Loaded(loaded.set));
                self.publish();
                stopped
            }
            Err(error) => {
                log::rejected(self.view.path(), &error);
                let stopped = self.turn(now, Event::Rejected);
                self.publish();
                stopped
            }
        }
    }

    fn elected(&mut self, now: Now, event: Election) -> Option<Stopped> {
        if let Election::Lease { .. } = event {
            let stopped = self.turn(now, Event::Election(event));
            self.show_lease();
            return stopped;
        }
        self.is_stale = true;
        log::election(&event);
        for drift in self.view.elected(now, &event, self.engine.jobs()) {
            log::drift(&drift);
        }
        match &event {
            Election::Failed(failure) => return self.fail(now, failure.clone()),
            Election::Session { timeout, .. } => {
                self.heartbeat = HEARTBEAT.min(*timeout / BEATS_A_SESSION);
                self.settings.watchdog.set(*timeout, &mut self.settings.notifier);
            }
            Election::Withdrawn => self.handed_over(Ok(())),
            Election::NotTransferred { why, .. } => self.handed_over(Err(why.clone())),
            _ => {}
        }
        self.turn(now, Event::Election(event))
    }

    /// A trouble of coordination is no reason to kill work that nobody else can start: the node ends as if it were asked to.
    fn fail(&mut self, now: Now, failure: Failure) -> Option<Stopped> {
        self.failure = Some(failure);
        self.settings.notifier.stopping();
        self.turn(now, Event::Failed { timeout: self.settings.drain_timeout })
    }

    fn ask(&mut self, request: Ask) {
        // A backend that is gone closes its events too: the loop ends on that.
        let _ = self.coordination.requests.send(Request::Election(request));
    }

    fn publish(&mut self) {
        let published = Published { tzdata: schedule::tzdata_version(), ..self.engine.published() };
        let jobs = self.engine.jobs();
        let defined = Defined { digest: jobs.digest.clone(), jobs: jobs.jobs.keys().cloned().collect() };
        self.ask(Ask::Define(Arc::new(defined)));
        self.ask(Ask::Publish(published));
    }

    fn wake(&self) -> Wake {
        let now = self.clock.now();
        let beats = [self.settings.watchdog.next(), self.liveness.next_look()].into_iter().flatten();
        let beat = beats.fold(now.up + self.heartbeat, Uptime::min);
        let at = if self.is_stale { beat.min(self.shown_at + SHOW_EVERY) } else { beat };
        self.engine.wake(now).or(Wake { wall: None, up: Some(at) })
    }

    /// While draining, systemd's own limit is moved on: the drain timeout is the limit.
    fn extend_stop(&mut self, now: Now) {
        if self.engine.is_ending() && now.up >= self.extended_at + EXTEND_EVERY {
            self.extended_at = now.up;
            self.settings.notifier.extend_timeout(EXTEND_EVERY * 3);
        }
    }

    /// Shows the state to those who ask, not more often than people look: it is built of all jobs.
    fn show(&mut self, now: Now) {
        if self.is_stale && now.up >= self.shown_at + SHOW_EVERY {
            (self.is_stale, self.shown_at) = (false, now.up);
            self.settings.notifier.status(&self.view.summary(&self.engine));
            self.shown.status.send_replace(Arc::new(self.view.status(now, &self.engine)));
        }
    }

    /// The lease moves all the time, and nothing else with it.
    fn show_lease(&mut self) {
        self.view.lease(self.engine.lease_until());
        let lease_until = self.view.lease_until(&self.engine);
        self.shown.status.send_if_modified(|status| {
            if let Some(session) = &mut Arc::make_mut(status).session {
                session.lease_until = lease_until;
            }
            false
        });
    }
}

/// Whoever asked may have gone.
fn answered(answer: Option<Answer>, how: Result<(), TransferError>) {
    if let Some(answer) = answer {
        let _ = answer.send(how);
    }
}

async fn close(clock: &impl Clock, processes: impl Processes) {
    let until = clock.now().up + CLOSING;
    let mut closed = pin!(processes.close());
    while clock.now().up < until {
        // Cancellation safety: `closed` goes on where it was, a forgotten wait is asked for anew.
        tokio::select! {
            biased;
            () = &mut closed => return,
            () = clock.sleep_until(Wake { wall: None, up: Some(until) }) => {}
        }
    }
    error!(target: TARGET, "what still runs does not die; the warden goes on by itself");
}

/// What a wait brought.
#[expect(clippy::large_enum_variant, reason = "one at a time")]
enum Gathered {
    Time,
    Control(Control),
    Told(Option<Told>),
    Notice(Result<Notice, WardenGone>),
}
