//! Asks the other nodes for what their archives have.
//!
//! Each is asked for what it has itself, so no request is passed on, and ZooKeeper is not read for it. Who asks waits for
//! [`ASKING`] at most, whatever the others do. Their answers are only shown; what nobody asked for is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::time::{Instant, timeout_at};

use super::answer::{Merge, Page};
use super::{History, MissingNode, Question, query};
use crate::api::ApiState;
use crate::api::reads::Known;
use crate::status::{HistoryEntry, MissingMember, Status};
use cronkeeper_core::clock::{Uptime, system};
use cronkeeper_core::election::{Member, Queue};
use cronkeeper_core::ledger::filter::Position;
use cronkeeper_core::ledger::{Filter, Window};
use cronkeeper_core::run::RunId;
use cronkeeper_core::term::NodeName;

/// Time for all the nodes that are asked.
const ASKING: Duration = Duration::from_secs(6);
/// Most nodes that are asked for one answer.
const MOST_ASKED: usize = 100;
/// Most nodes that are asked at a time: each answer may have a megabyte.
const AT_ONCE: usize = 16;

/// What the other nodes have, and which of them have not answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Elsewhere {
    /// Newest first, each once.
    pub records: Vec<HistoryEntry>,
    /// Some node may have more that is older than this.
    pub covered_to: Option<Position>,
    /// The nodes that have answered.
    pub nodes: Vec<NodeName>,
    pub missing: Vec<MissingNode>,
    /// All nodes that are known, with this one.
    pub known: BTreeSet<NodeName>,
}

/// A node's answer, or why there is none.
type Answer = Result<History, String>;

impl ApiState {
    /// The records that are wanted, from the archives of all other nodes.
    pub(super) async fn elsewhere(&self, question: Question<'_>) -> Elsewhere {
        let Question { filter, window, until, .. } = question;
        let mut merge = Merge::new(window);
        let mut elsewhere = Elsewhere::default();
        let path = query::path(filter, window.records, true);
        let known = self.ask_others(&path, until, |node, answer| {
            match answer.and_then(|answer| part(answer, filter, &node)) {
                Ok((records, covered_to)) => {
                    merge.add(records, covered_to);
                    elsewhere.nodes.push(node);
                }
                Err(why) => elsewhere.missing.push(MissingNode { node, why }),
            }
            true
        });
        let known = known.await;
        let Page { records, next, .. } = merge.page();
        Elsewhere { records, covered_to: next, known, ..elsewhere }
    }

    /// The record of a run from the archive of another node, and why others did not answer.
    pub(in crate::api) async fn record_elsewhere(&self, run: &RunId) -> (Option<HistoryEntry>, Vec<MissingNode>) {
        let (mut found, mut missing) = (None, Vec::new());
        let path = format!("/v1/history?local=true&run={run}");
        let is_it = |record: &HistoryEntry| matches!(record, HistoryEntry::Run(ended) if ended.run == *run);
        self.ask_others(&path, Instant::now() + ASKING, |node, answer| {
            match answer.and_then(|answer| whole(answer, &node)) {
                Ok(answer) => found = answer.records.into_iter().find(is_it),
                Err(why) => missing.push(MissingNode { node, why }),
            }
            found.is_none()
        })
        .await;
        (found, missing)
    }

    /// Asks all other nodes, a few at a time, and hands each answer over as it arrives until `take` returns false.
    /// Returns all nodes that are known.
    async fn ask_others(
        &self,
        path: &str,
        until: Instant,
        mut take: impl FnMut(NodeName, Answer) -> bool,
    ) -> BTreeSet<NodeName> {
        let own = self.sources.status.borrow().node.clone();
        let mut known: BTreeSet<_> = [own.clone()].into();
        if self.sources.output.is_shared {
            return known;
        }
        let until = until.min(Instant::now() + ASKING);
        let Others { mut members, away, .. } = self.others(until).await;
        known.extend(members.iter().map(|member| member.node.clone()));
        known.extend(away.iter().map(|missing| missing.node.clone()));
        let rest = members.split_off(members.len().min(MOST_ASKED));
        let asked = stream::iter(members).map(|member| async move {
            let answer = self.ask(&member, path, until).await;
            (member.node, answer)
        });
        let mut asked = std::pin::pin!(asked.buffer_unordered(AT_ONCE));
        while let Some((node, answer)) = asked.next().await {
            if !take(node, answer) {
                return known;
            }
        }
        let too_many = |member: Member| (member.node, format!("one node asks at most {MOST_ASKED} others"));
        let away = away.into_iter().map(|MissingNode { node, why }| (node, why));
        for (node, why) in rest.into_iter().map(too_many).chain(away) {
            if !take(node, Err(why)) {
                break;
            }
        }
        known
    }

