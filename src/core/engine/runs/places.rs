//! The places to run jobs: every node that the cluster knows, and which of them gets the next attempt.
//!
//! The least loaded of those that fit, by what the leader itself has placed there and does not know to be over, in
//! proportion to their weights; among equals the one to which it has placed nothing for longest. What the leader decides
//! counts at once, so a burst spreads evenly without any report. Knows nothing of runs but how many each node has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::Uptime;
use crate::election::{Member, PLACES, Place};
use crate::job::{Digest, Job, JobName, Labels, RunOn, RunWhere};
use crate::run::{Owner, Refusal, RefusalReason};
use crate::term::{NodeName, SessionId};

/// Most attempts that are placed on a node and that it has not accepted. More would only wait there.
pub(super) const MOST_OPEN: usize = 128;

/// The places, as a leader knows them.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: BTreeMap<NodeName, KnownPlace>,
    /// The members were read in this term: until then only the leader's own node is known to be alive.
    is_complete: bool,
    /// So were the places of nodes that are away.
    is_defined: bool,
    /// The nodes that the cluster has forgotten and for which there is something yet, and when this leader noticed.
    forgotten: BTreeMap<NodeName, Timestamp>,
    /// Number of attempts placed so far.
    placed: u64,
}

/// A place, alive or not.
#[derive(Debug, Default)]
struct KnownPlace {
    labels: Labels,
    weight: u32,
    member: Option<LivingMember>,
    /// It did not accept in time what was placed there, and has answered nothing since.
    is_suspect: bool,
    /// The jobs that it has refused for what it is, until it changes.
    refused: BTreeMap<JobName, Refused>,
    /// It could not start processes recently, or had a wrong clock.
    pause: Option<Pause>,
    /// When an attempt was last placed there, by their number.
    placed_at: u64,
}

/// A node's refusal of a job.
#[derive(Clone, Debug)]
struct Refused {
    reason: RefusalReason,
    /// By which files it refused. With others it is to be tried.
    digest: Option<Digest>,
}

/// A time in which a node gets nothing, because it can run nothing, whatever the job.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Uptime,
    /// Doubled if it is the same within a minute afterwards.
    length: Duration,
    why: &'static str,
    is_over: bool,
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What matters of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LivingMember {
    session: SessionId,
    digest: Digest,
    is_drained: bool,
    /// It is stopping.
    is_ending: bool,
}

/// What a node has, as the leader knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Runs that it has, or that are placed there.
    pub runs: usize,
    /// Those that it is not known to have accepted.
    pub open: usize,
}

/// Whether a node can take its share of a run on every node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Share {
    Now(Owner),
    /// It has enough to start for now.
    Full,
    /// It is away, stopping, or refuses the job as it is.
    Away,
    /// An operator has drained it.
    Drained,
    /// It does not have the labels any more that the job asks for; or the job does not run on every node any more.
    Unfit,
    /// The cluster does not know it any more.
    Unknown,
}

/// Whether a node may accept what was placed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Open,
    /// It is drained or stopping, and refuses everything.
    Closed,
    Gone,
}

impl From<Share> for Choice {
    fn from(share: Share) -> Self {
        match share {
            Share::Now(owner) => Self::On(owner),
            Share::Full => Self::Full,
            Share::Away | Share::Drained | Share::Unfit | Share::Unknown => Self::Nobody,
        }
    }
}

/// What keeps a node with a longer name from a share.
const TOO_LONG: &str = "has a name of more than 64 characters";

/// Where the next attempt goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    On(Owner),
    /// Those that fit have enough to start for now.
    Full,
    /// No node that is alive fits.
    Nobody,
}

impl LivingMember {
    /// `None` if nothing may be placed there: its version is older, or its session is not known.
    fn of(member: &Member) -> Option<Self> {
        let published = &member.published;
        Some(Self {
            session: member.session.clone().filter(|_| published.places >= PLACES)?,
            digest: published.digest.clone(),
            is_drained: published.drained,
            is_ending: published.draining,
        })
    }

    /// True if it takes nothing more.
    fn is_closed(&self) -> bool {
        self.is_drained || self.is_ending
    }
}

