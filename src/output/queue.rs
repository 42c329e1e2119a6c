//! The daemon's end: a queue to the store that never blocks and is bounded in bytes.
//!
//! A line that does not fit is counted. The count precedes the attempt's next line, or its end, as a note.

use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use super::layout::OutputKey;
use super::line::{Lines, grouped};
use cronkeeper_core::process::Unsent;

/// Most bytes in the queue.
const MOST_BYTES: usize = 16 << 20;
/// Bytes that a message takes besides its lines.
const OVERHEAD: usize = 256;
/// Bytes that a line takes besides its text.
const LINE_OVERHEAD: usize = 32;

/// A message to the store.
pub(super) enum Message {
    Lines {
        key: OutputKey,
        lines: Lines,
    },
    /// The attempt has ended: no line of it follows.
    Ended {
        key: OutputKey,
        at: Timestamp,
    },
}

impl Message {
    fn key(&self) -> &OutputKey {
        match self {
            Self::Lines { key, .. } | Self::Ended { key, .. } => key,
        }
    }

    /// The attempt whose end this is.
    pub fn ended(&self) -> Option<&OutputKey> {
        if let Self::Ended { key, .. } = self { Some(key) } else { None }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Lines { lines, .. } => bytes(lines),
            Self::Ended { .. } => OVERHEAD,
        }
    }
}

fn bytes(lines: &Lines) -> usize {
    lines.texts.iter().map(|text| LINE_OVERHEAD + text.len()).fold(OVERHEAD, usize::saturating_add)
}

/// What is in the queue, shared by both ends.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    bytes: AtomicUsize,
    sent: AtomicU64,
    /// The number of the last message of each attempt whose end was not handled yet: so a reader waits for no message of
    /// others. Bounded by the attempts in flight.
    last: Mutex<BTreeMap<OutputKey, u64>>,
}

impl Backlog {
    /// The number of messages after which all of these attempts are handled; 0 if they are.
    pub fn sent_of(&self, attempts: impl RangeBounds<OutputKey>) -> u64 {
        self.last().range(attempts).map(|(_, &number)| number).max().unwrap_or(0)
    }

    /// Records that the messages of a batch are handled: those of attempts that have ended are the last of them.
    pub fn handled(&self, ended: Vec<OutputKey>) {
        let mut last = self.last();
        for key in &ended {
            last.remove(key);
        }
    }

    /// Locks the map, even after a panic: every change is a single step.
    fn last(&self) -> MutexGuard<'_, BTreeMap<OutputKey, u64>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a message as taken out of the queue.
    pub fn taken(&self, message: &Message) {
        self.bytes.fetch_sub(message.bytes(), Ordering::Relaxed);
    }
}

/// The daemon's end of the queue.
#[derive(Debug, Default)]
pub struct OutputQueue {
    /// Absent if no output is kept.
    sender: Option<Sender<Message>>,
    backlog: Arc<Backlog>,
    /// Lines that did not fit into the queue, for each attempt that has not sent a line since. Bounded by the attempts
    /// in flight.
    unsent: BTreeMap<OutputKey, u64>,
}

impl OutputQueue {
    pub(super) fn new(sender: Sender<Message>, backlog: Arc<Backlog>) -> Self {
        Self { sender: Some(sender), backlog, unsent: BTreeMap::new() }
    }

    /// Adds lines of an attempt. Never blocks.
    pub fn lines(&mut self, key: OutputKey, lines: Lines) {
        if self.sender.is_none() {
            return;
        }
        if self.backlog.bytes.load(Ordering::Relaxed).saturating_add(bytes(&lines)) > MOST_BYTES {
            *self.unsent.entry(key).or_default() += lines.texts.len() as u64;
            return;
        }
        self.tell_unsent(&key, lines.at);
        self.send(Message::Lines { key, lines });
    }

    /// Reports the end of an attempt, with the end of its output over the job's `max_output`. Never blocks.
    ///
    /// It is sent even if the queue is full: there is at most one for each attempt in flight, and its lines are few.
    pub fn ended(&mut self, key: OutputKey, at: Timestamp, unsent: Unsent) {
        if self.sender.is_none() {
            return;
        }
        self.tell_unsent(&key, at);
        let Unsent { left_out, lines } = unsent;
        if left_out > 0 {
            let unit = if left_out == 1 { "byte" } else { "bytes" };
            let text = format!("[{} {unit} left out: over `max_output`]", grouped(left_out));
            self.send(Message::Lines { key: key.clone(), lines: Lines::note(at, text) });
        }
        for of_stream in lines.chunk_by(|(a, _), (b, _)| a == b) {
            let Some((stream, _)) = of_stream.first() else { continue };
            let texts = of_stream.iter().map(|(_, text)| text.clone()).collect();
            let lines = Lines { at, stream: (*stream).into(), texts, continues: false };
            self.send(Message::Lines { key: key.clone(), lines });
        }
        // Without any output there is no file to finish.
        if self.backlog.last().contains_key(&key) {
            self.send(Message::Ended { key, at });
        }
    }

