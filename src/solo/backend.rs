//! The thread between the daemon's channels and the disk: one request, notice or timer at a time.
//!
//! Commits that wait together are written by one transaction. What cannot be written stays at the head of the line and is
//! tried again, unanswered: the daemon starts nothing meanwhile, and goes on when there is room on the disk again. Only a
//! farewell lets it go, as unknown. What trying again cannot mend ends the term, loudly.

mod forgetting;
mod requests;
mod trouble;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

pub(super) use self::trouble::Trouble;
use super::Leftovers;
use super::SESSION_TIMEOUT;
use super::contender::Contender;
use super::errand::{Errands, Notice};
use super::members::{Member, Members};
use super::store::Store;
use super::watch::{self, Watch};
use crate::clock::Uptime;
use crate::coordination::{Event, Request, Service};
use crate::job::JobName;
use crate::term::SessionId;
use crate::{election, ledger};

/// How often the members, and a follower's queue, are read again.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// How long after a trouble the next try comes.
const RETRY: Duration = Duration::from_secs(1);
/// How long after a write a job's history is trimmed, with that of all others written meanwhile.
const TRIM_AFTER: Duration = Duration::from_secs(1);
/// Most changes in one transaction: bounds how long other processes wait for theirs.
const GROUP: usize = 1000;

/// What the backend is made of.
pub(super) struct Parts {
    pub(super) service: Service,
    pub(super) store: Store,
    pub(super) ledger: PathBuf,
    pub(super) members: Members,
    pub(super) member: Member,
    pub(super) contender: Contender,
    pub(super) leftovers: Leftovers,
    pub(super) forget_after: Option<Duration>,
    pub(super) notices: (UnboundedSender<Notice>, UnboundedReceiver<Notice>),
    pub(super) written: tokio::sync::watch::Sender<u64>,
}

struct Backend {
    service: Service,
    store: Store,
    chains: ledger::Chains,
    member: Member,
    /// Says when the member's file was touched. Where none can be had, the next look or commit finds it gone.
    _touched: Option<notify::RecommendedWatcher>,
    contender: Contender,
    watch: Watch,
    errands: Errands,
    notices: UnboundedReceiver<Notice>,
    /// Counts what was written, for those who wait for it here.
    written: tokio::sync::watch::Sender<u64>,
    /// An operator may want something that the daemon was not told of.
    wished: bool,
    /// Requests not yet carried out, in order.
    line: VecDeque<Request>,
    untrimmed: BTreeSet<JobName>,
    forgetting: forgetting::Forgetting,
    timers: Timers,
    /// Nothing can be written for now.
    suspended: bool,
    /// Nothing can be written until an operator changes something.
    failed: bool,
    ended: bool,
}

struct Timers {
    look: Instant,
    retry: Option<Instant>,
    watch: Option<Instant>,
    trim: Option<Instant>,
    forget: Option<Instant>,
}

#[expect(clippy::large_enum_variant, reason = "nearly all that comes is requests")]
enum Input {
    Notice(Notice),
    Request(Request),
    DaemonGone,
    Time,
}

/// Starts the thread. It ends when the daemon leaves or drops its end, and drops the channel of events with that.
pub(super) fn spawn(parts: Parts) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    thread::Builder::new().name("solo".to_owned()).spawn(move || runtime.block_on(Backend::new(parts).serve()))?;
    Ok(())
}

impl Backend {
    fn new(parts: Parts) -> Self {
        let Parts { service, store, ledger, members, member, contender, leftovers, forget_after, notices, written } =
            parts;
        let (sender, notices) = notices;
        let touched = sender.clone();
        let touched = member.watch(move || drop(touched.send(Notice::MemberTouched)));
        let touched = touched.inspect_err(|error| debug!("the member's file cannot be watched: {error}")).ok();
        let timers = Timers::from(Instant::now());
        Self {
            service,
            store,
            chains: ledger::Chains::default(),
            contender,
            watch: Watch::new(member.name().session.clone()),
            member,
            _touched: touched,
            errands: Errands { notices: sender, members, ledger, leftovers },
            notices,
            written,
            wished: false,
            line: VecDeque::new(),
            untrimmed: BTreeSet::new(),
            forgetting: forgetting::Forgetting::after(forget_after),
            timers,
            suspended: false,
            failed: false,
            ended: false,
        }
    }

    async fn serve(mut self) {
        let session = self.session();
        self.tell(election::Event::Session { id: session, timeout: SESSION_TIMEOUT });
        self.tell(election::Event::Lease { until: Uptime::NEVER });
        while !self.ended {
            let input = self.next().await;
            let taken = self.take(input);
            self.note(taken);
            let gone_on = self.go_on();
            self.note(gone_on);
        }
    }

