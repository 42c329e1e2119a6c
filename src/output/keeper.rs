//! What the store does with its files: write, finish, sweep. Runs on the store's own thread.
//!
//! Nothing here may fill the disk: the journal of runs is on the same one, and without it no run starts. So some space
//! is left free whatever the retention is, and what cannot be written is counted and noted.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use tracing::warn;

use super::attempt_file::OpenFiles;
use super::failures::{Failed, LoggedFailures};
use super::frames;
use super::layout::{Layout, OutputKey, make_folder};
use super::line::{Line, Lines};
use super::live_files::LiveFiles;
use super::queue::Message;
use super::retention::{MOST_FILES, OutputRetention};
use super::sweep::{self, BLOCK, Limits, Usage, before, space};
use cronkeeper_cluster::safe_path::{Access, open_own};
use cronkeeper_core::log_event::TARGET;

/// Time between two sweeps, if nothing exceeds a limit.
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);
/// Longest time until the next sweep if something exceeds a limit, and between two looks at the free space.
const SWEEP_AGAIN: Duration = Duration::from_secs(10);
/// After a sweep, this many times as long as it took is left to other work.
const REST: u32 = 100;
/// Bytes of one batch that are kept in memory before they are written: at most these, and less with a small retention,
/// so that little is refused when it is nearly used up.
const PENDING: u64 = 1 << 20;
const LEAST_PENDING: u64 = 4 << 10;
const WRITES_IN_RETENTION: u64 = 16;
/// Space that is left free on the disk: this much, or a tenth of a small disk.
const LEFT_FREE: u64 = 64 << 20;

/// Writes and finishes the files of this process, and sweeps those of all.
pub(super) struct Keeper {
    layout: Layout,
    retention: OutputRetention,
    files: OpenFiles,
    /// The files of this process's live attempts.
    live: LiveFiles,
    /// What the files of ended attempts take, as of the last sweep and with what was added since.
    ended: Usage,
    /// Lines of live attempts that could not be written since the last one that could. Bounded by the attempts in
    /// flight.
    lost: BTreeMap<OutputKey, Lost>,
    swept_at: Option<Instant>,
    /// How long the last sweep took.
    sweep_took: Duration,
    failures: LoggedFailures,
}

/// Lines that could not be written.
struct Lost {
    lines: u64,
    at: Timestamp,
    why: String,
}

/// Serialized lines of one attempt.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    lines: u64,
    at: Timestamp,
}

impl Keeper {
    pub fn new(layout: Layout, retention: OutputRetention) -> Self {
        Self {
            layout,
            retention,
            files: OpenFiles::default(),
            live: LiveFiles::default(),
            ended: Usage::default(),
            lost: BTreeMap::new(),
            swept_at: None,
            sweep_took: Duration::ZERO,
            failures: LoggedFailures::default(),
        }
    }

    /// Writes the lines of a batch, and finishes the attempts that ended.
    pub fn take(&mut self, batch: Vec<Message>) {
        let mut pending = BTreeMap::<OutputKey, Pending>::new();
        let (mut size, most) = (0, self.most_pending());
        for message in batch {
            match message {
                Message::Lines { key, lines } => {
                    for line in lines.each(key.attempt) {
                        size += pending.entry(key.clone()).or_default().add(&line);
                        if size > most {
                            size = 0;
                            self.write_all(std::mem::take(&mut pending));
                        }
                    }
                }
                Message::Ended { key, at } => {
                    if let Some(pending) = pending.remove(&key) {
                        self.write(&key, pending);
                    }
                    self.finish(&key, at);
                }
            }
        }
        self.write_all(pending);
    }

    fn most_pending(&self) -> u64 {
        (self.most().bytes / WRITES_IN_RETENTION).clamp(LEAST_PENDING, PENDING)
    }

    fn write_all(&mut self, all: BTreeMap<OutputKey, Pending>) {
        for (key, pending) in all {
            self.write(&key, pending);
        }
    }

