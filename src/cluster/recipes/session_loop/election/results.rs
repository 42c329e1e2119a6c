//! Applies the results of the election's requests.
//!
//! Each result changes the node's state and is reported to the daemon. The next request follows from the new state.

use std::time::Duration;

use super::Election;
use crate::paths;
use crate::recipes::context::SessionError;
use crate::recipes::damage::{Damage, Source};
use crate::recipes::entry::Entered;
use crate::recipes::node::Node;
use crate::recipes::place::{Ahead, Behind, Look, Opened, PlacesRead, Survey, Verified, Written};
use crate::recipes::session_loop::act::Act;
use crate::recipes::session_loop::candidacy::{OpeningRecord, OpeningWrite, QueueStep};
use crate::recipes::session_loop::ending::SessionEnd;
use crate::recipes::session_loop::futures::fired;
use crate::recipes::session_loop::membership::MemberStep;
use crate::recipes::session_loop::reread::RereadResult;
use crate::recipes::session_loop::step::StepResult;
use crate::recipes::session_loop::task::Task;
use crate::recipes::store::ClaimError;
use crate::recipes::strays::StraysFound;
use crate::recipes::trim::Roster;
use crate::recipes::wanted::Wanted;
use crate::tree::{Error, Session};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::{Event, Failure};
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::term::{CandidateName, SessionId, Term, TermEnd};

/// The longest session timeout that servers grant by default, at their usual tick of 2 s.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(40);
/// The node waits for its name at most twice this long, whatever timeout the holder's record names.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

