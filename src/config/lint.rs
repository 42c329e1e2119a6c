//! Warnings about settings that are valid but probably a mistake.

use super::parameters;
use super::raw::merged;
use super::schema::shown;
use super::source::Lines;
use super::spanned::{Fault, Node, Position};
use super::syntax::unmeant;
use super::validate::LocatedSettings;
use jiff::Timestamp;

use cronkeeper_core::duration;
use cronkeeper_core::job::{CommandLine, Hook, Misfire};
use cronkeeper_core::schedule::{EitherDay, Schedule};

/// Variables that cronkeeper sets for a job's processes, and for commands under a lock. They override `environment`.
pub(crate) const GIVEN_TO_JOBS: [&str; 8] = [
    "CRONKEEPER_JOB",
    "CRONKEEPER_RUN_ID",
    "CRONKEEPER_SCHEDULED_AT",
    "CRONKEEPER_ATTEMPT",
    "CRONKEEPER_NODE",
    "CRONKEEPER_FENCING_TOKEN",
    "CRONKEEPER_LOCK_PATH",
    "CRONKEEPER_LOCK_KEYS",
];

/// Programs for which `$` and `~` in arguments have a meaning of their own.
const INTERPRETERS: [&str; 4] = ["awk", "gawk", "mawk", "perl"];

/// All warnings about one job.
pub(super) fn about(
    title: &str,
    own: &LocatedSettings,
    defaults: &LocatedSettings,
    schedule: Option<&Schedule>,
    lines: &Lines<'_>,
) -> Vec<Fault> {
    let mut warnings = Vec::new();
    for key in std::iter::once("command").chain(Hook::ALL.map(Hook::as_str)) {
        if let Some(command) = own.node.as_ref().and_then(|node| node.entry(key)) {
            warnings.extend(lost_comment(key, &command.value, lines));
            warnings.extend(test_as_list(key, &command.value));
            warnings.extend(not_expanded(key, &command.value));
        }
    }
    warnings.extend(unmeant_escapes(own, lines));
    warnings.extend(without_effect(own));
    warnings.extend(shell_of_a_list(own));
    warnings.extend(run_all_without_window(own, defaults));
    warnings.extend(alarms_that_are_never_raised(own, defaults));
    warnings.extend(overruled_variables(own));
    warnings.extend(doubtful_parameters(own, defaults));
    warnings.extend(schedule.and_then(|schedule| splay_beyond_the_next(own, defaults, schedule)));
    warnings.extend(schedule.into_iter().flat_map(|schedule| either_day(own, schedule)));
    warnings.into_iter().map(|(at, message)| Fault::new(at, format!("{title}: {message}"))).collect()
}

/// All warnings about the defaults by themselves.
pub(super) fn about_defaults(defaults: &LocatedSettings, lines: &Lines<'_>) -> Vec<Fault> {
    let escapes = unmeant_escapes(defaults, lines).into_iter();
    escapes.map(|(at, message)| Fault::new(at, format!("defaults: {message}"))).collect()
}

type Warning = (Position, String);

/// Keys about a schedule, in a job that has `after` instead.
fn without_effect(own: &LocatedSettings) -> Vec<Warning> {
    const OF_A_SCHEDULE: [&str; 6] = ["timezone", "dst", "calendar", "splay", "misfire", "misfire_limit"];
    if !matches!(own.settings.after, Some(Some(_))) {
        return Vec::new();
    }
    let at = |key: &str| Some((own.position(key)?, format!("`{key}` has no effect with `after`")));
    OF_A_SCHEDULE.into_iter().filter_map(at).collect()
}

/// A list names its program itself. A `shell` in the defaults is for the other jobs.
fn shell_of_a_list(own: &LocatedSettings) -> Option<Warning> {
    let is_list = matches!(own.settings.command, Some(Some(CommandLine::Argv(_))));
    let at = own.position("shell").filter(|_| is_list && matches!(own.settings.shell, Some(Some(_))))?;
    Some((at, "`shell` has no effect with a `command` that is a list".to_owned()))
}

/// `command: echo a # b` runs `echo a`.
fn lost_comment(key: &str, command: &Node, lines: &Lines<'_>) -> Option<Warning> {
    command.plain()?;
    let rest = lines.from(command.end);
    let comment = rest.trim_start();
    let message = format!("the comment after `{key}` is not part of the command; quote the command to include it");
    comment
        .starts_with('#')
        .then_some((command.end.column_later(rest.chars().count() - comment.chars().count()), message))
}