    fn write(&mut self, key: &OutputKey, pending: Pending) {
        let bytes = self.told_lost(key, &pending.bytes);
        match self.check_room(key, bytes.len() as u64).and_then(|()| self.append(key, &bytes)) {
            Ok(()) => {
                self.lost.remove(key);
                if self.lost.is_empty() {
                    self.failures.kept(self.layout.root());
                }
            }
            Err(error) => self.lose(key, &pending, &error),
        }
    }

    fn append(&mut self, key: &OutputKey, bytes: &[u8]) -> io::Result<()> {
        let path = self.layout.own_live(key);
        let appended = self.files.append(key, &path, bytes);
        match &appended {
            Ok(()) => self.live.grow(key, bytes.len() as u64),
            // A part of it may have been written.
            Err(_) => self.live.set(key, fs::symlink_metadata(&path).map_or(0, |facts| facts.len())),
        }
        appended
    }

    /// The bytes with a note before them about the lines that were lost. A line of its own comes first, because the
    /// write that failed may have left half a line.
    fn told_lost(&self, key: &OutputKey, bytes: &[u8]) -> Vec<u8> {
        let Some(lost) = self.lost.get(key) else { return bytes.to_vec() };
        let mut all = b"\n".to_vec();
        let note = Lines::not_kept(lost.at, lost.lines, &lost.why);
        note.each(key.attempt).for_each(|line| add_line(&mut all, &line));
        all.extend_from_slice(bytes);
        all
    }

    fn lose(&mut self, key: &OutputKey, pending: &Pending, error: &io::Error) {
        self.files.close(key);
        let why = error.to_string();
        match self.lost.entry(key.clone()) {
            Entry::Occupied(mut lost) => lost.get_mut().lines += pending.lines,
            Entry::Vacant(none) => {
                none.insert(Lost { lines: pending.lines, at: pending.at, why });
            }
        }
        self.complain(Failed::Keep, error);
    }

    /// Refuses to write this many bytes if they would exceed the limits, or leave too little space for everything else on
    /// the disk. The oldest files go first.
    fn check_room(&mut self, key: &OutputKey, length: u64) -> io::Result<()> {
        let OutputRetention::Limited { bytes, .. } = self.retention else { return Ok(()) };
        let coming = self.live.growth(key, length);
        let is_over = |keeper: &Self| keeper.total().bytes.saturating_add(coming) > bytes;
        if !is_over(self) && self.missing_room(length)? == 0 {
            return Ok(());
        }
        if self.may_sweep() {
            self.make_room(length, coming)?;
        }
        match (self.missing_room(length)?, is_over(self)) {
            (1.., _) => Err(io::Error::other("the disk is nearly full")),
            (0, true) => Err(io::Error::other("runs in flight have written all that `--output-retention` allows")),
            (0, false) => Ok(()),
        }
    }

    fn missing_room(&self, length: u64) -> io::Result<u64> {
        let disk = Disk::of(self.layout.root())?;
        Ok(disk.reserve.saturating_add(length).saturating_sub(disk.free))
    }

    /// Removes the oldest files so that `length` more bytes leave the reserve free, and `coming` more bytes of disk space
    /// the limits kept.
    fn make_room(&mut self, length: u64, coming: u64) -> io::Result<()> {
        if self.swept_at.is_none() {
            // Counts what there is.
            self.sweep_to(SystemTime::now(), u64::MAX, 0);
        }
        let missing = self.missing_room(length)?;
        self.sweep_to(SystemTime::now(), self.ended.bytes.saturating_sub(missing), coming);
        Ok(())
    }

    /// False for some time after a sweep: it visits every file.
    fn may_sweep(&self) -> bool {
        let rest = self.sweep_took.saturating_mul(REST).min(SWEEP_AGAIN);
        self.swept_at.is_none_or(|at| at.elapsed() > rest)
    }

