//! Reads kept output in pages, for the API.
//!
//! A reader names the attempt and an offset into what it wrote, so it can continue where it was, even after this daemon
//! has been restarted. A page is bounded, and so is the work for one, and the number of pages that are read at a time.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::frames;
use super::layout::{Layout, OutputKey, entries, is_alive};
use super::line::Line;
use super::queue::Backlog;
use cronkeeper_cluster::safe_path::{Access, open_own};
use cronkeeper_core::run::RunId;

/// Bytes of lines after which a page ends.
const PAGE: usize = 256 << 10;
/// Bytes that are searched for the lines of a page. More than the longest line takes.
const SCAN: usize = 1 << 20;
/// Most pages that are read at a time.
const MOST_READS: usize = 4;
/// Longest wait until the store has caught up with what was sent before a read.
const CATCH_UP: Duration = Duration::from_secs(2);
/// Time between two looks at output that another process writes, which cannot notify this one.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// Reads the output kept in one directory.
#[derive(Clone, Debug)]
pub struct Reader(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    layout: Layout,
    backlog: Arc<Backlog>,
    /// Counts the messages that the store has handled.
    processed: watch::Receiver<u64>,
    permits: Arc<Semaphore>,
}

/// Which lines of an attempt a reader wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Those from this instant on.
    pub since: Option<Timestamp>,
    /// Those in about this many bytes at the end of what is kept.
    pub last: Option<u64>,
}

/// A part of an attempt's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPage {
    pub lines: Vec<Line>,
    /// Bytes before the lines that were left out, because only the end is wanted.
    pub skipped: u64,
    /// The offset of the next page.
    pub next: u64,
    pub end: PageEnd,
}

/// What follows a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEnd {
    /// More lines are kept.
    More,
    /// Nothing yet: the attempt is in flight, as far as its file shows.
    Open,
    /// Nothing: the attempt has ended.
    Ended,
    /// There is no output of the attempt.
    Absent,
}

impl Reader {
    pub(super) fn new(layout: Layout, backlog: Arc<Backlog>, processed: watch::Receiver<u64>) -> Self {
        Self(Arc::new(Shared { layout, backlog, processed, permits: Arc::new(Semaphore::new(MOST_READS)) }))
    }

    /// Reads the wanted lines of an attempt from an offset.
    ///
    /// Everything that the daemon received from the attempt before this call is there, unless the disk is very slow.
    ///
    /// # Errors
    /// If the files cannot be read.
    pub async fn page(&self, key: OutputKey, from: u64, wanted: Wanted) -> io::Result<LocalPage> {
        let sent = self.0.backlog.sent_of(&key..=&key);
        self.read(sent, move |layout| page(layout, &key, from, wanted)).await
    }

    /// The attempts of a run whose output is kept here, in order.
    ///
    /// # Errors
    /// If the directories cannot be listed.
    pub async fn attempts(&self, run: RunId) -> io::Result<Vec<u32>> {
        let of = |attempt| OutputKey { run: run.clone(), attempt };
        let sent = self.0.backlog.sent_of(of(0)..=of(u32::MAX));
        self.read(sent, move |layout| attempts(layout, &run)).await
    }

    /// Waits until something was written since the call, or for a short while.
    pub async fn changed(&self) {
        let mut processed = self.0.processed.clone();
        processed.mark_unchanged();
        if let Ok(Err(_)) = timeout(POLL_EVERY, processed.changed()).await {
            tokio::time::sleep(POLL_EVERY).await; // the store has ended: only others write
        }
    }

    /// Reads once the store has handled this many messages.
    ///
    /// Cancellation safety: if this future is dropped, the read ends by itself and its result is discarded.
    async fn read<T: Send + 'static>(
        &self,
        sent: u64,
        read: impl FnOnce(&Layout) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.catch_up(sent).await;
        // The semaphore is never closed. The permit belongs to the read, which continues when nobody waits for it any
        // more.
        let permit = Arc::clone(&self.0.permits).acquire_owned().await;
        let shared = Arc::clone(&self.0);
        let read = move || {
            let _permit = permit;
            read(&shared.layout)
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Waits until the store has handled this many messages.
    async fn catch_up(&self, sent: u64) {
        let mut processed = self.0.processed.clone();
        // An error means that the store has ended, or is slow; then what it has written is shown.
        let _ = timeout(CATCH_UP, processed.wait_for(|number| *number >= sent)).await;
    }
}

/// The file of an attempt.
struct Found {
    file: File,
    is_compressed: bool,
    /// The attempt has ended, or its writer is dead.
    has_ended: bool,
}

impl Found {
    /// Bytes of the lines.
    fn length(&mut self) -> io::Result<u64> {
        if self.is_compressed { frames::length(&mut self.file) } else { Ok(self.file.metadata()?.len()) }
    }