impl<C: Session, K: Clock> Election<C, K> {
    /// Applies the result of the request in flight.
    pub fn on_step(&mut self, found: Result<StepResult<C::Watch>, SessionError>, now: Uptime, node: &mut Node) {
        let Some(task) = self.step.finish() else { return };
        self.membership.step(MemberStep::Stay);
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.retry_step(task, error, now, node),
        };
        // Verifying runs between two tries of a failing request. Its success must not reset that request's backoff.
        if !matches!(found, StepResult::Verified(_)) {
            self.step.reset_retry();
        }
        self.act(Act::Succeeded(task));
        match found {
            StepResult::Cluster(cluster) => self.claim(cluster, now, node),
            StepResult::Entered(entered) => self.entered(entered, now, node),
            StepResult::Candidate(candidate) => self.joined(candidate, node),
            StepResult::Position(look) => self.on_position(look, now),
            StepResult::Opened(opened) => self.opened(opened, now, node),
            StepResult::Written(written) => self.written(written, now, node),
            StepResult::Verified(verified) => self.verified(verified, now, node),
            StepResult::Wanted(wanted) => self.on_wanted(wanted),
            StepResult::Successor(found) => self.acts.extend(self.transfer.found(found).map(Act::Emit)),
            StepResult::HandedOver(is_to_successor) => {
                self.acts.extend(self.transfer.handed_over(is_to_successor).map(Act::Emit));
                self.withdrawn(node);
            }
            StepResult::Withdrawn => self.withdrawn(node),
            StepResult::OutOfCluster => self.on_cluster_left(now),
            StepResult::Left => {
                self.forget_own_session(node);
                self.act(Act::Leave);
            }
            // The member must not be recreated before the loss of the old one was handled.
            StepResult::Published(is_there) if !is_there => self.verify_entries(),
            StepResult::Published(_) => {}
            StepResult::LeftSettled => node.left_by_dead.clear(),
            StepResult::Renumbered(is_done) => self.act(Act::Renumbered(is_done)),
            StepResult::First(ahead) => {
                if let Some(ahead) = ahead {
                    self.read_ahead(ahead, now);
                }
            }
            StepResult::Survey(survey, reread) => {
                self.on_reread(reread);
                if node.desired.published.never_leads {
                    // For such a node the start is over.
                    node.has_joined = true;
                    self.observe(&survey.ahead, now);
                }
                self.surveyed(*survey, now);
            }
        }
    }

    fn claim(&mut self, cluster: String, now: Uptime, node: &mut Node) {
        match node.store.claim(&cluster) {
            Ok(()) => {
                self.membership.step(MemberStep::Prepare);
                node.cluster = Some(cluster);
            }
            Err(ClaimError::OtherCluster { ours }) if node.has_joined => {
                let error = format!(
                    "{} holds the id of cluster {cluster}, expected {ours}: the records of this cluster are gone or \
                     were replaced. Restore them, or restart each node with an empty `--state-dir`",
                    paths::CLUSTER
                );
                self.postpone_step(error, now);
            }
            Err(ClaimError::OtherCluster { ours }) => {
                let service = node.options.service.clone();
                self.link.end(SessionEnd::Failed(Failure::OtherCluster { ours, theirs: cluster, service }));
            }
            // A full disk may have room again later.
            Err(ClaimError::Store(error)) => self.postpone_step(error.to_string(), now),
        }
    }

    fn entered(&mut self, entered: Entered, now: Uptime, node: &mut Node) {
        match entered {
            Entered::Yes => {
                self.membership.step(MemberStep::Enter);
                let removed = node.removable();
                node.note_left(&removed);
                self.membership.stop_waiting_for_name();
                self.act(Act::Found(Source::OwnMember, Vec::new()));
                if std::mem::take(&mut node.waits_for_name) {
                    self.emit(Event::Stalled(None));
                }
                self.surveys.now(now);
                self.link.on_member();
                if node.has_joined {
                    self.let_others_restore(now);
                }
                self.observed = None;
                self.emit(Event::Session { id: self.id.clone(), timeout: self.timeout });
                self.report_resumed(now);
                self.act(Act::WarnIfOpen);
            }
            Entered::NameHeld { by, session, timeout } => self.wait_for_name(by, &session, timeout, now, node),
            // Whoever put it there may remove it: it must not end this node.
            Entered::Blocked(damage) => {
                self.step.postpone(now + self.timeout / 5);
                self.act(Act::Found(Source::OwnMember, vec![damage]));
            }
        }
    }

    /// Waits for another session to give up this node's name.
    ///
    /// The holder may be a session that nobody renews any more. The server removes it within its timeout and two ticks,
    /// and two ticks are at most a session timeout. If the holder's timeout is unknown, it may be as long as servers
    /// allow. The wait counts from the newest connection, because a service that was away gives every session its full
    /// timeout again. A session of this node's own dead processes does not count as a holder: the next try removes it.
    ///
    /// A node that has been in the queue waits for as long as it takes. It had the name first, so its settings are not
    /// wrong, and whoever has written a member in its place must not end it.
    fn wait_for_name(
        &mut self,
        holder: String,
        session: &SessionId,
        timeout: Option<Duration>,
        now: Uptime,
        node: &mut Node,
    ) {
        let timeout = timeout.unwrap_or(LONGEST_TIMEOUT).clamp(self.timeout, LONGEST_WAIT);
        let until = self.membership.wait_for_name(now + timeout * 2);
        let name = node.identity.node.clone();
        let is_own = node.removable().contains(session) || node.left.contains(session);
        if now >= until && !is_own && !node.has_joined {
            self.link.end(SessionEnd::Failed(Failure::NameTaken { node: name, holder }));
            return;
        }
        self.step.postpone(now + self.timeout / 5);
        // Nothing is unreachable, and once is enough.
        if !std::mem::replace(&mut node.waits_for_name, true) {
            self.emit(Event::Stalled(Some(format!("waiting for the node name `{name}`, still held by {holder}"))));
        }
    }

    fn joined(&mut self, candidate: CandidateName, node: &mut Node) {
        node.has_joined = true;
        if self.candidacy.join(candidate.clone(), self.context.limits()) {
            log!(WARN COORDINATION_NUMBERS_LOW, path = paths::LEADER, "stop every node and delete it to restart at 0");
        }
        self.emit(Event::Joined { candidate });
    }

    fn on_position(&mut self, look: Look<C::Watch>, now: Uptime) {
        // The candidate was given up while its position was read.
        if self.candidacy.candidate().is_none() {
            return;
        }
        match look {
            Look::First(candidate) => {
                self.act(Act::Found(Source::Queue, Vec::new()));
                self.adopt(&candidate);
                self.emit(Event::First);
                self.candidacy.be_first(candidate, now);
                self.lease.leave_renewal_to_opening(now);
            }
            Look::Behind(behind, watch, damaged) => {
                self.act(Act::Found(Source::Queue, damaged));
                self.adopt(&behind.candidate);
                self.candidacy.step(QueueStep::Wait(behind.candidate.clone(), fired(watch)));
                self.surveys.soon(now);
                self.report_following(behind, now);
                self.act(Act::CheckAccess);
            }
            Look::Gone => {
                self.act(Act::Found(Source::Queue, Vec::new()));
                self.candidacy.step(QueueStep::FindGone);
            }
        }
    }

    /// Uses the lowest of the node's own candidates: it may be one that an unanswered create left.
    fn adopt(&mut self, candidate: &CandidateName) {
        if self.candidacy.candidate() != Some(candidate) {
            self.emit(Event::Joined { candidate: candidate.clone() });
        }
    }

    fn report_following(&mut self, behind: Behind, now: Uptime) {
        if self.candidacy.follow(behind.clone(), now) {
            let leader_node = behind.leader_node().cloned();
            let Behind { candidate, predecessor, predecessor_node, .. } = behind;
            self.emit(Event::Following { candidate, predecessor, predecessor_node, leader_node });
        }
    }

    fn opened(&mut self, opened: Option<Opened<C::Watch>>, now: Uptime, node: &mut Node) {
        let Some((candidate, since)) = self.candidacy.first() else { return };
        let Some(opened) = opened else {
            // The candidate is gone or was changed: either way the node needs a new one.
            self.candidacy.step(QueueStep::Retire);
            return self.verify_entries();
        };
        if let Some(written) = opened.written {
            self.acknowledge(written.sent, now);
        }
        if self.candidacy.opening_record() == OpeningRecord::Member && opened.is_blind() {
            return self.leave_it_to_others(now);
        }
        let is_proven = opened.written.is_some() || self.lease.holds(now);
        let is_wanted = !node.desired.resign && node.desired.leave.is_none();
        if !self.link.is_connected() || !is_proven || !is_wanted {
            return;
        }
        if node.newest_token >= Some(opened.token) {
            return self.leave_returned_candidate(&candidate, now);
        }
        node.newest_token = Some(opened.token);
        self.report_term_over();
        self.act(Act::Found(Source::Ledger, opened.damaged));
        self.report_time(opened.written, now, node);
        self.act(Act::StartTerm);
        let write = if opened.written.is_some() { OpeningWrite::Acknowledged } else { OpeningWrite::Due };
        self.candidacy.step(QueueStep::Lead(opened.token, write));
        self.membership.will_be_watched(true);
        self.membership.watch(opened.watches.into_iter().map(fired));
        self.places = None;
        let lease_until = self.lease.begin_term(now, node.desired.busy);
        self.act(Act::UpdateAccess);
        let term = Term { token: opened.token, candidate };
        self.emit(Event::Elected { term, lease_until, snapshot: opened.snapshot, took: now.since(since) });
        // The leader before may be gone: the answer to "who is missing" must not wait for the next survey.
        self.surveys.now(now);
    }

    /// Removes the candidate of an earlier term, which the servers have lost the removal of: its token has been used, and
    /// tokens only grow.
    fn leave_returned_candidate(&mut self, candidate: &CandidateName, now: Uptime) {
        let path = paths::candidate(candidate);
        log!(COORDINATION_REWOUND, path, "that the candidate {path} of this node was removed; removing it again");
        self.act(Act::NoteLoss);
        self.candidacy.step(QueueStep::Retire);
        // What this node knows of that term is restored before the removal lets another node lead.
        self.step.postpone(now + self.timeout / 4);
    }

    /// Gives up the first position: this node can neither write that it leads nor read the jobs or runs. Another node
    /// may be able to.
    fn leave_it_to_others(&mut self, now: Uptime) {
        log!(ELECTION_UNFIT, path = paths::LEADER);
        self.candidacy.open_by(OpeningRecord::Queue);
        self.candidacy.step(QueueStep::Retire);
        self.step.postpone(now + self.timeout / 2);
    }

    /// Applies the result of the opening write. `None`: the candidate is gone or was changed, as when a commit is
    /// fenced.
    fn written(&mut self, written: Option<Written>, now: Uptime, node: &mut Node) {
        match written {
            Some(written) => {
                self.candidacy.step(QueueStep::Write);
                self.report_time(Some(written), now, node);
                self.acknowledge(written.sent, now);
            }
            None => self.on_fenced(now),
        }
    }

    fn report_time(&mut self, written: Option<Written>, now: Uptime, node: &mut Node) {
        if let Some(Written { sent, time: Some(time) }) = written {
            self.lease.time_stated_by_opening(sent, now);
            node.time = Some(time);
            self.emit(Event::Time(time));
        }
    }

    fn verified(&mut self, verified: Verified<C::Watch>, now: Uptime, node: &Node) {
        self.membership.watch(verified.watches.into_iter().map(fired));
        if !verified.has_member {
            self.membership.step(MemberStep::Lose);
        }
        let is_leader = self.candidacy.leads();
        if !is_leader && !verified.has_candidate {
            self.candidacy.step(QueueStep::FindGone);
        } else if !is_leader && self.link.is_suspended() {
            // After a reconnect the queue may be another: the servers may have lost something.
            self.candidacy.step(QueueStep::LosePosition);
        }
        let lost = !verified.has_member || (is_leader && (!verified.has_candidate || verified.is_preceded));
        if lost && (is_leader || node.desired.busy) {
            self.revoke_lease(now);
            let step = if verified.has_candidate { QueueStep::Retire } else { QueueStep::FindGone };
            self.lose_position(step, TermEnd::EntryGone);
        } else {
            self.report_resumed(now);
        }
    }

    fn report_resumed(&mut self, now: Uptime) {
        if self.link.is_connected() && self.membership.is_present() && self.link.resume() {
            self.emit(Event::Resumed { session: self.id.clone() });
            // Perhaps by other servers, which have lost something.
            self.let_others_restore(now);
            self.surveys.soon(now);
            self.act(Act::Resume);
        }
    }

    /// Opens no term for a while: a leader begins what is not on record, so whoever knows more writes it first.
    fn let_others_restore(&mut self, now: Uptime) {
        self.candidacy.open_from(now + self.timeout / 4);
    }

    fn on_wanted(&mut self, wanted: Wanted<C::Watch>) {
        self.act(Act::Found(Source::Wanted, wanted.damage.into_iter().collect()));
        if let Some(control) = self.wanted.read(wanted.control, fired(wanted.watch)) {
            self.emit(Event::Wanted(control));
        }
    }

    fn withdrawn(&mut self, node: &mut Node) {
        self.candidacy.step(QueueStep::Leave);
        self.act(Act::ReleaseCommits);
        if std::mem::take(&mut node.desired.resign) {
            // A term is over before its node has withdrawn, even if the last answers are still to come.
            self.report_term_over();
            self.emit(Event::Withdrawn);
        }
    }

    /// This node has removed its own member. The watches on it would only report that.
    fn on_cluster_left(&mut self, now: Uptime) {
        self.revoke_lease(now);
        self.membership.step(MemberStep::Lose);
        self.membership.unwatch();
        self.candidacy.step(QueueStep::Leave);
        self.step.set_due(Task::Verify, false);
    }

    /// Forgets this session in the state directory, and those whose entries were removed when the member was created:
    /// none of them has entries any more.
    fn forget_own_session(&self, node: &mut Node) {
        let mut gone = if self.membership.is_present() { node.removable() } else { Vec::new() };
        gone.push(self.id.clone());
        node.note_left(&gone);
    }

    fn on_reread(&mut self, reread: RereadResult) {
        let (damaged, mended, events) = reread.into_parts();
        self.acts.extend(damaged.into_iter().map(|damage| Act::Damaged(Source::Ledger, damage)));
        self.acts.extend(mended.into_iter().map(|path| Act::Mended(Source::Ledger, path)));
        self.acts.extend(events.into_iter().map(|event| Act::EmitLedger(Box::new(event))));
    }

    fn surveyed(&mut self, survey: Survey<C::Watch>, now: Uptime) {
        self.surveys.done(now);
        if let Some(watch) = survey.changed.filter(|_| self.candidacy.leads()) {
            self.membership.watch_others(fired(watch));
        }
        // Nobody overtakes a leader, unless the servers have lost that a candidate was removed.
        let is_overtaken =
            self.candidacy.leads() && survey.ahead.behind.as_ref().is_some_and(|behind| behind.first_node.is_some());
        if !survey.has_member || is_overtaken {
            self.verify_entries();
        }
        if !survey.is_opened {
            self.candidacy.step(QueueStep::LoseWrite);
        }
        self.read_ahead(survey.ahead, now);
        let is_listed = survey.members.iter().any(|member| member.node == self.context.me.node);
        if self.membership.is_present() && !is_listed {
            self.publish();
        }
        if let Some(read) = &survey.places {
            // One that is alive has a place, or is about to have one again.
            let alive = survey.members.iter().map(|member| member.node.clone());
            self.act(Act::Roster(Roster(read.nodes().map(|nodes| nodes.into_iter().chain(alive).collect()))));
        }
        self.places_read(survey.places);
        if let Some(StraysFound { known, damaged, mended }) = survey.strays.filter(|_| self.candidacy.leads()) {
            self.strays = known;
            self.act(Act::Found(Source::Strays, damaged));
            self.acts.extend(mended.into_iter().map(|event| Act::EmitLedger(Box::new(event))));
        }
        self.act(Act::RetryRefused);
        self.acts.extend(survey.stopped.into_iter().map(Event::Stopped).map(Act::Emit));
        self.act(Act::Members(survey.members, survey.damaged));
    }

    /// A node that never has a candidate has looked who leads.
    fn observe(&mut self, ahead: &Ahead, now: Uptime) {
        self.act(Act::Found(Source::Queue, ahead.damaged.clone()));
        if self.membership.is_present() && self.observed.as_ref() != Some(&ahead.leader) {
            if ahead.leader.is_none() {
                // The next one is about to.
                self.surveys.soon(now);
            }
            self.observed = Some(ahead.leader.clone());
            self.emit(Event::Observing { leader_node: ahead.leader.clone() });
        }
    }

    /// A leader has read the places. It reports them if they have changed in this term, before the members.
    fn places_read(&mut self, read: Option<PlacesRead<C::Watch>>) {
        let Some(PlacesRead { places, damaged, changed }) = read.filter(|_| self.candidacy.leads()) else { return };
        if let Some(watch) = changed {
            self.membership.watch_places(fired(watch));
        }
        self.act(Act::Found(Source::Places, damaged));
        if self.places.as_ref() != Some(&places) {
            self.places = Some(places.clone());
            self.emit(Event::Places(places));
        }
    }

    /// The queue was read without a watch.
    fn read_ahead(&mut self, ahead: Ahead, now: Uptime) {
        if self.candidacy.candidate().is_some() && !ahead.has_candidate {
            self.verify_entries();
        }
        if !ahead.has_candidate || !self.candidacy.is_waiting() {
            return;
        }
        let watched = self.candidacy.following().map(|known| &known.predecessor);
        match ahead.behind {
            Some(behind) if watched.is_none_or(|watched| *watched == behind.predecessor) => {
                self.act(Act::Found(Source::Queue, ahead.damaged));
                self.report_following(behind, now);
            }
            // Another predecessor than the watched one, or none. The watch has not fired yet, or never will: read the
            // position again.
            Some(_) | None => self.candidacy.step(QueueStep::LosePosition),
        }
    }

    fn retry_step(&mut self, task: Task, error: SessionError, now: Uptime, node: &Node) {
        self.step.back_off(now);
        // The request may have failed because one of the node's own entries is gone.
        self.step.set_due(Task::Verify, self.membership.is_present());
        self.publish();
        if !self.wanted.is_watched() {
            self.step.set_due(Task::ReadWanted, true);
        }
        match error {
            SessionError::SessionOver => self.on_error(error, node),
            SessionError::NoRoot | SessionError::RootInCluster { .. } if !node.has_joined => {
                self.on_error(error, node);
            }
            SessionError::NoAuth(detail) if !node.has_joined && task.is_of_the_start() => {
                self.link.end(SessionEnd::refused(detail, &node.options));
            }
            SessionError::NoAuth(detail) => self.not_allowed(task, detail),
            SessionError::Again(_) | SessionError::NoRoot | SessionError::RootInCluster { .. } => {
                self.act(Act::Failed(task, error.to_string()));
            }
        }
    }

    /// Handles a request that the servers refused after the node had joined: somebody changed an access list, and may
    /// change it back.
    fn not_allowed(&mut self, task: Task, detail: String) {
        match task {
            Task::Open | Task::WriteOpening => {
                self.candidacy.open_by(OpeningRecord::Member);
                self.act(Act::Damaged(Source::Renewals, Damage::unwritten(paths::LEADER, &Error::Denied)));
            }
            Task::Publish => {
                self.step.set_due(Task::Publish, false);
                let path = self.context.member();
                self.act(Act::Damaged(Source::Renewals, Damage::unwritten(path, &Error::Denied)));
            }
            // A candidate that its own node cannot remove would block all behind it. Ending the session removes it.
            Task::Withdraw | Task::HandOver => {
                tracing::warn!(
                    target: TARGET,
                    "cannot remove the node's own candidate; leaving it to expire with its session: {detail}"
                );
                self.link.end(SessionEnd::Expired);
            }
            Task::Renumber => self.act(Act::RenumberRefused),
            task => self.act(Act::Failed(task, detail)),
        }
    }

    /// Tries the next request after a pause, and reports why, unless it has just been reported.
    fn postpone_step(&mut self, error: String, now: Uptime) {
        let retry = self.timeout / 5;
        self.step.postpone(now + retry);
        if self.reports.is_over(now) {
            self.emit(Event::Unreachable { retry, error });
        }
    }
}
