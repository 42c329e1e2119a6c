//! The engine by hand: one event at a time, and what must follow.

mod control;
mod due;
mod ending;
mod lost;
mod missed;
mod rig;