    /// True if the reserve is half gone: something else fills the disk, on which runs are recorded.
    fn is_reserve_used(&self) -> bool {
        let is_limited = matches!(self.retention, OutputRetention::Limited { .. });
        let used = |disk: Disk| disk.free < disk.reserve / 2;
        is_limited && self.ended.bytes > 0 && Disk::of(self.layout.root()).is_ok_and(used)
    }

    /// Moves the file of an attempt to the ended ones, compressed if that saves space.
    fn finish(&mut self, key: &OutputKey, at: Timestamp) {
        if let Some(lost) = self.lost.get_mut(key) {
            lost.at = at;
            // A short note has room in the reserve, and without it the output would look complete.
            let note = self.told_lost(key, &[]);
            if let Err(error) = self.append(key, &note) {
                let (job, run) = (key.run.job(), &key.run);
                warn!(target: TARGET, %job, %run, "output of the run was not kept, and its file does not say so: {error}");
            }
            self.lost.remove(key);
        }
        self.files.close(key);
        self.live.set(key, 0);
        let live = self.layout.own_live(key);
        if fs::symlink_metadata(&live).is_ok() {
            self.settle(key, &live);
        }
    }

    /// Moves a file of an attempt that has ended, of this process or of a dead one, to the ended ones.
    ///
    /// If that fails, the file stays where it is, and the next process tries again.
    pub fn settle(&mut self, key: &OutputKey, live: &Path) {
        match move_to_ended(&self.layout, key, live) {
            Ok(length) => self.ended.add(length),
            Err(error) => self.complain(Failed::Move, &error),
        }
    }

    /// How long the store may wait for a message.
    pub fn idle(&self) -> Duration {
        self.swept_at.map_or(Duration::ZERO, |_| SWEEP_AGAIN)
    }

    /// Sweeps if an hour has passed, if what was written since the last sweep exceeds a limit, or if the disk fills up.
    pub fn sweep_if_due(&mut self, now: SystemTime) {
        let since = self.swept_at.map(|at| at.elapsed());
        let is_over = self.total().exceeds(&self.most());
        if since.is_none_or(|since| since >= SWEEP_EVERY || (is_over && since > SWEEP_AGAIN)) {
            self.sweep_to(now, u64::MAX, 0);
        }
        if self.is_reserve_used() && self.may_sweep() {
            self.complain(Failed::Keep, &io::Error::other("the disk is nearly full"));
            if let Err(error) = self.make_room(0, 0) {
                self.complain(Failed::Remove, &error);
            }
        }
    }

    /// Sweeps down to `bytes`, and to the limits once `coming` more bytes of disk space are used.
    fn sweep_to(&mut self, now: SystemTime, bytes: u64, coming: u64) {
        let began = Instant::now();
        let Usage { bytes: most, files } = self.most();
        let not_before = match self.retention {
            OutputRetention::None => now,
            OutputRetention::Limited { age, .. } => before(now, age),
        };
        let left = most.saturating_sub(self.live.space().saturating_add(coming));
        let usage = Usage { bytes: left.min(bytes), files };
        match sweep::sweep(&self.layout.ended(), &Limits { not_before, usage }) {
            Ok(left) => self.ended = left,
            Err(error) => self.complain(Failed::Remove, &error),
        }
        (self.swept_at, self.sweep_took) = (Some(Instant::now()), began.elapsed());
    }

    fn most(&self) -> Usage {
        match self.retention {
            OutputRetention::None => Usage::default(),
            OutputRetention::Limited { bytes, .. } => Usage { bytes, files: MOST_FILES },
        }
    }

    fn total(&self) -> Usage {
        Usage { bytes: self.ended.bytes + self.live.space(), files: self.ended.files }
    }

    pub fn complain(&mut self, what: Failed, error: &io::Error) {
        self.failures.log(what, self.layout.root(), error);
    }
}

impl Pending {
    /// Adds a line; returns its length.
    fn add(&mut self, line: &Line) -> u64 {
        let before = self.bytes.len();
        add_line(&mut self.bytes, line);
        self.lines += 1;
        self.at = line.at;
        (self.bytes.len() - before) as u64
    }
}

