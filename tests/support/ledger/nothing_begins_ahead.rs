//! Rule: no occurrence begins more than a minute ahead of the servers' clock, whatever the nodes' clocks show.

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::run::RunRecord;
use jiff::{SignedDuration, Timestamp};

use super::{Rule, Txn, ops, written};

/// The minute, plus the millisecond by which a stamp is rounded.
const LEAD: SignedDuration = SignedDuration::from_millis(60_001);

pub struct NothingBeginsAhead;

impl Rule for NothingBeginsAhead {
    fn committed(&mut self, txn: &Txn, _: &[String]) -> Result<(), String> {
        let Ok(time) = Timestamp::from_millisecond(txn.time_ms) else { return Ok(()) };
        let creates = ops(txn).iter().filter(|op| matches!(op, Op::Create { .. }));
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
