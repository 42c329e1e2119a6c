//! The solo backend's thread: takes the daemon's requests, writes to disk, and sends events.
//!
//! It handles one request, notice or timer at a time. Commits that wait together are written in one transaction. A
//! request that fails stays at the head of the queue, unanswered, and is retried: meanwhile the daemon starts nothing,
//! and continues once the disk has room again. Only when the node resigns or leaves are such commits answered, as
//! unknown. An error that a retry cannot fix ends the term and is reported as a failure of the node.

mod error;
mod forgetting;
mod locking;
mod requests;
mod wanted;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

pub(super) use self::error::BackendError;
use super::Leftovers;
use super::SESSION_TIMEOUT;
use super::background::{BackendNotice, BackgroundWork};
use super::contender::Contender;
use super::job_locks::JobLocks;
use super::members::{Member, Members};
use super::store::Store;
use super::watch::{self, RunWatch};
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::coordination::{Event, Request, Service};
use cronkeeper_core::job::JobName;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::term::SessionId;
use cronkeeper_core::{election, ledger};

/// Interval at which the members, and a follower's queue, are read again.
const POLL_EVERY: Duration = Duration::from_secs(15);
/// Time from an error to the next attempt.
const RETRY: Duration = Duration::from_secs(1);
/// Time from a write to the trimming of the histories that were written in between.
const TRIM_AFTER: Duration = Duration::from_secs(1);
/// Maximum changes in one transaction. It limits how long other processes wait for theirs.
const MAX_CHANGES: usize = 1000;
/// Maximum jobs whose history is trimmed in one transaction, for the same reason.
const MAX_TRIMMED: usize = 500;

pub(super) struct BackendParts {
    pub(super) service: Service,
    pub(super) store: Store,
    pub(super) ledger: PathBuf,
    pub(super) members: Members,
    pub(super) member: Member,
    pub(super) contender: Contender,
    pub(super) job_locks: JobLocks,
    pub(super) leftovers: Leftovers,
    pub(super) forget_after: Option<Duration>,
    pub(super) notices: (UnboundedSender<BackendNotice>, UnboundedReceiver<BackendNotice>),
    pub(super) written: tokio::sync::watch::Sender<u64>,
}

struct Backend {
    service: Service,
    store: Store,
    pipelines: ledger::Pipelines,
    member: Member,
    /// Reports changes of the member's lock file. Without a watcher, the next poll or commit finds that it is gone.
    _touched: Option<notify::RecommendedWatcher>,
    contender: Contender,
    watch: RunWatch,
    job_locks: JobLocks,
    background: BackgroundWork,
    notices: UnboundedReceiver<BackendNotice>,
    /// Counts writes, to wake API requests of this process that wait for one.
    written: tokio::sync::watch::Sender<u64>,
    /// There may be operators' requests, or links, that the daemon has not received.
    has_operator_requests: bool,
    /// Requests not yet carried out, in order.
    pending: VecDeque<Request>,
    untrimmed: BTreeSet<JobName>,
    forgetting: forgetting::Forgetting,
    wanted: wanted::WantedOfNode,
    timers: Timers,
    /// Writing fails and is being retried.
    suspended: bool,
    /// Nothing can be written until an operator changes something.
    failed: bool,
    ended: bool,
}

struct Timers {
    poll: Instant,
    retry: Option<Instant>,
    watch: Option<Instant>,
    wanted: Instant,
    trim: Option<Instant>,
    forget: Option<Instant>,
}

#[expect(clippy::large_enum_variant, reason = "nearly all inputs are requests")]
enum Input {
    Notice(BackendNotice),
    Request(Request),
    DaemonGone,
    Time,
}

/// Starts the thread. It ends when the daemon leaves or drops its end, and then closes the channel of events.
pub(super) fn spawn(parts: BackendParts) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    thread::Builder::new().name("solo".to_owned()).spawn(move || runtime.block_on(Backend::new(parts).serve()))?;
    Ok(())
}

