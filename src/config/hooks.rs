//! The keys that say what follows the end of a run: each a command, with no default.

use std::collections::BTreeMap;

use super::raw::{Block, Given, TextOrTexts};
use crate::job::{CommandLine, Hook, Hooks};

/// What is given of the hooks, key by key; null where a default is taken back.
pub(super) type HookSettings = BTreeMap<Hook, Option<CommandLine>>;

/// Takes the hooks out of a block and judges each by `judge`, which is told the key.
pub(super) fn judged(
    block: &mut Block,
    mut judge: impl FnMut(&'static str, Given<TextOrTexts>) -> Given<CommandLine>,
) -> HookSettings {
    let given = |hook: Hook| Some((hook, judge(hook.as_str(), of(block, hook).take())?));
    Hook::ALL.into_iter().filter_map(given).collect()
}

/// The job's own over those of the defaults.
pub(super) fn merged(own: HookSettings, defaults: &HookSettings) -> Hooks {
    let mut all = defaults.clone();
    all.extend(own);
    all.into_iter().filter_map(|(hook, command)| Some((hook, command?))).collect()
}

fn of(block: &mut Block, hook: Hook) -> &mut Given<TextOrTexts> {
    match hook {
        Hook::Failure => &mut block.on_failure,
        Hook::Success => &mut block.on_success,
        Hook::Recovery => &mut block.on_recovery,
        Hook::Missed => &mut block.on_missed,
    }
}
