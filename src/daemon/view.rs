//! The node's state as shown to operators.
//!
//! It holds the last known facts of the election, the state of the jobs file, and how each job ended last. It only
//! informs people: no decision depends on it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use super::cluster_watch::Seen;
use super::drift::{Drift, DriftNews};
use super::members::{MemberNews, Members};
use super::next_times::NextTimes;
use super::reload::Reloaded;
use crate::config::LoadError;
use crate::status::{
    AlarmStatus, Confinement, InOrder, JobStatus, JobsFile, LastLeader, LastRun, LedgerPart, MissingMember, NodeState,
    Role, RunStatus, Session, Status,
};
use cronkeeper_core::clock::{Now, Uptime};
use cronkeeper_core::election::{Event as Election, Member, Place, Published, Worth};
use cronkeeper_core::engine::{Engine, Report};
use cronkeeper_core::job::{JobName, JobSet};
use cronkeeper_core::ledger::LastEnd;
use cronkeeper_core::run::Drain;
use cronkeeper_core::schedule::{self, Schedule};
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::{FencingToken, NodeName};

/// What a node outside the queue waits for.
const QUEUE_POSITION: &str = "a place in the queue";

/// What is new about other nodes, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NodeNews {
    Member(MemberNews),
    Drift(DriftNews),
}

/// Collects what [`Status`] shows.
#[derive(Debug)]
pub struct View {
    node: NodeName,
    backend: &'static str,
    started_at: Timestamp,
    file: JobsFile,
    confinement: Confinement,
    role: Role,
    /// It is never in the queue.
    never_leads: bool,
    /// The leader that was known last; while none is, also since when.
    last_leader: Option<(NodeName, Option<Timestamp>)>,
    session: Option<Session>,
    service: Option<Worth>,
    /// When the session's lease ends; absent if it has none, or none that ends.
    lease_until: Option<Uptime>,
    /// Why the connection is lost, if the service says so.
    lost_by: Option<String>,
    /// What the node needs before it can take part.
    awaiting: Option<String>,
    /// An operation that has been failing for some seconds and is being retried.
    stalled: Option<String>,
    /// Paths that cannot be read, written or trusted, each with the reason.
    damaged: Vec<String>,
    members: Members,
    /// When the node got its session, and how long that lasts in silence.
    session_began: Option<(Uptime, Duration)>,
    /// The node before this one when it became the leader, as far as it knew.
    led_before: Option<NodeName>,
    /// The term in which the members were read last; absent if the node did not lead then.
    surveyed_in: Option<FencingToken>,
    /// The connection was lost since then: nobody's end was noticed meanwhile.
    was_away: bool,
    /// The last ends that this node has seen itself.
    last: BTreeMap<JobName, LastRun>,
    /// Who drained this node, when and why; absent while it is not drained.
    drained: Option<Drain>,
    /// The places that the cluster knows, as this node has read them as the leader.
    places: BTreeMap<NodeName, Place>,
    /// The differences that were already reported.
    drifting: Vec<Drift>,
    next_times: NextTimes,
}

impl View {
    /// Creates the view of a node that has just loaded its jobs.
    pub fn new(node: NodeName, backend: &'static str, path: PathBuf, jobs: &JobSet, now: Now) -> Self {
        let file = JobsFile {
            path: path.display().to_string(),
            digest: jobs.digest.clone(),
            valid: true,
            errors: Vec::new(),
            loaded_at: now.wall,
            last_good: false,
        };
        Self {
            node,
            backend,
            started_at: now.wall,
            file,
            confinement: Confinement::default(),
            role: Role::default(),
            never_leads: false,
            last_leader: None,
            session: None,
            service: None,
            lease_until: None,
            lost_by: None,
            awaiting: Some(format!("a session with {backend}")),
            stalled: None,
            damaged: Vec::new(),
            members: Members::default(),
            session_began: None,
            led_before: None,
            surveyed_in: None,
            was_away: false,
            last: BTreeMap::new(),
            drained: None,
            places: BTreeMap::new(),
            drifting: Vec::new(),
            next_times: NextTimes::default(),
        }
    }