impl Places {
    /// A new term: nothing is known but this node, which is alive.
    pub fn begin_term(&mut self, own: &NodeName, session: &SessionId, digest: &Digest) {
        let (session, digest) = (session.clone(), digest.clone());
        let member = LivingMember { session, digest, is_drained: false, is_ending: false };
        let place = KnownPlace { weight: 1, member: Some(member), ..KnownPlace::default() };
        *self = Self { known: BTreeMap::from([(own.clone(), place)]), ..Self::default() };
    }

    /// True once all members were read in this term.
    pub fn are_complete(&self) -> bool {
        self.is_complete
    }

    /// True once all nodes were read in this term, also those that are away.
    pub fn know_all(&self) -> bool {
        self.is_complete && self.is_defined
    }

    /// Takes all places that the cluster knows. `named`: nodes for which there is something, perhaps of earlier terms.
    pub fn define(&mut self, now: Timestamp, all: BTreeMap<NodeName, Place>, named: &BTreeSet<NodeName>) {
        if !std::mem::replace(&mut self.is_defined, true) {
            let is_gone = |node: &&NodeName| !all.contains_key(*node) && !self.known.contains_key(*node);
            self.forgotten.extend(named.iter().filter(is_gone).map(|node| (node.clone(), now)));
        }
        let gone = self.known.extract_if(.., |node, place| place.member.is_none() && !all.contains_key(node));
        self.forgotten.extend(gone.map(|(node, _)| (node, now)));
        self.forgotten.retain(|node, _| !all.contains_key(node) && named.contains(node));
        for (node, Place { labels, weight, .. }) in all {
            let place = self.known.entry(node).or_default();
            if place.labels != labels {
                place.refused.retain(|_, refused| refused.reason != RefusalReason::Labels);
            }
            (place.labels, place.weight) = (labels, weight);
        }
    }

    /// Takes the nodes that are alive. Returns those that are no longer, or not under the session that was known, or that
    /// take nothing any more.
    pub fn on_members(&mut self, members: &[Member]) -> Vec<NodeName> {
        self.is_complete = true;
        let mut living: BTreeMap<&NodeName, LivingMember> =
            members.iter().filter_map(|member| Some((&member.node, LivingMember::of(member)?))).collect();
        let mut left = Vec::new();
        for (node, place) in &mut self.known {
            let now = living.remove(node);
            let is_same = place.member == now;
            let digest = now.as_ref().map(|member| &member.digest);
            place.refused.retain(|_, refused| match &refused.digest {
                Some(by) => Some(by) == digest,
                None => is_same,
            });
            if is_same {
                continue;
            }
            // Whatever it is now, it is to be tried.
            (place.is_suspect, place.pause) = (false, None);
            let session = |member: &Option<LivingMember>| member.as_ref().map(|member| member.session.clone());
            let was_open = place.member.as_ref().is_some_and(|member| !member.is_closed());
            let is_closed = now.as_ref().is_some_and(LivingMember::is_closed);
            if session(&place.member) != session(&now) || was_open && is_closed {
                left.push(node.clone());
            }
            place.member = now;
        }
        for (node, member) in living {
            self.forgotten.remove(node);
            let place = KnownPlace { weight: 1, member: Some(member), ..KnownPlace::default() };
            self.known.insert(node.clone(), place);
        }
        left
    }

