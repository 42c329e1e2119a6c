//! Tests of the warden with jobs that misbehave. Every test ends by checking that no process of its run is left.

mod cgroups;
mod ends;
pub mod fixture;
mod floods;
mod given_files;
mod held;
mod input;
mod orders;
mod output;
mod start;
mod trees;
