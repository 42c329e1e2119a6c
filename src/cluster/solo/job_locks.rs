//! The locks of this node's runs: files that the kernel locks, as for `cronkeeper lock` without ZooKeeper.
//!
//! ```text
//!  Acquire ─► Waiting ─ the thread has the locks, and the warden too ─► Held ─ Release ─► released
//!              │  ▲  └─ busy, and the request does not wait ─► `Busy`
//!      refused ▼  │ 10 s later
//!             Paused
//! ```
//! Waiting happens in the kernel, so each request that is not granted has a thread ([`waiter`]), which cannot be
//! interrupted. If its request is released, the thread is idle: the next request of the same job for the same locks
//! takes it over, else it gives the locks back as soon as it gets them. An idle thread holds nothing while it waits. At
//! most [`MOST_THREADS`] wait; a request above that is refused, and tried again later like any that is refused.
//!
//! The backend shares the held locks with the daemon's main function ([`HeldLocks`]): a daemon without its warden kills
//! the processes itself, after its backend has ended.

#[cfg(test)]
mod tests;
mod waiter;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub(super) use self::waiter::{AcquiredLocks, WaitEnd};
use self::waiter::{Place, WantedLocks};
use super::LocksOfJobs;
use super::background::BackgroundWork;
use super::lock_files::LockFiles;
use cronkeeper_core::job::JobName;
use cronkeeper_core::lock::{LockKey, LockPath};
use cronkeeper_core::run_lock::{Event, LockRequestId, Request};

/// Time before a request that was refused is repeated.
const REFUSED: Duration = Duration::from_secs(10);
/// Most threads that wait for locks.
const MOST_THREADS: usize = 256;

/// Identifies a thread that waits for locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaiterId(u64);

/// The locks that runs of this node hold. After the backend, the last clone ends them for this process; the warden keeps
/// its part until its trees are dead.
#[derive(Clone, Debug, Default)]
pub struct HeldLocks(Arc<Mutex<BTreeMap<LockRequestId, AcquiredLocks>>>);

/// The locks that runs of this node hold, or wait for.
pub(super) struct JobLocks {
    place: Arc<Place>,
    held: HeldLocks,
    requests: BTreeMap<LockRequestId, JobLock>,
    waiters: BTreeMap<WaiterId, Waiter>,
    /// Number of threads so far.
    started: u64,
    most_threads: usize,
}

/// A request that the daemon has not released.
struct JobLock {
    job: JobName,
    paths: Vec<LockPath>,
    waits: bool,
    is_refusal_reported: bool,
    state: JobLockState,
}

enum JobLockState {
    /// A thread waits for the locks.
    Waiting,
    /// Refused; tried again at this instant.
    Paused(Instant),
    Held,
}

/// A thread that waits.
struct Waiter {
    wanted_locks: Arc<WantedLocks>,
    /// The request that it waits for; none while it is idle.
    request: Option<LockRequestId>,
    /// False while it is idle.
    is_wanted: Arc<AtomicBool>,
}

impl JobLocks {
    /// The locks in this state directory. Without a `custody`, they end with this process even if others run on.
    pub(super) fn new(state_dir: &Path, locks: LocksOfJobs) -> Self {
        let LocksOfJobs { user, custody } = locks;
        let place = Place { files: LockFiles::of(state_dir), user, custody };
        Self {
            place: Arc::new(place),
            held: HeldLocks::default(),
            requests: BTreeMap::new(),
            waiters: BTreeMap::new(),
            started: 0,
            most_threads: MOST_THREADS,
        }
    }

    pub(super) fn held(&self) -> HeldLocks {
        self.held.clone()
    }

    /// Takes a request of the daemon.
    pub(super) fn take(&mut self, request: Request, background: &BackgroundWork) -> Option<Event> {
        match request {
            Request::Acquire { id, run, paths, waits } => {
                let (job, state) = (run.job().clone(), JobLockState::Waiting);
                self.requests.insert(id, JobLock { job, paths, waits, is_refusal_reported: false, state });
                self.wait(id, background)
            }
            Request::Release { id } => {
                self.release(id);
                None
            }
        }
    }

