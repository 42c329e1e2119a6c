//! What the next occurrence costs: `cargo bench --bench schedule`.
//!
//! Prints the mean over many successive occurrences, and over rare ones the slowest single question.

use std::hint::black_box;
use std::time::Instant;

use cronkeeper::schedule::{Dst, Schedule};
use jiff::Timestamp;

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
}

const ROUNDS: u32 = 20_000;

fn mean_next(schedule: &Schedule, start: Timestamp) -> u128 {
    let begun = Instant::now();
    let mut at = start;
    for _ in 0..ROUNDS {
        at = black_box(schedule.next_after(at)).unwrap_or(start);
    }
    begun.elapsed().as_nanos() / u128::from(ROUNDS)
}

fn mean_last(schedule: &Schedule, start: Timestamp) -> u128 {
    let begun = Instant::now();
    let mut at = start;
    for _ in 0..ROUNDS {
        let last = schedule.last_before_or_at(at, Timestamp::MIN);
        at = black_box(last).map_or(start, |last| last - jiff::SignedDuration::from_secs(1));
    }
    begun.elapsed().as_nanos() / u128::from(ROUNDS)
}

/// The slowest single answer, asked from every month of the years that can be computed with.
fn slowest(schedule: &Schedule) -> (u128, u128) {
    const MONTH: i64 = 30 * 86_400;
    let instants = (0..1_600).filter_map(|month| Timestamp::from_second(month * MONTH).ok());
    let timed = |ask: &dyn Fn() -> Option<Timestamp>| {
        // Of three, the fastest: what the machine does besides is not asked for.
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
