//! Notifications in the ledger: each is added by the same commit as the fact that it reports, and removed once it is
//! delivered.
//!
//! ```text
//!   end, skip, alarm ── one commit ──► outbox/<key> ── the leader ──► channels ── all delivered ──► removed
//!                                                        │
//!                                       channels/<name>: what is being sent, what is delivered
//! ```
//!
//! A record of a channel is written before a message is handed to a service, and again when the answer is known. So a new
//! leader knows which messages may have arrived.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Outcome, RaisedAlarm, RunEnd, RunId, Skip, SkipReason, millis};
use crate::escape::short;
use crate::job::{Alarm, AlarmLimits, Digest, JobName, NoticeKind};
use crate::term::{FencingToken, NodeName};

/// Most characters of a detail.
const LONGEST_DETAIL: usize = 300;

/// The name of a notification in the ledger: the time of the fact and a digest of its id, so that later ones have later
/// names, and whoever writes a fact again writes the same name.
///
/// Not a number that the service counts: on a store all nodes would write the counter, and a burst of failures on one of
/// them would hold up what the leader begins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NoticeKey {
    /// Milliseconds since 1970.
    at: u64,
    digest: u64,
}

impl NoticeKey {
    pub fn of(notice: &Notice) -> Self {
        // Digests are hexadecimal.
        let digest = u64::from_str_radix(Digest::of(notice.id.as_bytes()).as_str(), 16).unwrap_or_default();
        Self { at: u64::try_from(notice.at.as_millisecond()).unwrap_or_default(), digest }
    }

    /// `None` if no notification has this name.
    pub fn parse(name: &str) -> Option<Self> {
        let (at, digest) = name.split_at_checked(11)?;
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let key = Self { at: number(at)?, digest: number(digest)? };
        // Each has one name.
        (key.to_string() == name).then_some(key)
    }
}

impl fmt::Display for NoticeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:011x}{:016x}", self.at, self.digest)
    }
}

impl fmt::Debug for NoticeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for NoticeKey {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::parse(&name).ok_or_else(|| format!("`{name}` is not the name of a notification"))
    }
}

impl From<NoticeKey> for String {
    fn from(key: NoticeKey) -> Self {
        key.to_string()
    }
}

/// The ledger's `outbox/<key>`: a notification that is not delivered yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Format version of the record.
    pub v: u32,
    /// The same for the same fact, whoever writes it.
    pub id: String,
    pub kind: NoticeKind,
    /// When it happened.
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobName>,
    /// The run; for missed occurrences, the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The node that it happened on, or is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// A word of the outcome's or the skip's reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// From when the run was due to the begin of its last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_ms: Option<u64>,
    /// When the alarm's limit began to count, or the node went missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The alarm's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_ms: Option<u64>,
    /// Number of occurrences that were missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The end of the run's output.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tail: String,
}

impl Notice {
    /// A notification that says no more than this.
    pub fn new(kind: NoticeKind, id: String, at: Timestamp) -> Self {
        Self {
            v: 1,
            id,
            kind,
            at,
            job: None,
            run: None,
            node: None,
            outcome: None,
            reason: None,
            detail: None,
            exit_code: None,
            signal: None,
            attempt: None,
            duration_ms: None,
            late_ms: None,
            since: None,
            limit_ms: None,
            count: None,
            tail: String::new(),
        }
    }

    /// The notifications for the end of a run. `before`: the outcome of the end that it is compared with.
    pub fn of_end(end: &RunEnd, before: Option<Outcome>) -> Vec<Self> {
        Self::kinds_of_end(end, before).map(|kind| Self::of_kind(kind, end)).collect()
    }

    /// The kinds of these notifications.
    pub fn kinds_of_end(end: &RunEnd, before: Option<Outcome>) -> impl Iterator<Item = NoticeKind> {
        let is_success = end.outcome == Outcome::Success;
        let happened = move |kind: &NoticeKind| match kind {
            NoticeKind::Failure => !is_success,
            NoticeKind::Recovery => is_success && before.is_some_and(|before| before != Outcome::Success),
            NoticeKind::Output => !end.tail.is_empty(),
            _ => false,
        };
        end.run.notify.iter().copied().filter(happened)
    }

    fn of_kind(kind: NoticeKind, end: &RunEnd) -> Self {
        let run = &end.run;
        Self {
            job: Some(run.job.clone()),
            run: Some(run.id()),
            node: Some(run.owner.node.clone()),
            outcome: Some(end.outcome),
            reason: end.reason.map(|reason| reason.as_str().to_owned()),
            detail: end.detail.as_deref().map(|detail| short(detail, LONGEST_DETAIL)),
            exit_code: end.exit_code,
            signal: end.signal,
            attempt: Some(run.attempt),
            duration_ms: end.duration_ms,
            late_ms: u64::try_from(run.begun_at.duration_since(run.scheduled_at).as_millis()).ok(),
            tail: end.tail.clone(),
            ..Self::new(kind, format!("{}/{}", run.id(), kind.as_str()), end.ended_at)
        }
    }

    /// The notification for these skipped occurrences; none if somebody wanted them skipped.
    pub fn of_skip(skip: &Skip, first: Timestamp, count: u64) -> Option<Self> {
        matches!(skip.reason, SkipReason::Missed | SkipReason::NoNode | SkipReason::Rewound).then(|| {
            let run = skip.id_from(first);
            Self {
                job: Some(skip.job.clone()),
                node: skip.on.clone(),
                reason: Some(skip.reason.as_str().to_owned()),
                detail: skip.detail.as_deref().map(|detail| short(detail, LONGEST_DETAIL)),
                count: Some(count),
                ..Self::new(NoticeKind::Missed, format!("{run}/missed"), skip.decided_at)
            }
            .about(run)
        })
    }

