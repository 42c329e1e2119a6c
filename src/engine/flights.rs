//! The runs in flight, and what is asked of all of them together: how many are this node's, how full a group is, which wait.
//!
//! Each such question costs a look into an index, however many runs there are. A run that was handed out to be changed is counted by
//! what it is when the question comes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use super::flight::{Flight, Phase};
use crate::job::{JobName, JobSet};
use crate::ledger::CommitId;
use crate::run::{RunId, TriggerSeq};

/// A run's place among those that wait: the oldest occurrence first.
pub(super) type Place = (Timestamp, RunId);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Flights {
    by_run: BTreeMap<RunId, Flight>,
    index: Index,
    /// Handed out to be changed, and so not in the index.
    handed_out: Option<RunId>,
    of_jobs: OfJobs,
}

/// What is known of jobs that runs are counted by.
#[derive(Debug, Default)]
struct OfJobs {
    /// Which `concurrency_group` a job names.
    groups: BTreeMap<JobName, Arc<str>>,
    /// Jobs about which the service refuses a write, with the newest: what is to be begun of them is not about to start.
    refused: BTreeMap<JobName, CommitId>,
}

#[derive(Debug, Default)]
struct Index {
    own: usize,
    trees: usize,
    starting: usize,
    in_group: BTreeMap<Arc<str>, usize>,
    waiting: BTreeMap<Arc<str>, BTreeSet<Place>>,
    triggers: BTreeMap<Uuid, BTreeSet<TriggerSeq>>,
}

/// What a run counts for.
#[derive(Debug, Default)]
struct Facts {
    is_own: bool,
    has_tree: bool,
    is_starting: bool,
    /// The group in which it takes a place.
    in_group: Option<Arc<str>>,
    /// The group in which it waits for a place.
    waiting: Option<(Arc<str>, Place)>,
    trigger: Option<(Uuid, TriggerSeq)>,
}

impl Facts {
    fn of(run: &RunId, flight: &Flight, of_jobs: &OfJobs) -> Self {
        let own = flight.own();
        let is_beginning = matches!(own.map(|own| &own.phase), Some(Phase::Beginning));
        let is_refused = is_beginning && of_jobs.refused.contains_key(run.job());
        let group = of_jobs.groups.get(run.job()).filter(|_| !is_refused).cloned();
        let (in_group, waiting) = if flight.is_queued() { (None, group) } else { (group, None) };
        let waiting = waiting.filter(|_| flight.is_waiting()).map(|group| (group, (run.scheduled_at(), run.clone())));
        let alive = flight.alive();
        Self {
            is_own: own.is_some(),
            has_tree: alive.is_some(),
            is_starting: (is_beginning && !is_refused) || alive.is_some_and(|alive| alive.started.is_none()),
            in_group,
            waiting,
            trigger: flight.record.trigger.as_ref().map(|trigger| (trigger.uuid, trigger.seq)),
        }
    }
}

impl Index {
    fn add(&mut self, facts: Facts) {
        self.own += usize::from(facts.is_own);
        self.trees += usize::from(facts.has_tree);
        self.starting += usize::from(facts.is_starting);
        if let Some(group) = facts.in_group {
            *self.in_group.entry(group).or_default() += 1;
        }
        if let Some((group, place)) = facts.waiting {
            self.waiting.entry(group).or_default().insert(place);
        }
        if let Some((uuid, seq)) = facts.trigger {
            self.triggers.entry(uuid).or_default().insert(seq);
        }
    }

    fn remove(&mut self, facts: &Facts) {
        self.own -= usize::from(facts.is_own);
        self.trees -= usize::from(facts.has_tree);
        self.starting -= usize::from(facts.is_starting);
        if let Some(group) = &facts.in_group
            && let Some(count) = self.in_group.get_mut(group)
        {
            *count -= 1;
            if *count == 0 {
                self.in_group.remove(group);
            }
        }
        if let Some((group, place)) = &facts.waiting
            && let Some(places) = self.waiting.get_mut(group)
        {
            places.remove(place);
            if places.is_empty() {
                self.waiting.remove(group);
            }
        }
        if let Some((uuid, seq)) = &facts.trigger
            && let Some(seqs) = self.triggers.get_mut(uuid)
        {
            seqs.remove(seq);
            if seqs.is_empty() {
                self.triggers.remove(uuid);
            }
        }
    }
}

impl Flights {
    /// Takes the jobs' groups as they are now.
    pub fn define(&mut self, jobs: &JobSet) {
        let group = |job: &crate::job::Job| job.concurrency_group.as_ref().map(|group| Arc::from(group.name.as_str()));
        self.of_jobs.groups = jobs.jobs.iter().filter_map(|(name, job)| Some((name.clone(), group(job)?))).collect();
        self.count_all();
    }

    /// True while the service refuses a write about this job.
    pub fn is_refused(&self, job: &JobName) -> bool {
        self.of_jobs.refused.contains_key(job)
    }

