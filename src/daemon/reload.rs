//! Reloading of the jobs file: on request, when its directory changes, and when a check every 10 s finds new content.
//!
//! A separate thread reads and validates the file. The daemon receives a complete valid set of jobs, or all errors. What
//! it was sent as valid is then copied to the state directory, for a start without a valid file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tracing::{debug, warn};

use super::{Control, log};
use crate::accounts::Accounts;
use crate::clock::system;
use crate::config::{self, Content, LoadError, Loaded};
use crate::job::Digest;
use crate::state_dir::last_good::LastGood;
use crate::telemetry::{TARGET, event};

pub type Reloaded = Result<Loaded, LoadError>;

/// Interval of the checks that find changes no watch has reported.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// Time between the first reported change and the read, because editors write in several steps.
const SETTLE: Duration = Duration::from_millis(50);

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
    let mut looked_up = Instant::now();
    while !controls.is_closed() {
        let is_requested = wait(&trigger).await;
        let (at, before, accounts) = (path.clone(), fingerprint.clone(), Arc::clone(&accounts));
        let is_due = is_requested || looked_up.elapsed() >= LOOK_UP_EVERY;
        if is_due {
            looked_up = Instant::now();
        }
        let check = move || {
            let found = check(&at, &before, is_requested);
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

/// The result of reading the file again.
struct Found {
    fingerprint: Digest,
    reloaded: Reloaded,
    /// What was read, if it is valid.
    accepted: Option<Content>,
}

/// Loads the jobs if a reload was requested or the content has changed.
fn check(path: &Path, before: &Digest, is_requested: bool) -> Option<Found> {
    let read = Content::read(path);
    let fingerprint = config::fingerprint_of(&read);
    if !is_requested && fingerprint == *before {
        return None;
    }
    match read.and_then(|content| Ok((content.load()?, content))) {
        Ok((loaded, content)) => Some(Found { fingerprint, reloaded: Ok(loaded), accepted: Some(content) }),
        Err(error) => Some(Found { fingerprint, reloaded: Err(error), accepted: None }),
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
            warn!(
                target: TARGET,
                event = event::JOBS_UNWATCHED,
                path = %directory.display(),
                %error,
                "cannot watch `{}`, so changes are noticed only every {} s: {error}",
                directory.display(),
                CHECK_EVERY.as_secs(),
            );
            debug!(target: TARGET, "cannot watch the directory: {error:?}");
            None
        }
    }
}