    /// Records that the jobs file was rejected at the start, and that the jobs are those of the copy of `at`.
    pub fn started_with_copy(&mut self, error: &LoadError, at: Timestamp) {
        self.file.valid = false;
        self.file.errors = error.lines();
        self.file.loaded_at = at;
        self.file.last_good = true;
    }

    /// When the copy was made whose jobs the node uses, since its jobs file was rejected at the start.
    pub(super) fn last_good(&self) -> Option<Timestamp> {
        self.file.last_good.then_some(self.file.loaded_at)
    }

    /// Sets how the node's runs are kept together and limited.
    pub fn confined(&mut self, confinement: Confinement) {
        self.confinement = confinement;
    }

    /// The node is never in the queue.
    pub fn never_leads(&mut self) {
        self.never_leads = true;
    }

    /// The path of the jobs file or directory.
    pub(super) fn path(&self) -> &str {
        &self.file.path
    }

    /// Records the result of reading the jobs file again.
    pub(super) fn reloaded(&mut self, now: Now, reloaded: &Reloaded) {
        match reloaded {
            Ok(loaded) => {
                self.last.retain(|job, _| loaded.set.jobs.contains_key(job));
                self.next_times.clear();
                self.file.digest = loaded.set.digest.clone();
                self.file.valid = true;
                self.file.last_good = false;
                self.file.errors.clear();
                self.file.loaded_at = now.wall;
            }
            Err(error) => {
                self.file.valid = false;
                self.file.errors = error.lines();
            }
        }
    }

    /// Records an event of the election. Returns what is new about other nodes.
    pub(super) fn elected(&mut self, now: Now, event: &Election, jobs: &JobSet) -> Vec<NodeNews> {
        if let Election::Elected { .. } = event {
            self.led_before = self.predecessor().filter(|node| *node != self.node);
        }
        let news = self.take(now, event, jobs);
        if let Some(leader) = self.leader() {
            self.last_leader = Some((leader.clone(), None));
        } else if let Some((_, unknown_since)) = &mut self.last_leader {
            unknown_since.get_or_insert(now.wall);
        }
        news
    }

    /// Who led until now: the leader, if this node was right behind it in the queue. Of others that were ahead, nobody
    /// saw which of them have led since; a handover lets them go in one step. If it has no place in the queue, who led
    /// when that was last known.
    fn predecessor(&self) -> Option<NodeName> {
        let Role { predecessor, predecessor_node, leader_node, .. } = &self.role;
        match predecessor {
            Some(_) => predecessor_node.clone().filter(|node| leader_node.as_ref() == Some(node)),
            None => self.last_leader.as_ref().map(|(node, _)| node.clone()),
        }
    }

    /// Which node led before this one; absent if it does not know.
    pub(super) fn led_before(&self) -> Option<&NodeName> {
        self.led_before.as_ref()
    }

    /// The leader, if it is known now: what was read before the connection was lost may be over.
    fn leader(&self) -> Option<&NodeName> {
        let leader = self.role.leader_node.as_ref().filter(|_| !self.role.is_first);
        leader.filter(|_| self.is_connected() || self.role.token.is_some())
    }