    /// Cancellation safe: a receiver keeps what it was not asked for to the end, and a timer is compared again.
    async fn next(&mut self) -> Input {
        tokio::select! {
            biased;
            Some(notice) = self.notices.recv() => Input::Notice(notice),
            request = self.service.requests.recv() => request.map_or(Input::DaemonGone, Input::Request),
            () = sleep_until(self.timers.next()) => Input::Time,
        }
    }

    fn take(&mut self, input: Input) -> Result<(), Trouble> {
        match input {
            Input::Notice(notice) => self.take_notice(notice),
            Input::Request(request) => {
                self.line.push_back(request);
                while let Ok(request) = self.service.requests.try_recv() {
                    self.line.push_back(request);
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

    fn take_notice(&mut self, notice: Notice) -> Result<(), Trouble> {
        match notice {
            Notice::MemberGone(name, Ok(())) => self.watch.member_gone(name, &self.errands),
            Notice::MemberGone(name, Err(error)) => {
                self.watch.could_not_wait(&name);
                Err(error.into())
            }
            Notice::MemberReaped(name, result) => {
                // Its last ends may leave links for jobs that run after others.
                self.wished = true;
                let Self { watch, store, errands, service, .. } = self;
                watch.member_reaped(&name, result, store, errands, &service.events)
            }
            Notice::MemberTouched => self.check_member(),
            Notice::Wished => {
                self.wished = true;
                Ok(())
            }
            Notice::Lost => {
                self.ended = true;
                Ok(())
            }
            other => self.contender.take(other),
        }
    }

    fn on_time(&mut self, now: Instant) -> Result<(), Trouble> {
        if self.timers.look <= now {
            self.timers.look = now + LOOK_EVERY;
            self.look()?;
        }
        if due(&mut self.timers.retry, now) {
            self.contender.retry();
            self.watch.retry(&self.errands)?;
        }
        due(&mut self.timers.watch, now); // looked at, and set again, by what every turn does
        if due(&mut self.timers.trim, now) {
            self.trim()?;
        }
        if due(&mut self.timers.forget, now) {
            self.forget(now)?;
        }
        Ok(())
    }

    /// Reads the members for the daemon.
    fn look(&mut self) -> Result<(), Trouble> {
        self.check_member()?;
        self.wished = true;
        let members = self.errands.members.living()?;
        self.tell(election::Event::Members(members));
        Ok(())
    }

    /// Others take a node without a member's file for dead, and its runs too.
    fn check_member(&self) -> Result<(), Trouble> {
        if self.member.stands() { Ok(()) } else { Err(Trouble::MemberGone) }
    }

    /// Does all that can be done now.
    fn go_on(&mut self) -> Result<(), Trouble> {
        let farewell = self.line.iter().any(is_farewell);
        if self.failed || (self.suspended && farewell) {
            self.let_go();
        } else if self.suspended && self.timers.retry.is_some() {
            return Ok(()); // not yet
        }
        let done = self.work().and_then(|()| self.keep_up());
        if done.is_ok() && self.suspended && !self.failed {
            self.suspended = false;
            self.tell(election::Event::Resumed { session: self.session() });
        }
        done
    }

    fn keep_up(&mut self) -> Result<(), Trouble> {
        if self.failed || self.ended {
            return Ok(());
        }
        let led = self.contender.leads();
        self.contender.step(&mut self.store, &self.errands, &self.service.events)?;
        if !led && self.contender.leads() {
            // Its leader has read every job.
            self.chains = ledger::Chains::default();
            self.timers.forget = self.forgetting.first(Instant::now());
        }
        if !self.contender.leads() {
            self.watch.end();
            self.wished = false;
        }
        // A former leader that drains leaves links for jobs that run after its own.
        self.wished |= self.watch.look(&self.store, &self.errands, &self.service.events)? && self.contender.leads();
        if self.wished {
            self.answer(ledger::Event::OperatorRequests(self.store.requests()?));
            self.wished = false;
        }
        self.timers.watch = (!self.watch.is_idle()).then(|| Instant::now() + watch::EVERY);
        Ok(())
    }

    fn session(&self) -> SessionId {
        self.member.name().session.clone()
    }

    /// With nobody there the daemon has ended, and so will this.
    fn tell(&self, event: election::Event) {
        let _ = self.service.events.send(Event::Election(event));
    }

    fn answer(&self, event: ledger::Event) {
        let _ = self.service.events.send(Event::Ledger(event));
    }
}

impl Timers {
    /// Nothing is to be done but to look.
    fn from(look: Instant) -> Self {
        Self { look, retry: None, watch: None, trim: None, forget: None }
    }

    fn next(&self) -> Instant {
        [self.retry, self.watch, self.trim, self.forget].into_iter().flatten().fold(self.look, Instant::min)
    }
}

/// True once when the timer has come.
fn due(timer: &mut Option<Instant>, now: Instant) -> bool {
    timer.take_if(|at| *at <= now).is_some()
}

fn is_farewell(request: &Request) -> bool {
    matches!(request, Request::Election(election::Request::Resign | election::Request::Leave))
}
