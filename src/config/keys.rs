//! The keys of a job: each is declared once, here, and its field in [`Job`].
//!
//! A line of the table gives a key's form in the file, its types as written and as checked, its check, and how a job's
//! value is merged with that of the defaults. The check of the form, the types that serde fills, the check of a block,
//! the merge and the JSON Schema come from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::after::Upstream;
use super::calendars::CalendarsOfFile;
use super::process::{self, LimitSettings};
use super::raw::{Form, Given, Key, TextOrTexts, given, merged};
use super::schema::Keys;
use super::settings::{self, CalendarSettings, RetrySettings, Secrets, ValueChecker, Zones};
use super::size;
use super::spanned::{Fault, Node};
use super::values;
use super::words;
use cronkeeper_core::duration;
use cronkeeper_core::environment_file::EnvironmentFile;
use cronkeeper_core::job::{
    AlarmLimits, CommandLine, Due, Group, HISTORY_LIMIT, Hook, Hooks, Interrupted, Job, JobName, LEAST_HISTORY_LIMIT,
    Limits, Misfire, Notify, OnLeaseEnd, Overlap, Retries, RunAs, RunOn, RunWhere, Splay,
};
use cronkeeper_core::lock::LockPath;
use cronkeeper_core::schedule::Dst;

pub(super) const ZONE: &str = "UTC";
const UMASK: u32 = 0o022;
const KILL_GRACE: Duration = Duration::from_secs(10);
const MISFIRE_LIMIT: usize = 100;
const MAX_OUTPUT: u64 = 1 << 20;

/// The texts of a map's entries, as written; null restores a default.
type Fields = BTreeMap<String, Option<String>>;
/// The texts of a map's lists, as written; null restores a default.
type Lists = BTreeMap<String, Option<TextOrTexts>>;

/// The keys of `limits`.
const LIMITS: &[Key] = &[
    Key { name: "memory", form: Form::Size, about: "Memory of the run, or without cgroups of each process." },
    Key { name: "processes", form: Form::Text, about: "Processes of the run, or without cgroups of the user." },
    Key { name: "open_files", form: Form::Text, about: "Open files of each process." },
    Key { name: "cpu_time", form: Form::Duration, about: "CPU time of each process, in whole seconds." },
];

/// The keys of a secret.
const SECRET: &[Key] = &[Key {
    name: "file",
    form: Form::Text,
    about: "Absolute path of the file that has the secret, at most 64 KiB. It is read at each start.",
}];

/// The keys of `retries`.
const RETRIES: &[Key] = &[
    Key { name: "limit", form: Form::Text, about: "Maximum number of further attempts. Default 0." },
    Key { name: "delay", form: Form::Duration, about: "Time until the next attempt. Default 30s." },
    Key { name: "backoff", form: Form::Text, about: "Factor by which the delay grows each time, 1 to 100. Default 2." },
    Key { name: "max_delay", form: Form::Duration, about: "The longest delay. Default 10m." },
];

/// The keys of `concurrency_group`.
const GROUP: &[Key] = &[
    Key { name: "name", form: Form::Text, about: "The group's name." },
    Key {
        name: "limit",
        form: Form::Text,
        about: "Maximum number of concurrent runs of all jobs that name the \
        group.",
    },
];

/// The keys of `calendar`.
const CALENDAR: &[Key] = &[
    Key { name: "exclude", form: Form::TextOrTexts, about: "Files with dates on which the job is not due." },
    Key {
        name: "only",
        form: Form::TextOrTexts,
        about: "Files with the dates on which the job is due, and no \
        others.",
    },
];