    fn is_connected(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.connected)
    }

    /// The role as it is shown.
    fn shown_role(&self) -> Role {
        let leader_node = self.leader().cloned();
        let last_leader = self.last_leader.as_ref().filter(|_| leader_node.is_none());
        let last_leader = last_leader.and_then(|(node, unknown_since)| {
            Some(LastLeader { node: node.clone(), unknown_since: (*unknown_since)? })
        });
        Role { leader_node, last_leader, ..self.role.clone() }
    }

    fn take(&mut self, now: Now, event: &Election, jobs: &JobSet) -> Vec<NodeNews> {
        match event {
            Election::Session { id, timeout } => {
                self.session_began = Some((now.up, *timeout));
                let timeout_ms = cronkeeper_core::run::millis(*timeout);
                let since = now.wall;
                let session = Session { id: id.clone(), timeout_ms, connected: true, since, lease_remaining_ms: None };
                (self.session, self.lease_until) = (Some(session), None);
                self.awaiting = Some(QUEUE_POSITION.to_owned());
            }
            Election::Examined(worth) => self.service = Some(worth.clone()),
            Election::Joined { candidate } => self.role.candidate = Some(candidate.clone()),
            Election::Following { candidate, predecessor, predecessor_node, leader_node } => {
                self.awaiting = None;
                self.role = Role {
                    candidate: Some(candidate.clone()),
                    predecessor: Some(predecessor.clone()),
                    predecessor_node: predecessor_node.clone(),
                    leader_node: leader_node.clone(),
                    ..Role::default()
                };
            }
            Election::First => self.role.is_first = true,
            Election::Observing { leader_node } => {
                self.role = Role { leader_node: leader_node.clone(), ..Role::default() };
                self.awaiting = self.awaited_of_session();
            }
            Election::Elected { term, lease_until, .. } => {
                self.awaiting = None;
                self.role = Role {
                    candidate: Some(term.candidate.clone()),
                    leader_node: Some(self.node.clone()),
                    token: Some(term.token),
                    term_since: Some(now.wall),
                    ..Role::default()
                };
                self.lease(*lease_until);
            }
            Election::Lease { until } => self.lease(*until),
            Election::Over { .. } | Election::Withdrawn => {
                // Who never leads is in no queue that it could leave.
                let leader_node = self.role.leader_node.take().filter(|_| self.never_leads);
                self.role = Role { leader_node, ..Role::default() };
                self.awaiting = self.awaited_of_session();
            }
            Election::Suspended { error, .. } => {
                self.lost_by.clone_from(error);
                self.was_away = true;
                self.connected(now, false);
            }
            Election::Resumed { .. } => self.connected(now, true),
            Election::Expired { .. } => {
                (self.session, self.lease_until) = (None, None);
                self.role = Role::default();
                self.awaiting = Some(format!("a session with {}", self.backend));
            }
            Election::Unreachable { error, .. } => self.awaiting = Some(format!("{}: {error}", self.backend)),
            Election::Stalled(failing) => self.stalled.clone_from(failing),
            Election::Damaged { all, .. } => self.damaged.clone_from(all),
            Election::Failed(failure) => self.awaiting = Some(failure.to_string()),
            Election::Wanted(wanted) => self.drained.clone_from(&wanted.drained),
            Election::Places(places) => self.places.clone_from(places),
            Election::Stopped(node) => self.members.stopped(node),
            Election::Members(members) => return self.compare(now, members, jobs),
            Election::Left | Election::NotTransferred { .. } | Election::Time(_) => {}
        }
        Vec::new()
    }

    /// Records a report of the engine.
    pub(super) fn reported(&mut self, now: Now, report: &Report) {
        if let Report::Finished(end) = report {
            let last = LastRun { reported_at: Some(now.up), ..LastEnd::from(end.as_ref()).into() };
            self.last.insert(end.run.job.clone(), last);
        }
    }

    /// What the node sees of its cluster, for the hooks of the node.
    pub(super) fn seen(&self) -> Seen {
        let is_connected = self.session.as_ref().is_none_or(|session| session.connected);
        // Which nodes are forgotten the leader knows once it has read the places.
        let is_awaited = |missing: &&MissingMember| self.places.is_empty() || !missing.is_forgotten(&self.places);
        let missing = self.members.missing.iter().filter(is_awaited);
        let missing = missing.map(|missing| (missing.node.clone(), missing.gone_since));
        Seen {
            leader: self.leader().filter(|leader| is_connected && self.is_alive(leader)).cloned(),
            others_tell: is_connected && self.is_kept_out() && self.has_others_in_line(),
            token: self.role.token,
            missing: missing.collect(),
            rejected: (!self.file.valid).then(|| self.file.errors.first().cloned().unwrap_or_default()),
            drift: self.differing().into_iter().collect(),
        }
    }

    /// False if the node was read to be gone: until another leads, a follower shows the last leader.
    fn is_alive(&self, node: &NodeName) -> bool {
        self.members.alive.is_empty() || self.members.alive.iter().any(|member| member.node == *node)
    }

    /// A one-line summary of the state, shown by `systemctl status`.
    pub(super) fn summary(&self, engine: &Engine) -> String {
        if engine.is_ending() {
            return format!("draining, {} left", counted(engine.own_runs(), "run"));
        }
        let role = match (self.is_kept_out(), engine.own_runs()) {
            (true, 0) => "drained: does not lead".to_owned(),
            (true, runs) => format!("drained: does not lead; {} left", counted(runs, "run")),
            (false, _) => self.role_in_words(engine),
        };
        if self.file.valid {
            return role;
        }
        let used = if self.file.last_good { "using the last good jobs" } else { "keeping the jobs loaded before" };
        format!("{role}; the jobs file is INVALID, {used}")
    }

    fn role_in_words(&self, engine: &Engine) -> String {
        match (engine.term(), self.leader(), &self.awaited()) {
            (Some(_), _, Some(awaiting)) => format!("leading, but waiting for {awaiting}"),
            (Some(term), _, None) => {
                let jobs = counted(engine.jobs().jobs.len(), "job");
                format!("leading, token {}, {jobs}", term.token)
            }
            (None, _, Some(awaiting)) => format!("waiting for {awaiting}"),
            (None, Some(leader), None) if self.never_leads => format!("never leads, the leader is {leader}"),
            (None, None, None) if self.never_leads => "never leads, and no other node leads now".to_owned(),
            (None, Some(leader), None) => format!("following, the leader is {leader}"),
            (None, None, None) => "following, no node leads now".to_owned(),
        }
    }

    /// True if all that the node lacks is that it be undrained.
    fn is_kept_out(&self) -> bool {
        let is_in_place = match self.awaiting.as_deref() {
            Some(awaiting) => awaiting == QUEUE_POSITION,
            None => self.never_leads,
        };
        self.drained.is_some() && is_in_place
    }

    /// True if another node is alive that may lead.
    fn has_others_in_line(&self) -> bool {
        self.members.alive.iter().any(|member| member.node != self.node && member.published.may_lead())
    }

    /// What keeps the node from being ready: it cannot take part yet, or an operation keeps failing.
    fn awaited(&self) -> Option<String> {
        if self.is_kept_out() {
            return Some(format!("`cronkeeper undrain {}` by an operator", self.node));
        }
        self.awaiting.clone().or_else(|| self.stalled.clone())
    }

    /// The whole status, including what the engine knows.
    pub fn status(&mut self, now: Now, engine: &Engine) -> Status {
        let marks = engine.marks_after(now.wall).map(|(job, mark)| (job.clone(), mark)).collect();
        let next_times = self.next_times.of_all(engine.jobs(), now.wall, &marks);
        let mut lasts = InOrder::of(&self.last);
        let jobs = engine.jobs().jobs.values().zip(next_times).map(|(job, next)| {
            let last = lasts.get(&job.name).cloned().map(Box::new);
            JobStatus { last, next, ..of_definition(job) }
        });
        let state = match (engine.is_ending(), engine.term(), &self.awaiting) {
            (true, _, _) => NodeState::Draining,
            (false, Some(_), _) if engine.is_settled() => NodeState::Leading,
            (false, Some(_), _) => NodeState::TakingOver,
            (false, None, _) if self.is_kept_out() => NodeState::Drained,
            (false, None, None) => NodeState::Following,
            (false, None, Some(_)) => NodeState::Joining,
        };
        let awaiting = match engine.is_ending() {
            true => Some(format!("the end of {}, and then stops", counted(engine.own_runs(), "run"))),
            false => self.awaited(),
        };
        let mut status = Status {
            v: 1,
            at: now.wall,
            node: self.node.clone(),
            backend: self.backend.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            state,
            ready: awaiting.is_none(),
            awaiting,
            role: self.shown_role(),
            session: self.session.clone(),
            service: self.service.clone(),
            confinement: self.confinement.clone(),
            jobs_file: self.file.clone(),
            clock_skew_ms: engine.skew(now).map(|skew| i64::try_from(skew.as_millis()).unwrap_or_default()),
            jobs: jobs.collect(),
            runs: Vec::new(),
            queue: Vec::new(),
            members: self.members.alive.clone(),
            members_at: self.members.read_at,
            missing: self.members.missing.clone(),
            drained: self.drained.iter().map(|drain| (self.node.clone(), drain.clone())).collect(),
            places: self.places.clone(),
            suspects: engine.suspects().cloned().collect(),
            failing_channels: Vec::new(),
            drift: self.differing(),
            unread: None,
            read_at: None,
            parts_read_at: BTreeMap::new(),
            unknown: LedgerPart::ALL.to_vec(),
            damaged: self.damaged.clone(),
        };
        if state == NodeState::Leading {
            // The leader keeps them in memory.
            status.learned(LedgerPart::Runs);
        }
        status.put_marks_ahead(&engine.marks_ahead(now).map(|(job, ahead)| (job.clone(), ahead)).collect());
        let unconfirmed: BTreeSet<_> = engine.unconfirmed_runs().collect();
        let over: BTreeMap<_, _> = engine.unwritten_ends().collect();
        let shown = engine.runs().map(RunStatus::from).map(|run| {
            let unconfirmed = unconfirmed.contains(&run.run) || over.get(&run.run) == Some(&None);
            RunStatus { unconfirmed, ended: over.get(&run.run).copied().flatten(), ..run }
        });
        let runs: Vec<RunStatus> = shown.collect();
        status.put_runs(&runs);
        let paused = engine.pauses().map(|(job, entry)| (job.clone(), entry.record.paused.clone()));
        status.put_paused(&paused.collect());
        let alarms = engine.alarms().map(|(job, alarms)| (job.clone(), AlarmStatus::of(alarms)));
        status.put_alarms(&alarms.collect());
        status.put_unplaceable(&engine.unplaceable().map(|(job, why)| (job.clone(), why.to_owned())).collect());
        status.put_links(engine.links());
        status
    }

    /// When the lease ends; absent for a node without a term and runs, because it keeps no lease.
    pub(super) fn lease_until(&self, engine: &Engine) -> Option<Uptime> {
        let is_kept = engine.term().is_some() || engine.own_runs() > 0;
        self.lease_until.filter(|_| is_kept)
    }

    pub(super) fn lease(&mut self, until: Uptime) {
        if self.session.is_some() {
            self.lease_until = (until != Uptime::NEVER).then_some(until);
        }
    }

    fn connected(&mut self, now: Now, connected: bool) {
        if let Some(session) = self.session.as_mut().filter(|session| session.connected != connected) {
            session.connected = connected;
            session.since = now.wall;
        }
        self.awaiting = self.awaited_of_session();
    }

    /// What a node with a session needs before it can take part.
    fn awaited_of_session(&self) -> Option<String> {
        let connected = self.session.as_ref().is_none_or(|session| session.connected);
        match (connected, &self.lost_by, &self.role.candidate) {
            (false, None, _) => Some(format!("the connection to {}", self.backend)),
            (false, Some(why), _) => Some(format!("the connection to {}: {why}", self.backend)),
            (true, _, None) if !self.never_leads => Some(QUEUE_POSITION.to_owned()),
            (true, _, _) => None,
        }
    }

    /// The nodes that differ from the leader, as far as this one knows.
    ///
    /// A follower knows only whether it differs itself.
    fn differing(&self) -> Vec<NodeName> {
        let leads = self.role.leader_node.as_ref() == Some(&self.node);
        let differing = self.drifting.iter().map(|drift| if leads { drift.other() } else { &self.node });
        let names: BTreeSet<&NodeName> = differing.collect();
        names.into_iter().cloned().collect()
    }

    /// Compares the members with those before, and with the leader. Returns what is new.
    ///
    /// The leader compares itself with every other node, and a follower compares itself with the leader: so both log a
    /// difference.
    fn compare(&mut self, now: Now, members: &[Member], jobs: &JobSet) -> Vec<NodeNews> {
        let is_settled = self.session_began.is_some_and(|(began, timeout)| now.up >= began + timeout);
        // A leader watches which members there are. When it is elected, it has just noticed the end of the one before it.
        let before = std::mem::replace(&mut self.surveyed_in, self.role.token);
        let (leads, has_led) = (self.role.token.is_some(), self.role.token == before);
        let led_before = self.led_before.clone();
        let was_there = leads && !std::mem::take(&mut self.was_away);
        let is_watched = |node: &NodeName| was_there && (has_led || led_before.as_ref() == Some(node));
        let news = self.members.seen(now.wall, members, is_settled, is_watched);
        let drifts = self.drifts(members, jobs);
        news.into_iter().map(NodeNews::Member).chain(drifts.into_iter().map(NodeNews::Drift)).collect()
    }

    fn drifts(&mut self, members: &[Member], jobs: &JobSet) -> Vec<DriftNews> {
        let Some(leader) = &self.role.leader_node else {
            // No leader is known, or its entry is not cronkeeper's: there is nothing to compare with.
            self.drifting.clear();
            return Vec::new();
        };
        let is_compared = |member: &&Member| *leader == self.node || member.node == *leader;
        let own = Published { digest: jobs.digest.clone(), tzdata: schedule::tzdata_version(), ..Published::default() };
        let others = members.iter().filter(|member| member.node != self.node).filter(is_compared);
        let compared: Vec<&Member> = others.collect();
        let now: Vec<Drift> = compared.iter().flat_map(|member| Drift::of(&own, member)).collect();
        let before = std::mem::replace(&mut self.drifting, now);
        let begun = self.drifting.iter().filter(|drift| !before.contains(drift));
        // A node that is gone, or no longer compared, does not agree for that.
        let agrees = |drift: &&Drift| {
            let is_compared = compared.iter().any(|member| member.node == *drift.other());
            is_compared && !self.drifting.iter().any(|other| other.is_like(drift))
        };
        let ended = before.iter().filter(agrees).cloned().map(DriftNews::Ended);
        begun.cloned().map(DriftNews::Begun).chain(ended).collect()
    }
}

