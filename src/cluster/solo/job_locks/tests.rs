//! Locks of runs on real files, beside scripts and a model of the warden.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Weak;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::solo::background::BackendNotice;
use crate::solo::file_lock::tests::becomes;
use crate::solo::file_lock::{self, FileLockError, FileLockRequest, HeldFileLock, Holder};
use crate::solo::members::Members;
use cronkeeper_core::lock::LockKind;
use cronkeeper_core::process::{Custody, Deposit};
use cronkeeper_core::run::RunId;
use cronkeeper_core::run_lock::LockGrant;

const X: &str = "/locks/x";
const Y: &str = "/locks/y";

/// A warden: what it keeps is closed when it is dropped.
#[derive(Debug, Default)]
struct Warden(Arc<Mutex<BTreeMap<usize, Vec<OwnedFd>>>>);

impl Custody for Warden {
    fn deposit(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<Box<dyn Deposit>> {
        let copies = descriptors.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?;
        let mut kept = self.0.lock().unwrap();
        let number = kept.keys().next_back().map_or(0, |last| last + 1);
        kept.insert(number, copies);
        Ok(Box::new(Kept { warden: Arc::downgrade(&self.0), number }))
    }
}

#[derive(Debug)]
struct Kept {
    warden: Weak<Mutex<BTreeMap<usize, Vec<OwnedFd>>>>,
    number: usize,
}

impl Deposit for Kept {
    fn withdraw(self: Box<Self>) {
        self.warden.upgrade().and_then(|kept| kept.lock().unwrap().remove(&self.number));
    }
}

/// A warden that is gone.
#[derive(Debug)]
struct DeadWarden;

impl Custody for DeadWarden {
    fn deposit(&self, _: &[BorrowedFd<'_>]) -> io::Result<Box<dyn Deposit>> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

/// The locks of a node, and the backend around them.
struct Node {
    locks: JobLocks,
    background: BackgroundWork,
    notices: UnboundedReceiver<BackendNotice>,
    _dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        Self::with(Arc::new(Warden::default()))
    }

    fn with(custody: Arc<dyn Custody>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (sender, notices) = unbounded_channel();
        let background = BackgroundWork {
            notices: sender,
            members: Members::new(dir.path().join("members")),
            ledger: dir.path().join("ledger.db"),
            leftovers: Arc::new(|_| Ok(BTreeSet::new())),
        };
        Self {
            locks: JobLocks::new(dir.path(), LocksOfJobs { user: "ada".into(), custody: Some(custody) }),
            background,
            notices,
            _dir: dir,
        }
    }

    fn acquire(&mut self, id: u64, paths: &[&str], waits: bool) -> Option<Event> {
        let run = RunId::scheduled(JobName::parse("load").unwrap(), jiff::Timestamp::UNIX_EPOCH);
        let paths = paths.iter().map(|path| LockPath::parse(path).unwrap()).collect();
        self.locks.take(Request::Acquire { id: LockRequestId(id), run, paths, waits }, &self.background)
    }

    fn release(&mut self, id: u64) {
        assert_eq!(self.locks.take(Request::Release { id: LockRequestId(id) }, &self.background), None);
    }

    /// Waits for the end of a thread. Returns what the daemon receives.
    fn next(&mut self) -> Option<Event> {
        match self.notices.blocking_recv() {
            Some(BackendNotice::LocksWaited(waiter, end)) => self.locks.on_waited(waiter, end, &self.background),
            other => panic!("{other:?}"),
        }
    }

    fn held(&mut self, wanted: u64) -> LockGrant {
        match self.next() {
            Some(Event::Held { id, grant }) if id == LockRequestId(wanted) => grant,
            other => panic!("{other:?}"),
        }
    }

    fn refused(event: Option<Event>) -> String {
        match event {
            Some(Event::Refused { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    fn retry(&mut self) -> Vec<Event> {
        let at = self.locks.next_retry().expect("a request is paused");
        assert!(self.locks.retry(at - Duration::from_millis(1), &self.background).is_empty());
        self.locks.retry(at, &self.background)
    }

    fn file(&self, path: &str) -> PathBuf {
        self.locks.place.files.file_of(&LockPath::parse(path).unwrap()).unwrap()
    }
}

/// What `cronkeeper lock` does in its own process.
fn script(file: &Path, waits: bool) -> Result<HeldFileLock, FileLockError> {
    let holder = Holder { pid: 1, user: "ada".into(), program: "ship".into(), key: LockKey::draw() };
    let request = FileLockRequest { files: vec![file.to_owned()], kind: LockKind::Mutex, waits, holder };
    file_lock::acquire(&request).map(|mut held| held.remove(0))
}

/// Waits until a lock that was dropped, not released, is free.
fn gets_free(file: &Path) -> bool {
    becomes(|| is_free(file))
}

fn is_free(file: &Path) -> bool {
    match script(file, false) {
        Ok(_) => true,
        Err(FileLockError::Busy { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_job_keeps_scripts_out_and_they_see_who_holds_the_lock() {
    let mut node = Node::new();
    assert_eq!(node.acquire(1, &[X], true), None);
    let grant = node.held(1);
    let file = node.file(X);
    assert!(!is_free(&file));
    let holders = file_lock::holders(&file).unwrap();
    let [holder] = &holders[..] else { panic!("{holders:?}") };
    assert_eq!((holder.pid, holder.program.as_str()), (std::process::id(), "job load"));
    let inside = file_lock::held_by_key(&file, std::slice::from_ref(&grant.key)).unwrap();
    assert_eq!(inside, Some((LockKind::Mutex, grant.held[0].1)));
    node.release(1);
    assert!(is_free(&file), "at once, whenever the warden closes its part");
    assert_eq!(file_lock::holders(&file).unwrap(), []);
}

#[test]
fn the_lock_is_free_only_when_the_warden_has_ended_too() {
    let mut node = Node::new();
    node.acquire(1, &[X, Y], true);
    node.held(1);
    let (x, y) = (node.file(X), node.file(Y));
    let Node { locks, _dir, .. } = node;
    let custody = locks.place.custody.clone();
    drop(locks);
    assert!(!is_free(&x) && !is_free(&y));
    drop(custody);
    assert!(gets_free(&x) && gets_free(&y));
}

#[test]
fn a_backend_that_has_ended_leaves_the_locks_to_the_rest_of_the_daemon() {
    let mut node = Node::new();
    node.locks.place = Arc::new(Place { custody: None, files: LockFiles::of(node._dir.path()), user: "ada".into() });
    node.acquire(1, &[X], true);
    node.held(1);
    let (file, held) = (node.file(X), node.locks.held());
    let Node { locks, _dir, .. } = node;
    drop(locks);
    assert!(!is_free(&file));
    drop(held);
    assert!(gets_free(&file));
}

#[test]
fn a_request_waits_or_is_told_that_the_lock_is_held() {
    let mut node = Node::new();
    let first = script(&node.file(X), true).unwrap();
    assert_eq!(node.acquire(1, &[Y, X], false), None);
    let busy = Event::Busy { id: LockRequestId(1), path: LockPath::parse(X).unwrap() };
    assert_eq!(node.next(), Some(busy));
    assert!(gets_free(&node.file(Y)));
    node.acquire(2, &[Y, X], true);
    let token = first.token;
    drop(first);
    let grant = node.held(2);
    let paths: Vec<_> = grant.held.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, [Y, X]);
    assert!(grant.held[1].1 > token);
}

#[test]
fn the_next_request_takes_over_the_thread_of_one_that_was_given_up() {
    let mut node = Node::new();
    let script = script(&node.file(X), true).unwrap();
    for id in 1..=3 {
        node.acquire(id, &[X], true);
        node.release(id);
    }
    assert_eq!(node.acquire(4, &[X], true), None);
    assert_eq!(node.locks.waiters.len(), 1);
    drop(script);
    node.held(4);
}

#[test]
fn a_thread_without_a_request_gives_the_lock_back() {
    let mut node = Node::new();
    let first = script(&node.file(X), true).unwrap();
    node.acquire(1, &[X], true);
    node.release(1);
    drop(first);
    assert_eq!(node.next(), None);
    assert!(gets_free(&node.file(X)) && node.locks.waiters.is_empty());
}

#[test]
fn whoever_waits_for_several_locks_holds_none_of_them() {
    let mut node = Node::new();
    let (x, y) = (script(&node.file(X), true).unwrap(), script(&node.file(Y), true).unwrap());
    node.acquire(1, &[X, Y], true);
    drop(x);
    // Waits for a moment, if the thread just tries.
    let x = script(&node.file(X), true).unwrap();
    drop(y);
    let y = script(&node.file(Y), true).unwrap();
    drop((x, y));
    node.held(1);
    assert!(!is_free(&node.file(X)) && !is_free(&node.file(Y)));
}

#[test]
fn a_refusal_is_reported_once_and_the_request_repeated() {
    let mut node = Node::new();
    let file = node.file(X);
    symlink("nowhere", &file).unwrap();
    node.acquire(1, &[X], false);
    let why = Node::refused(node.next());
    assert!(why.contains("symbolic link to a missing file"), "{why}");
    assert!(node.retry().is_empty());
    assert_eq!(node.next(), None);
    std::fs::remove_file(&file).unwrap();
    assert!(node.retry().is_empty());
    node.held(1);
    assert_eq!(node.locks.next_retry(), None);
}

#[test]
fn a_request_above_the_bound_of_threads_is_refused_and_repeated() {
    let mut node = Node::new();
    node.locks.most_threads = 1;
    let first = script(&node.file(X), true).unwrap();
    assert_eq!(node.acquire(1, &[X], true), None);
    let why = Node::refused(node.acquire(2, &[Y], true));
    assert!(why.contains("already waits for 1 locks"), "{why}");
    assert!(node.retry().is_empty());
    drop(first);
    node.held(1);
    assert!(node.retry().is_empty());
    node.held(2);
}

#[test]
fn without_its_warden_a_node_gets_no_lock() {
    let mut node = Node::with(Arc::new(DeadWarden));
    node.acquire(1, &[X], true);
    let why = Node::refused(node.next());
    assert!(why.contains("the warden cannot hold the lock too"), "{why}");
    assert!(gets_free(&node.file(X)));
}

#[test]
fn a_backend_that_has_failed_keeps_what_it_holds_and_waits_for_nothing() {
    let mut node = Node::new();
    node.acquire(1, &[X], true);
    node.held(1);
    let script = script(&node.file(Y), true).unwrap();
    node.acquire(2, &[Y], true);
    node.locks.stop_waiting();
    drop(script);
    assert_eq!(node.next(), None);
    assert!(gets_free(&node.file(Y)) && !is_free(&node.file(X)));
    node.release(1);
    assert!(is_free(&node.file(X)));
}
