//! Tests of schedules through their public interface.
//!
//! They use hand-written tables, an independent implementation of crontab(5), and meaningless text.

mod brute;
mod calendars;
mod clock_shifts;
mod counting;
mod day_rules;
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
