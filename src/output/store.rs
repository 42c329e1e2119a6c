//! The thread that keeps output, and what dead daemons left.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::failures::Failed;
use super::keeper::Keeper;
use super::layout::{Layout, OutputKey, entries, is_alive, lock_of};
use super::queue::{Backlog, Message, OutputQueue};
use super::reader::Reader;
use super::retention::OutputRetention;
use cronkeeper_cluster::state_dir::lock::{FileLock, Kind};

/// Most messages that are handled at a time.
const BATCH: usize = 4_096;
/// Nice value of the thread, so that the daemon's other threads and its jobs come first.
const NICE: i32 = 5;

/// The running store. It ends once its queue is dropped and empty.
#[derive(Debug)]
pub struct OutputStore {
    ended: Receiver<()>,
}

impl OutputStore {
    /// Waits until everything in the queue is written, after the queue was dropped. Blocks for at most `timeout`.
    pub fn finish(self, timeout: Duration) {
        // An error means that the thread has ended.
        let _ = self.ended.recv_timeout(timeout);
    }
}

/// Starts to keep output in a directory, which is created if it does not exist.
///
/// # Errors
/// If the directory cannot be used, or the thread cannot be started.
pub fn open(directory: &Path, retention: OutputRetention) -> io::Result<(OutputQueue, Reader, OutputStore)> {
    let layout = Layout::new(directory);
    let lock = layout.create()?;
    let (sender, messages) = channel();
    let backlog = Arc::<Backlog>::default();
    let (processed, seen) = watch::channel(0);
    let (alive, ended) = mpsc::channel();
    let reader = Reader::new(layout.clone(), Arc::clone(&backlog), seen);
    let store = Store { keeper: Keeper::new(layout.clone(), retention), leftovers: Leftovers::new(&layout) };
    let taken = Arc::clone(&backlog);
    let run = move || {
        let _alive = alive;
        // If the kernel refuses, the thread competes like any other.
        let _ = rustix::process::setpriority_process(None, NICE);
        match retention {
            OutputRetention::None => store.remove_all(),
            OutputRetention::Limited { .. } => store.run(&messages, &taken, &processed),
        }
        // Without files in it, the directory is no longer needed. Otherwise the next process finishes them.
        drop(lock);
        remove_if_empty(layout.own());
    };
    thread::Builder::new().name("output".into()).spawn(run)?;
    let queue = match retention {
        OutputRetention::None => OutputQueue::default(),
        OutputRetention::Limited { .. } => OutputQueue::new(sender, backlog),
    };
    Ok((queue, reader, OutputStore { ended }))
}

struct Store {
    keeper: Keeper,
    leftovers: Leftovers,
}

impl Store {
    /// Works until the queue is gone and empty.
    fn run(mut self, messages: &Receiver<Message>, backlog: &Backlog, processed: &watch::Sender<u64>) {
        loop {
            self.keeper.sweep_if_due(SystemTime::now());
            let idle = if self.leftovers.is_empty() { self.keeper.idle() } else { Duration::ZERO };
            match messages.recv_timeout(idle) {
                Ok(first) => {
                    let batch: Vec<_> = std::iter::once(first).chain(messages.try_iter().take(BATCH)).collect();
                    batch.iter().for_each(|message| backlog.taken(message));
                    let (count, ended) =
                        (batch.len() as u64, batch.iter().filter_map(Message::ended).cloned().collect());
                    self.keeper.take(batch);
                    processed.send_modify(|number| *number += count);
                    backlog.handled(ended);
                }
                Err(RecvTimeoutError::Timeout) => self.finish_leftover(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Removes all output of ended attempts.
    fn remove_all(mut self) {
        while !self.leftovers.is_empty() {
            self.finish_leftover();
        }
        self.keeper.sweep_if_due(SystemTime::now());
    }

    fn finish_leftover(&mut self) {
        match self.leftovers.next() {
            Some(Ok((key, path))) => self.keeper.settle(&key, &path),
            Some(Err(error)) => self.keeper.complain(Failed::Read, &error),
            None => {}
        }
    }
}

/// Files that dead daemons left, one at a time: there may be thousands, and new output must not wait for them.
struct Leftovers {
    writers: Vec<PathBuf>,
    /// The directory at hand, held so that no other daemon of this host finishes the same files.
    current: Option<(PathBuf, FileLock, fs::ReadDir)>,
}

impl Leftovers {
    fn new(layout: &Layout) -> Self {
        let writers = layout.writers().unwrap_or_default();
        Self { writers: writers.into_iter().filter(|writer| writer != layout.own()).collect(), current: None }
    }

    fn is_empty(&self) -> bool {
        self.writers.is_empty() && self.current.is_none()
    }

    fn next(&mut self) -> Option<io::Result<(OutputKey, PathBuf)>> {
        while let Some((writer, _lock, files)) = &mut self.current {
            for file in files.by_ref() {
                let file = match file {
                    Ok(file) => file,
                    Err(error) => return Some(Err(error)),
                };
                if let Some((key, false)) = file.file_name().to_str().and_then(OutputKey::parse) {
                    return Some(Ok((key, file.path())));
                }
            }
            let writer = writer.clone();
            self.current = None;
            remove_if_empty(&writer);
        }
        let writer = self.writers.pop()?;
        match taken(&writer) {
            Ok(Some(lock)) => match fs::read_dir(&writer) {
                Ok(files) => self.current = Some((writer, lock, files)),
                Err(error) => return Some(Err(error)),
            },
            Ok(None) => {}
            Err(error) => return Some(Err(error)),
        }
        None
    }
}

/// Takes the directory of a dead daemon; `None` if the daemon is alive.
fn taken(writer: &Path) -> io::Result<Option<FileLock>> {
    if is_alive(writer) {
        return Ok(None);
    }
    FileLock::try_take(&lock_of(writer), Kind::Exclusive)
}

/// Removes a writer's directory, unless it has files of attempts.
fn remove_if_empty(writer: &Path) {
    let is_file = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_str().and_then(OutputKey::parse).is_some())
    };
    if entries(writer).is_ok_and(|mut entries| entries.any(is_file)) {
        return;
    }
    let _ = fs::remove_file(writer.join("compressed.tmp"));
    let _ = fs::remove_file(lock_of(writer));
    let _ = fs::remove_dir(writer);
}
