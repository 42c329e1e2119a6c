//! The event loop of a node under one session.
//!
//! Each turn handles one event, then starts the requests that follow from it. The [`election`] decides about the node's
//! place in the cluster, and has at most one request of its own in flight; commits, lease renewals, watches and reads
//! run beside it. The loop waits for every request it has sent until the session ends. A lost connection is only a
//! pause: the loop sends nothing meanwhile, and verifies the node's own entries once it is connected again.
//!
//! ```text
//!   session_loop ─┬─ election      the connection, the node's own entries, its term and its lease
//!                 ├─ committer     guarded writes to the ledger
//!                 ├─ watcher       runs of other nodes
//!                 ├─ operators     requests of operators (in `operator_requests`)
//!                 ├─ reading       reads that the daemon requested
//!                 ├─ offers        attempts that are placed on this node
//!                 ├─ own_place     this node as a place to run jobs
//!                 ├─ job_locks     locks of this node's runs
//!                 └─ housekeeping  access lists (`rights`), trimming, forgotten jobs, tasks that keep failing
//! ```
//!
//! The parts decide what follows from an event, the election by [`Act`]s. The loop selects the next event, and does
//! what was decided.

mod act;
mod candidacy;
mod election;
mod ending;
mod failing;
mod forgetting;
mod futures;
mod job_locks;
mod lease;
mod link;
mod membership;
mod offers;
mod operator_requests;
mod own_place;
mod reading;
mod reread;
mod rights;
mod standstill;
mod step;
mod surveys;
#[cfg(test)]
mod table;
mod task;
mod transfer;
mod wanted;

use super::committer::{Committer, Completed};
use super::context::{self, LocalNode, SessionContext, SessionError};
use super::damage::{Damage, Source};
use super::forget::ForgetLook;
use super::node::{Deferred, Node, NodeIdentity};
use super::trim::{CompletedTrim, Roster, Trimmer};
use super::watcher::{CompletedWatch, Watcher};
use crate::paths;
use crate::queue;
use crate::tree::{Error, Session};
use act::Act;
use cronkeeper_core::clock::{Clock, Uptime, Wake};
use cronkeeper_core::coordination::Request;
use cronkeeper_core::election::{self as port, Event};
use cronkeeper_core::ledger::{self, Change, Commit, CommitId};
use cronkeeper_core::run::RunState;
use cronkeeper_core::term::FencingToken;
use election::{Election, ElectionEvent};
use ending::LEAVE_WITHIN;
use failing::Failing;
use forgetting::{Forgetting, Looked};
use job_locks::{JobLockEvent, JobLocks};
use offers::{Offers, OffersEvent};
use operator_requests::{Operators, RequestsEvent};
use own_place::OwnPlace;
use reading::{ReadDone, Reading};
use rights::AccessUpdates;
use task::Task;

pub use ending::SessionEnd;

/// An event that the loop handles.
enum LoopEvent<W> {
    Election(ElectionEvent<W>),
    Run(CompletedWatch),
    OperatorRequests(RequestsEvent),
    Read(Box<ReadDone>),
    Offers(OffersEvent),
    PlaceKept(Result<(), SessionError>),
    JobLock(JobLockEvent),
    AccessUpdated(rights::Finished),
    Trimmed(CompletedTrim),
    Looked(Looked),
    Request(Option<Request>),
    Time,
}

/// A node under one session.
pub struct SessionLoop<'n, C: Session, K> {
    node: &'n mut Node,
    context: SessionContext<C, K>,
    election: Election<C, K>,
    committer: Committer<C, K>,
    watcher: Watcher<C, K>,
    operators: Operators,
    reading: Reading,
    offers: Offers,
    own_place: OwnPlace,
    job_locks: JobLocks<C, K>,
    rights: AccessUpdates,
    trimmer: Trimmer<C, K>,
    forgetting: Forgetting,
    failing: Failing,
}

