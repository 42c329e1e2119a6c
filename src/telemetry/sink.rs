//! The log's bounded queue, and the thread that writes it to stderr or the journal.
//!
//! A pipe that nobody reads, or a stopped terminal, must not block the loop that renews the lease. So logging only puts
//! the line into the queue. The queue is limited in bytes. Job output, which can come in any amount, may fill a part of
//! it; the rest is reserved for the daemon's own lines, such as the starts and ends of runs, and holds some tens of
//! thousands of them. Lines that do not fit are counted, and the count is logged as soon as writing works again, but at
//! most once a second and once more at the end, so no loss goes unreported. The results of runs are in the ledger in any case. A closed stderr (EPIPE) or a missing
//! journal loses lines and has no other effect.

mod destination;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::OUTPUT;
pub use destination::Destination;

/// A line of job output is dropped if the queue would exceed this many bytes.
const OUTPUT_LIMIT: usize = 2 << 20;
/// Any other line is dropped if the queue would exceed this many bytes.
const LIMIT: usize = 16 << 20;
/// Least time between two reports of lost lines: a job that writes faster than the log loses some all the time.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Numbers of lines, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Lines of job output.
    pub output: u64,
    /// Other lines.
    pub other: u64,
}

/// The entrance of the log's queue. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Sink {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<LineQueue>,
    filled: Condvar,
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct LineQueue {
    lines: VecDeque<(LineKind, Box<[u8]>)>,
    bytes: usize,
    is_writing: bool,
    /// The last write failed, so a report of lost lines would be lost too.
    is_failing: bool,
    /// Lines that are lost and not reported yet.
    lost: LineCounts,
    reported_at: Option<Instant>,
    /// Threads that wait until everything is written.
    flushing: u32,
}

/// The kinds of lines, of which output is dropped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineKind {
    Output,
    Other,
}

impl Sink {
    /// Starts the thread that writes. It calls `report` when lines were lost and writing works again, at most once a
    /// second.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(destination: Destination, report: fn(LineCounts)) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let writer = Writer { shared: Arc::clone(&shared), destination, report };
        std::thread::Builder::new().name("log".into()).spawn(move || writer.run())?;
        Ok(Self { shared })
    }

    /// Waits up to `limit` until all lines are written, and losses are reported. Returns false if some are not.
    pub fn flush(&self, limit: Duration) -> bool {
        let mut queue = self.shared.lock();
        queue.flushing += 1;
        self.shared.filled.notify_one();
        let waiting = self.shared.emptied.wait_timeout_while(queue, limit, |queue| !queue.is_idle());
        let (mut queue, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        queue.flushing -= 1;
        queue.is_idle()
    }

    fn push(&self, kind: LineKind, line: &[u8]) {
        let mut queue = self.shared.lock();
        let limit = if kind == LineKind::Output { OUTPUT_LIMIT } else { LIMIT };
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
    /// Locks the queue, even after a panic: every change is a few plain steps, which cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, LineQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LineCounts {
    fn add(&mut self, kind: LineKind, lines: u64) {
        match kind {
            LineKind::Output => self.output += lines,
            LineKind::Other => self.other += lines,
        }
    }
}

impl LineQueue {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && !self.is_writing && !self.has_news()
    }

    /// True if there are losses that can be reported.
    fn has_news(&self) -> bool {
        self.lost != LineCounts::default() && !self.is_failing
    }

    /// How long losses that can be reported must wait for it; `None` if there are none.
    fn report_in(&self) -> Option<Duration> {
        let at = self.reported_at.filter(|_| self.flushing == 0);
        let pause = at.map_or(Duration::ZERO, |at| REPORT_EVERY.saturating_sub(at.elapsed()));
        self.has_news().then_some(pause)
    }

    /// Takes the losses to report now; `None` if there are none, or they were reported a moment ago.
    fn due_report(&mut self) -> Option<LineCounts> {
        self.report_in().filter(Duration::is_zero)?;
        self.reported_at = Some(Instant::now());
        Some(std::mem::take(&mut self.lost))
    }

    /// Takes the next lines for one write: at least one, and no more once they have `most` bytes.
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
    /// The lines in it, which are lost if the write fails.
    count: LineCounts,
}

/// The thread that writes.
struct Writer {
    shared: Arc<Shared>,
    destination: Destination,
    report: fn(LineCounts),
}

impl Writer {
    /// Runs until the process ends.
    fn run(mut self) {
        loop {
            if let Some(batch) = self.next() {
                let written = self.destination.write(&batch.bytes);
                self.note(&batch, written.is_ok());
            }
            self.report_losses();
            self.rest();
        }
    }

