//! When a channel gets which message: grouping, distance, pauses after failures. Pure: time and answers come from outside.
//!
//! ```text
//!   waiting notices ─ gather, distance ─► marked in the channel's record ─► sent ─┬─ delivered ─► done
//!                                          ▲                                      ├─ refused ───► mark taken off, later again
//!                                          └────────── later again ◄──────────────┴─ in doubt ──► mark stays: "second copy"
//! ```
//!
//! A mark without an answer means that the message may have arrived. Whoever sends it again keeps the message together,
//! gives it the same id, and says that it may be the second copy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::trouble::Trouble;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::{ChannelName, Digest, NoticeKind};
use cronkeeper_core::ledger::ChannelEntry;
use cronkeeper_core::run::{Notice, NoticeKey, Sending, Version};
use cronkeeper_core::term::NodeName;

/// How long a first notice waits for others that belong to the same message.
const GATHER: Duration = Duration::from_secs(2);
/// How long a message that another process was sending is left to that one: longer than a delivery may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
/// The pause after the first refusal; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The least pause before a copy of a message that may have arrived; it doubles with each: people may get them all.
const FIRST_DOUBT: Duration = Duration::from_secs(60);
const LONGEST_DOUBT: Duration = Duration::from_secs(3600);
/// How often a process sends a message when no answer tells whether it arrived.
const MOST_COPIES: u32 = 10;
/// If more notices wait, the next message does not wait for the distance: they are kept in memory and in the ledger.
const HURRY: usize = 1_000;
/// Characters of a message's id: two digests.
const ID_LENGTH: usize = 32;

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub notices: BTreeSet<NoticeKey>,
    /// The same for every copy.
    pub id: String,
    /// An earlier copy may have arrived.
    pub is_again: bool,
    /// It is what a run printed, which waits for nothing and delays nothing.
    pub is_output: bool,
}

/// What there is for a channel.
pub(super) struct Waiting<'a> {
    /// The notices that it wants.
    pub wanted: BTreeMap<NoticeKey, &'a Notice>,
    /// Its mark names notices that exist and are not read yet.
    pub marks_unread: bool,
}

/// What to do next for a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait until this time; `None`: until something else happens.
    Wait(Option<Uptime>),
    /// Its record is to be read.
    Read,
    /// Its record is to be written.
    Write,
    /// A message is to be marked, and then sent.
    Send(Batch),
}

/// The answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Delivered,
    /// It did not arrive, and may be taken later.
    Refused,
    /// It may have arrived.
    Doubtful,
    /// It did not arrive and will not be taken.
    Hopeless,
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Delivered,
    /// It is tried again after this pause.
    Again(Duration),
    /// It will not be taken.
    Hopeless,
    /// Nobody will know whether it arrived.
    Untold,
}

/// What the leader knows of one channel.
#[derive(Debug, Default)]
pub(super) struct ChannelState {
    /// Its record; `None` until it is read.
    entry: Option<ChannelEntry>,
    /// The record says more than the ledger has.
    is_dirty: bool,
    /// A message is on its way.
    is_busy: bool,
    /// When this process read a record that says a message is being sent.
    seen_sending: Option<Uptime>,
    /// Since when something waits.
    waiting_since: Option<Uptime>,
    last_sent: Option<Uptime>,
    failures: u32,
    /// Number of copies of the message in doubt that this process has sent.
    doubts: u32,
    not_before: Uptime,
    /// The last notice that may have been sent before its record was damaged.
    doubtful_to: Option<NoticeKey>,
    /// That its record cannot be read.
    pub reading: Trouble,
    pub writing: Trouble,
}

impl ChannelState {
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// True if its record cannot be used, and could not for a while.
    pub fn is_stuck(&self) -> bool {
        self.reading.is_said() || self.writing.is_said()
    }

    /// True if the channel has this one, or no longer needs it.
    pub fn is_done(&self, seq: NoticeKey) -> bool {
        // What is not written yet may be lost with this process.
        self.entry.as_ref().is_some_and(|entry| !self.is_dirty && entry.record.done.contains(&seq))
    }

    /// The notices that the record marks.
    pub fn marked(&self) -> impl Iterator<Item = NoticeKey> {
        self.entry.iter().filter_map(|entry| entry.record.sending.as_ref()).flat_map(|it| it.notices.iter().copied())
    }

