//! What was probably meant: keys by the names that other schedulers give them, and the right form of a value.

use super::raw::Form;
use super::schema::shown;
use super::spanned::{MapEntry, Node, Value};
use super::syntax::{is_command, is_odd_space};
use cronkeeper_core::suggest::{did_you_mean, nearest};

/// Names that people expect, by the key that is meant. In lower case, with `_` for `-`.
const SYNONYMS: [(&str, &[&str]); 26] = [
    ("description", &["comment", "desc", "title", "summary"]),
    ("schedule", &["at", "cron", "cron_expression", "every", "expression", "interval", "oncalendar", "time", "when"]),
    ("after", &["dependencies", "depends", "depends_on", "needs", "requires", "upstream", "upstreams", "wants"]),
    ("timezone", &["time_zone", "tz", "zone"]),
    ("calendar", &["blackout", "calendars", "except", "exclude", "exclude_dates", "holiday", "holidays"]),
    ("splay", &["jitter", "random_delay", "randomizeddelaysec"]),
    ("command", &["args", "cmd", "exec", "execstart", "program", "run", "script"]),
    ("shell", &["executable", "interpreter"]),
    ("enabled", &["active", "enable"]),
    ("environment", &["env", "env_vars", "envs", "variables", "vars"]),
    ("environment_file", &["dotenv", "env_file", "env_files", "environment_files", "environmentfile"]),
    ("secrets", &["credentials", "load_credential", "loadcredential", "secret"]),
    ("parameters", &["arguments", "inputs", "params"]),
    ("user", &["account", "owner", "run_as", "run_as_user", "runas", "uid", "username"]),
    ("group", &["gid", "run_as_group"]),
    ("nice", &["niceness", "priority"]),
    ("limits", &["cpu", "memory", "resources", "ulimit"]),
    ("working_directory", &["chdir", "cwd", "dir", "directory", "pwd", "workdir", "working_dir"]),
    ("timeout", &["deadline", "max_duration", "max_runtime", "time_limit"]),
    ("kill_grace", &["grace", "grace_period", "kill_timeout", "stop_timeout"]),
    ("retries", &["attempts", "max_retries", "retry"]),
    ("overlap", &["allow_concurrent", "concurrency_policy", "concurrencypolicy"]),
    ("misfire", &["anacron", "backfill", "catch_up", "catchup", "persistent"]),
    ("run_on", &["runs_on", "placement"]),
    (
        "run_where",
        &["affinity", "constraint", "constraints", "label", "labels", "node_selector", "nodeselector", "tags"],
    ),
    ("lock", &["flock", "locks", "mutex"]),
];

/// What replaces a key that has no counterpart.
const INSTEAD: [(&str, &[&str]); 4] = [
    (
        "name the job's channels under `notify`, or a command under `on_failure`, `on_recovery` or `on_missed`",
        &["alert", "alerts", "email", "mail", "mail_to", "mailto", "notifications", "onfailure", "on_error"],
    ),
    ("the job's name is its key: write `NAME:` above its keys", &["id", "job", "name"]),
    ("to keep a job from running, write `enabled: false`", &["disable", "disabled", "suspend", "suspended"]),
    (
        "a job runs on the node that leads, with `run_on: any` on any node that has the labels in `run_where`, and with \
         `run_on: every` on every such node; each node has the label `node=NAME`",
        &["host", "hosts", "node", "nodes", "server", "servers"],
    ),
];

/// The key that is meant by an unknown one, if it can be guessed.
pub(super) fn meant<'a>(key: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let plain = plain(key);
    let synonym = SYNONYMS.iter().find(|(_, others)| others.contains(&plain.as_str())).map(|(key, _)| *key);
    match synonym {
        Some(synonym) => known.clone().find(|known| *known == synonym),
        None => nearest(key, known),
    }
}

