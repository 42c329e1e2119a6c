//! The parts of the engine, and the routing between them.

use super::command::Event;
use super::commits::{Purpose, UnreportedSkip};
use super::context::{Context, Fact};
use super::hooks::Hooks;
use super::leader::Leader;
use super::report::Report;
use super::runs::{News, Runs};
use super::shutdown::Shutdown;
use super::transfer::{GivingUp, LeadershipTransfer};
use crate::clock::Uptime;
use crate::job::{JobName, JobSet};
use crate::ledger::{Commit, CommitId, Snapshot};
use crate::process::Notice;
use crate::run::Outcome;
use crate::term::{FencingToken, Term, TermEnd};
use crate::{election, ledger};

/// The parts of the engine. Each owns its fields.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub runs: Runs,
    pub leader: Option<Leader>,
    pub hooks: Hooks,
    pub transfer: LeadershipTransfer,
    pub shutdown: Shutdown,
    /// The election was last notified that runs are in flight here.
    is_busy: bool,
}

impl Parts {
    /// Passes an observed fact to the part that it concerns, and the resulting facts to the others.
    pub fn take(&mut self, cx: &mut Context, event: Event) {
        self.shutdown.note_in(cx);
        self.runs.follow_clock(cx);
        self.route(cx, event);
        self.pass_on_facts(cx);
        self.shutdown.note_in(cx);
    }

    fn route(&mut self, cx: &mut Context, event: Event) {
        let Self { runs, hooks, shutdown, .. } = self;
        match event {
            Event::Tick => {}
            Event::Election(event) => self.on_election(cx, event),
            Event::Ledger(event) => self.on_ledger(cx, event),
            Event::Lock(event) => runs.on_lock(cx, event),
            Event::Warden(notice) => self.on_notice(cx, notice),
            Event::Loaded(jobs) => self.on_loaded(cx, jobs),
            Event::Rejected => self.transfer.has_invalid_file = true,
            Event::Recovered { runs: recovered, over } => {
                runs.remember(over);
                runs.on_recovered(cx, recovered);
            }
            Event::Drain { timeout } => {
                // Others run them in time, and this node waits for fewer.
                runs.cancel_all_held(cx);
                shutdown.on_drain(cx, runs, timeout);
            }
            Event::CallHook(call) => hooks.call_of_node(cx, call),
            Event::Stop => shutdown.on_stop(cx, runs, hooks),
            Event::HandOver { to } => shutdown.on_hand_over(cx, to),
            Event::Failed { timeout } => {
                cx.session = None;
                if let Some(term) = cx.term().cloned() {
                    self.on_term_over(cx, &term, TermEnd::SessionExpired);
                }
                self.runs.cancel_all_held(cx);
                self.shutdown.on_failed(cx, &self.runs, timeout);
            }
        }
    }

    fn on_election(&mut self, cx: &mut Context, event: election::Event) {
        use election::Event as E;
        let Self { runs, leader, shutdown, transfer, .. } = self;
        match event {
            E::Session { id, timeout } => {
                runs.under(timeout);
                cx.begin_session(id);
                runs.on_session(cx);
                runs.look_for_own_writes(cx);
            }
            E::Elected { term, lease_until, snapshot, took } => {
                self.renew(cx, lease_until);
                cx.report(Report::Elected { term: term.clone(), took });
                self.take_over(cx, term, *snapshot);
            }
            E::Over { term, why } => self.on_term_over(cx, &term, why),
            E::Lease { until } => self.renew(cx, until),
            E::Expired { .. } => {
                cx.session = None;
                // Even if the node no longer led.
                runs.kill_for_lease(cx, TermEnd::SessionExpired);
                runs.limit_kept_runs(cx);
                runs.lose_locks();
            }
            E::Wanted(wanted) => {
                if shutdown.on_wanted(cx, runs, wanted) {
                    // Others run them in time.
                    runs.cancel_all_held(cx);
                }
            }
            E::Withdrawn => shutdown.on_withdrawn(cx),
            E::NotTransferred { to, why } => shutdown.on_not_transferred(cx, to, why),
            E::Left => shutdown.on_left(cx),
            E::Members(members) => {
                if leader.is_some() {
                    // Another node may have restored a run that waits for this one.
                    cx.ledger(ledger::Request::ReadInFlight);
                }
                runs.on_members(cx, &members);
                let giving_up = transfer.on_members(cx, &members);
                self.give_up(cx, giving_up);
            }
            E::Places(all) => runs.on_places(cx, all),
            // Perhaps by other servers, which have lost something.
            E::Suspended { .. } => {
                runs.suspend();
                leader.iter_mut().for_each(Leader::suspend);
            }
            E::Resumed { .. } => {
                runs.look_for_own_writes(cx);
                runs.resume(cx);
                leader.iter_mut().for_each(|leader| leader.look_for_newest_mark(cx));
            }
            E::Time(_)
            | E::Examined(_)
            | E::Joined { .. }
            | E::Following { .. }
            | E::First
            | E::Observing { .. }
            | E::Stopped(_)
            | E::Unreachable { .. }
            | E::Stalled(_)
            | E::Damaged { .. }
            // Arrives as an event of its own, with the time that runs have to end.
            | E::Failed(_) => {}
        }
    }