    /// Takes the record as read. `newest`: of all notices that exist.
    pub fn read(&mut self, entry: ChannelEntry, newest: Option<NoticeKey>, now: Uptime) {
        self.seen_sending = entry.record.sending.is_some().then_some(now);
        if entry.is_damaged {
            self.doubtful_to = newest;
        }
        self.entry = Some(entry);
        self.is_dirty = false;
    }

    /// Somebody else has written the record.
    pub fn superseded(&mut self) {
        self.entry = None;
        self.is_dirty = false;
    }

    /// The record to write and the version that it replaces, with nothing in it about notices that are gone.
    pub fn record(&mut self, existing: &BTreeSet<NoticeKey>) -> Option<ChannelEntry> {
        let entry = self.entry.as_mut()?;
        entry.record.v = 1;
        entry.record.done.retain(|seq| existing.contains(seq));
        Some(entry.clone())
    }

    pub fn written(&mut self, version: Version) {
        if let Some(entry) = &mut self.entry {
            entry.at = Some(version);
        }
        self.is_dirty = false;
    }

    /// `every`: the least time between messages.
    pub fn next(&mut self, name: &ChannelName, waiting: &Waiting<'_>, every: Duration, now: Uptime) -> Step {
        if self.is_busy {
            return Step::Wait(None);
        }
        let Some(ChannelEntry { record, .. }) = &mut self.entry else { return Step::Read };
        if self.is_dirty {
            return Step::Write;
        }
        let wanted = &waiting.wanted;
        let doubtful_to = self.doubtful_to;
        let new_id = |notices: &BTreeSet<NoticeKey>| {
            id(name, notices.iter().filter_map(|seq| Some(wanted.get(seq)?.id.as_str())))
        };
        let is_output = |seq: &NoticeKey| wanted.get(seq).is_some_and(|notice| notice.kind == NoticeKind::Output);
        if let Some(Sending { notices, id, .. }) = &record.sending {
            // Without those that are not read, the copy would be another message, and their mark would be lost.
            if waiting.marks_unread {
                return Step::Wait(None);
            }
            let left: BTreeSet<NoticeKey> = notices.iter().copied().filter(|seq| wanted.contains_key(seq)).collect();
            if left.is_empty() {
                record.sending = None;
                self.is_dirty = true;
                return Step::Write;
            }
            let patient = self.seen_sending.map_or(self.not_before, |seen| seen + PATIENCE);
            // It becomes part of headers, and others may have written the record.
            let id = if is_id(id) { id.clone() } else { new_id(&left) };
            let batch = Batch { is_output: left.iter().all(is_output), notices: left, id, is_again: true };
            return due(patient.max(self.not_before), now, batch);
        }
        let open = wanted.keys().copied().filter(|seq| !record.done.contains(seq));
        // What a run printed is a message of its own.
        let (printed, others): (BTreeSet<NoticeKey>, BTreeSet<NoticeKey>) = open.partition(is_output);
        let batch = |notices: BTreeSet<NoticeKey>, is_output| Batch {
            id: new_id(&notices),
            is_again: notices.first().copied().is_some_and(|first| Some(first) <= doubtful_to),
            notices,
            is_output,
        };
        let at = if others.is_empty() {
            self.waiting_since = None;
            None
        } else {
            let since = *self.waiting_since.get_or_insert(now);
            let distant = self.last_sent.filter(|_| others.len() <= HURRY).map_or(Uptime::ZERO, |last| last + every);
            Some(distant.max(since + GATHER).max(self.not_before))
        };
        match (at, printed.first()) {
            (None, None) => Step::Wait(None),
            // What waits for its time is not delayed by what does not wait.
            (Some(at), None) => due(at, now, batch(others, false)),
            (Some(at), Some(_)) if now >= at => Step::Send(batch(others, false)),
            (_, Some(&first)) => due(self.not_before, now, batch([first].into(), true)),
        }
    }

    /// Marks the message in the record, which is then to be written.
    pub fn mark(&mut self, batch: &Batch, by: &NodeName) {
        if !batch.is_again {
            self.doubts = 0;
        }
        if let Some(entry) = &mut self.entry {
            let (notices, id) = (batch.notices.clone(), batch.id.clone());
            entry.record.sending = Some(Sending { notices, id, by: by.clone() });
        }
    }