/// The end of a message about an unknown key: what to write instead, if that can be guessed.
pub(super) fn about_key<'a>(key: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let plain = plain(key);
    if let Some(space) = key.chars().find(|c| is_odd_space(*c)) {
        return format!("; it has an unusual space (U+{:04X}): write ordinary spaces", u32::from(space));
    }
    match INSTEAD.iter().find(|(_, others)| others.contains(&plain.as_str())) {
        Some((instead, _)) => format!("; {instead}"),
        None => did_you_mean(meant(key, known)),
    }
}

fn plain(key: &str) -> String {
    key.to_lowercase().replace('-', "_")
}

/// The end of a message about a value of the wrong form: how to write it.
pub(super) fn about_form(form: Form, entry: &MapEntry) -> String {
    match (form, entry.value.text()) {
        (Form::TextOrTexts, None) => in_quotes(&entry.key).to_owned(),
        _ => right_form(form, entry).map(|right| format!("; write {right}")).unwrap_or_default(),
    }
}

/// The end of a message about a command, or an item of it, that YAML reads as something else than a text.
pub(super) fn in_quotes(key: &str) -> &'static str {
    if is_command(key) { "; put it in quotes" } else { "" }
}

fn right_form(form: Form, MapEntry { key, value, .. }: &MapEntry) -> Option<String> {
    match (form, key.as_str(), &value.value) {
        (Form::Flag, _, _) => flag(value.text()?),
        (Form::Numbers, _, Value::Text { text, .. }) if is_short_number(text) => Some(format!("`{key}: [{text}]`")),
        (Form::Fields(_), "retries", Value::Text { text, .. }) if is_short_number(text) => {
            Some(format!("`retries: {{limit: {text}}}`"))
        }
        (Form::Fields(_), "concurrency_group", Value::Text { text, .. }) => {
            Some(format!("`concurrency_group: {{name: {}, limit: 1}}`", shown(text)))
        }
        (Form::Lists(known), key, Value::Text { text, .. }) => {
            Some(format!("`{key}: {{{}: {}}}`", known.first()?.name, shown(text)))
        }
        (Form::Fields(known) | Form::Lists(known), ..) => Some(format!("`{key}: {{{}: ...}}`", known.first()?.name)),
        (Form::Texts, "after", Value::Text { text, .. }) => Some(format!("`after: {{{}: success}}`", shown(text))),
        (Form::Texts, "after", Value::List(items)) => {
            let jobs: Option<Vec<String>> =
                items.iter().map(|item| Some(format!("{}: success", shown(item.text()?)))).collect();
            Some(format!("`after: {{{}}}`", jobs.filter(|jobs| !jobs.is_empty())?.join(", ")))
        }
        (Form::Notify, ..) => Some(format!("`{key}: [CHANNEL]`")),
        (Form::Named(known), ..) => Some(format!("`{key}: {{NAME: {{{}: ...}}}}`", known.first()?.name)),
        // Without the value, which may be secret.
        (Form::Texts, ..) => Some(format!("`{key}: {{NAME: value}}`")),
        _ => None,
    }
}

fn is_short_number(text: &str) -> bool {
    !text.is_empty() && text.len() < 10 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// In YAML 1.1, other words were booleans too.
fn flag(text: &str) -> Option<String> {
    let meant = match text.to_lowercase().as_str() {
        "yes" | "y" | "on" | "true" | "1" => "true",
        "no" | "n" | "off" | "false" | "0" => "false",
        _ => return None,
    };
    Some(format!("`{meant}`, without quotes (in YAML 1.2 only `true` and `false` are booleans)"))
}

/// How to write jobs that are given as a list.
pub(super) fn about_list_of_jobs(jobs: &Node) -> String {
    let name = jobs.items().iter().find_map(|job| job.entry("name")?.value.text());
    let name = name.map_or_else(|| "NAME".to_owned(), shown);
    format!("write `{name}:` in place of `- name: {name}`")
}

/// The keys that messages name.
#[cfg(test)]
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    SYNONYMS.iter().map(|(key, _)| *key)
}