    fn about(self, run: RunId) -> Self {
        Self { run: Some(run), ..self }
    }

    /// The notification for an alarm that was raised.
    pub fn of_alarm(job: &JobName, alarm: Alarm, raised: &RaisedAlarm, limits: AlarmLimits) -> Self {
        let RaisedAlarm { raised_at, since, run } = raised;
        Self {
            job: Some(job.clone()),
            run: run.clone(),
            since: Some(*since),
            limit_ms: limits.of(alarm).map(millis),
            ..Self::new(alarm.into(), format!("{job}/{}/{raised_at}", alarm.as_str()), *raised_at)
        }
    }

    /// The leader's notification about its term, or about another node. `token`: that of its term.
    pub fn of_cluster(kind: NoticeKind, node: NodeName, token: FencingToken, at: Timestamp) -> Self {
        Self { node: Some(node.clone()), ..Self::new(kind, format!("{}/{node}/{token}", kind.as_str()), at) }
    }
}

/// The ledger's `channels/<name>`: what is being sent to a channel, and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelRecord {
    /// Format version of the record.
    pub v: u32,
    /// The message that was handed to the service, or is about to be, and whose fate is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sending: Option<Sending>,
    /// Notifications that this channel no longer needs, but that are kept for other channels.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub done: BTreeSet<NoticeKey>,
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// What it is about.
    pub notices: BTreeSet<NoticeKey>,
    /// The message's id, which is that of every further copy.
    pub id: String,
    /// The node that sends it.
    pub by: NodeName,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{record, success};

    fn end(outcome: Outcome, tail: &str, kinds: &[NoticeKind]) -> RunEnd {
        let run = super::super::RunRecord { notify: kinds.iter().copied().collect(), ..record("backup", 60, "0x1") };
        RunEnd { outcome, tail: tail.into(), ..success(run) }
    }

    fn kinds(end: &RunEnd, before: Option<Outcome>) -> Vec<&'static str> {
        Notice::of_end(end, before).iter().map(|notice| notice.kind.as_str()).collect()
    }

    const ALL: [NoticeKind; 3] = [NoticeKind::Failure, NoticeKind::Recovery, NoticeKind::Output];

    #[test]
    fn an_end_leaves_what_its_run_says_and_no_more() {
        let failed = end(Outcome::Timeout, "no\n", &ALL);
        assert_eq!(kinds(&failed, None), ["failure", "output"]);
        assert_eq!(kinds(&end(Outcome::Failure, "no\n", &[]), None), [""; 0]);
        assert_eq!(kinds(&end(Outcome::Failure, "no\n", &[NoticeKind::Recovery]), None), [""; 0]);
        let well = end(Outcome::Success, "", &ALL);
        assert_eq!(kinds(&well, Some(Outcome::Killed)), ["recovery"]);
        assert_eq!([kinds(&well, None), kinds(&well, Some(Outcome::Success))], [vec![], vec![]] as [Vec<&str>; 2]);
    }

    #[test]
    fn a_key_is_that_of_its_fact_and_later_facts_have_later_keys() {
        let end = end(Outcome::Failure, "x", &ALL);
        let [failure, output] = &Notice::of_end(&end, None)[..] else { panic!("two") };
        let keys = [failure, output].map(NoticeKey::of);
        assert!(keys[0] != keys[1] && keys[0] == NoticeKey::of(&Notice { tail: "y".into(), ..failure.clone() }));
        let name = keys[0].to_string();
        assert_eq!(NoticeKey::parse(&name), Some(keys[0]));
        let later = Notice { at: failure.at + std::time::Duration::from_millis(1), ..failure.clone() };
        assert!(keys.iter().all(|key| *key < NoticeKey::of(&later)));
        for bad in ["", "0000000007", "ä", &format!("+{}", &name[1..]), &name.replace('0', "O"), &format!("{name}0")] {
            assert_eq!(NoticeKey::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_same_fact_has_the_same_id_whoever_writes_it() {
        let end = end(Outcome::Failure, "", &ALL);
        let by_another = RunEnd { run: super::super::RunRecord { attempt: 2, ..end.run.clone() }, ..end.clone() };
        assert_eq!(Notice::of_end(&end, None)[0].id, "backup.19700101T000100Z/failure");
        assert_eq!(Notice::of_end(&by_another, None)[0].id, Notice::of_end(&end, None)[0].id);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let notice = Notice::of_end(&end(Outcome::Failure, "x", &ALL), None).remove(0);
        let json = serde_json::to_value(&notice).unwrap();
        assert_eq!(serde_json::from_value::<Notice>(json).unwrap(), notice);
        let keys = ["000000000030123456789abcdef", "000000000010123456789abcdef"];
        let [sent, done] = keys.map(|name| BTreeSet::from([NoticeKey::parse(name).unwrap()]));
        let sending = Sending { notices: sent, id: "a".into(), by: NodeName::new("n") };
        let record = ChannelRecord { v: 1, sending: Some(sending), done };
        let [sent, done] = keys;
        let json = format!(r#"{{"v":1,"sending":{{"notices":["{sent}"],"id":"a","by":"n"}},"done":["{done}"]}}"#);
        assert_eq!(serde_json::to_string(&record).unwrap(), json);
        assert_eq!(serde_json::from_str::<ChannelRecord>(&json).unwrap(), record);
        assert!(serde_json::from_str::<ChannelRecord>(&json.replace(sent, "../jobs")).is_err());
    }
}
