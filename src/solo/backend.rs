//! The thread between the daemon's channels and the disk: one request, notice or timer at a time.
//!
//! Commits that wait together are written by one transaction. What cannot be written stays at the head of the line and is
//! tried again, unanswered: the daemon starts nothing meanwhile, and goes on when there is room on the disk again. Only a
//! farewell lets it go, as unknown. What trying again cannot mend ends the term, loudly.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use super::Leftovers;
use super::SESSION_TIMEOUT;
use super::bury::BuryError;
use super::contender::Contender;
use super::errand::{Errands, Notice};
use super::members::{Member, Members};
use super::store::{Store, StoreError};
use super::watch::{self, Watch};
use crate::clock::Uptime;
use crate::coordination::{Event, Request, Service};
use crate::job::JobName;
use crate::ledger::{Change, Commit};
use crate::state_dir::journal;
use crate::term::{SessionId, TermEnd};
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
    pub(super) members: Members,
    pub(super) member: Member,
    pub(super) contender: Contender,
    pub(super) leftovers: Leftovers,
}

/// What keeps the backend from going on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("the ledger: {0}")]
    Store(#[from] StoreError),
    #[error("the state directory: {0}")]
    Files(#[from] io::Error),
    #[error(transparent)]
    Bury(#[from] BuryError),
    #[error("the lock file of this node's member was removed")]
    MemberGone,
}

impl Trouble {
    /// True where trying again cannot help.
    fn is_lasting(&self) -> bool {
        match self {
            Self::Store(error) => error.is_lasting(),
            Self::MemberGone => true,
            Self::Files(_) | Self::Bury(_) => false,
        }
    }
}

struct Backend {
    service: Service,
    store: Store,
    member: Member,
    contender: Contender,
    watch: Watch,
    errands: Errands,
    notices: UnboundedReceiver<Notice>,
    /// Requests not yet carried out, in order.
    line: VecDeque<Request>,
    untrimmed: BTreeSet<JobName>,
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
}

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
        let Parts { service, store, members, member, contender, leftovers } = parts;
        let (sender, notices) = unbounded_channel();
        let timers = Timers { look: Instant::now(), retry: None, watch: None, trim: None };
        Self {
            service,
            store,
            contender,
            watch: Watch::new(member.name().session.clone()),
            member,
            errands: Errands { notices: sender, members, leftovers },
            notices,
            line: VecDeque::new(),
            untrimmed: BTreeSet::new(),
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
            Notice::MemberBuried(name, result) => {
                let Self { watch, store, errands, service, .. } = self;
                watch.member_buried(&name, result, store, errands, &service.events)
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
        Ok(())
    }

    /// Reads the members for the daemon.
    fn look(&mut self) -> Result<(), Trouble> {
        self.check_member()?;
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
        self.contender.step(&mut self.store, &self.errands, &self.service.events)?;
        if !self.contender.leads() {
            self.watch.end();
        }
        self.watch.look(&self.store, &self.errands, &self.service.events)?;
        self.timers.watch = (!self.watch.is_idle()).then(|| Instant::now() + watch::EVERY);
        Ok(())
    }

    fn work(&mut self) -> Result<(), Trouble> {
        while let Some(request) = self.line.front() {
            match request.clone() {
                Request::Ledger(ledger::Request::Commit { .. }) => self.commit()?,
                Request::Ledger(request) => {
                    self.read(request)?;
                    self.line.pop_front();
                }
                Request::Election(request) => {
                    self.line.pop_front();
                    self.elect(request)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the commits at the head of the line.
    fn commit(&mut self) -> Result<(), Trouble> {
        self.check_member()?;
        let token = self.contender.token(&self.service.events);
        let waiting = self.line.iter().map_while(as_commit).take(GROUP);
        let answers = self.store.commit(token, waiting.map(|(_, change)| change))?;
        let fenced = token.is_some() && answers.contains(&Commit::Fenced);
        for answer in answers {
            if let Some(Request::Ledger(ledger::Request::Commit { id, change })) = self.line.pop_front() {
                self.note_history(&change, answer);
                self.answer(ledger::Event::Answered { id, answer });
            }
        }
        self.watch.wrote();
        if fenced {
            self.contender.give_up(TermEnd::Fenced, &self.service.events);
        }
        Ok(())
    }

    fn note_history(&mut self, change: &Change, answer: Commit) {
        let writes_history = matches!(change, Change::End { .. } | Change::Advance { skip: Some(_), .. });
        if writes_history && answer == Commit::Accepted {
            self.untrimmed.insert(change.job().clone());
            self.timers.trim.get_or_insert_with(|| Instant::now() + TRIM_AFTER);
        }
    }

    /// Trimming is never part of an end: it would make the end wait for it.
    fn trim(&mut self) -> Result<(), Trouble> {
        self.store.trim(self.untrimmed.iter())?;
        self.untrimmed.clear();
        Ok(())
    }

    fn read(&mut self, request: ledger::Request) -> Result<(), Trouble> {
        match request {
            ledger::Request::Commit { .. } => {}
            ledger::Request::ReadJob(job) => {
                let entry = self.store.job(&job)?;
                self.answer(ledger::Event::Job(job, entry));
            }
            ledger::Request::ReadRun(run) => {
                let row = self.store.run(&run)?;
                self.answer(ledger::Event::Run(run, row));
            }
            ledger::Request::Watch(run) => self.watch.add(&run, &self.store, &self.errands, &self.service.events)?,
        }
        Ok(())
    }

    fn elect(&mut self, request: election::Request) -> Result<(), Trouble> {
        match request {
            election::Request::Campaign => self.contender.campaign(),
            election::Request::Resign => {
                self.contender.withdraw(TermEnd::Resigned, &self.service.events);
                self.tell(election::Event::Withdrawn);
            }
            election::Request::Busy(_) => {} // the lease of a living process never ends
            election::Request::Publish(published) => {
                self.member.set_published(published);
                self.errands.members.publish(&self.member)?;
                self.timers.look = Instant::now();
            }
            election::Request::Leave => self.leave(),
        }
        Ok(())
    }

    /// What the journal has open is left to whoever leads next, with the files that say so.
    fn leave(&mut self) {
        self.contender.withdraw(TermEnd::Resigned, &self.service.events);
        let (members, name) = (&self.errands.members, self.member.name());
        if journal::read(&members.journal(name)).is_ok_and(|open| open.is_empty()) {
            members.remove(name).ok(); // found by the next leader, who finds nothing to do
        }
        self.tell(election::Event::Left);
        self.ended = true;
    }

    /// Answers what cannot be written with what is known of it, so that what comes after is not kept waiting.
    fn let_go(&mut self) {
        for request in std::mem::take(&mut self.line) {
            match request {
                Request::Ledger(ledger::Request::Commit { id, .. }) => {
                    self.answer(ledger::Event::Answered { id, answer: Commit::Unknown });
                }
                Request::Election(request) if is_about_the_queue(&request) => {
                    self.line.push_back(Request::Election(request));
                }
                _ => {}
            }
        }
    }

    fn note(&mut self, result: Result<(), Trouble>) {
        match result {
            Ok(()) => {}
            Err(trouble) if trouble.is_lasting() => self.fail(&trouble),
            Err(trouble) => self.wait_out(&trouble),
        }
    }

    fn wait_out(&mut self, trouble: &Trouble) {
        // Processes that do not die keep a run from being settled, but nothing from being written.
        if !self.suspended && !matches!(trouble, Trouble::Bury(_)) {
            self.suspended = true;
            self.tell(election::Event::Suspended { session: self.session() });
        }
        self.timers.retry = Some(Instant::now() + RETRY);
        self.tell(election::Event::Unreachable { retry: RETRY, error: trouble.to_string() });
    }

    /// What the term rests on is gone: it is over. A member that still stands covers what runs here; without it the right to run
    /// anything that another may start again is gone too.
    fn fail(&mut self, trouble: &Trouble) {
        if std::mem::replace(&mut self.failed, true) {
            return;
        }
        if matches!(trouble, Trouble::MemberGone) {
            self.tell(election::Event::Lease { until: Uptime::ZERO });
        }
        self.contender.withdraw(TermEnd::EntryGone, &self.service.events);
        self.watch.end();
        self.timers = Timers { look: self.timers.look, retry: None, watch: None, trim: None };
        self.tell(election::Event::Failed(election::Failure::StateDir(trouble.to_string())));
        self.let_go();
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
    fn next(&self) -> Instant {
        [self.retry, self.watch, self.trim].into_iter().flatten().fold(self.look, Instant::min)
    }
}

/// True once when the timer has come.
fn due(timer: &mut Option<Instant>, now: Instant) -> bool {
    timer.take_if(|at| *at <= now).is_some()
}

fn as_commit(request: &Request) -> Option<(ledger::CommitId, &Change)> {
    match request {
        Request::Ledger(ledger::Request::Commit { id, change }) => Some((*id, change)),
        _ => None,
    }
}

fn is_farewell(request: &Request) -> bool {
    matches!(request, Request::Election(election::Request::Resign | election::Request::Leave))
}

fn is_about_the_queue(request: &election::Request) -> bool {
    matches!(request, election::Request::Campaign | election::Request::Resign | election::Request::Leave)
}
