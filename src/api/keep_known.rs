//! Keeps what was read last as new as what the daemon knows, so that an outage finds a picture of the cluster that is
//! not that of the last question.
//!
//! The daemon learns who leads and who is alive from its own watches and surveys. When that has changed, the queue, the
//! runs and the ends are read once. While nothing changes nothing is read, and without a connection neither.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;
use uuid::Uuid;

use super::Sources;
use super::reads::Reads;
use crate::status::{NodeState, Status};
use cronkeeper_core::term::{CandidateName, NodeName};

/// Least pause before a read: one change often leads to others, and a new leader needs the service more.
const PAUSE: Duration = Duration::from_secs(5);
/// A read that fails is made again after twice the pause before it, up to this many times the first: what is too much to
/// be read in time must not be read all the time.
const LONGEST: u32 = 64;

/// What this node knows of the cluster without reading: if it is another, the cluster has changed. Without a connection
/// there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    connected_since: Timestamp,
    leader: Option<NodeName>,
    candidate: Option<CandidateName>,
    predecessor: Option<CandidateName>,
    /// When each node that is alive has started.
    members: BTreeMap<NodeName, Timestamp>,
}

impl Seen {
    fn of(status: &Status) -> Option<Self> {
        let session = status.session.as_ref().filter(|session| session.connected)?;
        let members = status.members.iter().map(|member| (member.node.clone(), member.started_at));
        Some(Self {
            connected_since: session.since,
            leader: status.role.leader_node.clone(),
            candidate: status.role.candidate.clone(),
            predecessor: status.role.predecessor.clone(),
            members: members.collect(),
        })
    }
}

/// Reads for as long as the daemon publishes its status.
pub async fn keep_known(sources: Sources) {
    keep_known_with(sources, PAUSE).await;
}

async fn keep_known_with(sources: Sources, pause: Duration) {
    let reads = Reads::new(sources.reader, sources.last_reads);
    let mut published = sources.status;
    let (mut read, mut pauses) = (None, 1);
    loop {
        let seen = Seen::of(&published.borrow_and_update());
        if seen.is_none() || seen == read {
            if published.changed().await.is_err() {
                return;
            }
            continue;
        }
        sleep(pause * pauses + spread(pause)).await;
        let (seen, state) = {
            let status = published.borrow_and_update();
            (Seen::of(&status), status.state)
        };
        // The leader knows the runs without reading.
        if seen.is_none() || reads.refresh(state != NodeState::Leading).await {
            (read, pauses) = (seen, 1);
        } else {
            pauses = LONGEST.min(pauses * 2);
        }
    }
}

/// A random part of the pause: all nodes learn of a change at once, and must not all read at once.
fn spread(pause: Duration) -> Duration {
    pause * u32::from(Uuid::new_v4().as_bytes()[0]) / 256
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use super::*;
    use crate::api::tests::daemon::{self, Behaviour, Daemon};

    const SHORT: Duration = Duration::from_millis(20);

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..1_000 {
            if is_so() {
                return;
            }
            sleep(SHORT).await;
        }
        panic!("in vain: {what}");
    }

    fn reads(daemon: &Daemon) -> usize {
        daemon.ledger.queues.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn what_is_known_follows_the_cluster_and_nothing_is_read_while_that_does_not_change() {
        let daemon = Daemon::start(Behaviour::Well).await;
        let mut status = daemon::follower();
        status.members_at = Some(status.at);
        daemon.status.send_replace(Arc::new(status.clone()));
        let keeping = tokio::spawn(keep_known_with(daemon.sources.clone(), SHORT));
        until("it is read", || reads(&daemon) == 1).await;
        status.at += Duration::from_secs(1);
        daemon.status.send_replace(Arc::new(status.clone()));
        sleep(SHORT * 10).await;
        assert_eq!(reads(&daemon), 1, "nothing has changed");
        status.session.as_mut().unwrap().connected = false;
        status.role.leader_node = None;
        daemon.status.send_replace(Arc::new(status.clone()));
        sleep(SHORT * 10).await;
        assert_eq!(reads(&daemon), 1, "nobody would answer");
        keeping.abort();
    }
    #[tokio::test]
    async fn what_cannot_be_read_is_read_again_after_ever_longer_pauses() {
        let daemon = Daemon::start(Behaviour::Away).await;
        let mut status = daemon::follower();
        status.members_at = Some(status.at);
        daemon.status.send_replace(Arc::new(status));
        let began = Instant::now();
        let keeping = tokio::spawn(keep_known_with(daemon.sources.clone(), SHORT));
        // A failure is remembered for a second; even pauses would have led to the third read after two.
        until("it is read for the third time", || reads(&daemon) == 3).await;
        assert!(began.elapsed() >= SHORT * 127);
        keeping.abort();
    }
}
