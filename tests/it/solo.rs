//! End-to-end tests of the solo backend: real processes, real signals, one state directory.

mod api;
mod chained;
mod comparing;
mod control;
mod crowd;
mod deaths;
mod disk;
mod drain;
mod endurance;
mod ending;
mod gap;
mod groups;
mod history;
mod hooks;
mod host;
mod last_good;
mod locks;
pub mod log;
mod logs;
mod openapi;
mod parameters;
mod reload;
mod retrying;
pub mod fixture;
mod signals;
mod succession;
mod waiting;
