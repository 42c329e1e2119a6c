//! Trials of seeds: one seed is a world, programs in it, faults, then peace.

use std::ops::AddAssign;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cronkeeper_core::clock::Uptime;
use fastrand::Rng;

use super::executor::{Executor, Program};
use super::facts::Fact;
use super::faults::{self, Fault};
use super::invariants::{self, Invariant, Successors};
use super::jobs;
use super::transcript::Transcript;
use super::world::{Shared, Timing, World};

/// A program under test.
pub trait Subject: Program + Sized {
    /// True if the faults include clocks that are set. If they do, hosts disagree about when a run that is kept while
    /// cut off must make room, and nothing beyond the margin of a second is promised.
    const CLOCKS_STEP: bool = true;

    /// True if the servers lose transactions that they have committed. Then only what the nodes still know is judged.
    const SERVERS_REWIND: bool = false;

    /// True if the nodes use the weakest store in place of the ensemble.
    const ON_STORE: bool = false;

    fn new(seed: u64, nodes: usize, length: Length) -> Self;

    /// Called when peace begins; from then on the program causes no more faults.
    fn calm(&mut self) {}

    /// Checks the world some time after peace began.
    ///
    /// # Errors
    /// A description of what has not recovered, for people.
    fn at_peace(&self, _world: &World) -> Result<(), String> {
        Ok(())
    }
}

/// The durations of a trial.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Duration of the faults in session timeouts; three times as long in a long seed.
    pub faults: u32,
    /// Session timeouts after the last fault by which everything must have recovered.
    pub peace: u32,
}

/// Most seeds are short, because the hard moments are around a failover. A few are long, for effects that build up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Short,
    Long,
}

impl Length {
    fn of(seed: u64) -> Self {
        if seed.is_multiple_of(50) { Self::Long } else { Self::Short }
    }
}

/// A broken promise.
#[derive(Debug)]
pub struct Broken {
    pub at: Uptime,
    pub what: String,
    pub transcript: String,
}

/// Counts of what happened in a seed, because promises are easily kept if nothing happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub faults: usize,
    /// Terms that began.
    pub terms: usize,
    /// Processes of jobs that were started.
    pub starts: usize,
}

impl Tally {
    fn count(&mut self, fact: &Fact) {
        match fact {
            Fact::Elected { .. } => self.terms += 1,
            Fact::Spawned(_) => self.starts += 1,
            _ => {}
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.faults += other.faults;
        self.terms += other.terms;
        self.starts += other.starts;
    }
}

/// How often the world is checked in peace.
const LOOK_EVERY: Duration = Duration::from_secs(2);

struct Trial<S> {
    executor: Executor<S>,
    invariants: Vec<Box<dyn Invariant>>,
    tally: Tally,
}

impl<S: Subject> Trial<S> {
    fn run(&mut self, until: Uptime) -> Result<(), Broken> {
        while let Some(facts) = self.executor.step(until) {
            self.judge(&facts).map_err(|what| self.broken(what))?;
        }
        Ok(())
    }

    /// Runs until everything has recovered, and still is so at a second check, or until `limit`.
    fn settle(&mut self, limit: Uptime) -> Result<(), Broken> {
        let mut is_right = false;
        while self.executor.now() < limit {
            self.run(limit.min(self.executor.now() + LOOK_EVERY))?;
            let was_right = std::mem::replace(&mut is_right, self.verdict().is_ok());
            if was_right && is_right {
                break;
            }
        }
        Ok(())
    }

    fn verdict(&mut self) -> Result<(), String> {
        self.executor.program.at_peace(&self.executor.world.lock())?;
        self.invariants.iter_mut().try_for_each(|invariant| invariant.conclude())
    }

    fn judge(&mut self, facts: &[Fact]) -> Result<(), String> {
        if facts.is_empty() {
            return Ok(());
        }
        let at = self.executor.now();
        for fact in facts {
            self.tally.count(fact);
            for invariant in &mut self.invariants {
                invariant.observe(at, fact)?;
            }
        }
        Ok(())
    }

