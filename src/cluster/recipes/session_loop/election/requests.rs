//! Chooses the election's next request to the servers, the most urgent one first.

use std::collections::BTreeSet;

use super::Election;
use crate::recipes::context::{self, SessionError};
use crate::recipes::damage::Source;
use crate::recipes::node::{Desired, Node};
use crate::recipes::place::{OpenAt, Proof, Surveyed};
use crate::recipes::session_loop::candidacy::{NextInQueue, OpeningRecord, QueueStep};
use crate::recipes::session_loop::membership::MemberStep;
use crate::recipes::session_loop::reread;
use crate::recipes::session_loop::step::{Request, StepResult};
use crate::recipes::session_loop::task::Task;
use crate::recipes::{entry, give_up, place, requests, transfer, wanted};
use crate::tree::Session;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::{Member, Place};

/// A request of the election, and what it is for.
type Planned<W> = (Task, Request<W>);

impl<C: Session, K: Clock> Election<C, K> {
    /// Starts the most urgent request, unless one is in flight. `may_renumber`: the sequence numbers of the triggers
    /// can and must be restarted.
    pub fn start_step(&mut self, now: Uptime, node: &mut Node, may_renumber: bool) {
        if self.step.is_idle()
            && now >= self.step.not_before()
            && let Some((task, request)) = self.next_request(now, node, may_renumber)
        {
            self.step.start(task, request);
        }
    }

    fn next_request(&mut self, now: Uptime, node: &mut Node, may_renumber: bool) -> Option<Planned<C::Watch>> {
        let context = self.context.clone();
        if node.desired.leave.is_some() {
            let stopped = Place { stopped: Some(node.identity.started_at), ..node.place() };
            return plan(Task::Leave, async { place::leave(context, Some(stopped)).await.map(|()| StepResult::Left) });
        }
        if let Some(retired) = self.candidacy.retired().cloned() {
            let Some(successor) = self.transfer.successor() else {
                return plan(Task::Withdraw, async {
                    place::withdraw(context, retired).await.map(|()| StepResult::Withdrawn)
                });
            };
            return plan(Task::HandOver, async {
                transfer::hand_over(context, retired, successor).await.map(StepResult::HandedOver)
            });
        }
        if self.is_out_of_cluster() {
            return None;
        }
        if self.standstill.is_out_of_cluster() && self.unreceived.all_done() {
            self.membership.step(MemberStep::Leave);
            return plan(Task::Leave, async { place::leave(context, None).await.map(|()| StepResult::OutOfCluster) });
        }
        if !self.membership.is_prepared() {
            let known = node.cluster.clone().or_else(|| node.store.cluster());
            let new = (node.options.uuid)().to_string();
            return plan(Task::Prepare, async { entry::prepare(context, known, new).await.map(StepResult::Cluster) });
        }
        if !self.membership.is_present() {
            let (member, left) = (self.member(node), node.leftover());
            let is_closed = self.membership.is_closed();
            self.step.set_due(Task::Publish, false);
            return plan(Task::Enter, async move {
                entry::enter(context, member, left, is_closed).await.map(StepResult::Entered)
            });
        }
        self.next_request_of_member(now, node).or_else(|| self.next_background_request(now, node, may_renumber))
    }

    /// The next request of a node that has a member.
    fn next_request_of_member(&mut self, now: Uptime, node: &Node) -> Option<Planned<C::Watch>> {
        let context = self.context.clone();
        if self.step.is_due(Task::Verify) || self.membership.needs_other_watch(self.wants_watch(node)) {
            return self.verify(node);
        }
        if self.step.take_due(Task::ReadWanted) {
            return plan(Task::ReadWanted, async { wanted::read_own(context).await.map(StepResult::Wanted) });
        }
        if node.desired.resign && self.candidacy.is_unclear() {
            return plan(Task::Clear, async { place::clear(context).await.map(|()| StepResult::Withdrawn) });
        }
        if let (Some(to), Some(own)) = (self.transfer.wanted(), self.candidacy.candidate().cloned()) {
            return plan(Task::Find, async { transfer::find(context, own, to).await.map(StepResult::Successor) });
        }
        let Desired { campaign, resign, .. } = node.desired;
        let is_wanted = campaign && !resign && !node.desired.published.never_leads;
        let may_join = is_wanted && self.standstill.loop_turns() && self.wanted.may_join();
        match self.candidacy.next(now, may_join)? {
            NextInQueue::Join => {
                self.candidacy.step(QueueStep::Create);
                plan(Task::Join, async { place::join(context, false).await.map(StepResult::Candidate) })
            }
            NextInQueue::FindOrJoin => {
                plan(Task::Join, async { place::join(context, true).await.map(StepResult::Candidate) })
            }
            NextInQueue::Look => plan(Task::Look, async { place::look(context).await.map(StepResult::Position) }),
            NextInQueue::Open(candidate) => {
                let (dead, at) = (node.store.removable().into_iter().collect::<BTreeSet<_>>(), self.open_at(node));
                let proof = if self.lease.is_proof(now) { Proof::Lease } else { Proof::Write };
                plan(Task::Open, async move {
                    place::open(context, candidate, dead, proof, at).await.map(StepResult::Opened)
                })
            }
            NextInQueue::WriteOpening(candidate) => {
                let at = self.open_at(node);
                plan(Task::WriteOpening, async {
                    place::write_opening(context, candidate, at).await.map(StepResult::Written)
                })
            }
        }
    }

