//! Other libraries' locks in the same queue: the real kazoo and the real Curator, with their [kinds](Kind) of locks.
//!
//! Debian has both (`python3-kazoo`; `libcurator-recipes-java`, and a JDK to compile a small program). If one is
//! missing, [`Peer::or_skip`] reports it, and the test must return.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::process::Process;
use super::scratch::Scratch;
use super::zookeeper::class_path;
use super::{Facility, skipped};

const KAZOO_LOCK: &str = include_str!("peers/kazoo_lock.py");
const CURATOR_LOCK: &str = include_str!("peers/CuratorLock.java");
const CURATOR_JARS: [&str; 6] =
    ["curator-recipes", "curator-framework", "curator-client", "guava", "zookeeper", "slf4j-simple"];

/// The libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// For Python.
    Kazoo,
    /// For Java.
    Curator,
}

/// The kinds of locks, and the other recipes of these libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The exclusive lock. kazoo's waits for names that end in `-lock-` and a number, too.
    Mutex,
    /// `Mutex` without extra patterns: kazoo's waits only for kazoo's names. The same as `Mutex` for Curator.
    Plain,
    /// The read side of the read/write lock. kazoo's waits for Curator's writers and for `-lock-`, too.
    Read,
    /// The write side of the read/write lock. kazoo's waits for Curator's readers and writers and for `-lock-`, too.
    Write,
    /// `Read` without extra patterns. The same as `Read` for Curator.
    PlainRead,
    /// `Write` without extra patterns. The same as `Write` for Curator.
    PlainWrite,
    /// One lease of a semaphore with this many.
    Semaphore(u32),
    /// Curator's exclusive lock that notices when it is asked to release, and keeps the lock: see
    /// [`Peer::await_revoked`].
    Revocable,
    /// Asks the holder of a lock to release, as Curator does, and ends: see [`Peer::await_released`]. The path is that
    /// of the holder's znode.
    Revoke,
    /// Waits until the barrier opens: then it counts as acquired.
    Barrier,
    /// A member of a double barrier for this many: acquired when all have entered, released when all have left.
    DoubleBarrier(u32),
}

/// A process that queues for a lock, holds it, and releases it.
#[derive(Debug)]
pub struct Peer {
    library: Library,
    process: Process,
    // Writing a line makes the peer release the lock.
    stdin: Mutex<Option<ChildStdin>>,
    lines: Mutex<Receiver<String>>,
    _dir: Scratch,
}

impl Peer {
    /// Queues for the lock at `path`, below the chroot of `connect`. `None`, with a report, if the library is missing.
    pub fn or_skip(library: Library, connect: &str, path: &str) -> Option<Self> {
        Self::of_kind_or_skip(library, Kind::Mutex, connect, path)
    }

    /// Like [`or_skip`](Self::or_skip), for any kind of lock that the library has.
    pub fn of_kind_or_skip(library: Library, kind: Kind, connect: &str, path: &str) -> Option<Self> {
        assert!(library.has(kind), "{library:?} has no {kind:?}");
        match library.missing() {
            None => Some(Self::start(library, kind, connect, path)),
            Some(why) => {
                let why = format!("a test with {library:?}: {why}; tests/run.sh installs it");
                skipped(Facility::Installed, &why);
                None
            }
        }
    }

    fn start(library: Library, kind: Kind, connect: &str, path: &str) -> Self {
        let dir = Scratch::new("peer");
        let (program, arguments) = library.program(&dir);
        let process = Process::spawn(program, |command| {
            command.args(&arguments).args([connect, path]).args(kind.arguments());
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        });
        let mut process = process.expect("it was there a moment ago");
        let stdout = process.take(|child| child.stdout.take());
        let stdin = process.take(|child| child.stdin.take());
        let (sender, lines) = channel();
        // Ends at the end of the peer's output, or when the receiver is dropped.
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { library, process, stdin: Mutex::new(Some(stdin)), lines: Mutex::new(lines), _dir: dir }
    }

