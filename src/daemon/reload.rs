//! Reloading of the jobs file: on request, when its directory changes, and when a check every 10 s finds new content.
//!
//! A separate thread reads and validates the file. The daemon receives a complete valid set of jobs, or all errors. What
//! it was sent as valid is then copied to the state directory, for a start without a valid file.
//!
//! Calendars are read until two readings agree: a part of a calendar is a calendar too, so one that is being written
//! looks like a whole one. As time alone can make a calendar too short, the log says so once a day.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tracing::debug;

use super::{Control, log};
use crate::accounts::Accounts;
use crate::config::last_good::LastGood;
use crate::config::{self, Content, LoadError, Loaded};
use cronkeeper_core::clock::system;
use cronkeeper_core::job::Digest;
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;

pub type Reloaded = Result<Loaded, LoadError>;

/// Interval of the checks that find changes no watch has reported.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// Time between the first reported change and the read, because editors write in several steps.
const SETTLE: Duration = Duration::from_millis(50);
/// Time between two readings that must agree.
const AGREE_AFTER: Duration = Duration::from_millis(250);
/// Most readings of one check. If no two agree, the files are left to the next check.
const MOST_READINGS: usize = 8;

/// Interval at which users are looked up again, to find those added meanwhile.
const LOOK_UP_EVERY: Duration = Duration::from_secs(60);

/// Requests a reload of the jobs file, whether or not it has changed.
#[derive(Clone, Debug, Default)]
pub struct Trigger {
    requested: Arc<Notify>,
    changed: Arc<Notify>,
}

impl Trigger {
    /// Requests a reload now. The daemon receives the result even if nothing has changed.
    pub fn now(&self) {
        self.requested.notify_one();
    }
}

/// What the node started with.
pub struct StartedWith {
    /// The fingerprint of the file, valid or not.
    pub fingerprint: Digest,
    /// The content of the file; absent if it was rejected.
    pub accepted: Option<Content>,
    /// Where accepted content is copied to.
    pub copy: LastGood,
}

/// Reloads the jobs file when needed, and keeps `accounts` and the copy of the last good jobs up to date, until the
/// daemon is gone.
pub async fn keep_up(
    path: PathBuf,
    StartedWith { mut fingerprint, accepted, copy }: StartedWith,
    trigger: Trigger,
    controls: UnboundedSender<Control>,
    accounts: watch::Sender<Accounts>,
) {
    let _watcher = watch_directory(&path, trigger.changed.clone());
    keep_copy(&copy, accepted).await;
    let accounts = Arc::new(accounts);
    let (mut looked_up, mut day) = (Instant::now(), today());
    while !controls.is_closed() {
        let is_requested = wait(&trigger).await;
        let accounts = Arc::clone(&accounts);
        let is_due = is_requested || looked_up.elapsed() >= LOOK_UP_EVERY;
        if is_due {
            looked_up = Instant::now();
        }
        let reading = settled(&fingerprint, is_requested, || read(path.clone())).await;
        let is_new = is_requested || reading.as_ref().is_some_and(|reading| reading.fingerprint != fingerprint);
        let is_next_day = std::mem::replace(&mut day, today()) != day;
        let check = move || {
            if let Some(Ok(content)) = reading.as_ref().filter(|_| is_next_day && !is_new).map(|it| &it.content) {
                log::warnings(content.path(), &content.warnings_of_time(system::now().wall));
            }
            let found = reading.filter(|_| is_new).map(Found::of);
            look_up(found.as_ref().and_then(|found| found.reloaded.as_ref().ok()), is_due, &accounts);
            found
        };
        // The reading thread should not panic. If it does, the next check reads the file.
        let Ok(Some(found)) = tokio::task::spawn_blocking(check).await else { continue };
        fingerprint = found.fingerprint;
        if controls.send(Control::Reloaded(found.reloaded)).is_err() {
            return;
        }
        keep_copy(&copy, found.accepted).await;
    }
}

/// Copies accepted content. Without a copy the node works all the same, so a failure is only logged.
async fn keep_copy(copy: &LastGood, accepted: Option<Content>) {
    let Some(content) = accepted else { return };
    let (copy, path) = (copy.clone(), content.path().to_owned());
    let kept = tokio::task::spawn_blocking(move || copy.keep(&content, system::now().wall)).await;
    if let Ok(Err(error)) = kept {
        log::not_copied(&path, &error);
    }
}

/// Looks up the users of new jobs before the daemon receives the jobs, or, when due, the known users again.
fn look_up(loaded: Option<&Loaded>, is_due: bool, accounts: &watch::Sender<Accounts>) {
    match loaded {
        Some(loaded) => drop(accounts.send_replace(Accounts::of(&loaded.set))),
        None if is_due => {
            let known = accounts.borrow().clone();
            accounts.send_replace(known.again());
        }
        None => {}
    }
}