    fn read_at(&mut self, from: u64, most: usize) -> io::Result<Vec<u8>> {
        if self.is_compressed {
            return frames::read_at(&mut self.file, from, most);
        }
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(from))?;
        (&self.file).take(most as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Files move from `live` to `ended` only, so looking in this order misses none.
fn locate(layout: &Layout, key: &OutputKey) -> io::Result<Option<Found>> {
    let found = |file, is_compressed, has_ended| Ok(Some(Found { file, is_compressed, has_ended }));
    if let Some(file) = opened(layout.own_live(key))? {
        return found(file, false, false);
    }
    for writer in layout.writers()? {
        if let Some(file) = opened(writer.join(key.file_name()))? {
            return found(file, false, !is_alive(&writer));
        }
    }
    if let Some(file) = opened(layout.ended_plain(key))? {
        return found(file, false, true);
    }
    match opened(layout.ended_compressed(key))? {
        Some(file) => found(file, true, true),
        None => Ok(None),
    }
}

fn opened(path: PathBuf) -> io::Result<Option<File>> {
    match open_own(&path, Access::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

fn page(layout: &Layout, key: &OutputKey, asked: u64, wanted: Wanted) -> io::Result<LocalPage> {
    let Some(mut found) = locate(layout, key)? else {
        return Ok(LocalPage { lines: Vec::new(), skipped: 0, next: asked, end: PageEnd::Absent });
    };
    let Wanted { since, last } = wanted;
    // Half a line that this begins with is no line, and is left out below.
    let from = last.map_or(Ok(asked), |last| Ok::<_, io::Error>(asked.max(found.length()?.saturating_sub(last))))?;
    let bytes = found.read_at(from, SCAN)?;
    let is_all = bytes.len() < SCAN;
    // Half a line at the end is left for the next page, unless it is all that there will ever be.
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let is_stuck = if is_all { found.has_ended } else { whole == 0 };
    let whole = if is_stuck { bytes.len() } else { whole };
    let (mut lines, mut used, mut size) = (Vec::new(), 0, 0);
    for piece in bytes[..whole].split_inclusive(|&byte| byte == b'\n') {
        if size >= PAGE {
            break;
        }
        used += piece.len();
        // What is not a line was cut short by a crash or a full disk.
        if let Ok(line) = serde_json::from_slice::<Line>(piece)
            && since.is_none_or(|since| line.at >= since)
        {
            size += piece.len();
            lines.push(line);
        }
    }
    let end = match (is_all && used == whole, found.has_ended) {
        (true, true) => PageEnd::Ended,
        (true, false) => PageEnd::Open,
        (false, _) => PageEnd::More,
    };
    Ok(LocalPage { lines, skipped: from - asked, next: from + used as u64, end })
}

fn attempts(layout: &Layout, run: &RunId) -> io::Result<Vec<u32>> {
    let job = layout.ended().join(run.job().as_str());
    let mut attempts = Vec::new();
    for folder in layout.writers()?.into_iter().chain([job]) {
        for entry in entries(&folder)? {
            let key = entry?.file_name().to_str().and_then(OutputKey::parse);
            attempts.extend(key.filter(|(key, _)| key.run == *run).map(|(key, _)| key.attempt));
        }
    }
    attempts.sort_unstable();
    attempts.dedup();
    Ok(attempts)
}

#[cfg(test)]
mod tests {
    use super::super::{Lines, OutputQueue, OutputRetention, OutputStore, Source, open};
    use super::*;
    use cronkeeper_core::process::Unsent;

    struct Kept {
        dir: tempfile::TempDir,
        queue: OutputQueue,
        reader: Reader,
        store: OutputStore,
    }

    impl Kept {
        fn new() -> Self {
            Self::with(tempfile::tempdir().unwrap(), OutputRetention::default())
        }

        fn with(dir: tempfile::TempDir, retention: OutputRetention) -> Self {
            let (queue, reader, store) = open(&dir.path().join("output"), retention).unwrap();
            Self { dir, queue, reader, store }
        }

        fn say(&mut self, attempt: u32, text: &str) {
            self.queue.lines(key(attempt), lines(text));
        }

        fn end(&mut self, attempt: u32) {
            self.queue.ended(key(attempt), Timestamp::UNIX_EPOCH, Unsent::default());
        }

        /// Ends the store as the end of a daemon does; returns the directory.
        fn close(self) -> tempfile::TempDir {
            let Self { dir, queue, store, .. } = self;
            drop(queue);
            store.finish(Duration::from_secs(60));
            dir
        }

        async fn all(&self, attempt: u32) -> (Vec<String>, PageEnd) {
            let (mut texts, mut from) = (Vec::new(), 0);
            loop {
                let page = self.reader.page(key(attempt), from, Wanted::default()).await.unwrap();
                texts.extend(page.lines.into_iter().map(|line| line.line));
                from = page.next;
                if page.end != PageEnd::More {
                    return (texts, page.end);
                }
            }
        }

        /// The same once nobody holds the directory of a process that has ended: a process that another test has just
        /// forked may, and so does the keeper that finishes the files.
        async fn until_free(&self, attempt: u32) -> (Vec<String>, PageEnd) {
            loop {
                match self.all(attempt).await {
                    (_, PageEnd::Open) => tokio::time::sleep(Duration::from_millis(20)).await,
                    read => return read,
                }
            }
        }
    }

    fn key(attempt: u32) -> OutputKey {
        OutputKey { run: RunId::parse("load.20261120T023000Z").unwrap(), attempt }
    }

    fn lines(text: &str) -> Lines {
        let at = Timestamp::UNIX_EPOCH + Duration::from_secs(text.len() as u64);
        Lines { at, stream: Source::Stdout, texts: vec![text.into()], continues: false }
    }

    fn live_file(dir: &tempfile::TempDir, attempt: u32) -> PathBuf {
        let writers = super::super::layout::folders(&dir.path().join("output/live")).unwrap();
        writers.into_iter().map(|writer| writer.join(key(attempt).file_name())).find(|path| path.exists()).unwrap()
    }

    #[tokio::test]
    async fn output_is_read_while_it_is_written_and_after_the_end() {
        let mut kept = Kept::new();
        assert_eq!(kept.all(1).await, (vec![], PageEnd::Absent));
        kept.say(1, "one");
        assert_eq!(kept.all(1).await, (vec!["one".into()], PageEnd::Open));
        kept.say(1, "two");
        let page = kept.reader.page(key(1), 0, Wanted::default()).await.unwrap();
        kept.say(1, "three");
        kept.end(1);
        let rest = kept.reader.page(key(1), page.next, Wanted::default()).await.unwrap();
        assert_eq!((rest.lines.len(), rest.end), (1, PageEnd::Ended));
        assert_eq!(kept.all(1).await, (vec!["one".into(), "two".into(), "three".into()], PageEnd::Ended));
    }

    #[tokio::test]
    async fn a_long_output_is_compressed_and_read_in_pages() {
        let mut kept = Kept::new();
        let texts: Vec<String> = (0..40_000).map(|number| format!("line {number} of the output")).collect();
        texts.iter().for_each(|text| kept.say(2, text));
        let (queued, _) = kept.all(2).await;
        kept.say(2, "last");
        kept.end(2);
        let (read, end) = kept.all(2).await;
        let noted = |texts: &[String]| texts.iter().filter(|text| text.contains("not kept")).count();
        // On a slow machine, the queue may overflow.
        assert!(noted(&read) > 0 || read[..40_000] == texts, "{}", read.len());
        assert_eq!((end, read.last().map(String::as_str)), (PageEnd::Ended, Some("last")));
        assert!(queued.len() <= read.len());
        let folder = kept.dir.path().join("output/ended/load");
        let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap();
        assert!(file.file_name().to_str().unwrap().ends_with(".a2.jsonl.gz"));
        assert!(file.metadata().unwrap().len() < 1 << 20, "{}", file.metadata().unwrap().len());
    }

    #[tokio::test]
    async fn lines_before_an_instant_are_left_out() {
        let mut kept = Kept::new();
        ["a", "bb", "ccc"].iter().for_each(|text| kept.say(1, text));
        let since = Some(Timestamp::UNIX_EPOCH + Duration::from_secs(2));
        let page = kept.reader.page(key(1), 0, Wanted { since, last: None }).await.unwrap();
        assert_eq!(page.lines.iter().map(|line| line.line.as_str()).collect::<Vec<_>>(), ["bb", "ccc"]);
    }

    #[tokio::test]
    async fn of_a_long_output_the_end_is_read_at_once() {
        let mut kept = Kept::new();
        let texts: Vec<String> = (0..5_000).map(|number| format!("line {number} of the output")).collect();
        texts.iter().for_each(|text| kept.say(1, text));
        for is_ended in [false, true] {
            if is_ended {
                kept.end(1);
            }
            let wanted = Wanted { since: None, last: Some(10_000) };
            let page = kept.reader.page(key(1), 0, wanted).await.unwrap();
            assert_eq!(page.end, if is_ended { PageEnd::Ended } else { PageEnd::Open });
            assert_eq!(page.next - page.skipped, 10_000);
            let read: Vec<_> = page.lines.into_iter().map(|line| line.line).collect();
            assert!(texts.ends_with(&read) && (50..200).contains(&read.len()), "{}", read.len());
            let rest = kept.reader.page(key(1), page.next, wanted).await.unwrap();
            assert_eq!((rest.lines.len(), rest.skipped), (0, 0));
        }
        let short = kept.reader.page(key(1), 0, Wanted { since: None, last: Some(u64::MAX) }).await.unwrap();
        assert_eq!((short.skipped, short.lines.first()), (0, lines(&texts[0]).each(1).next().as_ref()));
    }

    #[tokio::test]
    async fn what_a_crash_cut_short_is_left_out_and_the_rest_is_finished_by_the_next() {
        let mut kept = Kept::new();
        kept.say(1, "whole");
        kept.say(3, &"x".repeat(9_000));
        kept.all(3).await;
        let live = live_file(&kept.dir, 1);
        let half = [std::fs::read(&live).unwrap(), b"{\"at\":\"2026".to_vec()].concat();
        std::fs::write(&live, half).unwrap();
        // As after a crash: the files stay where they are, and nobody holds the directory any more.
        let dir = kept.close();
        assert!(live.exists());
        let next = Kept::with(dir, OutputRetention::default());
        assert_eq!(next.until_free(1).await, (vec!["whole".into()], PageEnd::Ended));
        let ended = next.dir.path().join("output/ended/load");
        while !ended.join(format!("{}.gz", key(3).file_name())).exists() || live.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(next.until_free(1).await, (vec!["whole".into()], PageEnd::Ended));
        assert_eq!(next.all(3).await.0[0].len(), 9_000);
        assert_eq!(next.reader.attempts(key(1).run).await.unwrap(), [1, 3]);
    }

    #[tokio::test]
    async fn two_daemons_share_a_directory_and_neither_takes_the_files_of_the_other() {
        let mut first = Kept::new();
        first.say(1, "of the first");
        first.all(1).await;
        let (mut queue, reader, _store) = open(&first.dir.path().join("output"), OutputRetention::default()).unwrap();
        queue.lines(key(2), lines("of the second"));
        assert_eq!(reader.page(key(2), 0, Wanted::default()).await.unwrap().end, PageEnd::Open);
        let page = reader.page(key(1), 0, Wanted::default()).await.unwrap();
        assert_eq!((page.lines.len(), page.end), (1, PageEnd::Open));
        first.end(1);
        assert_eq!(first.all(1).await.1, PageEnd::Ended);
        assert_eq!(reader.page(key(1), 0, Wanted::default()).await.unwrap().end, PageEnd::Ended);
    }

    #[tokio::test]
    async fn without_retention_nothing_is_kept_and_what_is_there_is_removed() {
        let mut kept = Kept::new();
        kept.say(1, "old");
        kept.end(1);
        kept.say(2, "left behind");
        kept.all(2).await;
        let mut next = Kept::with(kept.close(), OutputRetention::None);
        next.say(3, "new");
        let dir = next.close();
        let next = Kept::with(dir, OutputRetention::default());
        assert_eq!(next.reader.attempts(key(1).run).await.unwrap(), [0_u32; 0]);
    }

    #[tokio::test]
    async fn files_are_for_this_user_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let mut kept = Kept::new();
        kept.say(1, "secret");
        kept.all(1).await;
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(live_file(&kept.dir, 1)), 0o600);
        kept.end(1);
        kept.all(1).await;
        let ended = kept.dir.path().join("output/ended/load");
        assert_eq!((mode(ended.clone()), mode(ended.join(key(1).file_name()))), (0o700, 0o600));
    }
}