/// Writing JSON to memory fails only for types that JSON does not have, and a line has none.
fn add_line(bytes: &mut Vec<u8>, line: &Line) {
    let _ = serde_json::to_writer(&mut *bytes, line);
    bytes.push(b'\n');
}

/// Returns the length of the file at its new place.
fn move_to_ended(layout: &Layout, key: &OutputKey, live: &Path) -> io::Result<u64> {
    make_folder(&layout.of_job(key))?;
    let length = fs::symlink_metadata(live)?.len();
    if length > BLOCK
        && Disk::of(layout.root()).is_ok_and(|disk| disk.free >= disk.reserve.saturating_add(length))
        && let Ok(compressed) = compress(layout, key, live)
        && space(compressed) < space(length)
    {
        fs::remove_file(live)?;
        return Ok(compressed);
    }
    fs::rename(live, layout.ended_plain(key))?;
    // After a compressed file that saves nothing, or was written in part, because the disk is full.
    let _ = fs::remove_file(layout.ended_compressed(key));
    Ok(length)
}

/// Compresses a file to its new place, through a temporary one. Returns its length.
fn compress(layout: &Layout, key: &OutputKey, live: &Path) -> io::Result<u64> {
    let temporary = layout.own().join("compressed.tmp");
    let _ = fs::remove_file(&temporary);
    let written = || -> io::Result<u64> {
        let mut from = open_own(live, Access::Read)?;
        let mut to = open_own(&temporary, Access::ReadWrite)?;
        frames::compress(&mut from, &mut to)?;
        to.flush()?;
        fs::rename(&temporary, layout.ended_compressed(key))?;
        Ok(to.metadata()?.len())
    };
    written().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// The space on a disk, in bytes.
struct Disk {
    free: u64,
    /// What is left free.
    reserve: u64,
}

impl Disk {
    /// The disk of a path.
    fn of(path: &Path) -> io::Result<Self> {
        let disk = rustix::fs::statvfs(path)?;
        let [free, all] = [disk.f_bavail, disk.f_blocks].map(|blocks| blocks.saturating_mul(disk.f_frsize));
        Ok(Self { free, reserve: LEFT_FREE.min(all / 10) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::line::Source;
    use cronkeeper_core::run::RunId;

    fn key(second: u32) -> OutputKey {
        OutputKey { run: RunId::parse(&format!("load.20261120T0230{second:02}Z")).unwrap(), attempt: 1 }
    }

    fn line(key: &OutputKey, text: &str) -> Message {
        let (at, texts) = (Timestamp::UNIX_EPOCH, vec![text.to_owned()]);
        let lines = Lines { at, stream: Source::Stdout, texts, continues: false };
        Message::Lines { key: key.clone(), lines }
    }

    fn ended(key: &OutputKey) -> Message {
        Message::Ended { key: key.clone(), at: Timestamp::UNIX_EPOCH }
    }

    fn keeper(dir: &tempfile::TempDir, bytes: u64) -> Keeper {
        let layout = Layout::new(dir.path());
        drop(layout.create().unwrap());
        Keeper::new(layout, OutputRetention::Limited { age: Duration::from_secs(3_600), bytes })
    }

    fn text(keeper: &Keeper, key: &OutputKey) -> String {
        fs::read_to_string(keeper.layout.ended_plain(key)).unwrap()
    }

    #[test]
    fn an_attempt_without_output_has_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(&dir, 1 << 20);
        keeper.take(vec![ended(&key(1))]);
        assert!(fs::read_dir(keeper.layout.ended()).unwrap().next().is_none());
        assert_eq!(keeper.total(), Usage::default());
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_told_once_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(&dir, 1 << 20);
        keeper.take(vec![line(&key(1), "before")]);
        // Where the file should be there is a directory.
        let live = keeper.layout.own_live(&key(1));
        fs::rename(&live, dir.path().join("aside")).unwrap();
        fs::create_dir(&live).unwrap();
        keeper.files.close(&key(1));
        keeper.take(vec![line(&key(1), "lost"), line(&key(1), "lost too")]);
        keeper.take(vec![line(&key(1), "and this")]);
        fs::remove_dir(&live).unwrap();
        fs::rename(dir.path().join("aside"), &live).unwrap();
        keeper.take(vec![line(&key(1), "after"), ended(&key(1))]);
        let kept = text(&keeper, &key(1));
        let (before, note) = (kept.find("before"), kept.find("3 lines were not kept"));
        assert!(before.is_some() && before < note && note < kept.find("after"), "{kept}");
        assert!(!kept.contains("lost") && keeper.lost.is_empty());
    }

    #[test]
    fn runs_in_flight_stop_at_the_limit_and_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(&dir, 20_000);
        let (most, mut long) = (4 * BLOCK, (0..30).map(|_| line(&key(1), &"x".repeat(1_000))));
        keeper.take(long.by_ref().take(10).collect());
        long.for_each(|line| keeper.take(vec![line]));
        let length = fs::metadata(keeper.layout.own_live(&key(1))).unwrap().len();
        assert!((most - 2_000..=most).contains(&length) && keeper.live.space() == most, "{length}");
        assert!(keeper.lost.contains_key(&key(1)));
        keeper.take(vec![ended(&key(1))]);
        assert!(keeper.lost.is_empty() && keeper.live.space() == 0);
        let mut file = open_own(&keeper.layout.ended_compressed(&key(1)), Access::Read).unwrap();
        let kept = String::from_utf8(frames::read_at(&mut file, 0, 1 << 20).unwrap()).unwrap();
        assert!(kept.contains("lines were not kept: runs in flight have written all"), "{}", &kept[kept.len() - 300..]);
        keeper.take(vec![line(&key(2), "again"), ended(&key(2))]);
        assert!(text(&keeper, &key(2)).contains("again"));
    }

    #[test]
    fn many_runs_in_flight_share_the_limit_and_each_takes_whole_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(&dir, 10 * BLOCK);
        (0..30).for_each(|second| keeper.take(vec![line(&key(second), "x")]));
        let kept = || fs::read_dir(keeper.layout.own()).unwrap().count();
        assert_eq!((kept(), keeper.live.space(), keeper.lost.len()), (10, 10 * BLOCK, 20));
    }

    #[test]
    fn a_batch_that_is_larger_than_the_limit_is_kept_in_part() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(&dir, 1 << 20);
        let texts = vec![String::new(); 50_000];
        let lines = Lines { at: Timestamp::UNIX_EPOCH, stream: Source::Stdout, texts, continues: false };
        keeper.take(vec![Message::Lines { key: key(1), lines }]);
        let kept = fs::read_to_string(keeper.layout.own_live(&key(1))).unwrap();
        assert!((1 << 19..=1 << 20).contains(&kept.len()), "{}", kept.len());
        // The rest of the batch may fit again, with a note about what did not.
        assert!(keeper.lost.contains_key(&key(1)) || kept.contains("lines were not kept"));
    }

    #[test]
    fn the_oldest_goes_when_there_is_too_much() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(&dir, 5 * BLOCK);
        for second in 0..6 {
            keeper.take(vec![line(&key(second), "x"), ended(&key(second))]);
            let ended = keeper.layout.ended_plain(&key(second));
            let written = SystemTime::now() - Duration::from_secs(3_000 - 500 * u64::from(second));
            fs::File::options().append(true).open(ended).unwrap().set_modified(written).unwrap();
        }
        keeper.sweep_if_due(SystemTime::now());
        let kept: Vec<bool> = (0..6).map(|second| keeper.layout.ended_plain(&key(second)).exists()).collect();
        assert_eq!(kept, [false, false, true, true, true, true]);
        assert_eq!(keeper.ended.files, 4);
        keeper.swept_at = None;
        keeper.sweep_if_due(SystemTime::now() + Duration::from_secs(1_800));
        assert_eq!(keeper.ended.files, 3, "the next is too old");
    }
}