    fn tell_unsent(&mut self, key: &OutputKey, at: Timestamp) {
        if let Some(lines) = self.unsent.remove(key) {
            let note = Lines::not_kept(at, lines, "the disk was too slow");
            self.send(Message::Lines { key: key.clone(), lines: note });
        }
    }

    /// If the store's thread is gone, because of a bug, output is no longer kept.
    fn send(&mut self, message: Message) {
        let Some(sender) = &self.sender else { return };
        self.backlog.bytes.fetch_add(message.bytes(), Ordering::Relaxed);
        let number = self.backlog.sent.fetch_add(1, Ordering::Relaxed) + 1;
        self.backlog.last().insert(message.key().clone(), number);
        if sender.send(message).is_err() {
            self.sender = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::output::line::Source;
    use cronkeeper_core::process::Stream;
    use cronkeeper_core::run::RunId;

    fn key() -> OutputKey {
        OutputKey { run: RunId::parse("load.20261120T023000Z").unwrap(), attempt: 1 }
    }

    fn lines(texts: &[&str]) -> Lines {
        let texts = texts.iter().map(|&text| text.to_owned()).collect();
        Lines { at: Timestamp::UNIX_EPOCH, stream: Source::Stdout, texts, continues: false }
    }

    fn texts(receiver: &Receiver<Message>) -> Vec<String> {
        let texts = |message| match message {
            Message::Lines { lines, .. } => lines.texts,
            Message::Ended { .. } => vec!["(end)".to_owned()],
        };
        receiver.try_iter().flat_map(texts).collect()
    }

    #[test]
    fn what_does_not_fit_is_counted_and_told_before_the_next_line() {
        let (sender, receiver) = channel();
        let mut queue = OutputQueue::new(sender, Arc::default());
        let long = "x".repeat(1_000);
        let most = MOST_BYTES / (OVERHEAD + 2 * (LINE_OVERHEAD + long.len()));
        (0..most + 617).for_each(|_| queue.lines(key(), lines(&[&long, &long])));
        let taken: Vec<Message> = receiver.try_iter().collect();
        assert_eq!(taken.len(), most);
        taken.iter().for_each(|message| queue.backlog.taken(message));
        assert_eq!(queue.backlog.bytes.load(Ordering::Relaxed), 0);
        queue.lines(key(), lines(&["next"]));
        assert_eq!(texts(&receiver), ["1,234 lines were not kept: the disk was too slow", "next"]);
        assert!(queue.unsent.is_empty());
    }

    #[test]
    fn an_end_is_sent_even_if_the_queue_is_full_and_tells_what_is_missing() {
        let (sender, receiver) = channel();
        let mut queue = OutputQueue::new(sender, Arc::default());
        queue.backlog.bytes.store(MOST_BYTES, Ordering::Relaxed);
        queue.lines(key(), lines(&["lost"]));
        let line = |stream, text: &str| (stream, text.to_owned());
        let last = vec![line(Stream::Stdout, "9"), line(Stream::Stdout, "10"), line(Stream::Stderr, "FATAL")];
        queue.ended(key(), Timestamp::UNIX_EPOCH, Unsent { left_out: 4_096, lines: last });
        let expected = [
            "1 line was not kept: the disk was too slow",
            "[4,096 bytes left out: over `max_output`]",
            "9",
            "10",
            "FATAL",
            "(end)",
        ];
        assert_eq!(texts(&receiver), expected);
        assert_eq!(queue.backlog.sent_of(..), 5);
        queue.backlog.handled(vec![key()]);
        assert_eq!(queue.backlog.sent_of(..), 0);
    }

    #[test]
    fn a_reader_waits_for_the_messages_of_its_own_attempt_alone_and_a_silent_one_has_none() {
        let (sender, receiver) = channel();
        let mut queue = OutputQueue::new(sender, Arc::default());
        let other = OutputKey { attempt: 2, ..key() };
        (0..3).for_each(|_| queue.lines(key(), lines(&["x"])));
        queue.ended(other.clone(), Timestamp::UNIX_EPOCH, Unsent::default());
        let sent = |attempt: &OutputKey| queue.backlog.sent_of(attempt..=attempt);
        assert_eq!((sent(&key()), sent(&other), receiver.try_iter().count()), (3, 0, 3));
    }

    #[test]
    fn without_a_store_nothing_is_counted() {
        let mut queue = OutputQueue::default();
        queue.lines(key(), lines(&["x"]));
        queue.ended(key(), Timestamp::UNIX_EPOCH, Unsent { left_out: 1, lines: Vec::new() });
        assert_eq!((queue.backlog.sent_of(..), queue.unsent.len()), (0, 0));
    }
}
