//! Deterministic fuzz tests for the parsers of untrusted input, in the unit tests of all crates.
//!
//! ```text
//!  tests/corpus/PARSER/*  ─┐
//!  words of the format    ─┼─ mutate ─ input ─▶ the test of the parser, which returns true if it accepted the input
//!  a number, the seed     ─┘
//! ```
//! No input may make the parser panic or take long. The test asserts whatever else must hold for accepted inputs. An
//! input depends only on its seed and the corpus, so it is the same on every machine. The unchanged samples come first,
//! so that an input that once broke a parser can stay in its corpus as a regression test.
//!
//! An ordinary run has two thousand inputs, one with `CRONKEEPER_LONG=1` a million. `CRONKEEPER_FUZZ_SEED` repeats a
//! single one.

#![allow(dead_code, reason = "each crate uses a part of it")]

mod mutate;

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use mutate::Mutator;

/// Number of inputs in an ordinary run and in a long one.
const FEW: u64 = 2_000;
const MANY: u64 = 1_000_000;
/// Maximum CPU time for one input. CPU time does not depend on the load of the machine.
const SLOW: Duration = Duration::from_secs(5);
/// Wall-clock time after which an input counts as hanging.
const HUNG: Duration = Duration::from_secs(300);
/// The parser must accept at least one in this many inputs; otherwise only its first checks would be tested.
const ONE_READ_OF: u64 = 200;
/// Maximum number of characters of an input to print.
const SHOWN: usize = 4_000;

/// Fragments of a ledger.
pub(crate) const LEDGER_WORDS: &[&str] = &[
    "running/",
    "jobs/",
    "history/",
    "control/",
    "triggers/",
    "nodes/",
    "backup",
    "backup.20261120T095900Z",
    "backup.20261120T095900Z.m7",
    "0000000007",
    "\n",
    "{}",
    "null",
    "[]",
    "\"v\":1,",
    "\"job\":\"backup\",",
    "\"scheduled_at\":",
    "\"ready_at\":\"2026-11-20T10:00:00Z\",",
    "\"retry_at\":\"2026-11-20T10:00:05Z\",",
    "\"keep_until\":\"2026-11-20T10:00:05Z\",",
    "\"kill\":{\"reason\":\"operator\",\"by\":\"root\",\"at\":\"2026-11-20T10:00:00Z\",\"force\":true},",
    "\"dependents\":[\"load\"],",
    "\"past\":{\"failures\":4294967295,\"attempts\":[]},",
    "\"attempt\":4294967295,",
    "\"parameters\":{\"LD_PRELOAD\":\"/x\"},",
    "\"queued\"",
    "\"running\"",
    "\"retrying\"",
    "\"unstarted\"",
    "\"cut-off\"",
    "\"rerun\"",
    "\"interrupt\"",
    "\"failure\"",
    "\"timeout\"",
    "\"success\"",
    "\"otherwise\"",
    "\"not-begun\"",
    "\"upstream\":null,",
    "\"kind\":\"skip\",",
    "\"kind\":\"run\",",
    "-009999-01-02T01:59:59Z",
    "9999-12-30T22:00:00.999999999Z",
    "1969-12-31T23:59:59Z",
    "2026-11-20T10:00:00Z",
    "2026-11-20T10:00:01.5Z",
    "18446744073709551615",
    "-9223372036854775808",
    "4294967295",
    "\\ud800",
    "\\u0000",
    "..",
];

/// Proptest's settings: inputs that failed once are kept in `tests/regressions`.
pub(crate) fn proptest_config() -> proptest::test_runner::Config {
    // Beside the directory of the crate's `lib.rs`.
    let folder = if env!("CARGO_PKG_NAME") == "cronkeeper" { "tests/regressions" } else { "../tests/regressions" };
    let kept = proptest::test_runner::FileFailurePersistence::SourceParallel(folder);
    proptest::test_runner::Config { failure_persistence: Some(Box::new(kept)), ..Default::default() }
}

/// A fuzz test of one parser.
pub(crate) struct Fuzz {
    /// Name of the parser and of its directory in the corpus.
    pub parser: &'static str,
    /// Fragments of its format.
    pub words: &'static [&'static str],
    /// Maximum length of an input in bytes; most are far shorter.
    pub longest: usize,
}