/// The part of a job's status that does not change before its definition does.
fn of_definition(job: &cronkeeper_core::job::Job) -> JobStatus {
    JobStatus {
        name: job.name.clone(),
        description: job.description.clone(),
        schedule: job.schedule().into_iter().flat_map(Schedule::expressions).map(str::to_owned).collect(),
        timezone: job.schedule().map(|schedule| schedule.zone_name().to_owned()).unwrap_or_default(),
        after: after(job),
        enabled: job.enabled,
        parameters: job.parameters.iter().cloned().collect(),
        last: None,
        shares: None,
        next: None,
        running: Vec::new(),
        cut_off: Vec::new(),
        waits_for: Vec::new(),
        run_on: job.run_on.is_placed().then(|| job.run_on.as_str().to_owned()),
        run_where: job.run_where.0.iter().map(ToString::to_string).collect(),
        unplaceable: None,
        error: None,
        paused: None,
        alarms: Vec::new(),
    }
}

/// The upstream jobs, each with the condition on its outcome.
fn after(job: &cronkeeper_core::job::Job) -> BTreeMap<JobName, String> {
    let upstreams = job.upstreams().into_iter().flatten();
    upstreams.map(|(name, condition)| (name.clone(), condition.as_str().to_owned())).collect()
}

#[cfg(test)]
mod tests;
