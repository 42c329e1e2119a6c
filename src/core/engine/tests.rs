//! Tests of the engine: one event at a time, and the commands that must follow.

mod ahead;
mod alarms;
mod chained;
mod clocks;
mod control;
mod drained;
mod drift;
mod due;
mod ending;
mod fuzz;
mod transfer;
mod hooks;
mod locks;
mod lost;
mod missed;
mod overdue;
mod parameters;
mod refused;
mod retrying;
mod waiting;
pub(super) mod fixture;
mod splay;
mod unstarted;
mod burst;
mod calendars;