/// `command: "C:\temp"` has a tab. In `environment` a tab may well be meant, as in `IFS`.
fn unmeant_escapes(own: &LocatedSettings, lines: &Lines<'_>) -> Vec<Warning> {
    let keys = ["command", "shell", "working_directory"].into_iter().chain(Hook::ALL.map(Hook::as_str));
    let entries = keys.filter_map(|key| own.node.as_ref()?.entry(key));
    let values = entries.flat_map(|entry| {
        let value = entry.value.as_ref();
        let items = value.items().iter().map(|item| (entry.key.as_str(), item.as_ref(), true));
        std::iter::once((entry.key.as_str(), value, false)).chain(items)
    });
    values
        .filter_map(|(key, value, is_item)| {
            value.text()?;
            let unmeant::Unmeant { at, letter, meaning } = unmeant::first(lines, value.at, value.end)?;
            let block = if is_item { String::new() } else { format!(" or under `{key}: |`") };
            let message = format!(
                "`{key}`: in double quotes `\\{letter}` is {meaning}; for a backslash, put the text in single \
                 quotes{block}, or double the backslash"
            );
            Some((at, message))
        })
        .collect()
}

/// `command: [ -f x ]` is a list of one item, `-f x`.
fn test_as_list(key: &str, command: &Node) -> Option<Warning> {
    let first = command.items().first().filter(|item| item.text().is_some_and(|text| text.starts_with('-')))?;
    let why = "in YAML an unquoted `[` begins a list, and its first item is the program";
    Some((first.at, format!("put the command in quotes or under `{key}: |` ({why})")))
}

/// `[ls, ~/in, $HOME]` passes a literal tilde and dollar sign to `ls`.
fn not_expanded(key: &str, command: &Node) -> Vec<Warning> {
    let items = command.items();
    let program = items.first().and_then(|item| item.text()).unwrap_or_default();
    if INTERPRETERS.contains(&program.rsplit('/').next().unwrap_or_default()) {
        return Vec::new();
    }
    let before_script = items.iter().take_while(|item| !item.text().is_some_and(takes_a_script));
    before_script
        .filter_map(|item| {
            let expandable = expandable(item.text()?)?;
            let message = format!(
                "`{expandable}` in a list is passed literally; to have a shell expand it, write `{key}` as a text"
            );
            Some((item.at, message))
        })
        .collect()
}

/// True for `-c`, `-lc` and the like: a shell expands the next argument.
fn takes_a_script(item: &str) -> bool {
    item.strip_prefix('-')
        .and_then(|flags| flags.strip_suffix('c'))
        .is_some_and(|flags| flags.len() <= 4 && flags.bytes().all(|byte| byte.is_ascii_lowercase()))
}

/// The part of an argument that a shell would have expanded.
fn expandable(item: &str) -> Option<&str> {
    if item == "~" || item.starts_with("~/") {
        return Some("~");
    }
    let (index, rest) = item
        .match_indices('$')
        .map(|(index, _)| (index, &item[index + 1..]))
        .find(|(_, rest)| rest.trim_start_matches('{').starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))?;
    let name = rest.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '{' | '}'))).unwrap_or(rest.len());
    Some(&item[index..index + 1 + name])
}

fn run_all_without_window(own: &LocatedSettings, defaults: &LocatedSettings) -> Option<Warning> {
    let runs_all = merged(&own.settings.misfire, &defaults.settings.misfire) == Some(Misfire::RunAll);
    let has_window = merged(&own.settings.misfire_window, &defaults.settings.misfire_window).is_some();
    if !runs_all || has_window {
        return None;
    }
    let message = "`misfire: run-all` without `misfire_window` makes up for only the newest missed occurrence, \
        because the window is then the time to the next one";
    Some((own.position("misfire").or_else(|| defaults.position("misfire"))?, message.to_owned()))
}

