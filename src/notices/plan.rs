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

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::{ChannelName, Digest, NoticeKind};
use cronkeeper_core::ledger::ChannelEntry;
use cronkeeper_core::run::{Notice, NoticeKey, Sending, Version};
use cronkeeper_core::term::NodeName;

/// How long a first notice waits for others that belong to the same message.
const GATHER: Duration = Duration::from_secs(2);
/// How long a message that another process was sending is left to that one.
pub(super) const PATIENCE: Duration = Duration::from_secs(25);
/// The pause after the first failure; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub notices: BTreeSet<NoticeKey>,
    /// The same for every copy.
    pub id: String,
    /// An earlier copy may have arrived.
    pub is_again: bool,
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
    not_before: Uptime,
}

impl ChannelState {
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// True if the channel has this one, or no longer needs it.
    pub fn is_done(&self, seq: NoticeKey) -> bool {
        // What is not written yet may be lost with this process.
        self.entry.as_ref().is_some_and(|entry| !self.is_dirty && entry.record.done.contains(&seq))
    }

    /// Takes the record as read.
    pub fn read(&mut self, entry: ChannelEntry, now: Uptime) {
        self.seen_sending = entry.record.sending.is_some().then_some(now);
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

    /// `waiting`: the notices that this channel wants; `every`: the least time between messages.
    pub fn next(
        &mut self,
        name: &ChannelName,
        waiting: &BTreeMap<NoticeKey, &Notice>,
        every: Duration,
        now: Uptime,
    ) -> Step {
        if self.is_busy {
            return Step::Wait(None);
        }
        let Some(ChannelEntry { record, .. }) = &mut self.entry else { return Step::Read };
        if self.is_dirty {
            return Step::Write;
        }
        if let Some(Sending { notices, id, .. }) = &record.sending {
            let left: BTreeSet<NoticeKey> = notices.iter().copied().filter(|seq| waiting.contains_key(seq)).collect();
            if left.is_empty() {
                record.sending = None;
                self.is_dirty = true;
                return Step::Write;
            }
            let patient = self.seen_sending.map_or(self.not_before, |seen| seen + PATIENCE);
            let batch = Batch { notices: left, id: id.clone(), is_again: true };
            return due(patient.max(self.not_before), now, batch);
        }
        let open: BTreeMap<_, _> = waiting.iter().filter(|(seq, _)| !record.done.contains(seq)).collect();
        if open.is_empty() {
            self.waiting_since = None;
            return Step::Wait(None);
        }
        let is_output = |notice: &Notice| notice.kind == NoticeKind::Output;
        // What a run printed is a message of its own.
        let printed = open.iter().find(|(_, notice)| is_output(notice)).map(|(seq, _)| **seq);
        let others: BTreeSet<NoticeKey> =
            open.iter().filter(|(_, notice)| !is_output(notice)).map(|(seq, _)| **seq).collect();
        let since = *self.waiting_since.get_or_insert(now);
        let at = self.last_sent.map_or(since + GATHER, |last| (last + every).max(since + GATHER)).max(self.not_before);
        let batch = |notices: BTreeSet<NoticeKey>| {
            let ids = notices.iter().filter_map(|seq| Some(waiting.get(seq)?.id.as_str()));
            Batch { id: id(name, ids), notices, is_again: false }
        };
        match printed {
            Some(seq) if others.is_empty() || now < at => due(self.not_before, now, batch([seq].into())),
            _ => due(at, now, batch(others)),
        }
    }

    /// Marks the message in the record, which is then to be written.
    pub fn mark(&mut self, batch: &Batch, by: &NodeName) {
        if let Some(entry) = &mut self.entry {
            let (notices, id) = (batch.notices.clone(), batch.id.clone());
            entry.record.sending = Some(Sending { notices, id, by: by.clone() });
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

    /// Takes the answer. The record is to be written if it has changed. Returns the pause before the next try, if one
    /// follows.
    pub fn answered(&mut self, batch: &Batch, fate: Fate, jitter: u64, now: Uptime) -> Option<Duration> {
        self.is_busy = false;
        self.seen_sending = None;
        let entry = self.entry.as_mut()?;
        match fate {
            Fate::Delivered | Fate::Hopeless => {
                entry.record.done.extend(&batch.notices);
                entry.record.sending = None;
                self.is_dirty = true;
                self.waiting_since = None;
                self.last_sent = Some(now);
                (self.failures, self.not_before) = (0, now);
                None
            }
            Fate::Refused | Fate::Doubtful => {
                // What may have arrived stays so, whatever a later copy is answered.
                if fate == Fate::Refused && !batch.is_again {
                    entry.record.sending = None;
                    self.is_dirty = true;
                }
                let pause = pause(self.failures, jitter);
                self.failures = self.failures.saturating_add(1);
                self.not_before = now + pause;
                Some(pause)
            }
        }
    }

    /// The channel needs no message about these any more. Returns how many of them it needed until now; none while its
    /// record is not read, or a message is on its way.
    pub fn give_up(&mut self, seqs: &BTreeSet<NoticeKey>) -> usize {
        let Some(entry) = self.entry.as_mut().filter(|_| !self.is_busy) else { return 0 };
        let given_up = seqs.iter().filter(|&&seq| entry.record.done.insert(seq)).count();
        self.is_dirty |= given_up > 0;
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
fn pause(failures: u32, jitter: u64) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(1 << failures.min(20)).min(LONGEST_PAUSE);
    pause + pause.mul_f64((jitter % 1_000) as f64 / 4_000.0)
}

/// The id of a message: the same for the same notices and channel, whoever sends it.
fn id<'a>(name: &'a ChannelName, notices: impl Iterator<Item = &'a str>) -> String {
    let text = std::iter::once(name.as_str()).chain(notices).collect::<Vec<_>>().join("\n");
    let halves = [Digest::of(text.as_bytes()), Digest::of(format!("{text}\n").as_bytes())];
    halves.map(|half| half.to_string()).concat()
}

#[cfg(test)]
mod tests;