    /// The nodes that take the job.
    fn taking<'p>(&'p self, job: &'p Job) -> impl Iterator<Item = (&'p NodeName, &'p KnownPlace)> {
        self.known.iter().filter(|(node, place)| place.takes(node, job))
    }

    /// Chooses the node for an attempt of the job, and counts it there. `avoided`: another node is taken if there is one.
    pub fn choose<'l>(
        &mut self,
        job: &Job,
        avoided: Option<&NodeName>,
        load_of: impl Fn(&NodeName) -> Load + 'l,
    ) -> Choice {
        let mut fitting = self.taking(job).map(|(node, place)| (node, place, load_of(node))).peekable();
        if fitting.peek().is_none() {
            return Choice::Nobody;
        }
        let with_room = fitting.filter(|(.., load)| load.open < MOST_OPEN);
        let best = with_room.min_by_key(|(node, place, load)| {
            // In millionths of its weight.
            let share = (load.runs as u128 + 1) * 1_000_000 / u128::from(place.weight.max(1));
            (place.is_suspect, avoided == Some(*node), share, place.placed_at)
        });
        let Some(node) = best.map(|(node, ..)| node.clone()) else { return Choice::Full };
        self.placed += 1;
        let Some(place) = self.known.get_mut(&node) else { return Choice::Nobody };
        place.placed_at = self.placed;
        match &place.member {
            Some(member) => Choice::On(Owner { session: member.session.clone(), node }),
            None => Choice::Nobody,
        }
    }

    /// True if an attempt of the job that is overdue on this node may be moved: another that fits has half of its room
    /// free, and is not suspect.
    pub fn has_better(&self, job: &Job, than: &NodeName, load_of: impl Fn(&NodeName) -> Load) -> bool {
        let mut others = self.taking(job).filter(|(node, place)| *node != than && !place.is_suspect);
        others.any(|(node, _)| load_of(node).open * 2 <= MOST_OPEN)
    }

    /// True if a node other than this one takes the job.
    pub fn has_other(&self, job: &Job, than: &NodeName) -> bool {
        self.taking(job).any(|(node, _)| node != than)
    }

    /// True if no node takes the job.
    pub fn has_nobody(&self, job: &Job) -> bool {
        match job.run_on {
            // Each takes its share, and what is to be spread says nothing about that.
            RunOn::Every => !self.known.iter().any(|(node, place)| place.fits(node, job) && place.member.is_some()),
            RunOn::Any | RunOn::Leader => self.taking(job).next().is_none(),
        }
    }

    /// Those of the jobs that no node can run, each with what keeps the nodes from it.
    pub fn unplaceable<'j>(&self, jobs: impl Iterator<Item = &'j Job>) -> BTreeMap<JobName, String> {
        let placed = jobs.filter(|job| job.enabled && job.run_on.is_placed());
        let nowhere = placed.filter(|job| self.has_nobody(job));
        nowhere.map(|job| (job.name.clone(), self.why_nobody(job))).collect()
    }

    /// True if an attempt of the job can be placed now, as far as the number of open ones is concerned; or if nobody fits:
    /// then it waits in the ledger, where it is seen.
    pub fn has_room(&self, job: &Job, load_of: impl Fn(&NodeName) -> Load) -> bool {
        let mut fitting = self.taking(job).peekable();
        fitting.peek().is_none() || fitting.any(|(node, _)| load_of(node).open < MOST_OPEN)
    }

    /// True if some node that is alive has fewer open attempts than it may.
    pub fn have_room(&self, load_of: impl Fn(&NodeName) -> Load) -> bool {
        self.known.iter().any(|(node, place)| place.member.is_some() && load_of(node).open < MOST_OPEN)
    }

    /// How many more attempts each node that is alive may have open.
    pub fn rooms(&self, load_of: impl Fn(&NodeName) -> Load) -> Vec<(NodeName, usize)> {
        let living = self.known.iter().filter(|(_, place)| place.member.is_some());
        living.map(|(node, _)| (node.clone(), MOST_OPEN.saturating_sub(load_of(node).open))).collect()
    }

    /// True if the node is what a job asks for, and something may be spread to it.
    pub fn meets(&self, node: &NodeName, run_where: &RunWhere) -> bool {
        let place = self.known.get(node).filter(|place| place.takes_something() && place.weight > 0);
        place.is_some_and(|place| run_where.is_met_by(node, &place.labels))
    }

    /// True if an attempt of the job may be placed on the node.
    pub fn takes(&self, node: &NodeName, job: &Job) -> bool {
        self.known.get(node).is_some_and(|place| place.takes(node, job))
    }

    /// Whether the node may still accept what was placed there under this session.
    pub fn presence(&self, owner: &Owner) -> Presence {
        match self.known.get(&owner.node).and_then(|place| place.member.as_ref()) {
            Some(member) if member.session != owner.session => Presence::Gone,
            Some(member) if member.is_closed() => Presence::Closed,
            Some(_) => Presence::Open,
            None => Presence::Gone,
        }
    }

    /// The nodes that a run of the job on every node is for: those with the labels that it asks for, also while they are
    /// away.
    pub fn roster(&self, job: &Job) -> BTreeSet<NodeName> {
        self.known.iter().filter(|(node, place)| place.fits(node, job)).map(|(node, _)| node.clone()).collect()
    }

    /// True if the cluster has forgotten the node since then. What is for it from a later time is for a node that has joined
    /// again.
    pub fn has_forgotten(&self, node: &NodeName, since: Timestamp) -> bool {
        self.forgotten.get(node).is_some_and(|&forgotten| since < forgotten)
    }

    /// Whether the node can take its share of a run of the job.
    pub fn share(&self, job: &Job, node: &NodeName, load: Load) -> Share {
        let Some(place) = self.known.get(node) else { return Share::Unknown };
        match &place.member {
            _ if !place.fits(node, job) || !job.run_on.is_placed() => Share::Unfit,
            Some(LivingMember { is_drained: true, .. }) => Share::Drained,
            Some(member) if !member.is_closed() && place.is_willing(job) && node.may_have_shares() => {
                match load.open < MOST_OPEN {
                    true => Share::Now(Owner { session: member.session.clone(), node: node.clone() }),
                    false => Share::Full,
                }
            }
            _ => Share::Away,
        }
    }

    /// Why the node does not take its share of a run of the job.
    pub fn why_not(&self, job: &Job, node: &NodeName) -> String {
        let unknown = if self.forgotten.contains_key(node) { "was forgotten" } else { "is not known" };
        let why = self.known.get(node).map_or(unknown, |place| match place.why_not(job) {
            _ if !place.fits(node, job) => "does not have the labels",
            _ if place.member.is_some() && !node.may_have_shares() => TOO_LONG,
            why => why,
        });
        format!("{node} {why}")
    }

    /// The node has answered, or has accepted something.
    pub fn note_answer(&mut self, node: &NodeName) {
        if let Some(place) = self.known.get_mut(node) {
            place.is_suspect = false;
        }
    }

    /// Those that have not accepted in time what was placed there.
    pub fn suspects(&self) -> impl Iterator<Item = &NodeName> {
        self.known.iter().filter(|(_, place)| place.is_suspect).map(|(node, _)| node)
    }

    /// The node has not accepted in time what was placed there. Returns true if it was not suspected before.
    pub fn suspect(&mut self, node: &NodeName) -> bool {
        self.known.get_mut(node).is_some_and(|place| !std::mem::replace(&mut place.is_suspect, true))
    }

    /// The node has refused an attempt of the job. What it refuses for what it is, it refuses until it changes. Returns true if
    /// it takes nothing from now on, and did before.
    pub fn note_refusal(&mut self, refusal: &Refusal, job: &JobName, now: Uptime) -> bool {
        let Refusal { node, reason, digest } = refusal;
        self.note_answer(node);
        let Some(place) = self.known.get_mut(node) else { return false };
        let took = place.takes_something();
        match reason {
            RefusalReason::NotDefined | RefusalReason::Definition | RefusalReason::Labels => {
                place.refused.insert(job.clone(), Refused { reason: *reason, digest: digest.clone() });
            }
            // Nothing shows when it is right again.
            RefusalReason::Clock => place.pause(now, "has a wrong clock"),
            RefusalReason::Other => place.pause(now, "refuses it"),
            RefusalReason::Drained => place.member.iter_mut().for_each(|member| member.is_drained = true),
            RefusalReason::Ending => place.member.iter_mut().for_each(|member| member.is_ending = true),
            RefusalReason::Locked | RefusalReason::Late => {}
        }
        took && !place.takes_something()
    }

    /// The node could start no process of an attempt, which was not the job's fault. Returns true if it takes nothing from now
    /// on, and did before.
    pub fn note_failed_start(&mut self, node: &NodeName, now: Uptime) -> bool {
        let Some(place) = self.known.get_mut(node) else { return false };
        let took = place.takes_something();
        place.pause(now, "could not start processes recently");
        took && !place.takes_something()
    }

    /// When the next pause of a node ends.
    pub fn pause_ends_at(&self) -> Option<Uptime> {
        self.known.values().filter_map(KnownPlace::current_pause).map(|pause| pause.until).min()
    }

    /// Ends the pauses that are over. Returns true if there are any.
    pub fn end_pauses(&mut self, now: Uptime) -> bool {
        let pauses = self.known.values_mut().filter_map(|place| place.pause.as_mut());
        let over = pauses.filter(|pause| !pause.is_over && pause.until <= now);
        over.map(|pause| pause.is_over = true).count() > 0
    }

    /// The leader's own definitions have changed: what was refused may fit now.
    pub fn redefined(&mut self) {
        self.known.values_mut().for_each(|place| place.refused.clear());
    }

    /// Why no node can take the job: which have what it asks for, and what keeps them from it.
    pub fn why_nobody(&self, job: &Job) -> String {
        let fitting: Vec<_> = self.known.iter().filter(|(node, place)| place.fits(node, job)).collect();
        if fitting.is_empty() {
            let others = self.known.iter().map(|(node, place)| match place.labels.is_empty() {
                true => format!("{node}: none"),
                false => format!("{node}: {}", list(place.labels.iter())),
            });
            return format!("no node has {} ({})", job.run_where, shortened(others.collect()));
        }
        let reasons = fitting.iter().map(|(node, place)| format!("{node} {}", place.why_not(job)));
        let which = if job.run_where.is_empty() { String::new() } else { format!(" with {}", job.run_where) };
        format!("no node{which} can take it: {}", shortened(reasons.collect()))
    }
}

