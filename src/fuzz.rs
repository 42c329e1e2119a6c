//! What others wrote, as nobody means it: each parser is given samples of its format, changed again and again.
//!
//! ```text
//!  tests/corpus/PARSER/*  ─┐
//!  words of the format    ─┼─ mutate ─ input ─▶ the parser's test: true where the input was read, false where it was refused
//!  a number, the seed     ─┘
//! ```
//! No input makes the parser panic, and none takes it long. What else must hold of what was read is for the test to assert. An
//! input is drawn from its seed and the corpus alone, so it is the same on every machine. The samples come first, as they are:
//! an input that was once too much for a parser stays in its corpus.
//!
//! Ten thousand inputs in an ordinary run, a million with `CRONKEEPER_LONG=1`; `CRONKEEPER_FUZZ_SEED` runs one again.

mod mutate;

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use mutate::Mutator;

/// Inputs of an ordinary run, and of a long one.
const FEW: u64 = 10_000;
const MANY: u64 = 1_000_000;
/// The processor's time that one input may take, whatever else the machine does.
const SLOW: Duration = Duration::from_secs(5);
/// An input that is not done with after this, by the clock on the wall, never is.
const HUNG: Duration = Duration::from_secs(300);
/// Of so many inputs one is read at least, or the parser is only ever shown what its first line refuses.
const ONE_READ_OF: u64 = 200;
/// Characters of an input that are shown.
const SHOWN: usize = 4_000;

/// A parser's test.
pub(crate) struct Fuzz {
    /// The parser, and its folder in the corpus.
    pub parser: &'static str,
    /// What its format is made of.
    pub words: &'static [&'static str],
    /// Bytes of an input at most; most are far shorter.
    pub longest: usize,
}

impl Fuzz {
    /// Of a parser that is given up to 64 KiB.
    pub fn of(parser: &'static str, words: &'static [&'static str]) -> Self {
        Self { parser, words, longest: 64 << 10 }
    }

    /// Gives the parser its inputs. `read` says whether it took one, and panics where something is wrong.
    #[track_caller]
    pub fn run(self, read: fn(&[u8]) -> bool) {
        let seeds = seeds();
        let count = seeds.end - seeds.start;
        let mutator = Arc::new(Mutator::new(samples(self.parser), self.words, self.longest));
        let worker =
            Worker { mutator: Arc::clone(&mutator), at_work: Arc::new(Mutex::new((seeds.start, Instant::now()))) };
        let Done { read, slowest: (took, slowest) } = watched(worker, seeds, read)
            .unwrap_or_else(|(seed, what)| panic!("{}", self.said(seed, &what, &mutator.input(seed))));
        println!("{}: {read} of {count} inputs were read, the slowest took {took:?}: {slowest}", self.parser);
        assert!(count == 1 || read * ONE_READ_OF > count, "{}: only {read} of {count} were read", self.parser);
    }

    fn said(&self, seed: u64, what: &str, input: &[u8]) -> String {
        let shown: String = input.escape_ascii().take(SHOWN).map(char::from).collect();
        format!("{}: {what}; again with CRONKEEPER_FUZZ_SEED={seed}, {} bytes: {shown}", self.parser, input.len())
    }
}

/// Those that this run is about.
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

/// Waits for the worker, and for none of its inputs too long. It works on a thread of its own: what hangs could not be left otherwise.
fn watched(worker: Worker, seeds: Range<u64>, read: fn(&[u8]) -> bool) -> Result<Done, (u64, String)> {
    let at_work = Arc::clone(&worker.at_work);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || drop(tell.send(worker.work(seeds, read))));
    loop {
        match told.recv_timeout(Duration::from_secs(1)) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Disconnected) => panic!("the worker ended without a word"),
            Err(RecvTimeoutError::Timeout) => {
                let (seed, since) = *at_work.lock().unwrap();
                if since.elapsed() > HUNG {
                    return Err((seed, "an input that hangs".to_owned()));
                }
            }
        }
    }
}

/// Goes through the inputs.
struct Worker {
    mutator: Arc<Mutator>,
    at_work: Arc<Mutex<(u64, Instant)>>,
}

struct Done {
    read: u64,
    slowest: (Duration, u64),
}

impl Worker {
    /// Ends at the first input that is too much, and says why.
    fn work(&self, seeds: Range<u64>, read: fn(&[u8]) -> bool) -> Result<Done, (u64, String)> {
        let mut done = Done { read: 0, slowest: (Duration::ZERO, seeds.start) };
        for seed in seeds {
            *self.at_work.lock().unwrap() = (seed, Instant::now());
            let input = self.mutator.input(seed);
            let begun = worked();
            let was_read =
                catch_unwind(AssertUnwindSafe(|| read(&input))).map_err(|panic| (seed, words_of(&*panic)))?;
            let took = worked() - begun;
            done.read += u64::from(was_read);
            done.slowest = done.slowest.max((took, seed));
            if took > SLOW {
                return Err((seed, format!("an input that takes {took:?}")));
            }
        }
        Ok(done)
    }
}

/// What was read is written, and read again as the same.
#[track_caller]
pub(crate) fn is_read_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(read: &T) {
    let written = serde_json::to_vec(read).unwrap();
    let again: T = serde_json::from_slice(&written)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&written)));
    assert_eq!(again, *read);
}

/// The input as text: a parser that takes text is never given anything else.
pub(crate) fn text(input: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(input)
}

/// The processor's time of this thread: other builds and tests on the machine do not count.
fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a panic, {}", text.unwrap_or("without words"))
}

/// The files of a parser's folder, by name.
fn samples(parser: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus")).join(parser);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}
