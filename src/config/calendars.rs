//! The calendar files that jobs files name.
//!
//! They are read together with the jobs files and by the same rules: who can write one decides when jobs run. Their
//! content belongs to that of the jobs files, so a change of a date is a change of the jobs. An error never quotes a
//! calendar, because a wrong name can be that of any file.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rustix::fs::OFlags;

use super::Problem;
use super::files::Source;
use super::source;
use super::spanned::{self, Fault, Node, Position};
use cronkeeper_cluster::safe_path::{self, Refusal, Wanted};
use cronkeeper_core::schedule::{Dates, DatesFile};

/// Maximum size of a calendar file in bytes.
const LARGEST: usize = 1 << 20;
/// Most calendar files that one set of jobs may name.
const MOST: usize = 64;
/// A file whose last date comes sooner has probably not got the dates of the next year yet.
const NEXT_DATES_DUE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The calendar files as read, by their paths: the bytes, or why there are none.
#[derive(Clone, Debug, Default)]
pub(super) struct CalendarFiles(pub BTreeMap<PathBuf, Result<Vec<u8>, String>>);

impl CalendarFiles {
    /// Reads the files that these jobs files name, if no other user can change them.
    pub fn read(sources: &[Source]) -> Self {
        Self::read_with(sources, |path| {
            safe_path::open_file(path, Wanted::Trusted).map_err(|refusal| match refusal {
                Refusal::Unsafe(why) => why.to_string(),
                Refusal::Io(error) => cannot_read(path, &error),
            })
        })
    }

    /// Like [`CalendarFiles::read`], whoever owns the files and may write them.
    pub fn read_untrusted(sources: &[Source]) -> Self {
        Self::read_with(sources, |path| {
            // Without this flag, opening a FIFO could wait forever.
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
            let file = file.and_then(|file| if file.metadata()?.is_file() { Ok(file) } else { Err(no_file()) });
            file.map_err(|error| cannot_read(path, &error))
        })
    }

    fn read_with(sources: &[Source], open: impl Fn(&Path) -> Result<File, String>) -> Self {
        let mut files = BTreeMap::new();
        for path in sources.iter().flat_map(named) {
            if files.len() < MOST && !files.contains_key(&path) {
                let bytes = open(&path).and_then(|file| bytes(file).map_err(|error| cannot_read(&path, &error)));
                files.insert(path, bytes);
            }
        }
        Self(files)
    }

    /// Parses the files.
    pub fn parse(&self, now: Timestamp) -> Calendars {
        let mut calendars = Calendars::default();
        for (path, bytes) in &self.0 {
            let parsed = match bytes {
                Ok(bytes) => calendars.parse(path, bytes, now).map_or(Parsed::Faulty, Parsed::Dates),
                Err(why) => Parsed::Unreadable(why.clone()),
            };
            calendars.files.insert(path.clone(), parsed);
        }
        calendars
    }
}

fn no_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

fn bytes(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than allowed, to detect a file that is too large.
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The paths of the calendars that a jobs file names.
fn named(Source { path, bytes }: &Source) -> Vec<PathBuf> {
    // Most files name none, and need not be parsed once more.
    let Some(text) = source::text(bytes).ok().filter(|text| text.contains("calendar")) else { return Vec::new() };
    let Some(root) = spanned::read(text).root else { return Vec::new() };
    let jobs = root.entry("jobs").map_or(&[][..], |jobs| jobs.value.entries());
    let blocks = root.entry("defaults").into_iter().chain(jobs);
    let calendars = blocks.filter_map(|block| block.value.entry("calendar"));
    let lists = calendars.flat_map(|calendar| calendar.value.entries());
    let names = lists.flat_map(|list| texts(&list.value));
    names.map(|name| path_of(path, name)).collect()
}

fn texts(list: &Node) -> Vec<&str> {
    list.text().into_iter().chain(list.items().iter().filter_map(|item| item.text())).collect()
}

/// The path of a calendar that a jobs file names.
fn path_of(jobs_file: &Path, name: &str) -> PathBuf {
    jobs_file.parent().unwrap_or(Path::new("")).join(name)
}

/// The calendars of a set of jobs files.
#[derive(Debug, Default)]
pub(super) struct Calendars {
    files: BTreeMap<PathBuf, Parsed>,
    pub problems: Vec<Problem>,
    /// Warnings about what is written.
    pub doubts: Vec<Problem>,
    /// Warnings that come with time.
    pub ends: Vec<Problem>,
}

#[derive(Debug)]
enum Parsed {
    Dates(Arc<Dates>),
    /// Its problems say why.
    Faulty,
    Unreadable(String),
}

impl Calendars {
    fn parse(&mut self, path: &Path, bytes: &[u8], now: Timestamp) -> Option<Arc<Dates>> {
        let fault = |line, column, message: String| Problem::new(path, Fault::new(Position { line, column }, message));
        if bytes.len() > LARGEST {
            self.problems.push(fault(1, 1, format!("the calendar is larger than {} MiB", LARGEST >> 20)));
            return None;
        }
        let text = match source::utf8(bytes) {
            Ok(text) => text,
            Err(wrong) => {
                self.problems.push(Problem::new(path, wrong));
                return None;
            }
        };
        match Dates::parse(text) {
            Ok(dates) => {
                let doubts = dates.doubts().iter();
                self.doubts.extend(doubts.map(|doubt| fault(doubt.line, doubt.column, doubt.message.to_owned())));
                self.ends.extend(ends_soon(&dates, now).map(|(line, message)| fault(line, 1, message)));
                Some(Arc::new(dates))
            }
            Err(faults) => {
                let faults = faults.into_iter().map(|wrong| fault(wrong.line, wrong.column, wrong.message.to_owned()));
                self.problems.extend(faults);
                None
            }
        }
    }

    /// What a jobs file may name.
    pub fn of<'a>(&'a self, jobs_file: &'a Path) -> CalendarsOfFile<'a> {
        CalendarsOfFile { jobs_file, calendars: self }
    }
}

/// A warning, if the dates end within a month or have ended.
fn ends_soon(dates: &Dates, now: Timestamp) -> Option<(usize, String)> {
    let (newest, line) = dates.newest()?;
    let today = now.to_zoned(TimeZone::UTC).date();
    let soon = today.saturating_add(NEXT_DATES_DUE);
    let when = match newest {
        _ if newest < today => "is past",
        _ if newest <= soon => "is less than 30 days ahead",
        _ => return None,
    };
    Some((line, format!("the calendar's last date with a year, {newest}, {when}; add the dates that follow it")))
}

/// The calendars that one jobs file may name.
#[derive(Clone, Copy)]
pub(super) struct CalendarsOfFile<'a> {
    jobs_file: &'a Path,
    calendars: &'a Calendars,
}

impl CalendarsOfFile<'_> {
    /// Finds a calendar by its name; absent if its own problems are reported anyway.
    pub fn find(self, name: &str) -> Result<Option<DatesFile>, String> {
        if name.is_empty() {
            return Err("the name of the file is empty".to_owned());
        }
        match self.calendars.files.get(&path_of(self.jobs_file, name)) {
            Some(Parsed::Dates(dates)) => Ok(Some(DatesFile { name: name.to_owned(), dates: Arc::clone(dates) })),
            Some(Parsed::Faulty) => Ok(None),
            Some(Parsed::Unreadable(why)) => Err(why.clone()),
            None if self.calendars.files.len() >= MOST => Err(format!("more than {MOST} calendars are named")),
            None => Err("no files can be read here".to_owned()),
        }
    }
}