    /// The other nodes, as far as they are known.
    pub(in crate::api) async fn others(&self, until: Instant) -> Others {
        let known = timeout_at(until, self.reads.known_queue()).await.unwrap_or(Known::NOT_ASKED);
        Others::of(&known, &Arc::clone(&self.sources.status.borrow()))
    }

    async fn ask(&self, member: &Member, path: &str, until: Instant) -> Answer {
        let node = &member.node;
        let peers = self.peers()?;
        if Instant::now() >= until {
            return Err(format!("there was no time to ask {node}"));
        }
        let late = |_| Err(format!("{node} does not answer in time"));
        timeout_at(until, peers.get(member, path, Duration::ZERO)).await.unwrap_or_else(late)
    }
}

/// The other nodes: whom to ask, and of whom that is not known.
#[derive(Debug)]
pub(in crate::api) struct Others {
    /// By name. While the ledger cannot be read, all that this node knows how to reach: any of them may be back.
    pub members: Vec<Member>,
    /// Those that are not alive, or were not when this node last knew, each with the reason.
    pub away: Vec<MissingNode>,
    /// True if the ledger says so now.
    pub is_current: bool,
}

impl Others {
    fn of(known: &Known<Queue>, status: &Status) -> Self {
        let is_current = known.value.is_some() && known.failure.is_none();
        let read = known.value.as_ref();
        let listed = read.map_or(&[][..], |(queue, _)| &queue.members);
        // The daemon reads the members too, and may have done so since.
        let has_seen_since = read.is_none_or(|(_, read_at)| status.members_at.is_some_and(|at| at > *read_at));
        let lists = match (is_current, has_seen_since) {
            (true, _) => [listed, &[]],
            (false, true) => [listed, &status.members],
            (false, false) => [&status.members, listed],
        };
        let members = lists.into_iter().flatten().filter(|member| member.node != status.node);
        let members: BTreeMap<&NodeName, &Member> = members.map(|member| (&member.node, member)).collect();
        let is_away = |node: &&NodeName| **node != status.node && !members.contains_key(node);
        let is_known = |missing: &&MissingMember| read.is_none_or(|(queue, _)| !missing.is_forgotten(&queue.places));
        let missing = status.missing.iter().filter(is_known).map(|missing| &missing.node);
        let away = if is_current {
            missing.filter(is_away).map(MissingNode::away).collect()
        } else {
            let places = read.into_iter().flat_map(|(queue, _)| queue.places.keys()).chain(status.places.keys());
            let away: BTreeSet<&NodeName> = missing.chain(places).filter(is_away).collect();
            away.into_iter().map(MissingNode::away_when_last_known).collect()
        };
        Self { members: members.into_values().cloned().collect(), away, is_current }
    }
}

impl MissingNode {
    pub(super) fn away(node: &NodeName) -> Self {
        Self { node: node.clone(), why: format!("{node} is away") }
    }

    fn away_when_last_known(node: &NodeName) -> Self {
        let why = format!("{node} was not asked: it was away when this node last knew which nodes there are");
        Self { node: node.clone(), why }
    }
}

/// An answer of a node that could read its archive.
fn whole(answer: History, node: &NodeName) -> Answer {
    match answer.archive_error {
        Some(why) => Err(format!("the archive of {node} cannot be read: {why}")),
        None => Ok(answer),
    }
}

/// A node's records, and how far they reach. Drops what was not asked for: it could make a reader of pages go in circles.
fn part(answer: History, filter: &Filter, node: &NodeName) -> Result<(Vec<HistoryEntry>, Option<Position>), String> {
    let mut answer = whole(answer, node)?;
    let covered_to = answer.next.map(|next| Position::parse(&next)).transpose();
    let covered_to = covered_to.map_err(|why| format!("the answer of {node} is garbled: {why}"))?;
    if let (Some(to), Some(before)) = (&covered_to, &filter.before)
        && to >= before
    {
        return Err(format!("{node} took too long to search its archive"));
    }
    answer.records.retain(|record| record.is_wanted(filter));
    Ok((answer.records, covered_to))
}

/// Age up to which the page shows what other nodes have answered: an open page asks again whenever a run ends.
const FRESH: Duration = Duration::from_secs(10);
/// Most answers of a kind that are kept for the page.
const MOST_CACHED: usize = 4;

/// What other nodes have answered last, for the page.
#[derive(Debug, Default)]
pub(in crate::api) struct ElsewhereCache {
    histories: Recent<(Filter, Window), Elsewhere>,
    runs: Recent<RunId, Option<HistoryEntry>>,
}