impl Backend {
    fn new(parts: BackendParts) -> Self {
        let BackendParts {
            service,
            store,
            ledger,
            members,
            member,
            contender,
            job_locks,
            leftovers,
            forget_after,
            notices,
            written,
        } = parts;
        let (sender, notices) = notices;
        let touched = sender.clone();
        let touched = member.watch(move || drop(touched.send(BackendNotice::MemberTouched)));
        let touched =
            touched.inspect_err(|error| debug!(target: TARGET, "cannot watch the member's lock file: {error}")).ok();
        let timers = Timers::from(Instant::now());
        Self {
            service,
            store,
            pipelines: ledger::Pipelines::default(),
            contender,
            watch: RunWatch::new(member.name().session.clone()),
            member,
            job_locks,
            _touched: touched,
            background: BackgroundWork { notices: sender, members, ledger, leftovers },
            notices,
            written,
            has_operator_requests: false,
            pending: VecDeque::new(),
            untrimmed: BTreeSet::new(),
            forgetting: forgetting::Forgetting::after(forget_after),
            wanted: wanted::WantedOfNode::default(),
            timers,
            suspended: false,
            failed: false,
            ended: false,
        }
    }

    async fn serve(mut self) {
        let session = self.session();
        self.emit(election::Event::Session { id: session, timeout: SESSION_TIMEOUT });
        self.emit(election::Event::Lease { until: Uptime::NEVER });
        while !self.ended {
            let input = self.next().await;
            let taken = self.on_input(input);
            self.on_result(taken);
            let proceeded = self.proceed();
            self.on_result(proceeded);
        }
    }

    /// Waits for the next input. Cancel safe: the receivers keep what was not received, and timers are absolute.
    async fn next(&mut self) -> Input {
        let time = self.next_time();
        tokio::select! {
            biased;
            Some(notice) = self.notices.recv() => Input::Notice(notice),
            request = self.service.requests.recv() => request.map_or(Input::DaemonGone, Input::Request),
            () = sleep_until(time) => Input::Time,
        }
    }

    fn on_input(&mut self, input: Input) -> Result<(), BackendError> {
        match input {
            Input::Notice(notice) => self.on_notice(notice),
            Input::Request(request) => {
                self.receive(request);
                while let Ok(request) = self.service.requests.try_recv() {
                    self.receive(request);
                }
                Ok(())
            }
            Input::DaemonGone => {
                self.ended = true;
                Ok(())
            }
            Input::Time => self.on_time(Instant::now()),
        }
    }

    fn on_notice(&mut self, notice: BackendNotice) -> Result<(), BackendError> {
        match notice {
            BackendNotice::MemberGone(name, Ok(())) => self.watch.member_gone(name, &self.background),
            BackendNotice::MemberGone(name, Err(error)) => {
                self.watch.wait_failed(&name);
                Err(error.into())
            }
            BackendNotice::MemberReaped(name, result) => {
                // The ends it left may have created links for downstream jobs.
                self.has_operator_requests = true;
                let Self { watch, store, background, service, .. } = self;
                watch.member_reaped(&name, result, store, background, &service.events)
            }
            BackendNotice::MemberTouched => self.check_member(),
            BackendNotice::LocksWaited(waiter, end) => {
                self.on_locks_waited(waiter, end);
                Ok(())
            }
            BackendNotice::OperatorRequest => {
                self.has_operator_requests = true;
                Ok(())
            }
            BackendNotice::WorkerPanicked => {
                self.ended = true;
                Ok(())
            }
            other => self.contender.on_notice(other),
        }
    }

    fn next_time(&self) -> Instant {
        self.job_locks.next_retry().into_iter().fold(self.timers.next(), Instant::min)
    }

