//! Other libraries' locks in the same queue: kazoo's `Lock` and Curator's `InterProcessMutex`, the real ones.
//!
//! Debian has both (`python3-kazoo`; `libcurator-recipes-java`, and a JDK to compile a small program). Where one is
//! missing, [`Peer::or_skip`] says so on stderr, past the test runner's capture, and the test is to return.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::process::Process;
use super::scratch::Scratch;
use super::skipped;
use super::zookeeper::class_path;

const KAZOO_LOCK: &str = include_str!("peers/kazoo_lock.py");
const CURATOR_LOCK: &str = include_str!("peers/CuratorLock.java");
const CURATOR_JARS: [&str; 6] =
    ["curator-recipes", "curator-framework", "curator-client", "guava", "zookeeper", "slf4j-simple"];

/// Which library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Python's.
    Kazoo,
    /// Java's.
    Curator,
}

/// A process that queues for a lock, holds it, gives it up.
#[derive(Debug)]
pub struct Peer {
    library: Library,
    process: Process,
    // Open while the peer shall hold what it has.
    stdin: Mutex<Option<ChildStdin>>,
    lines: Mutex<Receiver<String>>,
    _dir: Scratch,
}

impl Peer {
    /// Queues for the lock at `path`, below the chroot of `connect`; `None`, said loudly, where the library is missing.
    pub fn or_skip(library: Library, connect: &str, path: &str) -> Option<Self> {
        match library.missing() {
            None => Some(Self::start(library, connect, path)),
            Some(why) => {
                skipped(&format!("a test with {library:?}: {why}; tests/run.sh installs it"));
                None
            }
        }
    }

    fn start(library: Library, connect: &str, path: &str) -> Self {
        let dir = Scratch::new("peer");
        let (program, arguments) = library.program(&dir);
        let process = Process::spawn(program, |command| {
            command.args(&arguments).args([connect, path]).stdin(Stdio::piped()).stdout(Stdio::piped());
        });
        let mut process = process.expect("it was there a moment ago");
        let stdout = process.take(|child| child.stdout.take());
        let stdin = process.take(|child| child.stdin.take());
        let (told, lines) = channel();
        // Ends with the peer's output, or when nobody listens any more.
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| told.send(line))
        });
        Self { library, process, stdin: Mutex::new(Some(stdin)), lines: Mutex::new(lines), _dir: dir }
    }

    /// Waits until it is connected, and about to queue.
    pub fn await_connected(&self, timeout: Duration) {
        self.await_word("connected", timeout);
    }

    /// Waits until it has the lock; the name of its node.
    pub fn await_acquired(&self, timeout: Duration) -> String {
        self.await_word("acquired", timeout)
    }

    /// Tells it to give the lock up, and waits until it has.
    pub fn release(&self, timeout: Duration) {
        let stdin = self.stdin.lock().expect("no thread panicked with it").take();
        stdin.expect("it is released once").write_all(b"\n").expect("the peer reads");
        self.await_word("released", timeout);
    }

    /// Kills it: its node stays until its session expires.
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

impl Library {
    /// Why it cannot be used here.
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

/// The system's own: that is where Debian's packages are found, whatever other Python the PATH has first.
const PYTHON: &str = "/usr/bin/python3";

fn runs(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