macro_rules! job_keys {
    ($(
        $(#[doc = $about:literal])+
        $key:ident: $form:expr, $raw:ty => $value:ty,
            |$check:ident, $name:ident, $given:ident| $checked:expr,
            $merge:expr => $merged:ty;
    )*) => {
        /// The keys of a job, with their forms.
        pub(super) const KEYS: Keys = Keys {
            of_jobs: &[$(Key { name: stringify!($key), form: $form, about: concat!($($about),+) }),*],
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
            calendars: CalendarsOfFile<'_>,
            faults: &mut Vec<Fault>,
        ) -> BlockSettings {
            let mut checker = ValueChecker::new(node, title, zones, calendars, faults);
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
    /// What the job does, for people.
    description: Form::Text, String => String,
        |c, key, given| given, merged => Option<String>;
    /// When the job is due: a cron expression with five fields, six (seconds first) or seven (year last), or
    /// `@daily`, `@every 5m`, `@at TIME` and the like; or a list of expressions. A job has this or `after`.
    schedule: Form::TextOrTexts, TextOrTexts => Vec<String>,
        |c, key, given| c.value(key, given, values::expressions), merged => Option<Vec<String>>;
    /// Instead of `schedule`: the jobs after which this one runs, each with the result that it needs, `success` or
    /// `always`. With several, it runs after all of them.
    after: Form::Texts, BTreeMap<String, String> => Vec<Upstream>,
        |c, key, given| c.after(given), merged => Option<Vec<Upstream>>;
    /// The IANA time zone of `schedule`. Default UTC.
    timezone: Form::Text, String => String,
        |c, key, given| c.zone(key, given), or(ZONE.to_owned()) => String;
    /// What happens to an occurrence in an hour that the clock skips or repeats: `once` (default), `skip` or `twice`.
    dst: Form::Words(words::OF_DST), String => Dst,
        |c, key, given| c.word(key, given, words::DST),
        or_default => Dst;
    /// Files with dates that limit the days on which the job is due, in its time zone. A file has one date, range, or
    /// day of every year per line. Merged with the calendar of the defaults.
    calendar: Form::Lists(CALENDAR), Lists => CalendarSettings,
        |c, key, given| c.calendar(given), settings::calendar => CalendarSettings;
    /// Delays each start by a fixed time below this, derived from the job's name. Default 0s.
    splay: Form::Duration, String => Duration,
        |c, key, given| c.value(key, given, |text| duration::parse(&text)), or_default => Duration;
    /// What runs. A list is a program with its arguments; a text runs under `shell`.
    command: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    /// The shell of a `command` that is a text. A text is a program, which gets `-c` and the command; a list is a
    /// program with its arguments, to which the command is appended. Default /bin/sh.
    shell: Form::TextOrTexts, TextOrTexts => Vec<String>,
        |c, key, given| c.shell(key, given), merged => Option<Vec<String>>;
    /// `false`: the job has no occurrences, but can be triggered. Default true.
    enabled: Form::Flag, bool => bool,
        |c, key, given| given, or(true) => bool;
    /// Variables of the job's processes. Merged with those of the defaults.
    environment: Form::Texts, BTreeMap<String, String> => BTreeMap<String, String>,
        |c, key, given| c.environment(given), settings::merged_maps => BTreeMap<String, String>;
    /// Absolute paths of files with more variables, in the format of systemd's `EnvironmentFile=`, read at each start.
    /// A file with `-` in front may be missing. Later files override earlier ones, and `environment` overrides all of
    /// them.
    environment_file: Form::TextOrTexts, TextOrTexts => Vec<EnvironmentFile>,
        |c, key, given| c.value(key, given, values::environment_files), or_default => Vec<EnvironmentFile>;
    /// Secrets for the job's processes, by name. Each is handed over as a file in memory; the variable NAME_FILE has
    /// its path. Merged with those of the defaults.
    secrets: Form::Named(SECRET), BTreeMap<String, Fields> => Secrets,
        |c, key, given| c.secrets(given), settings::merged_maps => Secrets;
    /// Names of the variables that `trigger --env` may set for a run, at most 16. Default: none.
    parameters: Form::TextOrTexts, TextOrTexts => BTreeSet<String>,
        |c, key, given| c.value(key, given, values::parameters), or_default => BTreeSet<String>;
    /// Name or number of the user that the job runs as. Default: the daemon's own. Needs root.
    user: Form::Text, String => String,
        |c, key, given| c.value(key, given, process::account), merged => Option<String>;
    /// Name or number of a group that replaces the user's primary group. Needs root.
    group: Form::Text, String => String,
        |c, key, given| c.value(key, given, process::account), merged => Option<String>;
    /// Nice value of the job's processes, -20 to 19. Default: the daemon's own.
    nice: Form::Text, String => i32,
        |c, key, given| c.value(key, given, process::nice), merged => Option<i32>;
    /// Limits of the job's resources. Merged with those of the defaults.
    limits: Form::Fields(LIMITS), Fields => LimitSettings,
        |c, key, given| c.limits(given), process::limits => Limits;
    /// Absolute path of the directory in which the job starts. Default: the user's home directory.
    working_directory: Form::Text, String => PathBuf,
        |c, key, given| c.value(key, given, values::absolute_path), merged => Option<PathBuf>;
    /// The job's umask, in octal digits. Default 022.
    umask: Form::Text, String => u32,
        |c, key, given| c.value(key, given, values::umask), or(UMASK) => u32;
    /// How long an attempt may take before it is ended. Default: no limit.
    timeout: Form::Duration, String => Duration,
        |c, key, given| c.value(key, given, values::positive_duration), merged => Option<Duration>;
    /// Time between SIGTERM and SIGKILL. Default 10s.
    kill_grace: Form::Duration, String => Duration,
        |c, key, given| c.value(key, given, values::positive_duration), or(KILL_GRACE) => Duration;
    /// How a failed attempt is repeated. Merged with that of the defaults.
    retries: Form::Fields(RETRIES), Fields => RetrySettings,
        |c, key, given| c.retries(given), settings::retries => Retries;
    /// What to do when the job is due and its previous run has not ended: `skip` (default), `queue`, `allow` or
    /// `replace`.
    overlap: Form::Words(words::OF_OVERLAP), String => Overlap,
        |c, key, given| c.word(key, given, words::OVERLAP),
        or_default => Overlap;
    /// A group of jobs that share a limit of concurrent runs.
    concurrency_group: Form::Fields(GROUP), Fields => Group,
        |c, key, given| c.group(given), merged => Option<Group>;
    /// Where the job runs: on the node that leads (`leader`, default), on any one node that fits, chosen by the leader
    /// (`any`), or on every node that fits (`every`). The attempt number counts placings, so CRONKEEPER_ATTEMPT may begin
    /// at 2.
    run_on: Form::Words(words::OF_RUN_ON), String => RunOn,
        |c, key, given| c.word(key, given, words::RUN_ON),
        or_default => RunOn;
    /// With `run_on: any` or `every`, the labels that a node must have (`gpu`, `zone=eu`) or must not have (`"!old"`).
    /// All of them must hold. Default: none. Under `defaults`, it does not apply to jobs that run on the leader.
    run_where: Form::TextOrTexts, TextOrTexts => RunWhere,
        |c, key, given| c.run_where(key, given), or_default => RunWhere;
    /// Paths of locks. Each attempt begins only while its node holds all of them.
    lock: Form::TextOrTexts, TextOrTexts => Vec<LockPath>,
        |c, key, given| c.value(key, given, values::locks), or_default => Vec<LockPath>;
    /// What to do with occurrences that no leader decided in time: `skip`, `run-once` (default) or `run-all`.
    misfire: Form::Words(words::OF_MISFIRE), String => Misfire,
        |c, key, given| c.word(key, given, words::MISFIRE),
        or_default => Misfire;
    /// Older occurrences are skipped as missed. Default: the time to the next occurrence, at most 12h.
    misfire_window: Form::Duration, String => Duration,
        |c, key, given| c.value(key, given, |text| duration::parse(&text)), merged => Option<Duration>;
    /// How many occurrences `misfire: run-all` makes up for at once, at most. Default 100.
    misfire_limit: Form::Number { least: 1, most: u64::MAX }, u64 => usize,
        |c, key, given| c.value(key, given, values::misfire_limit), or(MISFIRE_LIMIT) => usize;
    /// What happens to a run whose node dies: `skip` (default) or `rerun`.
    interrupted: Form::Words(words::OF_INTERRUPTED), String => Interrupted,
        |c, key, given| c.word(key, given, words::INTERRUPTED),
        or_default => Interrupted;
    /// What happens to a run whose node is cut off from the service: `keep` (default) or `kill`. `interrupted: rerun`
    /// and `lock` imply `kill`.
    on_lease_end: Form::Words(words::OF_ON_LEASE_END), String => OnLeaseEnd,
        |c, key, given| c.word(key, given, words::ON_LEASE_END),
        or_default => OnLeaseEnd;
    /// The exit codes that count as success. Default [0].
    success_exit_codes: Form::Numbers, Vec<u64> => BTreeSet<i32>,
        |c, key, given| c.exit_codes(given), or(BTreeSet::from([0])) => BTreeSet<i32>;
    /// How much output of an attempt is logged and kept. Default 1MiB.
    max_output: Form::Size, String => u64,
        |c, key, given| c.value(key, given, |text| size::parse(&text)), or(MAX_OUTPUT) => u64;
    /// How many of the newest runs, and of the newest skips, the ledger keeps. Default 20.
    history_limit: Form::Number { least: LEAST_HISTORY_LIMIT as u64, most: 1_000 }, u64 => u16,
        |c, key, given| c.value(key, given, values::history_limit), or(HISTORY_LIMIT) => u16;
    /// Raises the alarm `late` when a run has not started this long after it was due. Default: never.
    late_after: Form::Duration, String => Duration,
        |c, key, given| c.value(key, given, values::positive_duration), merged => Option<Duration>;
    /// Raises the alarm `long` when an attempt takes longer than this; it is not killed. Default: never.
    long_after: Form::Duration, String => Duration,
        |c, key, given| c.value(key, given, values::positive_duration), merged => Option<Duration>;
    /// Raises the alarm `stale` when no run has succeeded for this long. Default: never.
    stale_after: Form::Duration, String => Duration,
        |c, key, given| c.value(key, given, values::positive_duration), merged => Option<Duration>;
    /// The channels that get notifications about the job: the name of a channel of the top-level `notify`, a list of names, or a map from names to what
    /// each gets (`{ops: [failure, recovery]}`); `none`: nobody. Default: nobody.
    notify: Form::Notify, IgnoredAny => Notify,
        |c, key, given| c.notify(given), or_default => Notify;
    /// A command that runs once per run, when its program has begun for the first time.
    on_start: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    /// A command that runs when a run has ended without success and is not repeated.
    on_failure: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    /// A command that runs when a run has succeeded.
    on_success: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    /// A command that runs when a run has succeeded and the previous one had not.
    on_recovery: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    /// A command that runs when occurrences were missed.
    on_missed: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    /// A command that runs when the alarm `late` is raised.
    on_late: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    /// A command that runs when the alarm `long` is raised.
    on_long: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
    /// A command that runs when the alarm `stale` is raised.
    on_stale: Form::TextOrTexts, TextOrTexts => CommandLine,
        |c, key, given| c.command(key, given), merged => Option<CommandLine>;
}

/// A jobs file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Read from the tree.
    #[serde(default, rename = "notify")]
    pub _notify: Option<IgnoredAny>,
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

/// A job in which every key has its built-in default, due as another one.
pub(super) fn with_defaults(like: &Job) -> Option<Job> {
    let none = BlockSettings::default();
    let values = Merged { command: Some(CommandLine::Shell(String::new())), ..Merged::of(&none, &none) };
    job(like.name.clone(), like.due.clone(), values)
}

/// The job that these values define; absent without a command, which an error reports.
pub(super) fn job(name: JobName, due: Due, values: Merged) -> Option<Job> {
    let hooks = [
        (Hook::Start, values.on_start),
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
        command: match values.shell {
            Some(shell) => values.command?.under(shell),
            None => values.command?,
        },
        enabled: values.enabled,
        environment: values.environment,
        environment_file: values.environment_file,
        secrets: values.secrets,
        parameters: values.parameters,
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
        // A `run_where` of the defaults is for those jobs of the file that are placed.
        run_where: if values.run_on.is_placed() { values.run_where } else { RunWhere::default() },
        run_on: values.run_on,
        misfire: values.misfire,
        misfire_window: values.misfire_window,
        misfire_limit: values.misfire_limit,
        interrupted: values.interrupted,
        // Where the next leader begins another attempt, or another client gets the lock, this one must end.
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
        notify: values.notify,
    })
}

#[cfg(test)]
mod tests {
    use super::KEYS;

    #[test]
    fn the_manual_page_has_every_key() {
        let page = include_str!("../../docs/man/jobs.yaml.5");
        for key in KEYS.of_jobs.iter().map(|key| key.name) {
            assert!(page.contains(&format!("\n.BR {key} \" (")), "docs/man/jobs.yaml.5 does not describe `{key}`");
        }
    }
}
