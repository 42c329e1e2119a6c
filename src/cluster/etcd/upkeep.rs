//! etcd keeps every change until somebody compacts its history, and accepts no writes any more once its quota is full. A
//! cluster changes something several times a second, and so it compacts what is older than an hour, if all keys are its
//! own: of others' history nobody here knows what they still need.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::gateway::{Failed, Gateway};
use super::json::{Anything, Base64, Compaction, Nothing, Number, Range, RequestOp, StatusResponse, Txn, TxnResponse};
use super::keys;
use cronkeeper_core::log;

/// How often a node looks.
pub const EVERY: Duration = Duration::from_secs(600);
/// The history that is kept, in looks.
const KEPT: usize = 6;
/// The quota of etcd unless its settings say otherwise; it tells its quota since 3.6.
const QUOTA: i64 = 2 << 30;

/// Compacts again and again, and warns when the database fills up. Looks every so often.
pub async fn keep(gateway: Arc<Gateway>, prefix: String, patience: Duration, every: Duration) {
    let (mut seen, mut was_filling) = (VecDeque::new(), false);
    loop {
        if let Ok(status) = gateway.ask::<StatusResponse>("/v3/maintenance/status", &Nothing {}, patience).await {
            let filling = filling(status.db_size.0, status.db_size_quota.0);
            if let Some((used_mb, quota_mb)) = filling.filter(|_| !was_filling) {
                log!(COORDINATION_FILLING, service = "etcd", used_mb, quota_mb);
            }
            was_filling = filling.is_some();
        }
        tokio::time::sleep(every).await;
        match look(&gateway, &prefix, patience).await {
            Ok((revision, true)) => {
                seen.push_back(revision);
                if seen.len() > KEPT
                    && let Some(revision) = seen.pop_front()
                {
                    let compaction = Compaction { revision: Number(revision) };
                    let done = gateway.ask::<Anything>("/v3/kv/compaction", &compaction, patience).await;
                    // Another node may have been faster.
                    tracing::debug!(revision, ?done, "compacted the history of etcd");
                }
            }
            Ok((_, false)) => seen.clear(),
            Err(failed) => tracing::debug!(?failed, "cannot look at the history of etcd"),
        }
    }
}

/// The size of a database that has reached half of its quota, and the quota, in megabytes.
fn filling(bytes: i64, quota: i64) -> Option<(i64, i64)> {
    let quota = if quota > 0 { quota } else { QUOTA };
    (bytes > quota / 2).then_some((bytes >> 20, quota >> 20))
}

/// The newest revision, and whether all keys have the prefix.
async fn look(gateway: &Gateway, prefix: &str, patience: Duration) -> Result<(i64, bool), Failed> {
    let count = |key, end| RequestOp::Range(Range { key, range_end: Some(end), count_only: true, ..Range::default() });
    let (from, to) = keys::all(prefix);
    // From the first key on, without end.
    let every = Base64(vec![0]);
    let success = vec![count(every.clone(), every), count(from, to)];
    let txn = Txn { compare: Vec::new(), success, failure: Vec::new() };
    let answer = gateway.ask::<TxnResponse>("/v3/kv/txn", &txn, patience).await?;
    let counts: Vec<i64> =
        answer.responses.into_iter().map(|it| it.response_range.unwrap_or_default().count.0).collect();
    Ok((answer.header.revision.0, matches!(counts[..], [all, own] if all == own)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_has_reached_half_of_its_quota_is_noticed() {
        assert_eq!(filling(1 << 30, 0), None);
        assert_eq!(filling((1 << 30) + 1, 0), Some((1_024, 2_048)));
        assert_eq!(filling((1 << 30) + 1, 8 << 30), None);
        assert_eq!(filling(5 << 30, 8 << 30), Some((5_120, 8_192)));
    }
}
