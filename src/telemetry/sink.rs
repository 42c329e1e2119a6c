//! The way of log lines to stderr, or of entries to the journal: a bounded queue and a thread that writes.
//!
//! A pipe that nobody empties, or a terminal that was stopped, must not hold the loop that renews the lease: whoever
//! logs puts the line into the queue and goes on. The queue is bounded by bytes. Job output, which can come in any
//! amount, may fill a part of it; the rest is kept for what the daemon itself says (that runs began and ended), some
//! tens of thousands of lines. What still does not fit is counted, and the count is logged as soon as stderr takes
//! lines again: nothing goes missing unsaid, and runs stand in the ledger besides. A closed stderr (EPIPE) loses
//! lines, nothing more; so does a journal that is away.

mod way;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::OUTPUT;
pub use way::Way;

/// Bytes that job output may fill.
const OUTPUT_LIMIT: usize = 2 << 20;
/// Bytes that all lines may fill.
const LIMIT: usize = 16 << 20;

/// Lines that were not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Lines of job output.
    pub output: u64,
    /// Other lines.
    pub other: u64,
}

/// Where lines go. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Sink {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<(Kind, Box<[u8]>)>,
    bytes: usize,
    is_writing: bool,
    lost: Lost,
}

/// What may be dropped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Output,
    Other,
}

impl Sink {
    /// Starts the thread that writes. `report` is called from it when lines were lost and writing works again.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(way: Way, report: fn(Lost)) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let writer = Writer { shared: Arc::clone(&shared), way, report };
        std::thread::Builder::new().name("log".into()).spawn(move || writer.run())?;
        Ok(Self { shared })
    }

    /// Waits until all lines are written, at most `limit`; false when it was not enough.
    pub fn flush(&self, limit: Duration) -> bool {
        let waiting = self.shared.emptied.wait_timeout_while(self.shared.lock(), limit, |queue| !queue.is_idle());
        let (queue, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        queue.is_idle()
    }

    fn push(&self, kind: Kind, line: &[u8]) {
        let mut queue = self.shared.lock();
        let limit = if kind == Kind::Output { OUTPUT_LIMIT } else { LIMIT };
        if queue.bytes + line.len() > limit {
            queue.lost.add(kind, 1);
            return;
        }
        queue.bytes += line.len();
        queue.lines.push_back((kind, line.into()));
        self.shared.filled.notify_one();
    }
}

impl Shared {
    /// A thread that panicked while it held the lock left the queue whole: every change is a few plain steps.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lost {
    fn add(&mut self, kind: Kind, lines: u64) {
        match kind {
            Kind::Output => self.output += lines,
            Kind::Other => self.other += lines,
        }
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && !self.is_writing
    }

    /// The next lines, for one write: some, up to about so many bytes, or one.
    fn take(&mut self, most: usize) -> Batch {
        let mut batch = Batch::default();
        while batch.bytes.len() < most
            && let Some((kind, line)) = self.lines.pop_front()
        {
            self.bytes -= line.len();
            batch.bytes.extend_from_slice(&line);
            batch.count.add(kind, 1);
        }
        self.is_writing = true;
        batch
    }
}

#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    count: Lost,
}

/// The thread.
struct Writer {
    shared: Arc<Shared>,
    way: Way,
    report: fn(Lost),
}

impl Writer {
    /// Ends with the process.
    fn run(mut self) {
        loop {
            let batch = self.next();
            let written = self.way.write(&batch.bytes);
            let lost = self.done(&batch, written.is_ok());
            if lost != Lost::default() {
                (self.report)(lost);
            }
        }
    }

    fn next(&self) -> Batch {
        let waiting = self.shared.filled.wait_while(self.shared.lock(), |queue| queue.lines.is_empty());
        waiting.unwrap_or_else(PoisonError::into_inner).take(self.way.batch())
    }

    /// Settles a batch. What was lost is told only while writing works: telling is a line too.
    fn done(&self, batch: &Batch, written: bool) -> Lost {
        let mut queue = self.shared.lock();
        queue.is_writing = false;
        if queue.is_idle() {
            self.shared.emptied.notify_all();
        }
        if written {
            return std::mem::take(&mut queue.lost);
        }
        queue.lost.add(Kind::Output, batch.count.output);
        queue.lost.add(Kind::Other, batch.count.other);
        Lost::default()
    }
}

/// Takes one line at a time, whole.
#[derive(Debug)]
pub struct LineWriter<'a> {
    sink: &'a Sink,
    kind: Kind,
}

