//! Records of strangers: what anybody who reaches the ensemble can write below our paths. Each may harm nothing but itself.
//!
//! They belong to a job that there is not, so that it can be told apart what they do to all others.

use cronkeeper::zookeeper::client::{Mode, Op};
use serde_json::json;

use super::world::World;
use super::zookeeper::{CLOSED, STRANGER};

/// The job that all strays name.
pub const STRAY: &str = "stray";

/// What a stray record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// A run whose record cannot be read.
    Run,
    /// A run whose record names an owner that no path can be made of.
    Owner,
    /// Something among the runs that has no run's name.
    NoRun,
    /// A job's record, a pause, a trigger, a member that cannot be read.
    Job,
    Pause,
    Trigger,
    Member,
}

impl Stray {
    pub const ALL: [Self; 7] =
        [Self::Run, Self::Owner, Self::NoRun, Self::Job, Self::Pause, Self::Trigger, Self::Member];

    fn path(self) -> String {
        match self {
            Self::Run => format!("running/{STRAY}.20261120T000000Z"),
            Self::Owner => format!("running/{STRAY}.20261120T000001Z"),
            Self::NoRun => format!("running/{STRAY} is no run"),
            Self::Job => format!("jobs/{STRAY}"),
            Self::Pause => format!("control/{STRAY}"),
            Self::Trigger => format!("triggers/{STRAY}"),
            Self::Member => format!("nodes/{STRAY}"),
        }
    }

    /// The record, or one that nobody else may read.
    fn data(self, is_closed: bool) -> Vec<u8> {
        if is_closed {
            return CLOSED.into();
        }
        let owner = json!({
            "v": 1, "job": STRAY, "scheduled_at": "2026-11-20T00:00:01Z", "state": "running",
            "node": "../../elsewhere", "session": "0x1", "token": 7, "attempt": 1, "nonce": "7-1",
            "begun_at": "2026-11-20T00:00:01Z", "on_loss": "rerun",
        });
        if self == Self::Owner { owner.to_string().into() } else { b"{\"v\":1,".into() }
    }
}

impl World {
    /// Somebody else's client makes a record, where the ensemble takes writes and its folder is there.
    pub fn leave_stray(&mut self, stray: Stray, is_closed: bool) {
        let path = format!("/cronkeeper/{}", stray.path());
        let leader =
            self.ensemble.servers.iter_mut().filter(|server| server.is_serving()).max_by_key(|server| server.epoch());
        if let Some(leader) = leader {
            let create = Op::Create { path, data: stray.data(is_closed), mode: Mode::Persistent };
            leader.write_for(&mut self.env, STRANGER, vec![create]);
        }
    }
}