    fn on_ledger(&mut self, cx: &mut Context, event: ledger::Event) {
        use ledger::Event as E;
        let Self { runs, leader, .. } = self;
        match (event, leader) {
            (E::Answered { id, answer, before, token }, _) => self.on_answer(cx, id, answer, before, token),
            (E::Deferred(id), leader) => {
                // Nothing more is decided about its job: due occurrences wait undecided.
                if let Some(job) = cx.refused(id) {
                    runs.refused(cx, &job, id);
                    leader.iter_mut().for_each(|leader| leader.on_refused(&job));
                }
            }
            (E::Forgotten { job, records }, leader) => {
                cx.report(Report::Forgotten { job: job.clone(), records });
                leader.iter_mut().for_each(|leader| leader.on_forgotten(cx, &job));
            }
            (E::ForgottenNode(node), _) => cx.report(Report::ForgottenNode { node }),
            (E::Job(job, entry, control), Some(leader)) => leader.on_job_read(cx, runs, &job, entry, control),
            (E::OperatorRequests(requests), Some(leader)) => leader.on_requests(cx, runs, requests),
            (E::LastSuccesses(found), Some(leader)) => leader.on_successes_read(cx, found),
            (E::Job(..) | E::OperatorRequests(_) | E::LastSuccesses(_), None) => {}
            (E::Offers { listed, found }, _) => runs.on_offers(cx, &listed, found),
            (E::OpenOffers(node, open), _) => runs.on_open_offers(cx, &node, &open),
            (E::Rung(rung), _) => runs.on_rung(cx, rung),
            (E::InFlight(all, lost_until), _) => runs.on_in_flight(cx, &all, lost_until),
            (E::Again(run, found), leader) => {
                leader.iter_mut().for_each(|leader| leader.on_looked_up(cx, &run, &found));
                runs.on_looked_up(cx, &run, found);
            }
            (E::Run(run, found), _) => runs.on_read(cx, &run, found),
            (E::OwnerGone(run, owner, found), _) => runs.on_news(cx, &run, News::OwnerGone(owner, found)),
            // The backend has ended a run of a dead process. If this process has taken the run over, it writes the same
            // end itself.
            (E::Ended { end, .. }, _) if runs.is_own(&end.run.id()) => {}
            (E::Ended { end, before, .. }, _) => cx.facts.push_back(Fact::Ended { job: None, end, before }),
        }
    }

    fn on_notice(&mut self, cx: &mut Context, notice: Notice) {
        let Self { runs, hooks, .. } = self;
        match notice {
            Notice::Held { tree_id, .. } => {
                if let Some(run) = runs.of_tree(tree_id) {
                    runs.on_held(cx, &run);
                }
            }
            Notice::WithoutFiles { tree_id, files } => hooks.on_without_files(cx, tree_id, &files),
            Notice::Started { tree_id, pid, at, .. } => match runs.of_tree(tree_id) {
                Some(run) => runs.on_started(cx, run, pid, at),
                None => hooks.on_started(tree_id, at),
            },
            Notice::NotStarted { tree_id, why } => match runs.end_tree(tree_id) {
                Some(run) => runs.on_not_started(cx, &run, why),
                None => hooks.on_not_started(cx, tree_id, why),
            },
            Notice::Ended(ending) => match runs.end_tree(ending.tree_id) {
                Some(run) => runs.on_ended(cx, &run, &ending),
                None => hooks.on_ended(cx, &ending),
            },
            Notice::Output { .. } | Notice::Pong => {}
        }
    }