    /// A message was marked and is not sent after all. The record is to be written if it has changed.
    pub fn unsent(&mut self, batch: &Batch) {
        if let Some(entry) = self.entry.as_mut().filter(|_| !batch.is_again) {
            entry.record.sending = None;
            self.is_dirty = true;
        }
    }

    /// Whether the record was written is not known. What is delivered stays known: it is written again.
    pub fn unwritten(&mut self) {
        if !self.is_dirty {
            // A mark: the record shows whether it is there.
            self.superseded();
        }
    }

    pub fn sent(&mut self) {
        self.is_busy = true;
    }

    /// Takes the answer. The record is to be written if it has changed. `every`: the least time between messages.
    pub fn answered(&mut self, batch: &Batch, fate: Fate, every: Duration, jitter: u64, now: Uptime) -> After {
        self.is_busy = false;
        self.seen_sending = None;
        // Nothing reads the record again while a message is on its way.
        let Some(entry) = &mut self.entry else { return After::Again(Duration::ZERO) };
        let after = match fate {
            Fate::Delivered => After::Delivered,
            Fate::Hopeless => After::Hopeless,
            Fate::Refused => After::Again(pause(FIRST_PAUSE, LONGEST_PAUSE, self.failures, jitter)),
            Fate::Doubtful => {
                self.doubts = self.doubts.saturating_add(1);
                let first = every.max(FIRST_DOUBT);
                match self.doubts {
                    MOST_COPIES.. => After::Untold,
                    doubts => After::Again(pause(first, first.max(LONGEST_DOUBT), doubts - 1, jitter)),
                }
            }
        };
        match after {
            After::Again(pause) => {
                // What may have arrived stays so, whatever a later copy is answered.
                if fate == Fate::Refused && !batch.is_again {
                    entry.record.sending = None;
                    self.is_dirty = true;
                }
                self.failures = self.failures.saturating_add(1);
                self.not_before = now + pause;
            }
            After::Delivered | After::Hopeless | After::Untold => {
                entry.record.done.extend(&batch.notices);
                entry.record.sending = None;
                self.is_dirty = true;
                if !batch.is_output {
                    self.waiting_since = None;
                    self.last_sent = Some(now);
                }
                (self.failures, self.doubts, self.not_before) = (0, 0, now);
            }
        }
        after
    }

    /// The channel needs no message about these any more. Returns how many of them it needed until now; none while its
    /// record is not read, or a message is on its way.
    pub fn give_up(&mut self, seqs: &BTreeSet<NoticeKey>) -> usize {
        let Some(ChannelEntry { record, .. }) = self.entry.as_mut().filter(|_| !self.is_busy) else { return 0 };
        let given_up = seqs.iter().filter(|&&seq| record.done.insert(seq)).count();
        if given_up > 0 {
            self.is_dirty = true;
            // A mark of what is not sent any more would hold up everything else.
            if let Some(sending) = &mut record.sending {
                sending.notices.retain(|seq| !seqs.contains(seq));
            }
            record.sending.take_if(|sending| sending.notices.is_empty());
        }
        given_up
    }

    /// Number of failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

fn due(at: Uptime, now: Uptime, batch: Batch) -> Step {
    if now >= at { Step::Send(batch) } else { Step::Wait(Some(at)) }
}

/// The pause after a failure that follows so many others, longer by up to a quarter: `jitter` is random.
fn pause(first: Duration, longest: Duration, failures: u32, jitter: u64) -> Duration {
    let pause = first.saturating_mul(1 << failures.min(20)).min(longest);
    pause + pause.mul_f64((jitter % 1_000) as f64 / 4_000.0)
}

/// The id of a message: the same for the same notices and channel, whoever sends it.
fn id<'a>(name: &'a ChannelName, notices: impl Iterator<Item = &'a str>) -> String {
    let text = std::iter::once(name.as_str()).chain(notices).collect::<Vec<_>>().join("\n");
    let halves = [Digest::of(text.as_bytes()), Digest::of(format!("{text}\n").as_bytes())];
    halves.map(|half| half.to_string()).concat()
}

/// True if [`id`] may have made it.
fn is_id(id: &str) -> bool {
    id.len() == ID_LENGTH && id.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
