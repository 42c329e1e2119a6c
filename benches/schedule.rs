//! Benchmark of schedules: `cargo bench --bench schedule`.
//!
//! It prints the mean time to compute an occurrence over many successive ones, the slowest single computation for rare
//! ones, the time to count the occurrences that a jump of the clock passed, and the time to load a large jobs file.

#[path = "shared/short.rs"]
mod short;

use std::hint::black_box;
use std::time::{Duration, Instant};

use cronkeeper_core::schedule::{Dst, Schedule};
use jiff::Timestamp;

use self::short::pick;

const COMMON: [&str; 9] = [
    "* * * * *",
    "*/5 * * * *",
    "30 2 * * *",
    "0 9-17 * * mon-fri",
    "0 0 1,15 * 0",
    "H H * * *",
    "@monthly",
    "*/10 * * * * *",
    "@every 90s",
];
const RARE: [&str; 5] = ["0 0 29 2 *", "0 0 29 2 */7", "0 0 31 12 */7", "0 0 0 1 1 * 2099", "30 2 29 3 */7"];
const ZONES: [&str; 3] = ["UTC", "Europe/Berlin", "Australia/Lord_Howe"];

fn main() {
    let start: Timestamp = "2026-11-20T00:00:00Z".parse().expect("an instant");
    println!("{:<22} {:<20} {:>12} {:>12}", "expression", "zone", "next (ns)", "last (ns)");
    for zone in ZONES {
        for text in COMMON {
            let schedule = Schedule::parse(&[text], zone, Dst::Once, "nightly-backup").expect("valid");
            println!("{text:<22} {zone:<20} {:>12} {:>12}", mean_next(&schedule, start), mean_last(&schedule, start));
        }
    }
    println!("\n{:<22} {:<20} {:>12} {:>12}", "rare", "zone", "worst next", "worst last");
    for text in RARE {
        let schedule = Schedule::parse(&[text], "Europe/Berlin", Dst::Once, "nightly-backup").expect("valid");
        let (next, last) = slowest(&schedule);
        println!("{text:<22} {:<20} {next:>12} {last:>12}", "Europe/Berlin");
    }
    println!("\n{:<22} {:<20} {:>12}", "ten years", "zone", "count (ns)");
    for list in [&["* * * * * *"][..], &["30 2 * * *"], &["*/7 * * * * *", "0 9-17 * * mon-fri", "@every 90s"]] {
        let schedule = Schedule::parse(list, "Europe/Berlin", Dst::Once, "nightly-backup").expect("valid");
        println!("{:<22} {:<20} {:>12}", list.join(", "), "Europe/Berlin", count(&schedule, start));
    }
    println!("\nloading {} jobs: {} ms", pick(JOBS, 100), load().as_millis());
}

const TEN_YEARS: Duration = Duration::from_secs(3653 * 86_400);

fn count(schedule: &Schedule, start: Timestamp) -> u128 {
    let begun = Instant::now();
    black_box(schedule.count(start, start + TEN_YEARS));
    begun.elapsed().as_nanos()
}

const JOBS: usize = 10_000;

/// The fastest of three.
fn load() -> Duration {
    let mut file = String::from("defaults: {timezone: Europe/Berlin, timeout: 1h}\njobs:\n");
    let jobs = pick(JOBS, 100);
    for job in 0..jobs {
        let (minute, hour) = (job % 60, job / 60 % 24);
        file.push_str(&format!(
            "  job-{job}:\n    schedule: \"{minute} {hour} * * 1-5\"\n    command: [/usr/local/bin/work, --number, \"{job}\"]\n    splay: 5m\n"
        ));
    }
    let once = |_| {
        let begun = Instant::now();
        let (set, _) = cronkeeper::config::parse("jobs.yaml", file.as_bytes()).expect("valid");
        assert_eq!(black_box(set).jobs.len(), jobs);
        begun.elapsed()
    };
    (0..3).map(once).min().unwrap_or_default()
}

const ROUNDS: u32 = 20_000;

fn mean_next(schedule: &Schedule, start: Timestamp) -> u128 {
    let (begun, rounds) = (Instant::now(), pick(ROUNDS, 100));
    let mut at = start;
    for _ in 0..rounds {
        at = black_box(schedule.next_after(at)).unwrap_or(start);
    }
    begun.elapsed().as_nanos() / u128::from(rounds)
}

fn mean_last(schedule: &Schedule, start: Timestamp) -> u128 {
    let (begun, rounds) = (Instant::now(), pick(ROUNDS, 100));
    let mut at = start;
    for _ in 0..rounds {
        let last = schedule.last_before_or_at(at, Timestamp::MIN);
        at = black_box(last).map_or(start, |last| last - jiff::SignedDuration::from_secs(1));
    }
    begun.elapsed().as_nanos() / u128::from(rounds)
}

/// The slowest single computation, starting from every month of the years that can be computed with.
fn slowest(schedule: &Schedule) -> (u128, u128) {
    const MONTH: i64 = 30 * 86_400;
    let instants = (0..1_600).step_by(pick(1, 100)).filter_map(|month| Timestamp::from_second(month * MONTH).ok());
    let timed = |ask: &dyn Fn() -> Option<Timestamp>| {
        // The fastest of three, so that other work of the machine does not count.
        let once = |_| {
            let begun = Instant::now();
            black_box(ask());
            begun.elapsed().as_nanos()
        };
        (0..3).map(once).min().unwrap_or_default()
    };
    instants.fold((0, 0), |(next, last), at| {
        (
            next.max(timed(&|| schedule.next_after(at))),
            last.max(timed(&|| schedule.last_before_or_at(at, Timestamp::MIN))),
        )
    })
}