impl Write for LineWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.sink.push(self.kind, line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { sink: self, kind: Kind::Other }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> LineWriter<'a> {
        LineWriter { sink: self, kind: if meta.target() == OUTPUT { Kind::Output } else { Kind::Other } }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::super::{TARGET, event, json::Json};
    use super::*;
    use crate::term::NodeName;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn pipe() -> (File, OwnedFd) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        (File::from(read), write)
    }

    #[test]
    fn a_stderr_that_nobody_reads_blocks_nobody_and_what_was_dropped_is_counted() {
        static LOST: Mutex<u64> = Mutex::new(0);
        static TOLD: Condvar = Condvar::new();
        let (mut read, write) = pipe();
        let report = |lost: Lost| {
            *LOST.lock().unwrap() += lost.output;
            assert_eq!(lost.other, 0);
            TOLD.notify_all();
        };
        let sink = Sink::start(Way::stream(write), report).unwrap();
        let line = [b'x'; 1023].iter().chain(b"\n").copied().collect::<Vec<_>>();
        for _ in 0..6_000 {
            sink.push(Kind::Output, &line);
        }
        sink.push(Kind::Other, b"a run ended\n");
        assert!(!sink.flush(Duration::ZERO));

        let mut text = Vec::new();
        let mut part = [0; 65_536];
        while !text.ends_with(b"a run ended\n") {
            let n = read.read(&mut part).unwrap();
            text.extend_from_slice(&part[..n]);
        }
        let written = text.iter().filter(|&&byte| byte == b'\n').count();
        assert!(written >= OUTPUT_LIMIT / line.len(), "{written}");
        let dropped = 6_001 - u64::try_from(written).unwrap();
        let (lost, _) = TOLD.wait_timeout_while(LOST.lock().unwrap(), TIMEOUT, |lost| *lost < dropped).unwrap();
        assert_eq!(*lost, dropped);
    }

    #[test]
    fn a_closed_stderr_loses_lines_and_nothing_more() {
        let (read, write) = pipe();
        drop(read);
        let sink = Sink::start(Way::stream(write), |_| panic!("there is nobody to tell")).unwrap();
        for _ in 0..3 {
            sink.push(Kind::Other, b"a run ended\n");
            assert!(sink.flush(TIMEOUT));
        }
        assert_eq!(sink.shared.lock().lost, Lost { output: 0, other: 3 });
    }

    #[test]
    fn a_nonblocking_stderr_is_waited_for() {
        let (mut read, write) = pipe();
        rustix::io::ioctl_fionbio(&write, true).unwrap();
        let sink = Sink::start(Way::stream(write), |_| {}).unwrap();
        let line = vec![b'x'; 1 << 20];
        sink.push(Kind::Other, &line);
        let mut got = vec![0; line.len()];
        read.read_exact(&mut got).unwrap();
        assert_eq!(got, line);
    }

    #[test]
    fn an_events_macro_ends_as_a_line_of_json() {
        let (mut read, write) = pipe();
        let sink = Sink::start(Way::stream(write), |_| {}).unwrap();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(sink.clone())
            .with_ansi(false)
            .event_format(Json::new(&NodeName::new("host-a")));
        let job = crate::job::JobName::parse("load").unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let (pid, signal) = (Some(4242), None::<i32>);
            tracing::info!(target: TARGET, event = event::RUN_STARTED, %job, attempt = 1u32, pid, signal);
            tracing::info!(target: OUTPUT, event = event::RUN_OUTPUT, %job, line = "a\nb");
            tracing::debug!(target: "cronkeeper::daemon", "looked {} times", 2);
        });
        assert!(sink.flush(TIMEOUT));
        let mut text = [0; 8192];
        let n = read.read(&mut text).unwrap();
        let lines: Vec<serde_json::Value> = text[..n]
            .split(|&b| b == b'\n')
            .filter(|l| !l.is_empty())
            .map(|l| serde_json::from_slice(l).unwrap())
            .collect();
        assert_eq!(lines.len(), 3);
        assert_eq!((&lines[0]["event"], &lines[0]["message"]), (&"run.started".into(), &"a run started".into()));
        assert_eq!(
            (&lines[0]["job"], &lines[0]["attempt"], &lines[0]["pid"]),
            (&"load".into(), &1.into(), &4242.into())
        );
        assert!(lines[0].get("signal").is_none() && lines[0].get("target").is_none());
        assert_eq!((&lines[1]["event"], &lines[1]["line"]), (&"run.output".into(), &"a\nb".into()));
        assert_eq!((&lines[2]["event"], &lines[2]["message"]), (&"log".into(), &"looked 2 times".into()));
    }
}