    /// The next request that nothing waits for.
    fn next_background_request(&mut self, now: Uptime, node: &Node, may_renumber: bool) -> Option<Planned<C::Watch>> {
        let context = self.context.clone();
        if !node.left_by_dead.is_empty() {
            let left = node.leftover_by_dead();
            return plan(Task::SettleLeft, async move {
                give_up::end_runs(&context, &left).await.map(|()| StepResult::LeftSettled)
            });
        }
        if self.step.take_due(Task::Publish) {
            let member = self.member(node);
            return plan(Task::Publish, async { entry::publish(context, member).await.map(StepResult::Published) });
        }
        if let Some((candidate, _)) = self.fence(node).filter(|_| may_renumber) {
            return plan(Task::Renumber, async {
                requests::renumber(context, candidate).await.map(StepResult::Renumbered)
            });
        }
        if now >= self.surveys.at() {
            return self.survey(node);
        }
        let (first, leads) = self.candidacy.look_for_first(now)?;
        plan(
            Task::LookForFirst,
            async move { place::look_for_first(context, first, leads).await.map(StepResult::First) },
        )
    }

    fn open_at(&self, node: &Node) -> OpenAt {
        match self.candidacy.opening_record() {
            OpeningRecord::Member => OpenAt::Member(context::json(&self.member(node))),
            OpeningRecord::Queue => OpenAt::Queue,
        }
    }

    /// This node's member. It names the candidate that the node leads with where the queue's folder cannot.
    pub(super) fn member(&self, node: &Node) -> Member {
        let names_it = self.candidacy.is_first() && self.candidacy.opening_record() == OpeningRecord::Member;
        let opened = self.candidacy.candidate().filter(|_| names_it).cloned();
        Member { opened, ..node.member(self.timeout) }
    }

    /// Reads the queue and the members. A leader also reads the damaged paths again.
    fn survey(&mut self, node: &Node) -> Option<Planned<C::Watch>> {
        let context = self.context.clone();
        let is_leader = self.candidacy.leads();
        if !is_leader {
            self.membership.unwatch_others();
            self.membership.unwatch_places();
        }
        let wanted = Surveyed {
            watches_members: is_leader && !self.membership.watches_others(),
            places: is_leader,
            watches_places: is_leader && !self.membership.watches_places(),
            observes: node.desired.published.never_leads,
            // If the survey fails, the next one looks at all of them again.
            strays: is_leader.then(|| std::mem::take(&mut self.strays)),
            alive: node.alive.clone(),
            opened: self.candidacy.opened().filter(|_| self.candidacy.opening_record() == OpeningRecord::Queue),
        };
        let known = node.cluster.clone().filter(|_| is_leader);
        let damaged = if is_leader { node.damages.paths(Source::Ledger) } else { Vec::new() };
        plan(Task::Survey, async move {
            if let Some(known) = known {
                entry::keep_cluster(&context, known).await?;
            }
            let reread = reread::reread(&context, damaged).await?;
            Ok(StepResult::Survey(Box::new(place::survey(context, wanted).await?), reread))
        })
    }

    fn verify(&mut self, node: &Node) -> Option<Planned<C::Watch>> {
        let (context, candidate) = (self.context.clone(), self.candidacy.candidate().cloned());
        let (is_leader, wants_watch) = (self.candidacy.leads(), self.wants_watch(node));
        self.step.set_due(Task::Verify, false);
        self.membership.will_be_watched(wants_watch);
        plan(Task::Verify, async move {
            place::verify(context, candidate, is_leader, wants_watch).await.map(StepResult::Verified)
        })
    }

    /// A node that leads or runs jobs watches its own entries.
    fn wants_watch(&self, node: &Node) -> bool {
        self.candidacy.leads() || node.desired.busy
    }
}

/// A request to send next.
fn plan<W>(
    task: Task,
    request: impl Future<Output = Result<StepResult<W>, SessionError>> + Send + 'static,
) -> Option<Planned<W>> {
    Some((task, Box::pin(request)))
}