    fn on_time(&mut self, now: Instant) -> Result<(), BackendError> {
        self.retry_locks(now);
        if self.timers.poll <= now {
            self.timers.poll = now + POLL_EVERY;
            self.poll_members()?;
        }
        if due(&mut self.timers.retry, now) {
            self.contender.retry();
            self.watch.retry(&self.background)?;
        }
        if self.timers.wanted <= now {
            self.timers.wanted = now + wanted::POLL_EVERY;
        }
        due(&mut self.timers.watch, now); // only wakes the loop: `update` checks the watched runs on every turn
        if due(&mut self.timers.trim, now) {
            self.trim()?;
        }
        if due(&mut self.timers.forget, now) {
            self.forget(now)?;
        }
        Ok(())
    }

    /// Reads the members and sends them to the daemon.
    fn poll_members(&mut self) -> Result<(), BackendError> {
        self.check_member()?;
        self.has_operator_requests = true;
        let members = self.background.members.alive()?;
        self.emit(election::Event::Members(members));
        Ok(())
    }

    /// Fails if this member's lock file is gone: other nodes then consider this node and its runs dead.
    fn check_member(&self) -> Result<(), BackendError> {
        if self.member.is_intact() { Ok(()) } else { Err(BackendError::MemberGone) }
    }

    /// Does everything that can be done without waiting.
    fn proceed(&mut self) -> Result<(), BackendError> {
        let departs = self.pending.iter().any(is_departure);
        if self.failed || (self.suspended && departs) {
            self.release_requests();
        } else if self.suspended && self.timers.retry.is_some() {
            return Ok(()); // the retry is not due yet
        }
        let done = self.process_requests().and_then(|()| self.update());
        if done.is_ok() && self.suspended && !self.failed {
            self.suspended = false;
            self.emit(election::Event::Resumed { session: self.session() });
        }
        done
    }

    fn update(&mut self) -> Result<(), BackendError> {
        if self.failed || self.ended {
            return Ok(());
        }
        self.read_wanted()?;
        let led = self.contender.leads();
        self.contender.step(&mut self.store, &self.background, &self.service.events)?;
        if !led && self.contender.leads() {
            // A new leader has just read every job, so no pipeline is broken.
            self.pipelines = ledger::Pipelines::default();
            self.timers.forget = self.forgetting.first(Instant::now());
        }
        if !self.contender.leads() {
            self.watch.end();
            self.has_operator_requests = false;
        }
        // A former leader that drains may have added links for downstream jobs.
        self.has_operator_requests |=
            self.watch.check(&self.store, &self.background, &self.service.events)? && self.contender.leads();
        if self.has_operator_requests {
            self.emit_ledger(ledger::Event::OperatorRequests(self.store.requests()?));
            self.has_operator_requests = false;
        }
        self.timers.watch = (!self.watch.is_idle()).then(|| Instant::now() + watch::POLL_EVERY);
        Ok(())
    }

    fn session(&self) -> SessionId {
        self.member.name().session.clone()
    }

    fn emit(&self, event: election::Event) {
        self.send(Event::Election(event));
    }

    fn emit_ledger(&self, event: ledger::Event) {
        self.send(Event::Ledger(event));
    }

    /// Sends an event, none after `Failed`. Without a receiver the daemon has ended, and the backend is about to.
    fn send(&self, event: Event) {
        if !self.failed {
            let _ = self.service.events.send(event);
        }
    }
}

impl Timers {
    /// Only the polls are due.
    fn from(poll: Instant) -> Self {
        Self { poll, retry: None, watch: None, wanted: poll, trim: None, forget: None }
    }

    fn next(&self) -> Instant {
        let set = [self.retry, self.watch, self.trim, self.forget].into_iter().flatten();
        set.fold(self.poll.min(self.wanted), Instant::min)
    }
}

/// Clears a timer that is due. Returns true if it was.
fn due(timer: &mut Option<Instant>, now: Instant) -> bool {
    timer.take_if(|at| *at <= now).is_some()
}

fn is_departure(request: &Request) -> bool {
    matches!(request, Request::Election(election::Request::Resign | election::Request::Leave))
}
