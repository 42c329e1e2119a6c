//! The locks of runs: requested before an attempt begins, released once its processes are dead.
//!
//! ```text
//!              request              Held            the attempt ends, or may not begin
//!   no lock ───────────► Requested ───────► Held ──────────────────────────────────────► no lock
//!                           └── Busy: by `overlap: skip` the run is skipped ───────────────┘
//! ```
//!
//! A run of a job with `lock` is always queued in the ledger first, so it is lost neither while it waits for its locks
//! nor between the grant and the first attempt. Any later attempt waits for the locks again.
//!
//! Only a few runs have a request for the same lock; the others wait here for a slot, in the order of their occurrences.
//! So a thousand queued runs do not mean a thousand entries in the lock's queue.
//!
//! A request or grant is kept only by a run that nothing else keeps from beginning. A run that held its locks while it
//! waits for a position in its group could wait for a run that holds the position and needs the lock.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::engine::context::Context;
use crate::lock::LockPath;
use crate::run::RunId;
use crate::run_lock::{LockGrant, LockRequestId, Request};

/// Most requests for one path at the backend, the one that holds it included.
const MOST_REQUESTS: usize = 8;

/// The locks that runs hold or have requested.
#[derive(Debug, Default)]
pub(super) struct Locks {
    requests: BTreeMap<RunId, LockState>,
    runs: BTreeMap<LockRequestId, RunId>,
    /// Number of requests for each path.
    counts: BTreeMap<LockPath, usize>,
    /// Runs that may not request their locks yet, because there are too many requests for this path.
    without_slot: BTreeMap<LockPath, BTreeSet<(Timestamp, RunId)>>,
    /// The path that each of them waits at.
    waits_at: BTreeMap<RunId, LockPath>,
}

#[derive(Debug)]
struct LockState {
    id: LockRequestId,
    paths: Vec<LockPath>,
    waits: bool,
    grant: Option<LockGrant>,
    /// One of them has ended without a release.
    is_lost: bool,
}

/// State of a run's locks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockStatus {
    Held,
    /// The backend has the request.
    Requested,
    /// There are too many requests, or older runs come first.
    NoSlot,
}

