//! Reloading of the jobs file: on request, when its directory changes, and when a check every 10 s finds new content.
//!
//! A separate thread reads and validates the file. The daemon receives a complete valid set of jobs, or all errors.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tracing::{debug, warn};

use super::Control;
use crate::accounts::Accounts;
use crate::config::{self, LoadError, Loaded};
use crate::job::Digest;
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

/// Reloads the jobs file when needed, and keeps `accounts` up to date, until the daemon is gone.
pub async fn keep_up(
    path: PathBuf,
    mut content: Digest,
    trigger: Trigger,
    controls: UnboundedSender<Control>,
    accounts: watch::Sender<Accounts>,
) {
    let _watcher = watch_directory(&path, trigger.changed.clone());
    let accounts = Arc::new(accounts);
    let mut looked_up = Instant::now();
    while !controls.is_closed() {
        let is_requested = wait(&trigger).await;
        let (at, before, accounts) = (path.clone(), content.clone(), Arc::clone(&accounts));
        let is_due = is_requested || looked_up.elapsed() >= LOOK_UP_EVERY;
        if is_due {
            looked_up = Instant::now();
        }
        let check = move || {
            let found = check(&at, &before, is_requested);
            look_up(found.as_ref().and_then(|(_, reloaded)| reloaded.as_ref().ok()), is_due, &accounts);
            found
        };
        // The reading thread should not panic. If it does, the next check reads the file.
        let Ok(Some((now, reloaded))) = tokio::task::spawn_blocking(check).await else { continue };
        content = now;
        if controls.send(Control::Reloaded(reloaded)).is_err() {
            return;
        }
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

/// Loads the jobs if a reload was requested or the content has changed.
fn check(path: &Path, before: &Digest, is_requested: bool) -> Option<(Digest, Reloaded)> {
    let now = config::fingerprint(path);
    (is_requested || now != *before).then(|| (now, config::load(path)))
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
