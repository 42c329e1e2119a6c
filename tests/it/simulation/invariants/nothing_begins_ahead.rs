//! Invariant: no occurrence begins more than a minute ahead of the servers' clock, whatever the nodes' clocks show.

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::run::RunRecord;
use jiff::{SignedDuration, Timestamp};

use super::super::facts::Fact;
use super::{Invariant, ops, written};

/// The minute, plus the millisecond by which a stamp is rounded.
const LEAD: SignedDuration = SignedDuration::from_millis(60_001);

pub struct NothingBeginsAhead;

impl Invariant for NothingBeginsAhead {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        let Fact::Committed { entry, .. } = fact else { return Ok(()) };
        let Ok(time) = Timestamp::from_millisecond(entry.txn.time_ms) else { return Ok(()) };
        let creates = ops(entry).iter().filter(|op| matches!(op, Op::Create { .. }));
        let records = creates.filter_map(|op| written(op, "/cronkeeper/running"));
        for (run, data) in records {
            let Ok(record) = serde_json::from_slice::<RunRecord>(data) else { continue };
            // A trigger has the time of its requester, and is due at once.
            if record.trigger.is_none() && record.scheduled_at.duration_since(time) > LEAD {
                return Err(format!("`{run}` was begun when it was {time} at the servers"));
            }
        }
        Ok(())
    }
}
