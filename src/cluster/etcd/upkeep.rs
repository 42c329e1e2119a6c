//! etcd keeps every change until somebody compacts its history, and accepts no writes any more once its quota is full. A
//! cluster changes something several times a second, and so it compacts what is older than an hour, if all keys are its
//! own: of others' history nobody here knows what they still need.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::gateway::{Failed, Gateway};
use super::json::{Anything, Base64, Compaction, Number, Range, RequestOp, Txn, TxnResponse};
use super::keys;

/// How often a node looks.
const EVERY: Duration = Duration::from_secs(600);
/// The history that is kept, in looks. It has far more commits than nonces must be kept of.
const KEPT: usize = 6;

/// Compacts again and again.
pub async fn compact(gateway: Arc<Gateway>, prefix: String, patience: Duration) {
    let mut seen = VecDeque::new();
    loop {
        tokio::time::sleep(EVERY).await;
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