    /// The service refuses this write about the job: what is to be begun meanwhile takes no place from others. False where it refused
    /// one already.
    pub fn refuse(&mut self, job: &JobName, id: CommitId) -> bool {
        if let Some(newest) = self.of_jobs.refused.get_mut(job) {
            *newest = id;
            return false;
        }
        self.count_anew(job, |refused| {
            refused.insert(job.clone(), id);
        });
        true
    }

    /// The write is answered. True where it was the one that was refused.
    pub fn answer(&mut self, job: &JobName, id: CommitId) -> bool {
        let was_refused = self.of_jobs.refused.get(job) == Some(&id);
        if was_refused {
            self.count_anew(job, |refused| {
                refused.remove(job);
            });
        }
        was_refused
    }

    /// Changes which jobs are refused, and counts this one's runs by that.
    fn count_anew(&mut self, job: &JobName, change: impl FnOnce(&mut BTreeMap<JobName, CommitId>)) {
        self.take_back();
        for (run, flight) in self.by_run.range(RunId::all_of(job)) {
            self.index.remove(&Facts::of(run, flight, &self.of_jobs));
        }
        change(&mut self.of_jobs.refused);
        for (run, flight) in self.by_run.range(RunId::all_of(job)) {
            self.index.add(Facts::of(run, flight, &self.of_jobs));
        }
    }

    fn count_all(&mut self) {
        self.handed_out = None;
        self.index = Index::default();
        for (run, flight) in &self.by_run {
            self.index.add(Facts::of(run, flight, &self.of_jobs));
        }
    }

    /// What was handed out is counted as it is now.
    fn take_back(&mut self) {
        let Some(run) = self.handed_out.take() else { return };
        if let Some(flight) = self.by_run.get(&run) {
            self.index.add(Facts::of(&run, flight, &self.of_jobs));
        }
    }

    /// What the run that is handed out counts for.
    fn uncounted(&self) -> Option<Facts> {
        let run = self.handed_out.as_ref()?;
        Some(Facts::of(run, self.by_run.get(run)?, &self.of_jobs))
    }

    pub fn get(&self, run: &RunId) -> Option<&Flight> {
        self.by_run.get(run)
    }

    pub fn get_mut(&mut self, run: &RunId) -> Option<&mut Flight> {
        self.take_back();
        let flight = self.by_run.get_mut(run)?;
        self.index.remove(&Facts::of(run, flight, &self.of_jobs));
        self.handed_out = Some(run.clone());
        Some(flight)
    }

    pub fn contains_key(&self, run: &RunId) -> bool {
        self.by_run.contains_key(run)
    }

    pub fn insert(&mut self, run: RunId, flight: Flight) {
        self.remove(&run);
        self.index.add(Facts::of(&run, &flight, &self.of_jobs));
        self.by_run.insert(run, flight);
    }

    pub fn remove(&mut self, run: &RunId) -> Option<Flight> {
        self.take_back();
        let flight = self.by_run.remove(run)?;
        self.index.remove(&Facts::of(run, &flight, &self.of_jobs));
        Some(flight)
    }