impl<'n, C: Session, K: Clock> SessionLoop<'n, C, K> {
    /// Creates the loop of a session whose connection was started at `requested`.
    pub fn new(node: &'n mut Node, clock: K, client: C, requested: Uptime) -> Self {
        let uuid = (node.options.uuid)();
        let local = LocalNode {
            node: node.identity.node.clone(),
            session: client.id(),
            prefix: queue::prefix(uuid),
            candidate_data: candidate_data(&node.identity),
        };
        let context = SessionContext::new(client.clone(), clock.clone(), local);
        let turned = *node.service.turned.borrow();
        let mut session = Self {
            committer: Committer::new(context.clone()),
            watcher: Watcher::new(context.clone()),
            operators: Operators::new(),
            reading: Reading::new(),
            offers: Offers::new(),
            own_place: OwnPlace::new(),
            job_locks: JobLocks::new(client.clone(), clock),
            rights: AccessUpdates::default(),
            trimmer: Trimmer::new(context.clone()),
            forgetting: Forgetting::default(),
            failing: Failing::default(),
            election: Election::new(client, context.clone(), requested, turned),
            context,
            node,
        };
        session.take_backlog();
        session
    }

    fn take_backlog(&mut self) {
        for deferred in std::mem::take(&mut self.node.backlog) {
            match deferred {
                Deferred::Commit(id, change) => self.commit(id, change),
                Deferred::Read(read) => self.reading.take(read),
            }
        }
    }

    /// Runs until the session is over or the daemon is done.
    pub async fn run(mut self) -> SessionEnd {
        loop {
            self.turn();
            if let Some(ended) = self.election.take_end() {
                return self.end(ended);
            }
            let event = self.next_event().await;
            // A lease that ran out meanwhile must end before the event is handled: the event must not be judged under
            // it.
            self.election.check_lease(self.now());
            self.perform();
            self.handle(event);
            self.watch_loop();
        }
    }

    /// Waits for the next event.
    async fn next_event(&mut self) -> LoopEvent<C::Watch> {
        let wake = Wake { wall: None, up: self.wake() };
        let stands_still = !self.election.loop_turns();
        // Cancellation safe: every future awaited here is kept by its part and polled again, except the clock's, which
        // loses nothing, and a request that was not received, which stays in the channel. The election comes first: the
        // state of the connection and the lease must not wait for other events. The daemon's loop turning again after a
        // standstill carries no data; it only makes this loop check.
        tokio::select! {
            biased;
            event = self.election.next(self.committer.completed()) => LoopEvent::Election(event),
            Some(step) = self.watcher.step() => LoopEvent::Run(step),
            read = self.operators.next() => LoopEvent::OperatorRequests(read),
            Some(done) = self.reading.done() => LoopEvent::Read(done),
            event = self.offers.next() => LoopEvent::Offers(event),
            kept = self.own_place.kept() => LoopEvent::PlaceKept(kept),
            event = self.job_locks.next() => LoopEvent::JobLock(event),
            finished = self.rights.finished() => LoopEvent::AccessUpdated(finished),
            Some(step) = self.trimmer.step() => LoopEvent::Trimmed(step),
            looked = self.forgetting.looked() => LoopEvent::Looked(looked),
            request = self.node.service.requests.recv() => LoopEvent::Request(request),
            Ok(()) = self.node.service.turned.changed(), if stands_still => LoopEvent::Time,
            () = self.context.clock.sleep_until(wake) => LoopEvent::Time,
        }
    }

    fn handle(&mut self, event: LoopEvent<C::Watch>) {
        let now = self.now();
        match event {
            LoopEvent::Election(event) => self.on_election_event(event, now),
            LoopEvent::Run(step) => match self.watcher.complete(step, now) {
                Ok(events) => {
                    self.succeeded(Task::Watch);
                    events.into_iter().for_each(|event| self.node.emit_ledger(event));
                }
                Err(error) => self.failed(Task::Watch, &error.to_string()),
            },
            LoopEvent::OperatorRequests(read) => self.on_operator_requests(read, now),
            LoopEvent::Read(done) => match self.reading.finish(*done, now) {
                Ok(Some(event)) => {
                    self.succeeded(Task::Read);
                    self.node.emit_ledger(event);
                }
                Ok(None) => {}
                Err(error) => self.failed_by(Task::Read, error),
            },
            LoopEvent::Offers(event) => self.on_offers(event, now),
            LoopEvent::PlaceKept(kept) => self.on_place_kept(kept, now),
            LoopEvent::JobLock(event) => self.on_job_lock(event),
            LoopEvent::AccessUpdated(finished) => self.rights.finish(finished, now, self.node, &self.context),
            LoopEvent::Trimmed(step) => self.trimmer.complete(step, now),
            LoopEvent::Looked(looked) => {
                let ForgetLook { jobs, nodes, .. } = self.forgetting.finish(looked, now, self.node);
                for (job, records) in jobs {
                    self.trimmer.forget(&job);
                    self.node.emit_ledger(ledger::Event::Forgotten { job, records });
                }
                for node in nodes {
                    self.node.emit_ledger(ledger::Event::ForgottenNode(node));
                }
            }
            LoopEvent::Request(None) => self.election.end(SessionEnd::Done),
            LoopEvent::Request(Some(request)) => self.take_requests(request),
            LoopEvent::Time => {}
        }
    }

