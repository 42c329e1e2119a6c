//! Tests of the engine: one event at a time, and the commands that must follow.

mod ahead;
mod alarms;
mod burst;
mod calendars;
mod chained;
mod clocks;
mod control;
mod drained;
mod drift;
mod due;
mod ending;
pub(super) mod fixture;
mod fuzz;
mod hooks;
mod locks;
mod lost;
mod missed;
mod overdue;
mod parameters;
mod recounted;
mod refused;
mod retrying;
mod rewound;
mod splay;
mod transfer;
mod unstarted;
mod waiting;
