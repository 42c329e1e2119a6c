//! The daemon's end of a backend, played by a test.

pub mod daemon_end;
pub mod event_order;
pub mod records;

/// What the unit tests use too.
#[path = "../records.rs"]
pub mod test_records;