    fn on_election_event(&mut self, event: ElectionEvent<C::Watch>, now: Uptime) {
        match event {
            ElectionEvent::State(state) => self.election.on_state(state, self.node),
            ElectionEvent::Renewed(renewed) => self.election.on_renewed(renewed, now, self.node),
            ElectionEvent::Completed(completed) => self.complete(completed, now),
            ElectionEvent::Member(event) => self.election.on_member_event(event, now),
            ElectionEvent::Step(found) => self.election.on_step(found, now, self.node),
            ElectionEvent::Predecessor => self.election.on_predecessor_gone(),
            ElectionEvent::Wanted => self.election.on_wanted_changed(),
            ElectionEvent::Examined(worth) => self.node.emit(Event::Examined(worth)),
        }
        self.perform();
    }

    /// Does what the election has decided.
    fn perform(&mut self) {
        while let Some(act) = self.election.next_act() {
            let now = self.now();
            match act {
                Act::Emit(event) => self.node.emit(event),
                Act::EmitLedger(event) => self.node.emit_ledger(*event),
                Act::Succeeded(task) => self.succeeded(task),
                Act::Failed(task, error) => self.failed(task, &error),
                Act::ForgetFailures => self.forget_failures(),
                Act::Found(source, damage) => self.node.found_damage(source, damage),
                Act::Damaged(source, damage) => self.node.damaged(source, damage),
                Act::Mended(source, path) => self.node.mended(source, &path),
                Act::NoteLoss => self.reading.take(ledger::Request::NoteLoss),
                Act::StartTerm => {
                    self.committer.start_term();
                    self.watcher.start_term();
                }
                Act::LeaveQueue { held } => self.leave_queue(held),
                Act::StopWatching => self.watcher.clear(),
                Act::ReportTermOver => self.emit_term_over_when_answered(),
                Act::ReleaseCommits => self.committer.release(),
                Act::ReadLastsAgain => {
                    self.committer.read_lasts_again();
                    self.trimmer.list_again();
                }
                Act::Resume => {
                    self.operators.read_again(now);
                    self.watcher.read_all_again();
                    self.job_locks.release_again();
                    self.offers.look_again(now);
                }
                Act::RetryRefused => {
                    self.offers.look_at(now);
                    self.own_place.check(now);
                    self.reading.retry_refused();
                    if !self.node.damages.paths(Source::OperatorRequests).is_empty() {
                        self.operators.read_again(now);
                    }
                }
                Act::Members(members, damaged) => {
                    if self.election.leads() {
                        self.rights.update_for(&members, self.election.client().ownership(), now);
                    }
                    self.forgetting.seen(&members, now);
                    let alive = members.iter().map(|member| (member.node.clone(), member.started_at));
                    self.node.alive = alive.collect();
                    self.node.found_damage(Source::Members, damaged);
                    self.node.emit(Event::Members(members));
                }
                Act::Roster(roster) => self.trimmer.know_nodes(roster),
                Act::CheckAccess => self.rights.schedule_check(self.election.client().ownership(), now, self.node),
                Act::UpdateAccess => self.rights.schedule(self.election.client().ownership(), now),
                Act::WarnIfOpen => rights::warn_if_open_to_everybody(self.election.client(), self.node),
                Act::Renumbered(is_done) => self.operators.renumbered(is_done),
                Act::RenumberRefused => self.operators.renumber_refused(),
                Act::Leave if self.job_locks.is_busy() => self.election.end_steps(),
                Act::Leave => self.left(),
            }
        }
    }

