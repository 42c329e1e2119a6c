//! The daemon on real ZooKeeper, end to end: real processes, real signals, real servers that fall and return.
//!
//! Timing is only bounded where it is the promise, and then generously. What takes long, or is only more of the same,
//! runs with `CRONKEEPER_LONG=1`.

mod alarms;
mod authentication;
mod burst;
mod chained;
pub mod cluster;
pub mod control;
mod crowd;
mod drain;
mod entries;
mod flapping;
mod frozen;
mod history;
mod hooks;
mod hung;
mod in_flight;
mod killed;
mod lease;
mod logs;
mod never_leads;
mod node_hooks;
pub mod outage;
mod placed;
pub mod records;
mod retrying;
mod rewound;
mod secrets;
mod stalls;
pub mod standing_open;
pub mod start;
mod status;
mod steady;
mod succession;
mod successor;
mod thawed;
mod unrecorded_ends;
mod waiting;