    /// Keeps those of which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&Flight) -> bool) {
        self.by_run.retain(|_, flight| keep(flight));
        self.count_all();
    }

    pub fn iter(&self) -> impl Iterator<Item = (&RunId, &Flight)> {
        self.by_run.iter()
    }

    pub fn values(&self) -> impl Iterator<Item = &Flight> {
        self.by_run.values()
    }

    /// Those of one job, by their occurrences.
    pub fn of_job(&self, job: &JobName) -> impl Iterator<Item = (&RunId, &Flight)> {
        self.by_run.range(RunId::all_of(job))
    }

    /// How many this node has.
    pub fn own(&self) -> usize {
        self.index.own + usize::from(self.uncounted().is_some_and(|facts| facts.is_own))
    }

    /// How many have a process here, or are about to.
    pub fn trees(&self) -> usize {
        self.index.trees + usize::from(self.uncounted().is_some_and(|facts| facts.has_tree))
    }

    /// How many of this node's are begun, or being begun, and not known to have started.
    pub fn starting(&self) -> usize {
        self.index.starting + usize::from(self.uncounted().is_some_and(|facts| facts.is_starting))
    }

    /// How many take a place in a group.
    pub fn in_group(&self, group: &str) -> usize {
        let is_of = |facts: Facts| facts.in_group.as_deref() == Some(group);
        self.index.in_group.get(group).copied().unwrap_or_default() + usize::from(self.uncounted().is_some_and(is_of))
    }

    /// The group that a job names.
    pub fn group_of(&self, job: &JobName) -> Option<&Arc<str>> {
        self.of_jobs.groups.get(job)
    }

    /// The next that waits for a place in a group, after this one.
    pub fn next_waiting(&mut self, group: &str, after: Option<&Place>) -> Option<Place> {
        self.take_back();
        let places = self.index.waiting.get(group)?;
        match after {
            Some(after) => places.range((Bound::Excluded(after), Bound::Unbounded)).next().cloned(),
            None => places.first().cloned(),
        }
    }

    /// True where a run of a trigger of this uuid, other than `seq`, is in flight.
    pub fn has_trigger(&self, uuid: Uuid, seq: TriggerSeq) -> bool {
        let is_other = |facts: Facts| facts.trigger.is_some_and(|(same, other)| same == uuid && other != seq);
        self.index.triggers.get(&uuid).is_some_and(|seqs| seqs.iter().any(|&other| other != seq))
            || self.uncounted().is_some_and(is_other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::flight::{Alive, Own, RunOwner};
    use crate::engine::tests::fixture::{at, job, set};
    use crate::job::Group;
    use crate::ledger::OwnerState;
    use crate::run::{RunState, Version};
    use crate::warden::wire::TreeId;

    fn jobs() -> JobSet {
        let grouped = |name: &str, group: &str| {
            let group = Group { name: group.into(), limit: 2 };
            crate::job::Job { concurrency_group: Some(group), ..job(name, "* * * * * *") }
        };
        set([grouped("a", "x"), grouped("b", "x"), grouped("c", "y"), job("d", "* * * * * *")])
    }

    /// A run of one of four jobs at one of four seconds.
    fn flight(number: usize) -> (RunId, Flight) {
        let name = ["a", "b", "c", "d"][number % 4];
        let second = at(&format!("10:00:0{}", number / 4 % 4));
        let found = crate::engine::tests::fixture::running(&job(name, "* * * * * *"), second, OwnerState::Alive);
        (found.record.id(), Flight::new(found.record, Version::FIRST, RunOwner::Other))
    }

    fn change(flight: &mut Flight, how: u8) {
        match how {
            0 => flight.holder = RunOwner::Own(Own::dead(Phase::Beginning)),
            1 | 2 => {
                let started = (how == 2).then_some(crate::clock::Uptime::ZERO);
                flight.holder = RunOwner::Own(Own::dead(Phase::Alive(Alive {
                    started,
                    ..Alive::new(TreeId(1), crate::clock::Uptime::ZERO)
                })));
            }
            3 => (flight.record.state, flight.holder, flight.commit) = (RunState::Queued, RunOwner::Nobody, None),
            4 => flight.commit = Some(CommitId(7)),
            _ => (flight.record.state, flight.holder) = (RunState::Running, RunOwner::Other),
        }
    }

    proptest! {
        #[test]
        fn what_is_counted_is_what_a_look_at_all_would_count(
            steps in prop::collection::vec((0usize..16, 0u8..10), 1..80),
        ) {
            let mut flights = Flights::default();
            flights.define(&jobs());
            for (number, how) in steps {
                let (run, flight) = flight(number);
                match how {
                    6 => flights.insert(run, flight),
                    7 => drop(flights.remove(&run)),
                    8 => { flights.refuse(run.job(), CommitId(7)); }
                    9 => { flights.answer(run.job(), CommitId(7)); }
                    how => if let Some(flight) = flights.get_mut(&run) { change(flight, how) },
                }
                let count = |of: &dyn Fn(&Flight) -> bool| flights.values().filter(|&flight| of(flight)).count();
                prop_assert_eq!(flights.own(), count(&|flight| flight.own().is_some()));
                prop_assert_eq!(flights.trees(), count(&|flight| flight.alive().is_some()));
                let is_refused = |flight: &Flight| {
                    let is_beginning = matches!(flight.own().map(|own| &own.phase), Some(Phase::Beginning));
                    is_beginning && flights.is_refused(&flight.record.job)
                };
                let in_x = count(&|flight| {
                    !flight.is_queued() && !is_refused(flight) && ["a", "b"].contains(&flight.record.job.as_str())
                });
                let is_starting = |flight: &Flight| match flight.own().map(|own| &own.phase) {
                    Some(Phase::Beginning) => !is_refused(flight),
                    Some(Phase::Alive(alive)) => alive.started.is_none(),
                    _ => false,
                };
                prop_assert_eq!(flights.starting(), count(&is_starting));
                prop_assert_eq!(flights.in_group("x"), in_x);
                let expected: Vec<Place> = {
                    let waiting = flights.iter().filter(|(run, flight)| flight.is_waiting() && run.job().as_str() < "c");
                    let mut places: Vec<Place> = waiting.map(|(run, _)| (run.scheduled_at(), run.clone())).collect();
                    places.sort();
                    places
                };
                let (mut found, mut last) = (Vec::new(), None);
                while let Some(place) = flights.next_waiting("x", last.as_ref()) {
                    found.push(place.clone());
                    last = Some(place);
                }
                prop_assert_eq!(found, expected);
            }
        }
    }
}