    /// Starts the requests that follow from the current state.
    fn turn(&mut self) {
        let now = self.now();
        self.election.end_late_transfer(now);
        self.election.transfer_when_answered(self.committer.has_fenced(), self.node);
        self.perform();
        self.election.resign_when_answered(now, self.committer.has_fenced(), self.node);
        self.perform();
        self.emit_term_over_when_answered();
        if !self.election.has_ended() && self.node.desired.leave.is_some_and(|until| now >= until) {
            self.left();
        }
        if !self.election.is_connected() || self.election.has_ended() {
            return;
        }
        let (leads, is_member) = (self.election.leads(), self.election.is_member());
        self.election.renew(now, self.node, self.committer.last_sent());
        self.committer.start_next();
        self.election.start_step(now, self.node, self.operators.may_renumber());
        self.watcher.start_next(now);
        self.operators.start(now, leads, &self.context);
        self.reading.start(now, is_member, &self.context, self.node.desired.defined.as_ref());
        self.offers.start(now, is_member, &self.context);
        self.own_place.start(now, is_member, || self.node.place(), &self.context);
        self.rights.start(now, leads, self.node, &self.context);
        if let Some(defined) = &self.node.desired.defined {
            self.trimmer.define(defined, now);
        }
        self.trimmer.start_next(now, leads);
        let fence = self.election.fence(self.node).map(|(candidate, _)| candidate);
        self.forgetting.start(now, leads, fence, self.node, &self.context);
    }

    /// The next instant at which the loop has to act without an event.
    fn wake(&self) -> Option<Uptime> {
        let election = self.election.wake(self.now(), self.node, self.committer.last_sent());
        let always = election.into_iter().chain(self.node.desired.leave);
        if !self.election.is_connected() {
            return always.min();
        }
        let more = [
            self.committer.wake(),
            self.watcher.wake(),
            self.operators.at(self.election.leads()),
            self.reading.at(self.election.is_member()),
            self.offers.at(self.election.is_member()),
            self.own_place.at(self.election.is_member()),
            self.rights.at(),
            self.trimmer.wake(),
            self.forgetting.at(),
        ];
        always.chain(more.into_iter().flatten()).min()
    }

    /// Checks the daemon's loop, and steps down or comes back accordingly.
    fn watch_loop(&mut self) {
        let (now, turned) = (self.now(), *self.node.service.turned.borrow());
        if self.election.check_loop(turned, now) {
            // The loop may be turning right now. The lease is revoked first, because the loop reports its turn before
            // it reads the lease: if no turn is visible here, the loop will read the revoked lease.
            self.perform();
            if *self.node.service.turned.borrow() == turned {
                for (id, change) in self.election.unreceived().release_all() {
                    self.commit(id, change);
                }
                self.job_locks.release_all().into_iter().for_each(|event| self.node.emit_lock(event));
            } else {
                self.election.loop_turned_meanwhile();
            }
        }
        self.election.loop_checked(turned);
        self.perform();
    }

    /// Gives up what depends on the position in the queue.
    fn leave_queue(&mut self, held: Option<String>) {
        for (id, answer) in self.committer.fence_off(held) {
            self.node.answer(id, answer);
        }
        // This node no longer leads, and the next leader will report the damage that only a leader checks.
        for source in [Source::Ledger, Source::Strays, Source::OperatorRequests, Source::Rights, Source::Places] {
            self.node.found_damage(source, None);
        }
        let refused: Vec<Damage> = self.committer.refusals().collect();
        self.node.found_damage(Source::Writes, refused);
        self.trimmer.know_nodes(Roster::default());
        self.rights = AccessUpdates::default();
        self.operators.stop();
    }

    /// Emits the end of the term, after the answers to its last commits if those can still arrive.
    fn emit_term_over_when_answered(&mut self) {
        if let Some(over) = self.election.term_over(self.committer.has_fenced()) {
            self.node.emit(over);
        }
    }

    /// Handles the result of a commit.
    fn complete(&mut self, completed: Completed, now: Uptime) {
        let outcome = self.committer.complete(completed);
        if let Some(sent) = outcome.acknowledged {
            self.election.acknowledge(sent, now);
            self.perform();
        }
        self.election.unreceived().begun(outcome.begun, now);
        for (id, answer) in outcome.answers {
            let before = outcome.before.get(&id).copied();
            if !self.election.unreceived().is_done(id) {
                let token = outcome.tokens.get(&id).copied();
                self.node.emit_ledger(ledger::Event::Answered { id, answer, before, token });
            }
        }
        for path in outcome.mended {
            self.node.mended(Source::Writes, &path);
        }
        for damage in outcome.refused {
            if damage.path == paths::TRIGGERS {
                // Refused although its access list is open: its sequence numbers are used up.
                self.operators.run_out_of_numbers();
            }
            self.operators.read_again(now);
            self.node.damaged(Source::Writes, damage);
        }
        for id in outcome.deferred {
            if !self.election.unreceived().is_done(id) {
                self.node.emit_ledger(ledger::Event::Deferred(id));
            }
        }
        outcome.grown.into_iter().for_each(|written| self.trimmer.grew(written, now));
        if outcome.is_fenced {
            self.election.on_fenced(now);
            self.perform();
        }
        if outcome.is_member_gone {
            self.election.on_member_gone();
        }
        if let Some(error) = outcome.error {
            self.election.on_error(error, self.node);
        }
    }