impl KnownPlace {
    /// True if its labels are what the job asks for, and something may be spread to it.
    fn fits(&self, node: &NodeName, job: &Job) -> bool {
        job.run_where.is_met_by(node, &self.labels)
    }

    /// True if anything may be placed there.
    fn takes_something(&self) -> bool {
        self.member.as_ref().is_some_and(|member| !member.is_closed()) && self.current_pause().is_none()
    }

    /// True if an attempt of the job may be placed there.
    fn takes(&self, node: &NodeName, job: &Job) -> bool {
        self.takes_something() && self.weight > 0 && self.fits(node, job) && self.is_willing(job)
    }

    /// False while the node would refuse the job, or could not run it.
    fn is_willing(&self, job: &Job) -> bool {
        self.refusal_of(job).is_none() && self.current_pause().is_none()
    }

    fn current_pause(&self) -> Option<Pause> {
        self.pause.filter(|pause| !pause.is_over)
    }

    /// Why the node refuses the job, as far as its files are known. It may have newer ones than the members were read
    /// with, so what it has refused counts until they are read again.
    fn refusal_of(&self, job: &Job) -> Option<RefusalReason> {
        self.refused.get(&job.name).map(|refused| refused.reason)
    }

    fn pause(&mut self, now: Uptime, why: &'static str) {
        let length = match self.pause {
            // Of what was placed there before.
            Some(pause) if !pause.is_over => return,
            Some(pause) if now < pause.until + LONGEST_PAUSE => (pause.length * 2).min(LONGEST_PAUSE),
            Some(_) | None => FIRST_PAUSE,
        };
        self.pause = Some(Pause { until: now + length, length, why, is_over: false });
    }

