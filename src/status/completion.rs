//! Completes a published status for an answer: with what only the ledger knows, and what depends on the time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{
    AlarmStatus, InOrder, JobStatus, LastLeader, LastRun, LedgerPart, MissingMember, NodeState, QueuedCandidate,
    RecordedEnds, RunStatus, SharesStatus, Status,
};
use cronkeeper_core::clock::{Now, Uptime};
use cronkeeper_core::election::{Member, Queue};
use cronkeeper_core::engine::MarkAhead;
use cronkeeper_core::job::{JobName, JobSet, Requirement, RunOn, RunWhere};
use cronkeeper_core::ledger::LastShares;
use cronkeeper_core::run::{Link, Pause, RunId, RunState, millis};
use cronkeeper_core::term::NodeName;

impl Status {
    /// The status with the time-dependent fields as of `now`, under a lease until this time.
    #[must_use]
    pub fn at(mut self, now: Now, lease_until: Option<Uptime>) -> Self {
        self.at = now.wall;
        if let Some(session) = &mut self.session {
            session.lease_remaining_ms = lease_until.map(|until| millis(until.since(now.up)));
        }
        self
    }

    /// Sets the queue and the live members, as they were read at the time of the status.
    pub fn put_queue(&mut self, queue: &Queue) {
        self.put_queue_of(queue, self.at);
    }

    /// Sets the queue and the live members, as they were read a moment ago.
    pub fn put_queue_of(&mut self, queue: &Queue, read_at: Timestamp) {
        self.put_candidates(queue);
        // The daemon reads the members too, and may have done so since.
        if self.members_at.is_none_or(|seen_at| seen_at <= read_at) {
            self.put_members(queue, read_at);
        }
        self.drained.clone_from(&queue.drained);
        self.places.clone_from(&queue.places);
        self.missing.retain(|missing| !missing.is_forgotten(&queue.places));
        // A node knows better whether it leads than a listing, which may be older, or newer than its status.
        let first = queue.candidates.first().and_then(|first| first.node.as_ref());
        if self.role.token.is_none() && !queue.candidates.is_empty() && first != Some(&self.node) {
            match &queue.leader {
                Some(leader) => (self.role.leader_node, self.role.last_leader) = (Some(leader.clone()), None),
                None => self.forget_leader(read_at),
            }
        }
        self.drift = self.differing();
    }

    /// Sets the queue and the members as they were when they could last be read, at `read_at`. Since `failing_since`
    /// they cannot be read, so who leads now is not known, unless this node leads itself.
    pub fn put_old_queue(&mut self, queue: &Queue, read_at: Timestamp, failing_since: Timestamp) {
        match self.role.token.and(self.role.candidate.clone()) {
            // Who leads was first, so those that were listed before it had its candidate were before it, and are gone.
            Some(candidate) if !queue.candidates.iter().any(|queued| queued.candidate == candidate) => {
                self.learned(LedgerPart::Queue);
                self.queue = vec![QueuedCandidate { candidate, node: Some(self.node.clone()), predecessor: None }];
            }
            _ => self.put_candidates(queue),
        }
        // The daemon reads the members too, and may have done so since.
        if self.members_at.is_none_or(|seen_at| seen_at <= read_at) {
            self.put_members(queue, read_at);
        }
        // The node knows more about itself.
        let own = std::mem::replace(&mut self.drained, queue.drained.clone());
        self.drained.remove(&self.node);
        self.drained.extend(own);
        self.places.clone_from(&queue.places);
        self.missing.retain(|missing| !missing.is_forgotten(&queue.places));
        // What the election has reported since counts more than what was read before.
        let is_newer = self.role.last_leader.as_ref().is_none_or(|last| last.unknown_since < read_at);
        if let (None, Some(node), true) = (&self.role.leader_node, queue.leader.clone(), is_newer) {
            self.role.last_leader = Some(LastLeader { node, unknown_since: failing_since });
        }
        self.forget_leader(failing_since);
        self.drift = self.differing();
    }

    /// The queue cannot be read since then, so this node does not know who leads now, unless it leads itself.
    pub fn forget_leader(&mut self, since: Timestamp) {
        if self.role.token.is_some() {
            return;
        }
        // If the node has lost sight of the leader by itself, that counts more than when somebody first asked.
        if let Some(node) = self.role.leader_node.take() {
            self.role.last_leader = Some(LastLeader { node, unknown_since: since });
        }
    }

    /// Marks a part of the ledger as read.
    pub fn learned(&mut self, part: LedgerPart) {
        self.unknown.retain(|unknown| *unknown != part);
    }

