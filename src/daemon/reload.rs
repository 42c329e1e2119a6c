//! Reading the jobs file again: when told to, when its folder changed, and every 10 s if its content did.
//!
//! Reading and checking happen on a thread of their own; the daemon is handed a complete valid set, or all errors.

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
use crate::telemetry::TARGET;

/// What reading gave.
pub type Reloaded = Result<Loaded, LoadError>;

/// A change that no watch told of is found within this time.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Editors write in several steps: this long after the first of them the file is read.
const SETTLE: Duration = Duration::from_millis(50);

/// Users are looked up again this often: one that was added meanwhile is then known.
const LOOK_UP_EVERY: Duration = Duration::from_secs(60);

/// Asks for the file to be read again, changed or not.
#[derive(Clone, Debug, Default)]
pub struct Trigger {
    asked: Arc<Notify>,
    changed: Arc<Notify>,
}

impl Trigger {
    /// Reads it now, and reports even if nothing changed.
    pub fn now(&self) {
        self.asked.notify_one();
    }
}

/// Reads the jobs again whenever there is reason to, until the daemon is gone, and keeps `accounts` as the host has them.
pub async fn keep_up(
    path: PathBuf,
    mut content: Digest,
    trigger: Trigger,
    controls: UnboundedSender<Control>,
    accounts: watch::Sender<Accounts>,
) {
    let _watcher = watch_folder(&path, trigger.changed.clone());
    let accounts = Arc::new(accounts);
    let mut looked_up = Instant::now();
    while !controls.is_closed() {
        let is_asked = wait(&trigger).await;
        let (at, before, accounts) = (path.clone(), content.clone(), Arc::clone(&accounts));
        let is_due = is_asked || looked_up.elapsed() >= LOOK_UP_EVERY;
        if is_due {
            looked_up = Instant::now();
        }
        let look = move || {
            let found = look(&at, &before, is_asked);
            look_up(found.as_ref().and_then(|(_, reloaded)| reloaded.as_ref().ok()), is_due, &accounts);
            found
        };
        // The reading thread does not panic; if it did, the next look comes in time.
        let Ok(Some((now, reloaded))) = tokio::task::spawn_blocking(look).await else { continue };
        content = now;
        if controls.send(Control::Reloaded(reloaded)).is_err() {
            return;
        }
    }
}

/// Looks up the users of new jobs, before the daemon has those; else, now and then, those of the old ones again.
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

/// Waits for a reason to look; true when someone asked.
async fn wait(trigger: &Trigger) -> bool {
    // Cancellation safety: a `Notify` keeps one permit when nobody waits; a dropped sleep loses nothing.
    tokio::select! {
        biased;
        () = trigger.asked.notified() => true,
        () = trigger.changed.notified() => {
            tokio::time::sleep(SETTLE).await;
            false
        }
        () = tokio::time::sleep(LOOK_EVERY) => false,
    }
}

/// Reads the jobs if asked to, or if the content is not what it was.
fn look(path: &Path, before: &Digest, is_asked: bool) -> Option<(Digest, Reloaded)> {
    let now = config::fingerprint(path);
    (is_asked || now != *before).then(|| (now, config::load(path)))
}

/// Watches the folder, for editors replace the file. Without a watch the look every 10 s is left.
fn watch_folder(path: &Path, changed: Arc<Notify>) -> Option<RecommendedWatcher> {
    let here = Path::new(".");
    let parent = || path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(here);
    let folder = if path.is_dir() { path } else { parent() };
    let tell = move |event: notify::Result<notify::Event>| match event {
        Ok(event) if event.kind.is_access() => {}
        _ => changed.notify_one(),
    };
    let watcher = notify::recommended_watcher(tell).and_then(|mut watcher| {
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    match watcher {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            warn!(target: TARGET, "changes of {} are noticed within 10 s only: {error}", folder.display());
            debug!(target: TARGET, "the folder cannot be watched: {error:?}");
            None
        }
    }
}
