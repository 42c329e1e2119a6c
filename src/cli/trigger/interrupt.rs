//! Ctrl-C while `trigger --wait` waits: the run continues, and this says how to follow or end it.

use std::fs;
use std::process::exit;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use cronkeeper_core::run::RunId;

/// The exit code of a command that Ctrl-C ended: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// The run that is waited for.
static RUN: Mutex<Option<RunId>> = Mutex::new(None);

/// From now on, Ctrl-C ends this process and tells about this run.
///
/// A command that its shell has put into the background ignores Ctrl-C, and this does not change that.
pub(super) fn tell_about(run: &RunId) {
    *RUN.lock().unwrap_or_else(PoisonError::into_inner) = Some(run.clone());
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if !is_ignored()
            && let Ok(signals) = Signals::new([SIGINT])
        {
            thread::spawn(move || end_on(signals));
        }
    });
}

fn end_on(mut signals: Signals) {
    if signals.forever().next().is_some() {
        if let Some(run) = &*RUN.lock().unwrap_or_else(PoisonError::into_inner) {
            eprintln!(
                "\ncronkeeper: run `{run}` continues: `cronkeeper logs {run} -f` follows it, `cronkeeper kill {run}` \
                 ends it"
            );
        }
        exit(INTERRUPTED);
    }
}

/// True if this process was started to ignore SIGINT.
fn is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (SIGINT - 1)) != 0)
}
