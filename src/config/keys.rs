//! The keys of a job: each is declared once, here, and its field in [`Job`].
//!
//! A line of the table gives a key's form in the file, its types as written and as checked, its check, and how a job's
//! value is merged with that of the defaults. The schema, the types that serde fills, the check of a block and the
//! merge come from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::after::Upstream;
use super::process::{self, LimitSettings};
use super::raw::{Form, Given, TextOrTexts, given, merged};
use super::schema::Keys;
use super::settings::{self, RetrySettings, ValueChecker, Zones};
use super::size;
use super::spanned::{Fault, Node};
use super::values;
use crate::duration;
use crate::job::{
    AlarmLimits, CommandLine, Due, Group, HISTORY_LIMIT, Hook, Hooks, Interrupted, Job, JobName, Limits, Misfire,
    OnLeaseEnd, Overlap, Retries, RunAs, Splay,
};
use crate::lock::LockPath;
use crate::schedule::Dst;

const ZONE: &str = "UTC";
const UMASK: u32 = 0o022;
const KILL_GRACE: Duration = Duration::from_secs(10);
const MISFIRE_LIMIT: usize = 100;
const MAX_OUTPUT: u64 = 1 << 20;

/// The texts of a map's entries, as written; null restores a default.
type Fields = BTreeMap<String, Option<String>>;

macro_rules! job_keys {
    ($(
        $key:ident: $form:expr, $raw:ty => $value:ty,
            |$check:ident, $name:ident, $given:ident| $checked:expr,
            $merge:expr => $merged:ty;
    )*) => {
        /// The keys of a job, with their forms.
        pub(super) const KEYS: Keys = Keys {
            of_jobs: &[$((stringify!($key), $form)),*],
            // These are different for every job.
            not_in_defaults: &["schedule", "after", "command"],
        };

        /// A job, or the defaults of a file, as written.
        #[derive(Debug, Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct Block {
            $(#[serde(deserialize_with = "given")] $key: Given<$raw>,)*
        }

        /// A block whose values are valid, each on its own.
        #[derive(Debug, Default)]
        pub(super) struct BlockSettings {
            $(pub $key: Given<$value>,)*
        }

        /// A job's values, merged with the defaults of its file and the built-in ones.
        pub(super) struct Merged {
            $(pub $key: $merged,)*
        }

        /// Checks every value of `block`, whose positions are in `node`. Reports invalid values and leaves them out.
        pub(super) fn check(
            block: Block,
            node: &Node,
            title: &str,
            zones: &mut Zones,
            faults: &mut Vec<Fault>,
        ) -> BlockSettings {
            let mut checker = ValueChecker::new(node, title, zones, faults);
            $(let $key = {
                let ($check, $name, $given) = (&mut checker, stringify!($key), block.$key);
                let _ = (&$check, $name);
                $checked
            };)*
            BlockSettings { $($key),* }
        }

        impl Merged {
            pub fn of(own: &BlockSettings, defaults: &BlockSettings) -> Self {
                Self { $($key: $merge(&own.$key, &defaults.$key)),* }
            }
        }
    };
}