    /// Waits until the peer is connected and about to queue.
    pub fn await_connected(&self, timeout: Duration) {
        self.await_word("connected", timeout);
    }

    /// Waits until the peer has the lock. Returns the name of its znode; empty if the library does not tell it.
    pub fn await_acquired(&self, timeout: Duration) -> String {
        self.await_word("acquired", timeout)
    }

    /// Waits until the peer, which holds a [`Revocable`](Kind::Revocable) lock, was asked to release it.
    pub fn await_revoked(&self, timeout: Duration) {
        self.await_word("revoked", timeout);
    }

    /// Makes the peer release the lock, and waits until it has.
    pub fn release(&self, timeout: Duration) {
        self.begin_release();
        self.await_released(timeout);
    }

    /// Makes the peer release the lock. Does not wait until it has: a member of a double barrier waits for the others.
    pub fn begin_release(&self) {
        let stdin = self.stdin.lock().expect("no thread panicked with it").take();
        stdin.expect("it is released once").write_all(b"\n").expect("the peer reads");
    }

    /// Waits until the peer has released: after [`begin_release`](Self::begin_release), or by itself as a peer of the
    /// kind [`Revoke`](Kind::Revoke) does.
    pub fn await_released(&self, timeout: Duration) {
        self.await_word("released", timeout);
    }

    /// Kills the peer. Its znode remains until its session expires.
    pub fn kill(&self) {
        self.process.kill();
    }

    fn await_word(&self, word: &str, timeout: Duration) -> String {
        let end = Instant::now() + timeout;
        let lines = self.lines.lock().expect("no thread panicked with it");
        loop {
            let line = lines.recv_timeout(end.saturating_duration_since(Instant::now()));
            let line = line.unwrap_or_else(|_| panic!("{:?} does not say `{word}`", self.library));
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Kind {
    /// The arguments of the programs after the path.
    fn arguments(self) -> Vec<String> {
        let word = match self {
            Self::Mutex => "mutex",
            Self::Plain => "plain",
            Self::Read => "read",
            Self::Write => "write",
            Self::PlainRead => "plain-read",
            Self::PlainWrite => "plain-write",
            Self::Semaphore(leases) => return vec!["semaphore".into(), leases.to_string()],
            Self::Revocable => "revocable",
            Self::Revoke => "revoke",
            Self::Barrier => "barrier",
            Self::DoubleBarrier(members) => return vec!["double-barrier".into(), members.to_string()],
        };
        vec![word.into()]
    }
}

impl Library {
    fn has(self, kind: Kind) -> bool {
        self == Self::Curator || !matches!(kind, Kind::Revocable | Kind::Revoke)
    }

    /// Why the library cannot be used here.
    fn missing(self) -> Option<String> {
        match self {
            Self::Kazoo if !runs(PYTHON, &["-c", "import kazoo.recipe.lock"]) => Some("no python3-kazoo".into()),
            Self::Curator if !std::path::Path::new("/usr/share/java/curator-recipes.jar").exists() => {
                Some("no libcurator-recipes-java".into())
            }
            Self::Curator if !runs("javac", &["-version"]) => Some("no JDK, only a runtime".into()),
            _ => None,
        }
    }

    fn program(self, dir: &Scratch) -> (&'static str, Vec<String>) {
        match self {
            Self::Kazoo => (PYTHON, vec![dir.write("kazoo_lock.py", KAZOO_LOCK).display().to_string()]),
            Self::Curator => {
                let source = dir.write("CuratorLock.java", CURATOR_LOCK).display().to_string();
                let log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn";
                ("java", vec![log.into(), "-cp".into(), class_path(&CURATOR_JARS), source])
            }
        }
    }
}

/// The system's Python, because only it finds Debian's packages; the PATH may name another one first.
const PYTHON: &str = "/usr/bin/python3";

fn runs(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
