//! Foreign entries: what anybody who can reach the ensemble can write below our paths. Each may harm nothing but
//! itself.
//!
//! They belong to a job that does not exist, so that their effect on all other jobs can be recognized.

use cronkeeper_cluster::zookeeper::client::{Mode, Op};
use serde_json::json;

use super::world::World;
use super::zookeeper::{CLOSED, STRANGER};

/// The job that all foreign entries name.
pub const FOREIGN_JOB: &str = "stray";

/// The kinds of foreign entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignEntry {
    /// A run with an unreadable record.
    Run,
    /// A run whose owner's name is no valid path.
    Owner,
    /// An entry among the runs whose name is not a run's.
    NoRun,
    /// An unreadable record of a job, a pause, a trigger or a member.
    Job,
    Pause,
    Trigger,
    Member,
}

impl ForeignEntry {
    pub const ALL: [Self; 7] =
        [Self::Run, Self::Owner, Self::NoRun, Self::Job, Self::Pause, Self::Trigger, Self::Member];

    fn path(self) -> String {
        match self {
            Self::Run => format!("running/{FOREIGN_JOB}.20261120T000000Z"),
            Self::Owner => format!("running/{FOREIGN_JOB}.20261120T000001Z"),
            Self::NoRun => format!("running/{FOREIGN_JOB} is no run"),
            Self::Job => format!("jobs/{FOREIGN_JOB}"),
            Self::Pause => format!("control/{FOREIGN_JOB}"),
            Self::Trigger => format!("triggers/{FOREIGN_JOB}"),
            Self::Member => format!("nodes/{FOREIGN_JOB}"),
        }
    }

    /// The data of the record; if `is_closed`, data that nobody else may read.
    fn data(self, is_closed: bool) -> Vec<u8> {
        if is_closed {
            return CLOSED.into();
        }
        let owner = json!({
            "v": 1, "job": FOREIGN_JOB, "scheduled_at": "2026-11-20T00:00:01Z", "state": "running",
            "node": "../../elsewhere", "session": "0x1", "token": 7, "attempt": 1, "nonce": "7-1",
            "begun_at": "2026-11-20T00:00:01Z", "on_loss": "rerun",
        });
        if self == Self::Owner { owner.to_string().into() } else { b"{\"v\":1,".into() }
    }
}

impl World {
    /// Creates the record by a foreign client, if the ensemble accepts writes and the parent znode exists.
    pub fn leave_foreign_entry(&mut self, entry: ForeignEntry, is_closed: bool) {
        let path = format!("/cronkeeper/{}", entry.path());
        let leader =
            self.ensemble.servers.iter_mut().filter(|server| server.is_serving()).max_by_key(|server| server.epoch());
        if let Some(leader) = leader {
            let create = Op::Create { path, data: entry.data(is_closed), mode: Mode::Persistent };
            leader.write_for(&mut self.env, STRANGER, vec![create]);
        }
    }
}
