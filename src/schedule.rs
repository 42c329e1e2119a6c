//! When a job is due.
use jiff::Timestamp;

/// Placeholder until the schedule module lands.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule;

impl Schedule {
    /// The first occurrence after `after`.
    pub fn next_after(&self, _after: Timestamp) -> Option<Timestamp> {
        None
    }
}
