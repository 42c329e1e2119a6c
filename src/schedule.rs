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
    /// Newest in (not_before, at].
    pub fn last_before_or_at(&self, _at: Timestamp, _not_before: Timestamp) -> Option<Timestamp> {
        None
    }
    /// Counts.
    pub fn count(&self, _after: Timestamp, _until: Timestamp, _cap: u64) -> u64 {
        0
    }
    /// Text.
    pub fn canonical(&self) -> String {
        String::new()
    }
}