job_keys! {
    description: Form::Text, String => String,
        |c, key, given| given, merged => Option<String>;
    schedule: Form::TextOrTexts, TextOrTexts => Vec<String>,
        |c, key, given| c.value(key, given, values::expressions), merged => Option<Vec<String>>;
    after: Form::Texts, BTreeMap<String, String> => Vec<Upstream>,
        |c, key, given| c.after(given), merged => Option<Vec<Upstream>>;
    timezone: Form::Text, String => String,
        |c, key, given| c.zone(key, given), or(ZONE.to_owned()) => String;
    dst: Form::Text, String => Dst,
        |c, key, given| c.word(key, given, &[("once", Dst::Once), ("skip", Dst::Skip), ("twice", Dst::Twice)]),
        or_default => Dst;
    splay: Form::Text, String => Duration,
        |c, key, given| c.value(key, given, |text| duration::parse(&text)), or_default => Duration;
    command: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    enabled: Form::Flag, bool => bool,
        |c, key, given| given, or(true) => bool;
    environment: Form::Texts, BTreeMap<String, String> => BTreeMap<String, String>,
        |c, key, given| c.environment(given), settings::environment => BTreeMap<String, String>;
    user: Form::Text, String => String,
        |c, key, given| c.value(key, given, process::account), merged => Option<String>;
    group: Form::Text, String => String,
        |c, key, given| c.value(key, given, process::account), merged => Option<String>;
    nice: Form::Text, String => i32,
        |c, key, given| c.value(key, given, process::nice), merged => Option<i32>;
    limits: Form::Fields(&["memory", "processes", "open_files", "cpu_time"]), Fields => LimitSettings,
        |c, key, given| c.limits(given), process::limits => Limits;
    working_directory: Form::Text, String => PathBuf,
        |c, key, given| c.value(key, given, values::absolute_path), merged => Option<PathBuf>;
    umask: Form::Text, String => u32,
        |c, key, given| c.value(key, given, values::umask), or(UMASK) => u32;
    timeout: Form::Text, String => Duration,
        |c, key, given| c.value(key, given, values::positive_duration), merged => Option<Duration>;
    kill_grace: Form::Text, String => Duration,
        |c, key, given| c.value(key, given, values::positive_duration), or(KILL_GRACE) => Duration;
    retries: Form::Fields(&["limit", "delay", "backoff", "max_delay"]), Fields => RetrySettings,
        |c, key, given| c.retries(given), settings::retries => Retries;
    overlap: Form::Text, String => Overlap,
        |c, key, given| c.word(key, given, &[
            ("skip", Overlap::Skip),
            ("queue", Overlap::Queue),
            ("allow", Overlap::Allow),
            ("replace", Overlap::Replace),
        ]),
        or_default => Overlap;
    concurrency_group: Form::Fields(&["name", "limit"]), Fields => Group,
        |c, key, given| c.group(given), merged => Option<Group>;
    lock: Form::TextOrTexts, TextOrTexts => Vec<LockPath>,
        |c, key, given| c.value(key, given, values::locks), or_default => Vec<LockPath>;
    misfire: Form::Text, String => Misfire,
        |c, key, given| c.word(key, given, &[
            ("skip", Misfire::Skip),
            ("run-once", Misfire::RunOnce),
            ("run-all", Misfire::RunAll),
        ]),
        or_default => Misfire;
    misfire_window: Form::Text, String => Duration,
        |c, key, given| c.value(key, given, |text| duration::parse(&text)), merged => Option<Duration>;
    misfire_limit: Form::Number, u64 => usize,
        |c, key, given| c.value(key, given, values::misfire_limit), or(MISFIRE_LIMIT) => usize;
    interrupted: Form::Text, String => Interrupted,
        |c, key, given| c.word(key, given, &[("skip", Interrupted::Skip), ("rerun", Interrupted::Rerun)]),
        or_default => Interrupted;
    on_lease_end: Form::Text, String => OnLeaseEnd,
        |c, key, given| c.word(key, given, &[("keep", OnLeaseEnd::Keep), ("kill", OnLeaseEnd::Kill)]),
        or_default => OnLeaseEnd;
    success_exit_codes: Form::Numbers, Vec<u64> => BTreeSet<i32>,
        |c, key, given| c.exit_codes(given), or(BTreeSet::from([0])) => BTreeSet<i32>;
    max_output: Form::Text, String => u64,
        |c, key, given| c.value(key, given, |text| size::parse(&text)), or(MAX_OUTPUT) => u64;
    history_limit: Form::Number, u64 => u16,
        |c, key, given| c.value(key, given, values::history_limit), or(HISTORY_LIMIT) => u16;
    late_after: Form::Text, String => Duration,
        |c, key, given| c.value(key, given, values::positive_duration), merged => Option<Duration>;
    long_after: Form::Text, String => Duration,
        |c, key, given| c.value(key, given, values::positive_duration), merged => Option<Duration>;
    stale_after: Form::Text, String => Duration,
        |c, key, given| c.value(key, given, values::positive_duration), merged => Option<Duration>;
    on_failure: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    on_success: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    on_recovery: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    on_missed: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    on_late: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    on_long: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    on_stale: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
}

/// A jobs file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub defaults: Option<Block>,
    /// Missing only if an error already reports that.
    #[serde(default)]
    pub jobs: BTreeMap<String, Block>,
}

fn or_default<T: Clone + Default>(own: &Given<T>, defaults: &Given<T>) -> T {
    merged(own, defaults).unwrap_or_default()
}

fn or<T: Clone>(builtin: T) -> impl FnOnce(&Given<T>, &Given<T>) -> T {
    |own, defaults| merged(own, defaults).unwrap_or(builtin)
}

/// The job that these values define; absent without a command, which an error reports.
pub(super) fn job(name: JobName, due: Due, values: Merged) -> Option<Job> {
    let hooks = [
        (Hook::Failure, values.on_failure),
        (Hook::Success, values.on_success),
        (Hook::Recovery, values.on_recovery),
        (Hook::Missed, values.on_missed),
        (Hook::Late, values.on_late),
        (Hook::Long, values.on_long),
        (Hook::Stale, values.on_stale),
    ];
    // A job without a schedule has no occurrences to spread.
    let splay = if matches!(due, Due::At(_)) { values.splay } else { Duration::ZERO };
    Some(Job {
        splay: Splay::new(splay, name.as_str()),
        name,
        description: values.description,
        due,
        command: values.command?,
        enabled: values.enabled,
        environment: values.environment,
        run_as: RunAs { user: values.user, group: values.group },
        nice: values.nice,
        limits: values.limits,
        working_directory: values.working_directory,
        umask: values.umask,
        timeout: values.timeout,
        kill_grace: values.kill_grace,
        retries: values.retries,
        overlap: values.overlap,
        concurrency_group: values.concurrency_group,
        misfire: values.misfire,
        misfire_window: values.misfire_window,
        misfire_limit: values.misfire_limit,
        interrupted: values.interrupted,
        // Where the next leader begins another attempt, or another client gets the lock, this one must not go on.
        on_lease_end: match values.interrupted {
            Interrupted::Skip if values.lock.is_empty() => values.on_lease_end,
            Interrupted::Skip | Interrupted::Rerun => OnLeaseEnd::Kill,
        },
        lock: values.lock,
        success_exit_codes: values.success_exit_codes,
        max_output: values.max_output,
        history_limit: values.history_limit,
        alarms: AlarmLimits {
            late_after: values.late_after,
            long_after: values.long_after,
            stale_after: values.stale_after,
        },
        hooks: hooks.into_iter().filter_map(|(hook, command)| Some((hook, command?))).collect::<Hooks>(),
    })
}

#[cfg(test)]
mod tests {
    use super::KEYS;

    #[test]
    fn the_manual_page_has_every_key() {
        let page = include_str!("../../docs/man/jobs.yaml.5");
        for (key, _) in KEYS.of_jobs {
            assert!(page.contains(&format!("\n.BR {key} \" (")), "docs/man/jobs.yaml.5 does not describe `{key}`");
        }
    }
}