/// Waits for a reason to check the file. Returns true when a reload was requested.
async fn wait(trigger: &Trigger) -> bool {
    // Cancellation safety: a `Notify` keeps one permit while nobody waits, and a dropped sleep loses nothing.
    tokio::select! {
        biased;
        () = trigger.requested.notified() => true,
        () = trigger.changed.notified() => {
            tokio::time::sleep(SETTLE).await;
            false
        }
        () = tokio::time::sleep(CHECK_EVERY) => false,
    }
}

/// The date in UTC.
fn today() -> Date {
    system::now().wall.to_zoned(TimeZone::UTC).date()
}

/// The files as read at one time.
struct Reading {
    fingerprint: Digest,
    content: Result<Content, LoadError>,
}

impl Reading {
    fn of(content: Result<Content, LoadError>) -> Self {
        Self { fingerprint: config::fingerprint_of(&content), content }
    }

    fn has_calendars(&self) -> bool {
        self.content.as_ref().is_ok_and(Content::has_calendars)
    }
}

/// Reads the files; absent if the reading thread panics.
async fn read(path: PathBuf) -> Option<Reading> {
    tokio::task::spawn_blocking(move || Reading::of(Content::read(&path))).await.ok()
}

/// Reads files with calendars until nothing changes any more; absent if they keep changing, unless a reload was
/// requested.
async fn settled<R: Future<Output = Option<Reading>>>(
    before: &Digest,
    is_requested: bool,
    mut read: impl FnMut() -> R,
) -> Option<Reading> {
    let mut reading = read().await?;
    for _ in 1..MOST_READINGS {
        if reading.fingerprint == *before || !reading.has_calendars() {
            return Some(reading);
        }
        tokio::time::sleep(AGREE_AFTER).await;
        let again = read().await?;
        let is_settled = again.fingerprint == reading.fingerprint;
        reading = again;
        if is_settled {
            return Some(reading);
        }
    }
    is_requested.then_some(reading)
}

/// The result of reading the file again.
struct Found {
    fingerprint: Digest,
    reloaded: Reloaded,
    /// What was read, if it is valid.
    accepted: Option<Content>,
}

impl Found {
    /// Loads the jobs.
    fn of(Reading { fingerprint, content }: Reading) -> Self {
        match content.and_then(|content| Ok((content.load()?, content))) {
            Ok((loaded, content)) => Self { fingerprint, reloaded: Ok(loaded), accepted: Some(content) },
            Err(error) => Self { fingerprint, reloaded: Err(error), accepted: None },
        }
    }
}

/// Watches the directory rather than the file, because editors replace the file. If it fails, only the checks remain.
fn watch_directory(path: &Path, changed: Arc<Notify>) -> Option<RecommendedWatcher> {
    let here = Path::new(".");
    let parent = || path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(here);
    let directory = if path.is_dir() { path } else { parent() };
    let on_event = move |event: notify::Result<notify::Event>| match event {
        Ok(event) if event.kind.is_access() => {}
        _ => changed.notify_one(),
    };
    let watcher = notify::recommended_watcher(on_event).and_then(|mut watcher| {
        watcher.watch(directory, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    match watcher {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            log!(JOBS_UNWATCHED, path = %directory.display(), %error);
            debug!(target: TARGET, "cannot watch the directory: {error:?}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    /// Jobs with a calendar of this text, or without one.
    fn reading(calendar: &str) -> Reading {
        let key = if calendar.is_empty() { "" } else { ", calendar: {exclude: x.txt}" };
        let jobs = format!("jobs: {{a: {{schedule: '@daily', command: x{key}}}}}");
        let content = Content::of_files("j.yaml".as_ref(), [("j.yaml".into(), jobs.into_bytes())]);
        let calendars = (!calendar.is_empty()).then(|| ("x.txt".into(), calendar.into()));
        Reading::of(Ok(content.with_calendars(calendars)))
    }

    /// What is taken of these readings after `before`, and how many are left.
    async fn taken(before: &str, is_requested: bool, readings: &[&str]) -> (Option<Digest>, usize) {
        let mut left = readings.iter();
        let before = reading(before).fingerprint;
        let taken = settled(&before, is_requested, || ready(left.next().map(|text| reading(text)))).await;
        (taken.map(|reading| reading.fingerprint), left.len())
    }

    #[tokio::test]
    async fn a_calendar_counts_once_two_readings_agree() {
        let of = |calendar: &str| Some(reading(calendar).fingerprint);
        assert_eq!(taken("a", false, &["b", "c", "c", "d"]).await, (of("c"), 1));
        assert_eq!(taken("a", false, &["a", "b"]).await, (of("a"), 1), "nothing has changed");
        assert_eq!(taken("a", false, &["b", "a", "b"]).await, (of("a"), 1), "it is as before");
        assert_eq!(taken("a", false, &["", "b"]).await, (of(""), 1), "there is no calendar any more");
    }

    #[tokio::test]
    async fn a_calendar_that_keeps_changing_is_left_to_the_next_check() {
        let changing = ["b", "c", "d", "e", "f", "g", "h", "i", "j"];
        assert_eq!(taken("a", false, &changing).await, (None, 1));
        assert_eq!(taken("a", true, &changing).await, (Some(reading("i").fingerprint), 1));
    }
}