    /// True if this node has read that part of the ledger since its start.
    pub fn knows(&self, part: LedgerPart) -> bool {
        !self.unknown.contains(&part)
    }

    /// True if this node has read of each job whether it fails.
    pub fn knows_who_fails(&self) -> bool {
        self.knows(LedgerPart::Ends) && self.knows(LedgerPart::Runs)
    }

    /// True if the runs of other nodes are those that were read last. A leader knows them without reading.
    pub fn has_old_runs(&self) -> bool {
        self.unread.is_some() && self.state != NodeState::Leading
    }

    /// True if the run was in flight when the ledger was last read, and may be over since.
    pub fn is_old(&self, run: &RunStatus) -> bool {
        self.has_old_runs() && run.node != self.node
    }

    /// True if the queue is that which was read last, because it cannot be read now.
    pub fn has_old_queue(&self) -> bool {
        self.parts_read_at.contains_key(&LedgerPart::Queue)
    }

    /// While the ledger cannot be read, what is shown of it and when that was read: `what it held at 03:04:12Z`, or each
    /// part with its time. `None` if nothing was read.
    pub fn parts_in_words(&self, at: impl Fn(Timestamp) -> String) -> Option<String> {
        let times: BTreeSet<i64> = self.parts_read_at.values().map(|at| at.as_second()).collect();
        if times.len() < 2 {
            return self.read_at.map(|read_at| format!("what it held at {}", at(read_at)));
        }
        let parts: Vec<_> = self.parts_read_at.iter().map(|(part, time)| (part.name(), at(*time))).collect();
        Some(parts.iter().map(|(part, at)| format!("{part} as of {at}")).collect::<Vec<_>>().join(", "))
    }