    fn why_not(&self, job: &Job) -> &'static str {
        match (&self.member, self.refusal_of(job)) {
            (None, _) => "is away",
            (Some(member), _) if member.is_drained => "is drained",
            (Some(member), _) if member.is_ending => "is stopping",
            (Some(_), _) if self.weight == 0 && job.run_on != RunOn::Every => "has weight 0",
            (Some(_), Some(RefusalReason::NotDefined)) => "does not define it",
            (Some(_), Some(RefusalReason::Definition)) => "defines it otherwise",
            (Some(_), Some(_)) => "refuses it",
            (Some(_), None) => self.current_pause().map_or("refuses it", |pause| pause.why),
        }
    }
}

/// The jobs that no node can run, each with what keeps the nodes from it, as far as anybody can read it: what a node has
/// refused is known to the leader alone. Nothing where no places are known, as without a cluster.
pub fn unplaceable<'j>(
    jobs: impl Iterator<Item = &'j Job>,
    places: &BTreeMap<NodeName, Place>,
    members: &[Member],
) -> BTreeMap<JobName, String> {
    if places.is_empty() {
        return BTreeMap::new();
    }
    let mut known = Places::default();
    known.define(Timestamp::UNIX_EPOCH, places.clone(), &BTreeSet::new());
    // Where a record was read from does not matter here.
    let with_session = |member: &Member| {
        let session = member.session.clone().unwrap_or_else(|| SessionId(String::new()));
        Member { session: Some(session), ..member.clone() }
    };
    known.on_members(&members.iter().map(with_session).collect::<Vec<_>>());
    known.unplaceable(jobs)
}

/// Most nodes in a sentence.
const NAMED: usize = 5;

fn list(items: impl Iterator<Item: ToString>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

fn shortened(mut all: Vec<String>) -> String {
    let more = all.len().saturating_sub(NAMED);
    all.truncate(NAMED);
    let named = all.join("; ");
    if more > 0 { format!("{named}; and {more} more") } else { named }
}