    /// Passes a change to the committer, or answers it at once if it can no longer be written.
    fn commit(&mut self, id: CommitId, change: Change) {
        if !change.is_fenced() {
            match &change {
                // It names a session that is gone. A released run keeps the session it ran under, so it does not count
                // here.
                Change::ChangeOwner { run, .. } | Change::Restore { run, .. }
                    if run.state == RunState::Running && run.owner.session != self.context.me.session =>
                {
                    self.node.answer(id, Commit::Superseded);
                }
                Change::Accept { run, .. } | Change::Refuse { run, .. }
                    if run.owner.session != self.context.me.session =>
                {
                    self.node.answer(id, Commit::Superseded);
                }
                _ => self.pass_to_committer(id, change, None),
            }
            return;
        }
        match self.election.fence(self.node) {
            Some((candidate, token)) if !change.is_of_another_term(FencingToken(token)) => {
                self.pass_to_committer(id, change, Some(candidate));
            }
            _ => self.node.answer(id, Commit::Fenced),
        }
    }

    fn pass_to_committer(&mut self, id: CommitId, change: Change, fence: Option<String>) {
        for (id, answer) in self.committer.request(id, change, fence) {
            self.answer(id, answer);
        }
    }

    /// Returns the answer to the daemon, unless the session loop itself requested the commit.
    fn answer(&mut self, id: CommitId, answer: Commit) {
        if !self.election.unreceived().is_done(id) {
            self.node.answer(id, answer);
        }
    }

    /// Handles a request and all that are queued behind it, so that commits requested together share a multi.
    fn take_requests(&mut self, first: Request) {
        self.take_request(first);
        while let Ok(request) = self.node.service.requests.try_recv() {
            self.take_request(request);
        }
    }

    fn take_request(&mut self, request: Request) {
        match request {
            Request::Election(request) => self.take_election_request(request),
            Request::Ledger(ledger::Request::Commit { id, change }) => self.commit(id, change),
            Request::Lock(request) => {
                self.job_locks.take(request, &self.node.identity, &mut self.node.options.uuid);
            }
            Request::Ledger(ledger::Request::Watch(run)) => {
                if self.election.fence(self.node).is_some() {
                    self.watcher.watch(run);
                }
            }
            Request::Ledger(ledger::Request::Follow(run)) => {
                if self.election.fence(self.node).is_some() {
                    self.watcher.follow(run, self.now());
                }
            }
            Request::Ledger(ledger::Request::WatchOwn(run)) => self.watcher.watch(run),
            Request::Ledger(read) => {
                if let ledger::Request::ReadJob(job) = &read {
                    self.committer.read(job);
                }
                self.reading.take(read);
            }
        }
    }

    fn take_election_request(&mut self, request: port::Request) {
        let now = self.now();
        match &request {
            port::Request::Publish(published) if *published != self.node.desired.published => self.election.publish(),
            port::Request::Leave => {
                self.node.desired.leave.get_or_insert(now + LEAVE_WITHIN);
            }
            port::Request::Transfer(to) => {
                self.election.transfer(to.clone(), now);
                self.perform();
            }
            port::Request::Define(defined) => {
                if defined.locks != rights::locks_of_jobs(self.node) && self.election.leads() {
                    self.rights.schedule(self.election.client().ownership(), now);
                }
            }
            port::Request::Publish(_) | port::Request::Campaign | port::Request::Resign | port::Request::Busy(_) => {}
        }
        self.node.note(request);
    }

    fn on_operator_requests(&mut self, event: RequestsEvent, now: Uptime) {
        match event {
            RequestsEvent::Changed => self.operators.read_from(now),
            RequestsEvent::Read(Ok(read)) => {
                self.succeeded(Task::Listen);
                let is_damaged = !self.node.damages.paths(Source::OperatorRequests).is_empty();
                let (requests, damaged) = self.operators.read(read, is_damaged, self.context.limits());
                self.node.found_damage(Source::OperatorRequests, damaged);
                self.node.emit_ledger(ledger::Event::OperatorRequests(requests));
            }
            RequestsEvent::Read(Err(error)) => {
                self.operators.read_failed(now);
                self.failed_by(Task::Listen, error);
            }
        }
    }

