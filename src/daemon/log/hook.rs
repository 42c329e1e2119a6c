//! How a hook went.

use tracing::{info, warn};

use super::start;
use crate::engine::hooks::{self, HookOutcome};
use crate::job::Hook;
use crate::run::RunId;
use crate::telemetry::{TARGET, event};
use crate::warden::wire::Exit;

/// One that failed harms nothing, but whoever was to hear of something did not.
pub(super) fn finished(hook: Hook, run: &RunId, how: HookOutcome) {
    let (job, hook, outcome) = (run.job(), hook.as_str(), how.as_str());
    match in_words(how) {
        None => info!(target: TARGET, event = event::HOOK_FINISHED, %job, %run, hook, outcome),
        Some(why) => warn!(target: TARGET, event = event::HOOK_FINISHED, %job, %run, hook, outcome, "{why}"),
    }
}

fn in_words(how: HookOutcome) -> Option<String> {
    match how {
        HookOutcome::Exited(Exit::Code(0)) => None,
        HookOutcome::Exited(Exit::Code(code)) => Some(format!("the hook ended with exit code {code}")),
        HookOutcome::Exited(Exit::Signal { signal, .. }) => Some(format!("the hook was ended by signal {signal}")),
        HookOutcome::NotStarted(why) => Some(format!("the hook was not started: {}", start::in_words(why))),
        HookOutcome::TimedOut => {
            Some(format!("the hook took longer than {} s and was ended", hooks::TIMEOUT.as_secs()))
        }
        HookOutcome::Killed => Some("the hook was killed, for the node ends".to_owned()),
        HookOutcome::Dropped => Some("the hook was not started: the node ends, or too many wait".to_owned()),
    }
}