    /// Handles the end of a thread.
    pub(super) fn on_waited(&mut self, waiter: WaiterId, end: WaitEnd, background: &BackgroundWork) -> Option<Event> {
        let Waiter { wanted_locks, request, .. } = self.waiters.remove(&waiter)?;
        let wanted = request.and_then(|id| Some((id, self.requests.get_mut(&id)?)));
        let Some((id, lock)) = wanted else {
            if let WaitEnd::Acquired(acquired) = end {
                acquired.release();
            }
            return None;
        };
        match end {
            WaitEnd::Acquired(acquired) => {
                lock.state = JobLockState::Held;
                let grant = acquired.grant(&wanted_locks);
                self.held.lock().insert(id, acquired);
                Some(Event::Held { id, grant })
            }
            WaitEnd::Busy(path) => {
                self.requests.remove(&id);
                Some(Event::Busy { id, path })
            }
            WaitEnd::Refused(why) => self.refuse(id, why),
            // It was taken over when it had just given up.
            WaitEnd::GivenUp => self.wait(id, background),
        }
    }

    /// Repeats the refused requests that are due.
    pub(super) fn retry(&mut self, now: Instant, background: &BackgroundWork) -> Vec<Event> {
        let is_due = |lock: &JobLock| matches!(lock.state, JobLockState::Paused(until) if until <= now);
        let due: Vec<_> = self.requests.iter().filter(|(_, lock)| is_due(lock)).map(|(id, _)| *id).collect();
        due.into_iter().filter_map(|id| self.wait(id, background)).collect()
    }

    /// When [`Self::retry`] is due next.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let pauses = self.requests.values().filter_map(|lock| match lock.state {
            JobLockState::Paused(until) => Some(until),
            JobLockState::Waiting | JobLockState::Held => None,
        });
        pauses.min()
    }

    /// Gives up all requests that are not granted. Held locks stay.
    pub(super) fn stop_waiting(&mut self) {
        self.requests.retain(|_, lock| matches!(lock.state, JobLockState::Held));
        self.waiters.values_mut().for_each(Waiter::idle);
    }

    /// Releases a request, in whatever state it is.
    fn release(&mut self, id: LockRequestId) {
        match self.requests.remove(&id).map(|lock| lock.state) {
            Some(JobLockState::Held) => {
                let acquired = self.held.lock().remove(&id);
                acquired.into_iter().for_each(AcquiredLocks::release);
            }
            Some(JobLockState::Waiting) => {
                self.waiters.values_mut().filter(|waiter| waiter.request == Some(id)).for_each(Waiter::idle);
            }
            Some(JobLockState::Paused(_)) | None => {}
        }
    }

    /// Has a thread wait for the locks of a request.
    fn wait(&mut self, id: LockRequestId, background: &BackgroundWork) -> Option<Event> {
        let lock = self.requests.get_mut(&id)?;
        lock.state = JobLockState::Waiting;
        let idle = self.waiters.values_mut().find(|waiter| waiter.request.is_none() && waiter.wanted_locks.is_of(lock));
        if let Some(waiter) = idle {
            waiter.request = Some(id);
            waiter.is_wanted.store(true, Ordering::Relaxed);
            return None;
        }
        if self.waiters.len() >= self.most_threads {
            return self.refuse(id, format!("this node already waits for {} locks", self.most_threads));
        }
        let key = LockKey::draw();
        let wanted_locks =
            Arc::new(WantedLocks { job: lock.job.clone(), paths: lock.paths.clone(), waits: lock.waits, key });
        let (waiter, is_wanted) = (WaiterId(self.started), Arc::new(AtomicBool::new(true)));
        let work = {
            let (place, wanted_locks, is_wanted) = (self.place.clone(), wanted_locks.clone(), is_wanted.clone());
            move || waiter::wait(&place, &wanted_locks, &is_wanted)
        };
        if let Err(error) = background.wait_for_locks(waiter, work) {
            return self.refuse(id, format!("cannot start a thread that waits for it: {error}"));
        }
        self.started += 1;
        self.waiters.insert(waiter, Waiter { wanted_locks, request: Some(id), is_wanted });
        None
    }

    /// Reports the first refusal of a request.
    fn refuse(&mut self, id: LockRequestId, why: String) -> Option<Event> {
        let lock = self.requests.get_mut(&id)?;
        lock.state = JobLockState::Paused(Instant::now() + REFUSED);
        let is_first = !std::mem::replace(&mut lock.is_refusal_reported, true);
        is_first.then_some(Event::Refused { id, why })
    }
}

impl HeldLocks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LockRequestId, AcquiredLocks>> {
        // The map is whole after every step, so a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// Lets the thread continue without a request.
    fn idle(&mut self) {
        self.request = None;
        // Only a hint, which saves the thread a detour to the warden: the backend decides when the thread reports.
        self.is_wanted.store(false, Ordering::Relaxed);
    }
}

impl WantedLocks {
    /// True if a thread with these may continue for a request. The record of the holder names the job.
    fn is_of(&self, lock: &JobLock) -> bool {
        (&self.job, &self.paths, self.waits) == (&lock.job, &lock.paths, lock.waits)
    }
}
