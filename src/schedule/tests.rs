//! What a schedule promises, from outside: by hand-written tables, against a reading of crontab(5) of
//! its own, and against text that means nothing.

mod brute;
mod clock_shifts;
mod counting;
mod errors;
mod fuzz;
mod nonsense;
mod promises;

use jiff::Timestamp;

use super::{Dst, Schedule};

fn at(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

fn schedule(text: &str, zone: &str) -> Schedule {
    Schedule::parse(&[text], zone, Dst::Once, "nightly-backup").expect("a valid schedule")
}