    /// Waits for the next lines, or until losses are to be reported: `None`.
    fn next(&self) -> Option<Batch> {
        let mut queue = self.shared.lock();
        while queue.lines.is_empty() {
            queue = match queue.report_in() {
                None => self.shared.filled.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    // The report is a line that is still to be written.
                    queue.is_writing = true;
                    return None;
                }
                Some(pause) => {
                    let waited = self.shared.filled.wait_timeout(queue, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Some(queue.take(self.destination.batch()))
    }

    /// Records whether a batch is written.
    fn note(&self, batch: &Batch, is_written: bool) {
        let mut queue = self.shared.lock();
        queue.is_failing = !is_written;
        if !is_written {
            queue.lost.add(LineKind::Output, batch.count.output);
            queue.lost.add(LineKind::Other, batch.count.other);
        }
    }

    fn report_losses(&self) {
        // The report becomes a line, so the queue must not be locked.
        let lost = self.shared.lock().due_report();
        if let Some(lost) = lost {
            (self.report)(lost);
        }
    }

    fn rest(&self) {
        let mut queue = self.shared.lock();
        queue.is_writing = false;
        if queue.is_idle() {
            self.shared.emptied.notify_all();
        }
    }
}

/// Puts lines into the queue. Each write must be one whole line.
#[derive(Debug)]
pub struct LineWriter<'a> {
    sink: &'a Sink,
    kind: LineKind,
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
        LineWriter { sink: self, kind: LineKind::Other }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> LineWriter<'a> {
        LineWriter { sink: self, kind: if meta.target() == OUTPUT { LineKind::Output } else { LineKind::Other } }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::super::{json::Json, sentence::Scene, wall};
    use super::*;
    use cronkeeper_core::term::NodeName;
    use cronkeeper_core::{log, log_event};

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn pipe() -> (File, OwnedFd) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        (File::from(read), write)
    }

    #[test]
    fn a_stderr_that_nobody_reads_does_not_block_and_dropped_lines_are_counted() {
        static LOST: Mutex<u64> = Mutex::new(0);
        static REPORTED: Condvar = Condvar::new();
        let (mut read, write) = pipe();
        let report = |lost: LineCounts| {
            *LOST.lock().unwrap() += lost.output;
            assert_eq!(lost.other, 0);
            REPORTED.notify_all();
        };
        let sink = Sink::start(Destination::stream(write), report).unwrap();
        let line = [b'x'; 1023].iter().chain(b"\n").copied().collect::<Vec<_>>();
        for _ in 0..6_000 {
            sink.push(LineKind::Output, &line);
        }
        sink.push(LineKind::Other, b"a run ended\n");
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
        let (lost, _) = REPORTED.wait_timeout_while(LOST.lock().unwrap(), TIMEOUT, |lost| *lost < dropped).unwrap();
        assert_eq!(*lost, dropped);
    }

    /// The reports of a log that loses lines in each of many short bursts.
    static BURSTS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

    #[test]
    fn losses_are_reported_once_a_second_at_most_and_the_last_before_the_end() {
        const ROUNDS: u64 = 200;
        let began = Instant::now();
        let (mut read, write) = pipe();
        let sink = Sink::start(Destination::stream(write), |lost| BURSTS.lock().unwrap().push(lost.output)).unwrap();
        let reader = std::thread::spawn(move || read.read_to_end(&mut Vec::new()));
        let too_long = vec![b'x'; OUTPUT_LIMIT + 1];
        for _ in 0..ROUNDS {
            sink.push(LineKind::Output, &too_long);
            sink.push(LineKind::Output, b"short\n");
            let is_written = |queue: &mut LineQueue| !queue.lines.is_empty() || queue.is_writing;
            drop(sink.shared.emptied.wait_timeout_while(sink.shared.lock(), Duration::from_millis(1), is_written));
        }
        assert!(sink.flush(TIMEOUT));
        let reports = BURSTS.lock().unwrap().clone();
        assert_eq!(reports.iter().sum::<u64>(), ROUNDS);
        // One at once, one at the end, and one for each second between.
        assert!(reports.len() as u64 <= 3 + began.elapsed().as_secs(), "{reports:?}");
        drop(sink);
        drop(reader);
    }

    #[test]
    fn a_closed_stderr_loses_lines_and_has_no_other_effect() {
        let (read, write) = pipe();
        drop(read);
        let sink = Sink::start(Destination::stream(write), |_| panic!("a report could not be written")).unwrap();
        for _ in 0..3 {
            sink.push(LineKind::Other, b"a run ended\n");
            assert!(sink.flush(TIMEOUT));
        }
        assert_eq!(sink.shared.lock().lost, LineCounts { output: 0, other: 3 });
    }

    #[test]
    fn the_writer_waits_for_a_nonblocking_stderr() {
        let (mut read, write) = pipe();
        rustix::io::ioctl_fionbio(&write, true).unwrap();
        let sink = Sink::start(Destination::stream(write), |_| {}).unwrap();
        let line = vec![b'x'; 1 << 20];
        sink.push(LineKind::Other, &line);
        let mut got = vec![0; line.len()];
        read.read_exact(&mut got).unwrap();
        assert_eq!(got, line);
    }

    #[test]
    fn an_event_macro_writes_a_line_of_json() {
        let (mut read, write) = pipe();
        let sink = Sink::start(Destination::stream(write), |_| {}).unwrap();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(sink.clone())
            .with_ansi(false)
            .event_format(Json::new(&NodeName::new("host-a"), Scene { service: "ZooKeeper", now: wall }, false));
        let job = cronkeeper_core::job::JobName::parse("load").unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let (pid, signal) = (Some(4242), None::<i32>);
            log!(RUN_STARTED, %job, attempt = 1u32, pid, signal);
            tracing::info!(target: OUTPUT, event = log_event::RUN_OUTPUT, %job, line = "a\nb");
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
        assert_eq!((&lines[0]["event"], &lines[0]["message"]), (&"run.started".into(), &"load started".into()));
        assert_eq!(
            (&lines[0]["job"], &lines[0]["attempt"], &lines[0]["pid"]),
            (&"load".into(), &1.into(), &4242.into())
        );
        assert!(lines[0].get("signal").is_none() && lines[0].get("target").is_none());
        assert_eq!((&lines[1]["event"], &lines[1]["line"]), (&"run.output".into(), &"a\nb".into()));
        assert_eq!((&lines[2]["event"], &lines[2]["message"]), (&"log".into(), &"looked 2 times".into()));
    }
}