impl Fuzz {
    /// A test with inputs of at most 64 KiB.
    pub fn of(parser: &'static str, words: &'static [&'static str]) -> Self {
        Self { parser, words, longest: 64 << 10 }
    }

    /// Runs the test. `read` returns whether the parser accepted the input, and panics if something is wrong.
    #[track_caller]
    pub fn run(self, read: fn(&[u8]) -> bool) {
        let seeds = seeds();
        let count = seeds.end - seeds.start;
        let mutator = Arc::new(Mutator::new(samples(self.parser), self.words, self.longest));
        let worker =
            Worker { mutator: Arc::clone(&mutator), at_work: Arc::new(Mutex::new((seeds.start, Instant::now()))) };
        let Done { read, slowest: (took, slowest) } = watched(worker, seeds, read)
            .unwrap_or_else(|(seed, what)| panic!("{}", self.failure(seed, &what, &mutator.input(seed))));
        println!("{}: {read} of {count} inputs accepted; the slowest, seed {slowest}, took {took:?}", self.parser);
        assert!(count == 1 || read * ONE_READ_OF > count, "{}: only {read} of {count} inputs accepted", self.parser);
    }

    fn failure(&self, seed: u64, what: &str, input: &[u8]) -> String {
        let shown: String = input.escape_ascii().take(SHOWN).map(char::from).collect();
        format!("{}: {what}; repeat with CRONKEEPER_FUZZ_SEED={seed}, {} bytes: {shown}", self.parser, input.len())
    }
}

/// The seeds of this run.
fn seeds() -> Range<u64> {
    match std::env::var("CRONKEEPER_FUZZ_SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap_or_else(|error| panic!("CRONKEEPER_FUZZ_SEED: {error}"));
            seed..seed + 1
        }
        Err(_) if std::env::var_os("CRONKEEPER_LONG").is_some() => 0..MANY,
        Err(_) => 0..FEW,
    }
}

/// Waits for the worker and limits the time for each input. The worker has its own thread, because a hanging parser
/// cannot be interrupted otherwise.
fn watched(worker: Worker, seeds: Range<u64>, read: fn(&[u8]) -> bool) -> Result<Done, (u64, String)> {
    let at_work = Arc::clone(&worker.at_work);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || drop(sender.send(worker.work(seeds, read))));
    loop {
        match receiver.recv_timeout(Duration::from_secs(1)) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Disconnected) => panic!("the worker ended without a result"),
            Err(RecvTimeoutError::Timeout) => {
                let (seed, since) = *at_work.lock().unwrap();
                if since.elapsed() > HUNG {
                    return Err((seed, "the parser hangs".to_owned()));
                }
            }
        }
    }
}

/// Runs the parser on all inputs.
struct Worker {
    mutator: Arc<Mutator>,
    at_work: Arc<Mutex<(u64, Instant)>>,
}

struct Done {
    read: u64,
    slowest: (Duration, u64),
}

impl Worker {
    /// Stops at the first input that makes the parser panic or takes too long, and returns its seed and the reason.
    fn work(&self, seeds: Range<u64>, read: fn(&[u8]) -> bool) -> Result<Done, (u64, String)> {
        let mut done = Done { read: 0, slowest: (Duration::ZERO, seeds.start) };
        for seed in seeds {
            *self.at_work.lock().unwrap() = (seed, Instant::now());
            let input = self.mutator.input(seed);
            let begun = worked();
            let was_read =
                catch_unwind(AssertUnwindSafe(|| read(&input))).map_err(|panic| (seed, panic_message(&*panic)))?;
            let took = worked() - begun;
            done.read += u64::from(was_read);
            done.slowest = done.slowest.max((took, seed));
            if took > SLOW {
                return Err((seed, format!("the parser took {took:?}")));
            }
        }
        Ok(done)
    }
}

/// Asserts that a value survives serializing and deserializing.
#[track_caller]
pub(crate) fn is_read_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(read: &T) {
    let written = serde_json::to_vec(read).unwrap();
    let again: T = serde_json::from_slice(&written)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&written)));
    assert_eq!(again, *read);
}

/// The input as text, for parsers that take text.
pub(crate) fn text(input: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(input)
}

/// CPU time of this thread, which does not depend on other builds and tests on the machine.
fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the parser panicked: {}", text.unwrap_or("no message"))
}

/// The files in a parser's corpus directory, ordered by name.
fn samples(parser: &str) -> Vec<Vec<u8>> {
    let corpus = |folder: &Path| folder.join("tests/corpus");
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(corpus).find(|corpus| corpus.is_dir());
    let directory = own.expect("the repository has a corpus").join(parser);
    let files = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}