    fn on_offers(&mut self, event: OffersEvent, now: Uptime) {
        match event {
            OffersEvent::Changed => self.offers.changed(now),
            OffersEvent::Looked(looked) => match self.offers.looked(looked, now) {
                Ok((event, damaged)) => {
                    self.succeeded(Task::Offers);
                    self.node.found_damage(Source::Offers, damaged);
                    event.into_iter().for_each(|event| self.node.emit_ledger(event));
                }
                Err(error) => self.failed_by(Task::Offers, error),
            },
        }
    }

    fn on_place_kept(&mut self, kept: Result<(), SessionError>, now: Uptime) {
        // What the servers refuse is tried again with the next survey.
        let is_retried = kept.as_ref().is_err_and(|error| !matches!(error, SessionError::NoAuth(_)));
        self.own_place.finish(now, is_retried);
        let refused = matches!(kept, Err(SessionError::NoAuth(_)))
            .then(|| Damage::unwritten(paths::place(&self.context.me.node), &Error::Denied));
        self.node.found_damage(Source::OwnPlace, refused);
        match kept {
            Ok(()) | Err(SessionError::NoAuth(_)) => self.succeeded(Task::Place),
            Err(error) => self.failed_by(Task::Place, error),
        }
    }

    fn on_job_lock(&mut self, event: JobLockEvent) {
        if let Some(event) = self.job_locks.apply(event, self.node) {
            self.node.emit_lock(event);
        }
        if self.election.is_over() && !self.job_locks.is_busy() {
            self.left();
        }
    }

    /// The entries are removed, or the time for that is over.
    fn left(&mut self) {
        self.node.emit(Event::Left);
        self.election.end(SessionEnd::Done);
    }

    fn succeeded(&mut self, task: Task) {
        self.failing.succeeded(task).into_iter().for_each(|event| self.node.emit(event));
    }

    /// Records that a task has failed and will be retried.
    fn failed(&mut self, task: Task, error: &str) {
        // Without a connection everything fails, and the lost connection is reported already.
        if self.election.is_connected() {
            let event = self.failing.failed(task, self.now(), error);
            event.into_iter().for_each(|event| self.node.emit(event));
        }
    }

    /// The same, with an error that may end the session.
    fn failed_by(&mut self, task: Task, error: SessionError) {
        self.failed(task, &error.to_string());
        self.election.on_error(error, self.node);
    }

    fn forget_failures(&mut self) {
        self.failing.forget().into_iter().for_each(|event| self.node.emit(event));
    }

    /// Emits the last events of a session in the order that the daemon relies on, and keeps its unsent requests.
    fn end(mut self, ended: SessionEnd) -> SessionEnd {
        let SessionEnd::Expired = ended else { return ended };
        self.forget_failures();
        let committer = std::mem::replace(&mut self.committer, Committer::new(self.context.clone()));
        let (answers, unsent) = committer.into_rest();
        for (id, answer) in answers {
            self.answer(id, answer);
        }
        for (id, change) in unsent {
            if !self.election.unreceived().is_done(id) {
                self.node.backlog.push_back(Deferred::Commit(id, change));
            }
        }
        self.node.backlog.extend(self.reading.take_unread().map(Deferred::Read));
        self.election.on_expired(self.now());
        self.perform();
        // The servers refused this to this session: they may allow it to the next.
        for source in [Source::Queue, Source::Writes, Source::Renewals, Source::Locks] {
            self.node.found_damage(source, None);
        }
        self.election.close();
        self.emit_term_over_when_answered();
        if std::mem::take(&mut self.node.desired.resign) {
            self.node.emit(Event::Withdrawn);
        }
        if self.election.is_reported() {
            self.node.emit(Event::Expired { session: self.context.me.session.clone() });
        }
        if self.node.desired.leave.is_some() {
            self.node.emit(Event::Left);
            return SessionEnd::Done;
        }
        SessionEnd::Expired
    }

    fn now(&self) -> Uptime {
        self.context.clock.now().up
    }
}

fn candidate_data(identity: &NodeIdentity) -> Vec<u8> {
    context::json(&serde_json::json!({
        "v": 1,
        "node": identity.node,
        "host": identity.host,
        "pid": identity.pid,
        "version": identity.version,
        "started_at": identity.started_at,
    }))
}
