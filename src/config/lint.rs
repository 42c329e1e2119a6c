//! What is valid and hardly meant: the warnings of `check`.

use super::source::Lines;
use super::spanned::{Fault, Node, Position};
use super::validate::{Placed, merged};
use jiff::Timestamp;

use crate::duration;
use crate::job::{Hook, Misfire};
use crate::schedule::Schedule;

/// What cronkeeper itself tells a job's processes, over whatever `environment` says.
pub(crate) const GIVEN_TO_JOBS: [&str; 6] = [
    "CRONKEEPER_JOB",
    "CRONKEEPER_RUN_ID",
    "CRONKEEPER_SCHEDULED_AT",
    "CRONKEEPER_ATTEMPT",
    "CRONKEEPER_NODE",
    "CRONKEEPER_FENCING_TOKEN",
];

/// Programs whose arguments hold `$` and `~` with a meaning of their own.
const INTERPRETERS: [&str; 4] = ["awk", "gawk", "mawk", "perl"];

/// All that is worth a warning about one job.
pub(super) fn about(
    title: &str,
    own: &Placed,
    defaults: &Placed,
    schedule: Option<&Schedule>,
    lines: &Lines<'_>,
) -> Vec<Fault> {
    let mut warnings = Vec::new();
    for key in std::iter::once("command").chain(Hook::ALL.map(Hook::as_str)) {
        if let Some(command) = own.node.as_ref().and_then(|node| node.entry(key)) {
            warnings.extend(lost_comment(key, &command.value, lines));
            warnings.extend(not_expanded(key, &command.value));
        }
    }
    warnings.extend(without_effect(own));
    warnings.extend(run_all_without_window(own, defaults));
    warnings.extend(overruled_variables(own));
    warnings.extend(schedule.and_then(|schedule| splay_beyond_the_next(own, defaults, schedule)));
    warnings.into_iter().map(|(at, message)| Fault::new(at, format!("{title}: {message}"))).collect()
}

type Warning = (Position, String);

/// What says when a job is due, in one that is due when others have run.
fn without_effect(own: &Placed) -> Vec<Warning> {
    const OF_A_SCHEDULE: [&str; 5] = ["timezone", "dst", "splay", "misfire", "misfire_limit"];
    if !matches!(own.settings.after, Some(Some(_))) {
        return Vec::new();
    }
    let at = |key: &str| Some((own.place(key)?, format!("`{key}` has no effect with `after`")));
    OF_A_SCHEDULE.into_iter().filter_map(at).collect()
}

/// `command: echo a # b` runs `echo a`.
fn lost_comment(key: &str, command: &Node, lines: &Lines<'_>) -> Option<Warning> {
    command.plain()?;
    let behind = lines.from(command.end);
    let comment = behind.trim_start();
    let message = format!("the comment behind `{key}` is not part of it; quote the command if it should be");
    comment
        .starts_with('#')
        .then_some((command.end.column_later(behind.chars().count() - comment.chars().count()), message))
}

/// `[ls, ~/in, $HOME]` hands `ls` a tilde and a dollar.
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
            let message =
                format!("`{expandable}` in a list is handed over as it is; a shell expands it where `{key}` is a text");
            Some((item.at, message))
        })
        .collect()
}

/// `-c`, `-lc` and the like: the next argument is for a shell to expand.
fn takes_a_script(item: &str) -> bool {
    item.strip_prefix('-')
        .and_then(|flags| flags.strip_suffix('c'))
        .is_some_and(|flags| flags.len() <= 4 && flags.bytes().all(|byte| byte.is_ascii_lowercase()))
}

/// The part of an argument that a shell would have replaced.
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

fn run_all_without_window(own: &Placed, defaults: &Placed) -> Option<Warning> {
    let runs_all = merged(&own.settings.misfire, &defaults.settings.misfire) == Some(Misfire::RunAll);
    let has_window = merged(&own.settings.misfire_window, &defaults.settings.misfire_window).is_some();
    if !runs_all || has_window {
        return None;
    }
    let message = "`misfire: run-all` without `misfire_window` makes up only the newest missed occurrence, \
                   for the window is the time to the next one";
    Some((own.place("misfire").or_else(|| defaults.place("misfire"))?, message.to_owned()))
}

/// Occurrences looked at for the shortest time between two: a few, for every job of a large file is looked at on every load.
const SAMPLE: usize = 16;

/// Every start is put off by the same time, so none is lost and their order stays; but it is hardly what was meant.
fn splay_beyond_the_next(own: &Placed, defaults: &Placed, schedule: &Schedule) -> Option<Warning> {
    let splay = merged(&own.settings.splay, &defaults.settings.splay).filter(|splay| !splay.is_zero())?;
    let some_day = Timestamp::constant(1_767_225_600, 0); // 2026
    let occurrences: Vec<_> = schedule.occurrences(some_day, Timestamp::MAX).take(SAMPLE).collect();
    let gap = occurrences.windows(2).map(|pair| pair[1].duration_since(pair[0]).unsigned_abs()).min()?;
    let message = format!(
        "`splay` of {} is not shorter than the time between two occurrences, {}: a run may start when the next is due",
        duration::format(splay),
        duration::format(gap),
    );
    (gap <= splay).then_some((own.place("splay").or_else(|| defaults.place("splay"))?, message))
}

fn overruled_variables(own: &Placed) -> Vec<Warning> {
    let environment = own.node.as_ref().and_then(|node| node.entry("environment"));
    let variables = environment.map_or(&[][..], |entry| entry.value.entries());
    let overruled = variables.iter().filter(|variable| GIVEN_TO_JOBS.contains(&variable.key.as_str()));
    overruled
        .map(|variable| {
            (variable.at, format!("`environment`: `{}` is set by cronkeeper over this value", variable.key))
        })
        .collect()
}