/// A hook of an alarm without its limit, and a limit that the timeout always comes before.
fn alarms_that_are_never_raised(own: &LocatedSettings, defaults: &LocatedSettings) -> Vec<Warning> {
    let is_set = [
        merged(&own.settings.late_after, &defaults.settings.late_after).is_some(),
        merged(&own.settings.long_after, &defaults.settings.long_after).is_some(),
        merged(&own.settings.stale_after, &defaults.settings.stale_after).is_some(),
    ];
    let hooks = [("on_late", "late_after"), ("on_long", "long_after"), ("on_stale", "stale_after")];
    let without_limit = hooks.into_iter().zip(is_set).filter(|(_, is_set)| !is_set).filter_map(|((hook, limit), _)| {
        Some((own.position(hook)?, format!("`{hook}` never runs, because `{limit}` is not set")))
    });
    let long_after = merged(&own.settings.long_after, &defaults.settings.long_after);
    let timeout = merged(&own.settings.timeout, &defaults.settings.timeout);
    let is_too_long = long_after.zip(timeout).is_some_and(|(long_after, timeout)| long_after >= timeout);
    let too_long = own.position("long_after").filter(|_| is_too_long);
    let message = "`long_after` is never reached, because `timeout` ends the attempt before";
    without_limit.chain(too_long.map(|at| (at, message.to_owned()))).collect()
}

/// Number of occurrences to search for the shortest interval. Small, because every load checks every job.
const SAMPLE: usize = 16;

/// Warns if `splay` reaches the next occurrence. All starts are delayed equally, so none is lost and their order does
/// not change, but it is probably a mistake.
fn splay_beyond_the_next(own: &LocatedSettings, defaults: &LocatedSettings, schedule: &Schedule) -> Option<Warning> {
    let splay = merged(&own.settings.splay, &defaults.settings.splay).filter(|splay| !splay.is_zero())?;
    let some_day = Timestamp::constant(1_767_225_600, 0); // 2026
    let occurrences: Vec<_> = schedule.occurrences(some_day, Timestamp::MAX).take(SAMPLE).collect();
    let gap = occurrences.windows(2).map(|pair| pair[1].duration_since(pair[0]).unsigned_abs()).min()?;
    let message = format!(
        "`splay` of {} is not shorter than the time between two occurrences, {}: a run may start when the next is due",
        duration::format(splay),
        duration::format(gap),
    );
    (gap <= splay).then_some((own.position("splay").or_else(|| defaults.position("splay"))?, message))
}

/// `0 0 1-7 * 1` is not only the first Monday.
fn either_day(own: &LocatedSettings, schedule: &Schedule) -> Vec<Warning> {
    let Some(entry) = own.node.as_ref().and_then(|node| node.entry("schedule")) else { return Vec::new() };
    let explained = |EitherDay { index, days, instead }: EitherDay| {
        let expression = schedule.expressions().nth(index).map(shown).unwrap_or_default();
        let meant = match instead {
            Some((expression, days)) => format!("to be due only {days}, write `{expression}`"),
            None => {
                "if both must match, let the command test one; if either is meant, write two expressions".to_owned()
            }
        };
        let why = "as in crontab(5), either of two restricted day fields suffices";
        let at = entry.value.items().get(index).unwrap_or(&entry.value).at;
        (at, format!("`schedule`: `{expression}` is due {days}: {why}; {meant}"))
    };
    schedule.either_day().map(explained).collect()
}

/// Parameters with which a trigger leads many programs to other files or hosts.
fn doubtful_parameters(own: &LocatedSettings, defaults: &LocatedSettings) -> Option<Warning> {
    let names = merged(&own.settings.parameters, &defaults.settings.parameters)?;
    let doubtful: Vec<&str> = names.iter().map(String::as_str).filter(|name| parameters::is_doubtful(name)).collect();
    let first = doubtful.first()?;
    let message = format!(
        "`parameters`: anyone who may trigger the job can point its programs to other files or hosts with `{}`; use \
         names of your own, and set `{first}` in the command",
        doubtful.join("`, `")
    );
    Some((own.position("parameters").or_else(|| defaults.position("parameters"))?, message))
}

fn overruled_variables(own: &LocatedSettings) -> Vec<Warning> {
    let environment = own.node.as_ref().and_then(|node| node.entry("environment"));
    let variables = environment.map_or(&[][..], |entry| entry.value.entries());
    let overruled = variables.iter().filter(|variable| GIVEN_TO_JOBS.contains(&variable.key.as_str()));
    overruled
        .map(|variable| {
            (variable.at, format!("`environment`: cronkeeper sets `{}` itself and ignores this value", variable.key))
        })
        .collect()
}
