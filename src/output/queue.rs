//! The daemon's end: a queue to the store that never blocks and is bounded in bytes.
//!
//! A line that does not fit is counted. The count precedes the attempt's next line, or its end, as a note.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use jiff::Timestamp;

use super::layout::OutputKey;
use super::line::{Line, grouped};

/// Most bytes in the queue.
const MOST_BYTES: usize = 16 << 20;
/// Bytes that a message takes besides its text.
const OVERHEAD: usize = 256;

/// A message to the store.
pub(super) enum Message {
    Line {
        key: OutputKey,
        line: Line,
    },
    /// The attempt has ended: no line of it follows.
    Ended {
        key: OutputKey,
        at: Timestamp,
    },
}

impl Message {
    fn bytes(&self) -> usize {
        match self {
            Self::Line { line, .. } => OVERHEAD + line.line.len(),
            Self::Ended { .. } => OVERHEAD,
        }
    }
}

/// What is in the queue, shared by both ends.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    bytes: AtomicUsize,
    sent: AtomicU64,
}

impl Backlog {
    /// The number of messages sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
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

    /// Adds a line of an attempt. Never blocks.
    pub fn line(&mut self, key: OutputKey, line: Line) {
        if self.sender.is_none() {
            return;
        }
        if self.backlog.bytes.load(Ordering::Relaxed) + OVERHEAD + line.line.len() > MOST_BYTES {
            *self.unsent.entry(key).or_default() += 1;
            return;
        }
        self.tell_unsent(&key, line.at);
        self.send(Message::Line { key, line });
    }

    /// Reports the end of an attempt, with the bytes of output over the job's `max_output`. Never blocks.
    ///
    /// It is sent even if the queue is full: there is at most one for each attempt in flight.
    pub fn ended(&mut self, key: OutputKey, at: Timestamp, dropped_bytes: u64) {
        if self.sender.is_none() {
            return;
        }
        self.tell_unsent(&key, at);
        if dropped_bytes > 0 {
            let text = format!("{} bytes over `max_output` were not kept", grouped(dropped_bytes));
            let line = Line::note(at, key.attempt, text);
            self.send(Message::Line { key: key.clone(), line });
        }
        self.send(Message::Ended { key, at });
    }

    fn tell_unsent(&mut self, key: &OutputKey, at: Timestamp) {
        if let Some(lines) = self.unsent.remove(key) {
            let line = Line::not_kept(at, key.attempt, lines, "the disk was too slow");
            self.send(Message::Line { key: key.clone(), line });
        }
    }

    /// If the store's thread is gone, because of a bug, output is no longer kept.
    fn send(&mut self, message: Message) {
        let Some(sender) = &self.sender else { return };
        self.backlog.bytes.fetch_add(message.bytes(), Ordering::Relaxed);
        if sender.send(message).is_err() {
            self.sender = None;
            return;
        }
        self.backlog.sent.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::output::line::Source;
    use cronkeeper_core::run::RunId;

    fn key() -> OutputKey {
        OutputKey { run: RunId::parse("load.20261120T023000Z").unwrap(), attempt: 1 }
    }

    fn line(text: &str) -> Line {
        Line { at: Timestamp::UNIX_EPOCH, attempt: 1, stream: Source::Stdout, line: text.into(), continues: false }
    }

    fn texts(receiver: &Receiver<Message>) -> Vec<String> {
        let text = |message| match message {
            Message::Line { line, .. } => line.line,
            Message::Ended { .. } => "(end)".to_owned(),
        };
        receiver.try_iter().map(text).collect()
    }

    #[test]
    fn what_does_not_fit_is_counted_and_told_before_the_next_line() {
        let (sender, receiver) = channel();
        let mut queue = OutputQueue::new(sender, Arc::default());
        let most = MOST_BYTES / (OVERHEAD + 1_000);
        (0..most + 1_234).for_each(|_| queue.line(key(), line(&"x".repeat(1_000))));
        let taken: Vec<Message> = receiver.try_iter().collect();
        assert_eq!(taken.len(), most);
        taken.iter().for_each(|message| queue.backlog.taken(message));
        assert_eq!(queue.backlog.bytes.load(Ordering::Relaxed), 0);
        queue.line(key(), line("next"));
        assert_eq!(texts(&receiver), ["1,234 lines were not kept: the disk was too slow", "next"]);
        assert!(queue.unsent.is_empty());
    }

    #[test]
    fn an_end_is_sent_even_if_the_queue_is_full_and_tells_what_is_missing() {
        let (sender, receiver) = channel();
        let mut queue = OutputQueue::new(sender, Arc::default());
        queue.backlog.bytes.store(MOST_BYTES, Ordering::Relaxed);
        queue.line(key(), line("lost"));
        queue.ended(key(), Timestamp::UNIX_EPOCH, 4_096);
        let expected =
            ["1 line was not kept: the disk was too slow", "4,096 bytes over `max_output` were not kept", "(end)"];
        assert_eq!(texts(&receiver), expected);
        assert_eq!(queue.backlog.sent(), 3);
    }

    #[test]
    fn without_a_store_nothing_is_counted() {
        let mut queue = OutputQueue::default();
        queue.line(key(), line("x"));
        queue.ended(key(), Timestamp::UNIX_EPOCH, 1);
        assert_eq!((queue.backlog.sent(), queue.unsent.len()), (0, 0));
    }
}