    /// True while this node has no connection to the coordination service.
    pub fn is_disconnected(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.connected)
    }

    /// Sets the members. Those that the daemon has seen, and that are not among them, are missing: it would notice that
    /// later.
    fn put_members(&mut self, queue: &Queue, read_at: Timestamp) {
        let listed: BTreeSet<&NodeName> = queue.members.iter().map(|member| &member.node).collect();
        self.missing.retain(|missing| !listed.contains(&missing.node));
        let seen = std::mem::replace(&mut self.members, queue.members.clone());
        let gone = seen.into_iter().filter(|member| !listed.contains(&member.node)).map(|mut member| {
            let place = queue.places.get(&member.node);
            member.published.draining |= place.is_some_and(|place| place.was_stopped(member.started_at));
            member
        });
        let last_seen = self.members_at;
        self.missing.extend(gone.map(|member| MissingMember::of(member, read_at, last_seen)));
        self.missing.sort_by(|a, b| a.node.cmp(&b.node));
    }

    fn put_candidates(&mut self, queue: &Queue) {
        self.learned(LedgerPart::Queue);
        let mut predecessor = None;
        self.queue.clear();
        // Who leads is first: a listing from before its election still has its predecessors.
        let own = self.role.token.and(self.role.candidate.as_ref());
        let from = own.and_then(|own| queue.candidates.iter().position(|queued| queued.candidate == *own));
        for entry in queue.candidates.iter().skip(from.unwrap_or(0)) {
            let queued = QueuedCandidate { candidate: entry.candidate.clone(), node: entry.node.clone(), predecessor };
            predecessor = Some(entry.candidate.clone());
            self.queue.push(queued);
        }
    }

    /// True if operators have drained every node that is alive, so that nobody leads.
    pub fn is_all_drained(&self) -> bool {
        !self.members.is_empty() && self.members.iter().all(|member| self.drained.contains_key(&member.node))
    }

    /// True if nobody can lead because the nodes that are alive and not drained never do.
    pub fn has_none_that_may_lead(&self) -> bool {
        let is_drained = |member: &Member| self.drained.contains_key(&member.node);
        let never_leads = |member: &Member| is_drained(member) || member.published.never_leads;
        !self.members.is_empty() && !self.is_all_drained() && self.members.iter().all(never_leads)
    }

    /// Why nobody leads, where it is known that nobody can: what was read before may have changed.
    pub fn why_nobody_leads(&self) -> Option<&'static str> {
        match self.unread {
            None if self.is_all_drained() => Some("every node is drained"),
            None if self.has_none_that_may_lead() => Some("no node that may lead is alive"),
            None | Some(_) => None,
        }
    }

    /// Sets the last end of each job as the ledger has it.
    ///
    /// What this node has seen end itself counts only while the ledger may not have it yet: after the read, or while
    /// the run is still recorded as in flight. Anything else that this node saw may have been followed by a run on
    /// another node. `is_old`: the ledger cannot be read now.
    pub fn put_lasts(&mut self, recorded: &RecordedEnds, is_old: bool) {
        let in_flight: BTreeMap<&RunId, &RunStatus> = self.runs.iter().map(|run| (&run.run, run)).collect();
        let (mut lasts, mut shares) = (InOrder::of(&recorded.lasts), InOrder::of(&recorded.shares));
        let (places, runs, now) = (&self.places, &self.runs, self.at);
        for job in &mut self.jobs {
            let last = lasts.get(&job.name);
            let known = shares.get(&job.name);
            let is_newer = |own: &LastRun| {
                let is_open = in_flight.get(&own.run).is_some_and(|run| run.is_ended_by(own));
                own.reported_at.is_some_and(|at| at >= recorded.read_at) || is_open
            };
            let own = job.last.as_deref().filter(|own| is_newer(own)).cloned();
            job.shares = match &own {
                Some(own) => LastShares::after(known, &own.clone().into(), now),
                None => known.cloned(),
            }
            // Another job has shares only where somebody named the nodes: its last end says all unless one has failed.
            .filter(|shares| job.run_on.as_deref() == Some(RunOn::Every.as_str()) || !shares.failed.is_empty())
            .map(|shares| {
                let mut shares = SharesStatus::from(shares);
                // What has been read of the places may be nothing yet.
                let is_known = |node: &NodeName| places.is_empty() || places.contains_key(node);
                shares.keep(is_known);
                if is_old && let Some(known) = known.cloned().map(SharesStatus::from) {
                    // Of a newer occurrence this node knows its own share alone.
                    shares.expect(known.ended().filter(|node| is_known(node)).cloned());
                } else if is_old {
                    let asked =
                        RunWhere(job.run_where.iter().filter_map(|text| Requirement::parse(text).ok()).collect());
                    let with = places.iter().filter(|(node, place)| asked.is_met_by(node, &place.labels));
                    shares.expect(with.map(|(node, _)| node.clone()));
                }
                let open = runs.iter().filter(|run| run.ended.is_none() && run.run.is_share_of(&shares.run));
                shares.open = open.filter_map(|run| run.run.node().cloned()).collect();
                Box::new(shares)
            });
            if own.is_none() {
                job.last = last.cloned().map(Box::new);
            }
        }
    }

    /// Marks the runs that have ended although the ledger still has them as in flight.
    pub fn mark_ended(&mut self) {
        let ended = self.jobs.iter().filter_map(|job| job.last.as_deref()).map(|last| (&last.run, last));
        let ended: BTreeMap<&RunId, &LastRun> = ended.collect();
        for run in &mut self.runs {
            let last = ended.get(&run.run).filter(|last| run.is_ended_by(last)).map(|last| last.outcome);
            run.ended = last.or(run.ended);
        }
    }

    /// Computes the next occurrences again if they have passed since the status was published.
    pub fn put_next(&mut self, jobs: &JobSet) {
        let now = self.at;
        for status in self.jobs.iter_mut().filter(|status| status.next.is_some_and(|next| next <= now)) {
            status.next = jobs.jobs.get(&status.name).and_then(|job| job.next_after(now));
        }
    }

    /// Sets which jobs have marks in the future.
    pub fn put_marks_ahead(&mut self, ahead: &BTreeMap<JobName, MarkAhead>) {
        let mut ahead = InOrder::of(ahead);
        for job in &mut self.jobs {
            job.error = ahead.get(&job.name).map(MarkAhead::to_string);
        }
    }

    /// Computes the next occurrences of jobs that are not due before their marks.
    pub fn put_next_after(&mut self, ahead: &BTreeMap<JobName, MarkAhead>, jobs: &JobSet) {
        let mut ahead = InOrder::of(ahead);
        for status in self.jobs.iter_mut().filter(|status| status.next.is_some()) {
            let counted = ahead.get(&status.name).filter(|ahead| !ahead.is_ignored);
            let job = counted.and_then(|ahead| Some((jobs.jobs.get(&status.name)?, ahead.mark)));
            if let Some((job, mark)) = job {
                status.next = job.next_after(mark);
            }
        }
    }

    /// Sets the runs in flight.
    pub fn put_runs(&mut self, runs: &[RunStatus]) {
        self.runs = runs.to_vec();
        let mut of_job: BTreeMap<JobName, Vec<&RunStatus>> = BTreeMap::new();
        for run in runs {
            of_job.entry(run.run.job().clone()).or_default().push(run);
        }
        let mut of_job = InOrder::of(&of_job);
        for job in &mut self.jobs {
            let runs = of_job.get(&job.name).into_iter().flatten();
            job.running = runs.clone().map(|run| run.run.clone()).collect();
            let cut_off = runs.filter(|run| run.state == RunState::CutOff);
            job.cut_off = cut_off.map(|run| run.run.clone()).collect();
        }
    }

    /// Sets the runs in flight as they were read from the ledger, now or, if `is_old`, before it could not be read.
    ///
    /// What this node knows of its own attempts counts more: the ledger learns later how they ended, and an old reading
    /// lacks those that began since, and still has those that have ended.
    pub fn put_read_runs(&mut self, read: &[RunStatus], is_old: bool) {
        let own = std::mem::take(&mut self.runs).into_iter().filter(|run| run.node == self.node);
        let mut own: BTreeMap<RunId, RunStatus> = own.map(|run| (run.run.clone(), run)).collect();
        let mut runs: Vec<RunStatus> = read
            .iter()
            .filter_map(|read| match own.remove(&read.run) {
                Some(known) if is_old && known.attempt >= read.attempt => Some(known),
                Some(known)
                    if read.state == known.state && (&read.node, read.attempt) == (&known.node, known.attempt) =>
                {
                    Some(RunStatus { ended: known.ended.or(read.ended), ..read.clone() })
                }
                None if is_old && read.node == self.node && read.state == RunState::Running => None,
                _ => Some(read.clone()),
            })
            .collect();
        if is_old {
            runs.extend(own.into_values());
        }
        self.put_runs(&runs);
    }

    /// Sets which jobs are paused.
    pub fn put_paused(&mut self, paused: &BTreeMap<JobName, Pause>) {
        let mut paused = InOrder::of(paused);
        for job in &mut self.jobs {
            job.paused = paused.get(&job.name).cloned().map(Box::new);
        }
    }

    /// Sets which jobs no node can run, and why.
    pub fn put_unplaceable(&mut self, unplaceable: &BTreeMap<JobName, String>) {
        let mut unplaceable = InOrder::of(unplaceable);
        for job in &mut self.jobs {
            job.unplaceable = unplaceable.get(&job.name).cloned();
        }
    }

    /// Sets the active alarms.
    pub fn put_alarms(&mut self, alarms: &BTreeMap<JobName, Vec<AlarmStatus>>) {
        let mut alarms = InOrder::of(alarms);
        for job in &mut self.jobs {
            job.alarms = alarms.get(&job.name).cloned().unwrap_or_default();
        }
    }

    /// Sets what was shown of jobs before: which upstreams they wait for, and that their marks are in the future.
    pub fn put_jobs_as_shown(&mut self, shown: &[JobStatus]) {
        let shown: BTreeMap<&JobName, &JobStatus> = shown.iter().map(|job| (&job.name, job)).collect();
        for job in &mut self.jobs {
            let Some(before) = shown.get(&job.name) else { continue };
            job.waits_for.clone_from(&before.waits_for);
            if before.error.is_some() {
                (job.error, job.next) = (before.error.clone(), before.next);
            }
        }
    }

    /// Sets the upstreams that jobs still wait for, given the links that have arrived.
    pub fn put_links<'a>(&mut self, links: impl Iterator<Item = &'a Link>) {
        let mut arrived: BTreeMap<JobName, BTreeMap<RunId, BTreeSet<&JobName>>> = BTreeMap::new();
        for link in links {
            let run = link.run();
            let of_job = arrived.entry(run.job().clone()).or_default();
            of_job.entry(run).or_default().insert(&link.upstream);
        }
        let mut arrived = InOrder::of(&arrived);
        for job in &mut self.jobs {
            let of_job = arrived.get(&job.name).into_iter().flat_map(BTreeMap::values);
            let missing = of_job.flat_map(|arrived| job.after.keys().filter(|upstream| !arrived.contains(upstream)));
            let missing: BTreeSet<&JobName> = missing.collect();
            job.waits_for = missing.into_iter().cloned().collect();
        }
    }

    /// The members that differ from the leader, or from this node while nobody leads.
    fn differing(&self) -> Vec<NodeName> {
        let reference = self.role.leader_node.as_ref().unwrap_or(&self.node);
        let Some(reference) = self.members.iter().find(|member| member.node == *reference) else { return Vec::new() };
        let reference = &reference.published;
        let differs = |member: &&Member| {
            member.published.has_other_jobs_than(reference) || member.published.has_other_zones_than(reference)
        };
        self.members.iter().filter(differs).map(|member| member.node.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Role, sample};
    use cronkeeper_core::election::{Place, Published};
    use cronkeeper_core::run::Outcome;

    /// The leader's status, and one end of its first job.
    fn with_end() -> (Status, LastRun) {
        let status = sample::leader();
        let last = status.jobs[0].last.as_deref().cloned().unwrap();
        (status, last)
    }

    fn recorded(last: &LastRun, read_at: Uptime) -> RecordedEnds {
        let lasts = [(last.run.job().clone(), last.clone())].into();
        RecordedEnds { lasts, shares: BTreeMap::new(), successes: BTreeMap::new(), read_at }
    }

    #[test]
    fn the_ledger_knows_the_last_end_better_than_a_node_that_ran_the_job_earlier() {
        let at = |seconds| Uptime::ZERO + std::time::Duration::from_secs(seconds);
        let (mut status, last) = with_end();
        let failed = LastRun { outcome: Outcome::Failure, node: NodeName::new("host-c"), ..last.clone() };
        status.jobs[0].last = Some(Box::new(LastRun { reported_at: Some(at(9)), ..last.clone() }));
        status.put_lasts(&recorded(&failed, at(10)), false);
        assert_eq!(status.jobs[0].last.as_deref(), Some(&failed));
        let own = LastRun { reported_at: Some(at(10)), ..last };
        status.jobs[0].last = Some(Box::new(own.clone()));
        status.put_lasts(&recorded(&failed, at(10)), false);
        assert_eq!(status.jobs[0].last.as_deref(), Some(&own), "it may have ended after the read");
    }

    #[test]
    fn a_share_that_succeeded_last_does_not_hide_one_that_failed() {
        let (mut status, last) = with_end();
        let whole = last.run.clone();
        let end = |node: &str, outcome| {
            let run = whole.clone().on(Some(NodeName::new(node)));
            LastRun { run, node: NodeName::new(node), outcome, reported_at: None, ..last.clone() }
        };
        let at = sample::at("2026-11-20T03:00:00Z");
        let ends = [end("host-c", Outcome::Failure), end("gone", Outcome::Failure), end("host-b", Outcome::Success)];
        let shares = ends.iter().fold(None, |shares, end| LastShares::after(shares.as_ref(), &end.clone().into(), at));
        let shares = [(whole.job().clone(), shares.unwrap())].into();
        let mut read = RecordedEnds { shares, ..recorded(&ends[2], Uptime::ZERO) };
        status.places = sample::places();
        (status.jobs[0].last, status.jobs[0].run_on) = (None, Some("every".into()));
        let waits = RunStatus { run: whole.clone().on(Some(NodeName::new("host-a"))), ..status.runs[0].clone() };
        status.runs.push(waits);
        status.put_lasts(&read, false);
        let job = &status.jobs[0];
        let shares = job.shares.as_deref().expect("it runs on every node");
        assert_eq!(job.last.as_ref().map(|last| last.outcome), Some(Outcome::Success));
        assert_eq!(job.telling_end().map(|end| end.node.as_str()), Some("host-c"));
        assert_eq!(
            (shares.in_words().as_str(), job.is_failing()),
            ("1 of 3 ok", true),
            "one of a forgotten node is none"
        );

        // What has ended here a moment ago is not on record yet.
        let own = LastRun { reported_at: Some(Uptime::ZERO), ..end("host-a", Outcome::Timeout) };
        status.jobs[0].last = Some(Box::new(own));
        status.put_lasts(&read, false);
        let shares = status.jobs[0].shares.as_deref().expect("it runs on every node");
        assert_eq!(
            (shares.in_words(), shares.nodes_in_words()),
            ("1 of 3 ok".to_owned(), "host-a and 1 more".to_owned())
        );

        // A newer occurrence, of which only this node's share is known.
        let next = RunId::scheduled(whole.job().clone(), whole.scheduled_at() + std::time::Duration::from_secs(60));
        let newer = LastRun { run: next.on(Some(NodeName::new("host-a"))), ..end("host-a", Outcome::Success) };
        let mut cut_off = status.clone();
        cut_off.runs.clear();
        cut_off.jobs[0].last = Some(Box::new(LastRun { reported_at: Some(Uptime::ZERO), ..newer }));
        cut_off.put_lasts(&read, true);
        let shares = cut_off.jobs[0].shares.as_deref().expect("it runs on every node");
        assert_eq!(
            (shares.in_words(), shares.nodes_in_words()),
            ("1 of 3 ok, 2 not known".to_owned(), "3 nodes".to_owned())
        );

        read.shares.get_mut(whole.job()).unwrap().failed.clear();
        status.jobs[0].last = None;
        status.put_lasts(&read, false);
        assert!(!status.jobs[0].is_failing() && status.jobs[0].shares.is_some());
        status.jobs[0].run_on = None;
        status.put_lasts(&read, false);
        assert_eq!(status.jobs[0].shares, None, "somebody named the nodes of a run");
    }

    #[test]
    fn a_job_that_no_node_can_run_is_known_to_whoever_reads_the_nodes() {
        let yaml = "jobs:\n  \
            gpu: {schedule: '@daily', command: 'true', run_on: any, run_where: gpu}\n  \
            old: {schedule: '@daily', command: 'true', run_on: every, run_where: old}\n  \
            off: {schedule: '@daily', command: 'true', run_on: any, run_where: old, enabled: false}\n";
        let (set, _) = crate::config::parse("jobs.yaml", yaml.as_bytes()).unwrap();
        let mut queue = sample::queue();
        queue.members.iter_mut().for_each(|member| member.published.places = cronkeeper_core::election::PLACES);
        let unplaceable = |places: &BTreeMap<NodeName, cronkeeper_core::election::Place>, queue: &Queue| {
            let found =
                cronkeeper_core::engine::unplaceable(set.jobs.values().map(|job| &**job), places, &queue.members);
            found.into_iter().map(|(job, why)| format!("{job}: {why}")).collect::<Vec<_>>()
        };
        let old = "old: no node has old (host-a: gpu zone=eu; host-b: none; host-c: db)";
        assert_eq!(unplaceable(&sample::places(), &queue), [old]);
        queue.members.remove(0);
        let gpu = "gpu: no node with gpu can take it: host-a is away";
        assert_eq!(unplaceable(&sample::places(), &queue), [gpu, old]);
        assert!(unplaceable(&BTreeMap::new(), &queue).is_empty(), "without a cluster");
    }

    #[test]
    fn a_run_that_has_ended_is_not_shown_as_running_while_its_end_is_not_recorded() {
        let (mut status, last) = with_end();
        let run = status.runs[0].run.clone();
        let node = status.runs[0].node.clone();
        let last = LastRun { run: run.clone(), node, ..last };
        let own = LastRun { outcome: Outcome::Interrupted, reported_at: Some(Uptime::ZERO), ..last };
        status.jobs[1].last = Some(Box::new(own.clone()));
        let later = Uptime::ZERO + std::time::Duration::from_secs(9);
        status.put_lasts(&RecordedEnds::read(BTreeMap::new(), later), false);
        status.mark_ended();
        assert_eq!((status.jobs[1].last.as_deref(), status.runs[0].ended), (Some(&own), Some(Outcome::Interrupted)));
        assert_eq!(status.jobs[0].last, None, "the ledger has no end of that job");
    }

    #[test]
    fn an_end_of_an_earlier_attempt_is_not_the_end_of_the_next_ones() {
        let (mut status, last) = with_end();
        status.runs[0].attempt = 2;
        let (run, node) = (status.runs[0].run.clone(), status.runs[0].node.clone());
        status.jobs[1].last = Some(Box::new(LastRun { run, node, reported_at: Some(Uptime::ZERO), ..last }));
        let later = Uptime::ZERO + std::time::Duration::from_secs(9);
        status.put_lasts(&RecordedEnds::read(BTreeMap::new(), later), false);
        status.mark_ended();
        assert_eq!((&status.jobs[1].last, status.runs[0].ended), (&None, None));
    }

    #[test]
    fn an_old_reading_shows_no_run_of_this_node_that_it_no_longer_has() {
        let (status, _) = with_end();
        let own = RunStatus { node: status.node.clone(), state: RunState::Running, ..status.runs[0].clone() };
        let others = RunStatus { node: NodeName::new("host-z"), ..own.clone() };
        let cut_off = RunStatus { state: RunState::CutOff, ..own.clone() };
        for (read, is_old, is_shown) in
            [(&own, true, false), (&own, false, true), (&others, true, true), (&cut_off, true, true)]
        {
            let mut status = Status { runs: Vec::new(), ..status.clone() };
            status.put_read_runs(std::slice::from_ref(read), is_old);
            assert_eq!(!status.runs.is_empty(), is_shown, "{read:?}, old: {is_old}");
        }
    }

    #[test]
    fn a_listing_that_is_older_does_not_contradict_a_node_that_leads() {
        let mut status = sample::leader();
        let mut queue = sample::queue();
        queue.candidates.remove(0);
        queue.leader = None;
        status.put_queue(&queue);
        assert_eq!(status.role.leader_node, Some(status.node.clone()));
        let mut earlier = sample::queue();
        earlier.candidates.swap(0, 2);
        status.put_queue(&earlier);
        let first = status.queue.first().map(|first| (first.node.clone(), first.predecessor.clone()));
        assert_eq!(first, Some((Some(status.node.clone()), None)), "its predecessors are gone");
        status.role = Role::default();
        status.put_queue(&queue);
        assert_eq!(status.role.leader_node, None, "the first entry is not cronkeeper's");
        status.put_queue(&sample::queue());
        assert_eq!(status.role.leader_node, None, "it no longer leads, or does not lead yet");
        status.role.leader_node = Some(NodeName::new("host-c"));
        status.put_queue(&sample::queue());
        assert_eq!(status.role.leader_node, Some(NodeName::new("host-c")), "it follows again since the listing");
        status.node = NodeName::new("host-b");
        status.put_queue(&sample::queue());
        assert_eq!(status.role.leader_node, Some(NodeName::new("host-a")));
    }

    /// A follower's status: it knows that host-a leads.
    fn follower() -> Status {
        let mut status = sample::leader();
        status.node = NodeName::new("host-b");
        (status.state, status.role.token) = (NodeState::Following, None);
        status
    }

    #[test]
    fn an_old_listing_names_no_leader() {
        let (read_at, since) = (sample::at("2026-11-20T02:59:30Z"), sample::at("2026-11-20T02:59:31Z"));
        let host_a = |unknown_since| Some(LastLeader { node: NodeName::new("host-a"), unknown_since });
        let mut status = follower();
        status.put_old_queue(&sample::queue(), read_at, since);
        assert_eq!((&status.role.leader_node, &status.role.last_leader), (&None, &host_a(since)));
        assert_eq!((status.queue.len(), status.members.len()), (3, 2), "what it held is shown");
        assert!(status.knows(LedgerPart::Queue));

        // The daemon has lost the connection later, or earlier, than the first read has failed.
        let (later, earlier) = (sample::at("2026-11-20T02:59:40Z"), sample::at("2026-11-20T02:59:20Z"));
        for (lost_at, unknown_since) in [(later, later), (earlier, since)] {
            let mut status = follower();
            (status.role.leader_node, status.role.last_leader) = (None, host_a(lost_at));
            status.put_old_queue(&sample::queue(), read_at, since);
            assert_eq!(status.role.last_leader, host_a(unknown_since), "{lost_at}");
        }

        // A drained node learns who leads from listings alone.
        let mut status = follower();
        status.role = Role::default();
        status.put_old_queue(&sample::queue(), read_at, since);
        assert_eq!(status.role.last_leader, host_a(since));

        let mut leader = sample::leader();
        leader.put_old_queue(&sample::queue(), read_at, since);
        assert_eq!(leader.role.leader_node, Some(leader.node.clone()), "its lease says so");
    }

    #[test]
    fn what_the_daemon_has_seen_since_counts_more_than_an_old_listing() {
        let (read_at, since) = (sample::at("2026-11-20T02:50:00Z"), sample::at("2026-11-20T02:59:31Z"));
        let (mut status, mut queue) = (follower(), sample::queue());
        let mut forgotten = status.clone();
        forgotten.missing.push(sample::missing("host-c"));
        forgotten.put_old_queue(&queue, read_at, since);
        assert_eq!(forgotten.missing.len(), 0, "no place of it was listed");
        status.members_at = Some(sample::at("2026-11-20T02:59:30Z"));
        queue.members.remove(0);
        status.put_old_queue(&queue, read_at, since);
        assert_eq!((status.members.len(), status.missing.len()), (2, 0), "it is back since the listing");

        let mut leader = sample::leader();
        queue.candidates.retain(|queued| Some(&queued.candidate) != leader.role.candidate.as_ref());
        leader.put_old_queue(&queue, read_at, since);
        let first: Vec<_> = leader.queue.iter().map(|queued| queued.node.clone()).collect();
        assert_eq!(first, [Some(leader.node.clone())], "those before it are gone");
    }

    #[test]
    fn who_leads_is_not_known_if_nothing_was_ever_read_either() {
        let since = sample::at("2026-11-20T02:59:31Z");
        let mut status = follower();
        status.forget_leader(since);
        status.forget_leader(sample::at("2026-11-20T02:59:50Z"));
        let last = LastLeader { node: NodeName::new("host-a"), unknown_since: since };
        assert_eq!((status.role.leader_node, status.role.last_leader), (None, Some(last)));
        let mut status = follower();
        status.role = Role::default();
        status.forget_leader(since);
        assert_eq!(status.role.last_leader, None, "nobody has led as far as it knows");
    }

    #[test]
    fn a_member_that_is_not_listed_any_more_is_missing_before_the_daemon_notices() {
        let seen = |second: u8| sample::at(&format!("2026-11-20T02:59:{second:02}Z"));
        let mut queue = sample::queue();
        let mut status = follower();
        status.members_at = Some(seen(30));
        let gone = queue.members.remove(0);
        status.put_queue_of(&queue, seen(45));
        let missing = MissingMember::of(gone, seen(45), Some(seen(30)));
        assert_eq!((status.members.len(), &status.missing), (1, &vec![missing]));
        status.put_queue_of(&sample::queue(), seen(46));
        assert_eq!((status.members.len(), status.missing.len()), (2, 0), "it is back");

        let mut status = follower();
        status.members_at = Some(seen(50));
        status.put_queue_of(&queue, seen(45));
        assert_eq!((status.members.len(), status.missing.len()), (2, 0), "the daemon has read the members since");
    }

    #[test]
    fn a_member_that_is_not_listed_any_more_was_stopped_if_its_place_says_so_of_that_process() {
        let mut queue = sample::queue();
        let gone = queue.members.remove(0);
        for (stopped, is_stopped) in
            [(None, false), (Some(Timestamp::UNIX_EPOCH), false), (Some(gone.started_at), true)]
        {
            queue.places = [(gone.node.clone(), Place { stopped, ..Default::default() })].into();
            let mut status = follower();
            status.members_at = Some(status.at);
            status.put_queue(&queue);
            assert_eq!(status.missing.iter().map(|missing| missing.stopped).collect::<Vec<_>>(), [is_stopped]);
        }
    }

    #[test]
    fn the_first_of_the_queue_is_not_shown_as_the_leader_before_it_leads() {
        let mut queue = sample::queue();
        queue.leader = None;
        let mut status = follower();
        status.put_queue(&queue);
        assert_eq!(status.role.leader_node, None);
        assert_eq!(status.role.last_leader.map(|last| last.node), Some(NodeName::new("host-a")));
        let mut status = follower();
        status.put_old_queue(&queue, status.at, status.at);
        assert_eq!(status.role.last_leader.map(|last| last.node), Some(NodeName::new("host-a")), "it was, as reported");
        let mut unknown = follower();
        unknown.role = Role::default();
        unknown.put_old_queue(&queue, unknown.at, unknown.at);
        assert_eq!(unknown.role.last_leader, None, "nobody has led");
    }

    #[test]
    fn a_node_that_was_forgotten_is_not_missing() {
        let mut queue = sample::queue();
        queue.places = sample::places();
        let mut gone = queue.members.remove(1);
        gone.published.places = cronkeeper_core::election::PLACES;
        let mut status = follower();
        status.members.clone_from(&queue.members);
        status.missing = vec![MissingMember::of(gone.clone(), sample::at("2026-11-20T02:59:45Z"), None)];
        status.members_at = Some(status.at);
        status.put_queue(&queue);
        assert_eq!(status.missing.len(), 1);
        queue.places.remove(&gone.node);
        status.put_queue(&queue);
        assert_eq!(status.missing, []);

        // One of a version that knows no places has no record that could go.
        gone.published.places = 0;
        status.missing = vec![MissingMember::of(gone, sample::at("2026-11-20T02:59:45Z"), None)];
        status.put_queue(&queue);
        assert_eq!(status.missing.len(), 1);
    }

    #[test]
    fn an_occurrence_that_has_passed_is_not_the_next_one() {
        let mut status = sample::leader();
        let yaml = b"jobs:\n  load: {schedule: '* * * * *', command: 'true'}\n";
        let (loaded, _) = crate::config::parse("jobs.yaml", yaml).unwrap();
        status.at = sample::at("2026-11-20T03:01:30Z");
        status.put_next(&loaded);
        assert_eq!(status.jobs[1].next, Some(sample::at("2026-11-20T03:02:00Z")));
        assert_eq!(status.jobs[0].next, Some(sample::at("2026-11-21T01:30:00Z")), "it has not passed");
    }

    #[test]
    fn a_node_with_another_priority_or_that_drains_does_not_count_as_drift() {
        let mut queue = sample::queue();
        let same = queue.members[0].published.clone();
        queue.members[1].published = Published { priority: 10, draining: true, jobs_invalid: true, ..same.clone() };
        let mut status = sample::leader();
        status.put_queue(&queue);
        assert_eq!(status.drift, []);
        queue.members[1].published.tzdata = "2024a".into();
        status.put_queue(&queue);
        assert_eq!(status.drift, [queue.members[1].node.clone()]);
    }
}
