//! The keys for hooks; each is a command without a built-in default.

use std::collections::BTreeMap;

use super::raw::{Block, Given, TextOrTexts};
use crate::job::{CommandLine, Hook, Hooks};

/// The given hooks. `None` is null, which removes the default.
pub(super) type HookSettings = BTreeMap<Hook, Option<CommandLine>>;

/// Takes the hooks out of a block and checks each with `check`, which receives the key.
pub(super) fn checked(
    block: &mut Block,
    mut check: impl FnMut(&'static str, Given<TextOrTexts>) -> Given<CommandLine>,
) -> HookSettings {
    let given = |hook: Hook| Some((hook, check(hook.as_str(), of(block, hook).take())?));
    Hook::ALL.into_iter().filter_map(given).collect()
}

/// Merges a job's hooks over the default hooks.
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