/// The newest answers, each for what was asked.
#[derive(Debug)]
struct Recent<K, V>(Mutex<Vec<(K, Uptime, V)>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq, V: Clone> Recent<K, V> {
    fn find(&self, key: &K) -> Option<V> {
        let now = system::uptime();
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.retain(|(_, at, _)| now.since(*at) < FRESH);
        cached.iter().find(|(known, ..)| known == key).map(|(.., value)| value.clone())
    }

    fn put(&self, key: K, value: V) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.retain(|(known, ..)| *known != key);
        cached.truncate(MOST_CACHED - 1);
        cached.insert(0, (key, system::uptime(), value));
    }
}

impl ApiState {
    /// What [`elsewhere`](Self::elsewhere) returns, for the page, which may be a little older.
    pub(super) async fn recent_elsewhere(&self, question: Question<'_>) -> Elsewhere {
        let (cache, key) = (&self.page.elsewhere().histories, (question.filter.clone(), question.window));
        if let Some(known) = cache.find(&key) {
            return known;
        }
        let elsewhere = self.elsewhere(question).await;
        cache.put(key, elsewhere.clone());
        elsewhere
    }

    /// The record of a run that this node does not have, for its page.
    pub(in crate::api) async fn recent_record_elsewhere(&self, run: &RunId) -> Option<HistoryEntry> {
        let cache = &self.page.elsewhere().runs;
        if let Some(known) = cache.find(run) {
            return known;
        }
        let (found, _) = self.record_elsewhere(run).await;
        cache.put(run.clone(), found.clone());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::reads::ReadFailure;
    use crate::status::sample;
    use crate::test_records::{record, success};
    use cronkeeper_core::coordination::ReadError;
    use cronkeeper_core::ledger::filter::Kind;
    use cronkeeper_core::run::HistoryRecord;

    fn answer(seconds: &[i64], next: Option<&str>) -> History {
        let records = seconds.iter().map(|second| HistoryRecord::Run(success(record("load", *second, "s"))).into());
        History { records: records.collect(), next: next.map(str::to_owned), ..History::default() }
    }

    #[test]
    fn of_an_answer_only_what_was_asked_for_counts() {
        let node = NodeName::new("host-b");
        let before = Position { at: 50_000_000, run: "load.x".to_owned(), kind: Kind::Run };
        let filter = Filter { before: Some(before), ..Filter::default() };
        let (records, covered_to) = part(answer(&[90, 40, 30], Some("31000000.run.a")), &filter, &node).unwrap();
        assert_eq!(records.iter().map(|record| record.at().as_second()).collect::<Vec<_>>(), [41, 31]);
        assert_eq!(covered_to.map(|to| to.at), Some(31_000_000));
        let why = |answer| part(answer, &filter, &node).unwrap_err();
        assert!(
            why(answer(&[], Some("90000000.run.a"))).contains("host-b took too long"),
            "else it would be asked forever"
        );
        assert!(why(answer(&[], Some("nonsense"))).contains("the answer of host-b is garbled"));
        let broken = History { archive_error: Some("disk".to_owned()), ..answer(&[40], None) };
        assert_eq!(why(broken), "the archive of host-b cannot be read: disk");
    }

    #[test]
    fn in_an_outage_all_nodes_are_asked_that_this_one_knows_how_to_reach_and_the_others_are_named() {
        let mut queue = sample::queue();
        queue.places = sample::places();
        let mut status = sample::leader();
        (status.node, status.members_at) = (NodeName::new("host-z"), Some(sample::at("2026-11-20T03:00:00Z")));
        // What was read is older than the return of host-a.
        queue.members.retain(|member| member.node.as_str() != "host-a");
        status.members.retain(|member| member.node.as_str() == "host-a");
        status.missing = vec![sample::missing("forgotten")];
        let queue = Arc::new(queue);
        let others = |failure: Option<ReadFailure>| {
            let value = Some((Arc::clone(&queue), sample::at("2026-11-20T02:50:00Z")));
            let Others { members, away, is_current } = Others::of(&Known { value, failure }, &status);
            let members: Vec<String> = members.iter().map(|member| member.node.to_string()).collect();
            let away: Vec<String> = away.into_iter().map(|missing| missing.node.to_string()).collect();
            (members, away, is_current)
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let failure = ReadFailure { error: ReadError("away".into()), since: status.at };
        assert_eq!(others(Some(failure)), (names(&["host-a", "host-b"]), names(&["host-c"]), false));
        assert_eq!(others(None), (names(&["host-b"]), names(&[]), true));
    }

    #[test]
    fn few_answers_are_kept_and_the_newest_of_each_question() {
        let recent = Recent::default();
        (0..9).for_each(|key| recent.put(key, key));
        recent.put(8, 80);
        assert_eq!([recent.find(&8), recent.find(&7), recent.find(&4)], [Some(80), Some(7), None]);
    }
}