    fn on_answer(
        &mut self,
        cx: &mut Context,
        id: CommitId,
        answer: Commit,
        before: Option<Outcome>,
        token: Option<FencingToken>,
    ) {
        let Self { runs, leader, .. } = self;
        let Some((requested, is_of_this_term)) = cx.answered(id, answer) else { return };
        let mut leader = leader.as_mut().filter(|_| is_of_this_term);
        if let (Some(run), Commit::Superseded, true) = (requested.purpose.begun(), answer, leader.is_some()) {
            if run.trigger().is_some() {
                // Its trigger is removed if the run is on record.
                runs.look_up(cx, run);
            } else {
                // If its owner has restored it, it is known before its job is decided on again.
                cx.ledger(ledger::Request::ReadRun(run.clone()));
            }
        }
        match requested.purpose {
            Purpose::Advance { job, mark, skip } => {
                note_skip(cx, answer, skip);
                leader.iter_mut().for_each(|leader| leader.on_mark_answer(cx, &job, mark, answer));
            }
            Purpose::WriteAlarms { job, mark, alarms, news } => {
                leader.iter_mut().for_each(|leader| leader.on_alarms_answer(cx, &job, mark, alarms.clone(), answer));
                if answer == Commit::Accepted {
                    cx.facts.extend(news.into_iter().map(Fact::Alarm));
                }
            }
            Purpose::Begin { run } => {
                leader.iter_mut().for_each(|leader| leader.on_mark_answer(cx, run.job(), run.scheduled_at(), answer));
                runs.on_attempt_answer(cx, &run, id, answer);
                if leader.is_some_and(|leader| leader.is_paused(run.job())) {
                    runs.cancel_held_of(cx, run.job());
                    runs.recall(cx, run.job());
                }
            }
            Purpose::BeginTriggered { run, by, parameters } => {
                if answer == Commit::Accepted {
                    cx.report(Report::Triggered { run: run.clone(), by, parameters });
                }
                leader.iter_mut().for_each(|leader| leader.on_triggered_answer(&run, answer));
                runs.on_attempt_answer(cx, &run, id, answer);
            }
            Purpose::BeginDownstream { run } => {
                leader.iter_mut().for_each(|leader| leader.on_downstream_answer(cx, runs, &run, answer));
                runs.on_attempt_answer(cx, &run, id, answer);
            }
            Purpose::DropLinks { run, skip } => {
                note_skip(cx, answer, skip);
                leader.iter_mut().for_each(|leader| leader.on_drop_links_answer(cx, runs, &run, answer));
            }
            Purpose::DropTrigger { skip } => note_skip(cx, answer, skip),
            Purpose::Resume { job, mark, skip, by } => {
                note_skip(cx, answer, skip);
                leader.iter_mut().for_each(|leader| leader.on_resume_answer(cx, &job, mark, answer));
                if answer == Commit::Accepted {
                    cx.report(Report::Resumed { job, by });
                }
            }
            Purpose::UpdateRun { run, in_doubt, .. } => {
                runs.on_update_answer(cx, &run, id, in_doubt, answer);
                recall_if_paused(cx, runs, leader, run.job());
            }
            Purpose::SkipRun { run, skip } => runs.on_skip_answer(cx, &run, id, skip, answer),
            Purpose::ShareOut { run, given } => {
                runs.on_share_out_answer(cx, &run, id, *given, answer);
                recall_if_paused(cx, runs, leader, run.job());
            }
            Purpose::RewriteRun { run } => runs.on_rewritten(cx, &run, id, answer),
            Purpose::Kill { run } => runs.on_kill_answer(cx, &run, id, answer),
            Purpose::Accept { run } => runs.on_accept_answer(cx, &run, id, answer, token),
            Purpose::ChangeOwner { run } => runs.on_change_owner_answer(cx, &run, id, answer),
            Purpose::Restore { run } => runs.on_restore_answer(cx, &run, id, answer),
            Purpose::End { run, settled: None } => runs.on_own_end_answer(cx, &run, id, answer, before),
            Purpose::End { run, settled: Some(end) } => {
                runs.on_settled_end_answer(cx, &run, id, end, answer, before);
            }
        }
        runs.answered(cx, &requested.job, id);
        cx.facts.push_back(Fact::JobReleased(requested.job));
    }

    /// Passes on the facts that parts have recorded for others.
    fn pass_on_facts(&mut self, cx: &mut Context) {
        while let Some(fact) = cx.facts.pop_front() {
            let Self { runs, leader, hooks, transfer, .. } = self;
            match fact {
                Fact::JobChanged(job) => leader.iter_mut().for_each(|leader| leader.on_job_changed(cx, &job)),
                Fact::JobReleased(job) => {
                    leader.iter_mut().for_each(|leader| leader.on_job_released(&job));
                    runs.changed(cx, &job);
                }
                Fact::OutcomeUnknown(job) => {
                    leader.iter_mut().for_each(|leader| leader.on_outcome_unknown(&job));
                }
                Fact::Closed { run, trigger } => {
                    leader.iter_mut().for_each(|leader| leader.on_closed(cx, &run, trigger));
                }
                Fact::Ended { job, end, before } => {
                    cx.report(Report::Recorded(end.clone()));
                    leader.iter_mut().for_each(|leader| leader.on_ended(cx, &end));
                    hooks.follow_end(cx, job, *end, before);
                }
                Fact::Skipped(UnreportedSkip { skip, first, count }) => {
                    cx.report(Report::Skipped { skip: skip.clone(), first, count });
                    hooks.follow_skip(cx, UnreportedSkip { skip, first, count });
                }
                Fact::Alarm(news) => {
                    cx.report(Report::Alarm(news.clone()));
                    hooks.follow_alarm(cx, news);
                }
                Fact::Started { run, due_at, lateness, is_first } => {
                    transfer.on_started();
                    leader.iter_mut().for_each(|leader| leader.on_started(&run, due_at, lateness, is_first));
                    if let Some((job, record)) = runs.own_attempt(&run) {
                        hooks.follow_start(cx, job, record);
                    }
                }
                Fact::StartedElsewhere { run, due_at, lateness, is_first } => {
                    leader.iter_mut().for_each(|leader| leader.on_started(&run, due_at, lateness, is_first));
                }
                Fact::RoomFound(jobs) => leader.iter_mut().for_each(|leader| leader.on_room_found(&jobs)),
                Fact::StartFailed => {
                    let giving_up = transfer.on_failed_start(cx);
                    self.give_up(cx, giving_up);
                }
            }
        }
    }