impl Locks {
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.waits_at.is_empty()
    }

    /// The locks that the run holds.
    pub fn grant(&self, run: &RunId) -> Option<&LockGrant> {
        self.requests.get(run)?.grant.as_ref()
    }

    pub fn run(&self, id: LockRequestId) -> Option<&RunId> {
        self.runs.get(&id)
    }

    /// True if the run has requested other locks than these, or in another way, or has lost one.
    pub fn is_outdated(&self, run: &RunId, paths: &[LockPath], waits: bool) -> bool {
        self.requests.get(run).is_some_and(|state| {
            let is_as_wanted = state.grant.is_some() || state.waits == waits;
            state.is_lost || state.paths != paths || !is_as_wanted
        })
    }

    /// Records that a lock of the run is lost. The others stay held until they are released. Returns true if the run
    /// held them.
    pub fn lose(&mut self, run: &RunId) -> bool {
        let Some(state) = self.requests.get_mut(run) else { return false };
        state.is_lost = true;
        state.grant.take().is_some()
    }

    /// Requests the locks of a run, unless it has done so. A run that `waits` and gets no slot is returned by
    /// [`Locks::release`] or [`Locks::end`] once there is one.
    pub fn request(&mut self, cx: &mut Context, run: &RunId, paths: &[LockPath], waits: bool) -> LockStatus {
        match self.requests.get(run) {
            Some(state) if state.grant.is_some() => return LockStatus::Held,
            Some(_) => return LockStatus::Requested,
            None => {}
        }
        let position = (run.scheduled_at(), run.clone());
        if let Some(path) = paths.iter().find(|&path| !self.has_slot(path, &position)) {
            let path = path.clone();
            if waits && self.waits_at.get(run) != Some(&path) {
                self.stop_waiting(run);
                self.waits_at.insert(run.clone(), path.clone());
                self.without_slot.entry(path).or_default().insert(position);
            }
            return LockStatus::NoSlot;
        }
        self.stop_waiting(run);
        let id = LockRequestId(cx.count());
        paths.iter().for_each(|path| *self.counts.entry(path.clone()).or_default() += 1);
        let state = LockState { id, paths: paths.to_vec(), waits, grant: None, is_lost: false };
        self.requests.insert(run.clone(), state);
        self.runs.insert(id, run.clone());
        cx.request_lock(Request::Acquire { id, run: run.clone(), paths: paths.to_vec(), waits });
        LockStatus::Requested
    }

    fn free_slots(&self, path: &LockPath) -> usize {
        MOST_REQUESTS.saturating_sub(self.counts.get(path).copied().unwrap_or_default())
    }

    /// True if there is a slot that no older run waits for.
    fn has_slot(&self, path: &LockPath, position: &(Timestamp, RunId)) -> bool {
        let free = self.free_slots(path);
        let older = self.without_slot.get(path).map_or(0, |waiting| waiting.range(..position).take(free).count());
        older < free
    }

    /// Handles a grant. Returns the run, if it still waits for it.
    pub fn granted(&mut self, id: LockRequestId, grant: LockGrant) -> Option<RunId> {
        let run = self.runs.get(&id)?.clone();
        let state = self.requests.get_mut(&run).filter(|state| !state.is_lost)?;
        state.grant = Some(grant);
        Some(run)
    }

    /// Releases the locks of a run, or gives up its request. Returns the runs that may request theirs now.
    pub fn release(&mut self, cx: &mut Context, run: &RunId) -> Vec<RunId> {
        match self.requests.get(run).map(|state| state.id) {
            Some(id) => {
                cx.request_lock(Request::Release { id });
                self.end(id)
            }
            None => self.stop_waiting(run).map_or(Vec::new(), |path| self.next(&path)),
        }
    }

    /// Forgets a request that the backend has ended. Returns the runs that may request their locks now.
    pub fn end(&mut self, id: LockRequestId) -> Vec<RunId> {
        let Some(state) = self.runs.remove(&id).and_then(|run| self.requests.remove(&run)) else { return Vec::new() };
        for path in &state.paths {
            if let Some(count) = self.counts.get_mut(path) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(path);
                }
            }
        }
        state.paths.iter().flat_map(|path| self.next(path)).collect()
    }

    /// The runs that wait for the free slots of a path. They keep their claims until they request or are released.
    fn next(&self, path: &LockPath) -> Vec<RunId> {
        let waiting = self.without_slot.get(path).into_iter().flatten();
        waiting.take(self.free_slots(path)).map(|(_, run)| run.clone()).collect()
    }

    /// Returns the path at which the run waited for a slot.
    fn stop_waiting(&mut self, run: &RunId) -> Option<LockPath> {
        let path = self.waits_at.remove(run)?;
        if let Some(waiting) = self.without_slot.get_mut(&path) {
            waiting.remove(&(run.scheduled_at(), run.clone()));
            if waiting.is_empty() {
                self.without_slot.remove(&path);
            }
        }
        Some(path)
    }

    /// Forgets everything: the session is over, and all locks with it.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The runs that hold locks or have requested some.
    pub fn requested(&self) -> Vec<RunId> {
        self.requests.keys().cloned().collect()
    }

    /// The runs that hold locks, have requested some, or wait for a slot.
    pub fn all(&self) -> Vec<RunId> {
        self.requests.keys().chain(self.waits_at.keys()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::tests::fixture::{at, name};
    use crate::term::NodeName;

    const PATHS: [&str; 3] = ["/a", "/b", "/c"];

    fn run(number: u8) -> RunId {
        RunId::scheduled(name("j"), at("10:00:00") + jiff::SignedDuration::from_secs(number.into()))
    }

    fn paths(mask: u8) -> Vec<LockPath> {
        let chosen = PATHS.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
        chosen.map(|(_, path)| LockPath::parse(path).unwrap()).collect()
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn no_path_has_too_many_requests_and_nobody_waits_for_nobody(
            steps in prop::collection::vec((0u8..40, 1u8..8, 0u8..3), 0..200),
        ) {
            let (mut locks, mut cx) = (Locks::default(), Context::new(NodeName::new("a")));
            let mut wanted = BTreeMap::new();
            for (number, mask, kind) in steps {
                let run = run(number);
                if kind == 0 {
                    // Those that may request their locks now do so, as the engine has them do.
                    for freed in locks.release(&mut cx, &run) {
                        let mask = wanted.get(&freed).copied().unwrap_or_default();
                        locks.request(&mut cx, &freed, &paths(mask), true);
                    }
                } else if !locks.is_outdated(&run, &paths(mask), true) {
                    wanted.insert(run.clone(), mask);
                    locks.request(&mut cx, &run, &paths(mask), true);
                }
                for path in paths(7) {
                    let requests = locks.requests.values().filter(|state| state.paths.contains(&path)).count();
                    prop_assert!(requests <= MOST_REQUESTS);
                    prop_assert_eq!(requests, locks.counts.get(&path).copied().unwrap_or_default());
                    // Whoever waits for a path waits for somebody's end.
                    prop_assert!(!locks.without_slot.contains_key(&path) || requests > 0);
                }
                prop_assert!(!locks.requests.keys().any(|run| locks.waits_at.contains_key(run)), "a run asks and waits");
                prop_assert_eq!(locks.waits_at.len(), locks.without_slot.values().map(BTreeSet::len).sum::<usize>());
            }
            while let Some(run) = locks.all().first().cloned() {
                locks.release(&mut cx, &run);
            }
            prop_assert!(locks.is_empty() && locks.counts.is_empty() && locks.runs.is_empty());
        }
    }
}
