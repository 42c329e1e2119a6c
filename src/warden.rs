//! The warden: the small process that starts the jobs' processes and never lets one go.
pub mod wire;