    /// Acts on the passing of time, and on the changes that the event made.
    pub fn act(&mut self, cx: &mut Context) {
        let Self { runs, leader, hooks, .. } = self;
        runs.act_on_processes(cx);
        hooks.stop_overdue(cx);
        leader.iter_mut().for_each(|leader| leader.lift_pauses(cx));
        runs.end_quiet(cx);
        runs.watch_due(cx);
        runs.answer_offers(cx);
        runs.follow_placed(cx);
        runs.give_up_cut_off(cx);
        runs.begin_waiting(cx);
        // What that changed is decided on in this turn.
        self.pass_on_facts(cx);
        let Self { runs, leader, hooks, shutdown, .. } = self;
        leader.iter_mut().for_each(|leader| leader.act(cx, runs));
        leader.iter_mut().for_each(|leader| leader.raise_alarms(cx, runs));
        cx.report_takeover();
        hooks.act(cx);
        shutdown.act(cx, runs, hooks);
        let is_busy = runs.is_busy();
        if is_busy != self.is_busy {
            self.is_busy = is_busy;
            cx.election(election::Request::Busy(is_busy));
        }
        self.pass_on_facts(cx);
    }

    fn renew(&mut self, cx: &mut Context, until: Uptime) {
        cx.lease_until = until;
        self.runs.renew(cx, until);
    }

    /// Begins a term, with the ledger as earlier leaders left it.
    fn take_over(&mut self, cx: &mut Context, term: Term, snapshot: Snapshot) {
        let runs = &mut self.runs;
        for damage in snapshot.damaged {
            cx.report(Report::Damaged(damage));
        }
        cx.begin_term(term);
        let mut leader = Leader::new(snapshot.requests);
        runs.begin_term(cx, snapshot.running, snapshot.lost_until);
        leader.adopt_jobs(cx, snapshot.jobs, &snapshot.decided);
        leader.pass_over_lost(cx, runs);
        self.leader = Some(leader);
    }

    fn on_term_over(&mut self, cx: &mut Context, term: &Term, why: TermEnd) {
        let runs = &mut self.runs;
        if cx.token() != Some(term.token) {
            return;
        }
        self.leader = None;
        cx.end_term();
        runs.end_term(cx);
        cx.report(Report::TermOver { token: term.token, why });
        runs.kill_for_lease(cx, why);
    }

    /// Replaces the set of jobs by one that was just read and is valid.
    fn on_loaded(&mut self, cx: &mut Context, jobs: JobSet) {
        let Self { runs, leader, .. } = self;
        self.transfer.has_invalid_file = false;
        let old = std::mem::replace(&mut cx.jobs, jobs);
        runs.define(&cx.jobs);
        runs.cancel_held_of_redefined(cx);
        runs.recall_redefined(cx, &old);
        runs.consider_all(cx);
        leader.iter_mut().for_each(|leader| leader.on_loaded(cx, runs, &old));
    }

    fn give_up(&mut self, cx: &mut Context, giving_up: Option<GivingUp>) {
        if let Some(GivingUp { to, why }) = giving_up {
            cx.report(Report::GivingUp { to: to.clone(), why });
            self.shutdown.on_hand_over(cx, to);
        }
    }
}

/// Takes back what was being placed of a job when that was paused.
fn recall_if_paused(cx: &mut Context, runs: &mut Runs, leader: Option<&mut Leader>, job: &JobName) {
    if leader.is_some_and(|leader| leader.is_paused(job)) {
        runs.recall(cx, job);
    }
}

/// Reports a skip once it is in the ledger.
fn note_skip(cx: &mut Context, answer: Commit, skip: Option<UnreportedSkip>) {
    if answer == Commit::Accepted {
        cx.facts.extend(skip.map(Fact::Skipped));
    }
}