    fn broken(&self, what: String) -> Broken {
        let world = self.executor.world.lock();
        Broken { at: world.env.now(), what, transcript: world.env.transcript.text() }
    }
}

/// Tries one seed and returns its counts and its transcript.
///
/// # Errors
/// The first broken promise.
pub fn attempt<S: Subject>(seed: u64, plan: Plan, transcript: Transcript) -> Result<(Tally, String), Broken> {
    // Separate from the world's random numbers, so that a change there does not change the plan.
    let mut rng = Rng::with_seed(seed ^ 0x5eed);
    let timing = timing(&mut rng);
    let nodes = rng.usize(2..=4);
    let length = Length::of(seed);
    let world = Shared::new(seed, nodes, timing, transcript);
    // Until when a run goes on while it is cut off, each host tells by its own clock.
    let beside: &[&str] = if S::CLOCKS_STEP { &jobs::KEPT_WHILE_CUT_OFF } else { &[jobs::BESIDE] };
    let invariants = if S::SERVERS_REWIND {
        invariants::under_rewinds(timing.session_timeout, S::ON_STORE)
    } else {
        invariants::all(nodes, timing.session_timeout, Successors::Named(beside), S::ON_STORE)
    };
    world.lock().store.rewinds = S::SERVERS_REWIND && S::ON_STORE;
    let executor = Executor::new(world, S::new(seed, nodes, length));
    let mut trial = Trial { executor, invariants, tally: Tally::default() };
    let begin = trial.executor.now();
    for node in 0..nodes {
        trial.executor.start(node);
    }
    let times = if length == Length::Long { 3 } else { 1 };
    let end = begin + timing.session_timeout * (plan.faults * times);
    let from = begin + timing.session_timeout;
    let mut faults = faults::plan(&mut rng, nodes, timing.session_timeout, from, end);
    if S::SERVERS_REWIND {
        // Every other seed has no other faults.
        faults.retain(|_| !seed.is_multiple_of(2));
        faults.extend(faults::rewinds(&mut rng, timing.session_timeout, from, end));
    }
    faults.retain(|(_, fault)| S::CLOCKS_STEP || !matches!(fault, Fault::StepClock { .. }));
    trial.tally.faults = faults.len();
    trial.executor.world.lock().expect(faults);
    trial.run(end)?;
    trial.executor.make_peace();
    trial.executor.program.calm();
    let limit = trial.executor.now() + timing.session_timeout * plan.peace + Duration::from_secs(20);
    match length {
        Length::Short => trial.settle(limit)?,
        Length::Long => trial.run(limit)?,
    }
    trial.verdict().map_err(|what| trial.broken(what))?;
    let transcript = trial.executor.world.lock().env.transcript.text();
    Ok((trial.tally, transcript))
}

/// Session timeouts from the shortest that servers allow, two ticks, upwards.
fn timing(rng: &mut Rng) -> Timing {
    let tick = Duration::from_millis([500, 1000, 2000][rng.usize(..3)]);
    let ticks = [2.0, 2.0, 2.5, 4.0, 6.0][rng.usize(..5)];
    Timing { tick, session_timeout: tick.mul_f64(ticks), sync_limit: rng.u32(2..=5) }
}

/// How many seeds a test tries, unless the environment says so.
pub struct Seeds {
    /// In every run of the tests.
    pub each_run: u64,
    /// With `CRONKEEPER_LONG=1`.
    pub long_run: u64,
}

/// Tries the seed, or the number of seeds, that the environment names, or the test's number of seeds.
///
/// # Panics
/// If a seed fails, with its transcript and how to run it again.
pub fn many<S: Subject>(test: &str, Seeds { each_run, long_run }: Seeds, plan: Plan) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("CRONKEEPER_SIM_SEED") {
        return report::<S>(test, seed, plan);
    }
    let default = if number("CRONKEEPER_LONG") == Some(1) { long_run } else { each_run };
    let seeds = number("CRONKEEPER_SIM_SEEDS").unwrap_or(default);
    if number("CRONKEEPER_SIM_SURVEY").is_some() {
        return survey::<S>(seeds, plan);
    }
    if let Some(seed) = first_failing::<S>(seeds, plan) {
        report::<S>(test, seed, plan);
        panic!("seed {seed} failed and then did not: something in it comes from outside the seed");
    }
}

/// The lowest failing seed. Each seed runs on one thread; several threads share the seeds.
pub fn first_failing<S: Subject>(seeds: u64, plan: Plan) -> Option<u64> {
    let (next, failed) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let worker = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.min(failed.load(Ordering::Relaxed)) {
            return;
        }
        // A panic is a failure of its seed like any other.
        let outcome = catch_unwind(|| attempt::<S>(seed, plan, Transcript::off()));
        if !matches!(outcome, Ok(Ok(_))) {
            failed.fetch_min(seed, Ordering::Relaxed);
        }
    };
    each_thread(worker);
    Some(failed.into_inner()).filter(|seed| *seed != u64::MAX)
}

/// Reports for every failing seed what is broken.
///
/// # Panics
/// If a seed fails.
fn survey<S: Subject>(seeds: u64, plan: Plan) {
    let (next, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    each_thread(|| {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            let what = match catch_unwind(|| attempt::<S>(seed, plan, Transcript::off())) {
                Ok(Ok(_)) => continue,
                Ok(Err(Broken { what, .. })) => what,
                Err(_) => "it panicked".into(),
            };
            failed.fetch_add(1, Ordering::Relaxed);
            println!("seed {seed}: {what}");
        }
    });
    assert_eq!(failed.into_inner(), 0, "of {seeds} seeds so many failed");
}

fn each_thread(worker: impl Fn() + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&worker);
        }
    });
}

/// The total counts of the first `seeds`.
///
/// # Panics
/// If a seed fails.
pub fn tally<S: Subject>(seeds: u64, plan: Plan) -> Tally {
    let mut all = Tally::default();
    for seed in 0..seeds {
        match attempt::<S>(seed, plan, Transcript::off()) {
            Ok((tally, _)) => all += tally,
            Err(Broken { at, what, .. }) => panic!("seed {seed}, at {at:?}: {what}"),
        }
    }
    all
}

/// Tries a seed once more and prints its transcript to standard output; panics with it if the seed fails.
fn report<S: Subject>(test: &str, seed: u64, plan: Plan) {
    let again = format!("CRONKEEPER_SIM_SEED={seed} cargo test --workspace --test simulation {test}");
    // What panics keeps no transcript.
    let outcome = catch_unwind(|| attempt::<S>(seed, plan, Transcript::on()));
    match outcome.unwrap_or_else(|_| panic!("seed {seed} panics\nrun it again: {again}")) {
        Ok((tally, transcript)) => println!("{transcript}\n{tally:?}"),
        Err(Broken { at, what, transcript }) => {
            panic!("seed {seed}, at {at:?}: {what}\n\n{transcript}\nrun it again: {again}")
        }
    }
}
