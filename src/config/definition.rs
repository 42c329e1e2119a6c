//! Jobs in a normal form that can be compared key by key, also with those of another node.
//!
//! The values are texts as jobs.yaml could have them, merged with the defaults; what equals the built-in default is left
//! out. Values of `environment` are never given away: their digests, with a salt, show whether two are equal.

use std::collections::BTreeMap;
use std::fmt::Display;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::keys::{self, ZONE};
use super::words;
use cronkeeper_core::duration;
use cronkeeper_core::job::{AlarmLimits, CommandLine, Digest, Due, Job, JobName, JobSet};
use cronkeeper_core::schedule::{Calendar, Dst, Schedule};

/// A set of jobs in normal form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Definitions {
    /// Digest of the files that the jobs were read from.
    pub digest: Digest,
    /// Goes into the digests of hidden values. Every answer has another one.
    pub salt: String,
    pub jobs: BTreeMap<JobName, Definition>,
}

/// A job in normal form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Definition {
    /// The value of each key that does not have its built-in default, such as `timeout` or `retries.limit`. A list is
    /// JSON.
    pub keys: BTreeMap<String, String>,
    /// A digest of each value that is not shown, such as that of `environment.TOKEN`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hidden: BTreeMap<String, Digest>,
}

impl Definitions {
    /// The normal form of a set. Two sets can be compared if they have the same salt.
    pub fn of(set: &JobSet, salt: &str) -> Self {
        let jobs = set.jobs.iter().map(|(name, job)| (name.clone(), Definition::of(job, salt))).collect();
        Self { digest: set.digest.clone(), salt: salt.to_owned(), jobs }
    }
}

impl Definition {
    /// The normal form of a job.
    pub fn of(job: &Job, salt: &str) -> Self {
        let defaults: BTreeMap<_, _> = keys::with_defaults(job).iter().flat_map(texts).collect();
        let mut keys: BTreeMap<String, String> = BTreeMap::new();
        for (key, value) in texts(job).into_iter().chain(cause(&job.due)) {
            if defaults.get(&key) != Some(&value) {
                keys.insert(key, value);
            }
        }
        let hidden = job.environment.iter().map(|(name, value)| {
            let key = format!("environment.{name}");
            let digest = Digest::of(format!("{salt}\0{}\0{key}\0{value}", job.name).as_bytes());
            (key, digest)
        });
        Self { keys, hidden: hidden.collect() }
    }

    /// The first `count` occurrences after an instant; none for a job that is disabled or runs after others. Absent if
    /// they depend on a calendar, because a definition has only a digest of it.
    pub fn coming(&self, name: &JobName, after: Timestamp, count: usize) -> Option<Vec<Timestamp>> {
        let key = |key: &str| self.keys.get(key).map(String::as_str);
        let is_enabled = key("enabled") != Some("false");
        let Some(written) = key("schedule").filter(|_| is_enabled) else { return Some(Vec::new()) };
        if key(CALENDAR_DIGEST).is_some() {
            return None;
        }
        // No expression begins like a list.
        let expressions = match written.starts_with('[') {
            true => serde_json::from_str(written).unwrap_or_default(),
            false => vec![written],
        };
        let dst = [Dst::Once, Dst::Skip, Dst::Twice].into_iter().find(|dst| key("dst") == Some(dst.as_str()));
        let zone = key("timezone").unwrap_or(ZONE);
        // What another version serves may be invalid here.
        let Ok(schedule) = Schedule::parse(&expressions, zone, dst.unwrap_or_default(), name.as_str()) else {
            return Some(Vec::new());
        };
        let coming = std::iter::successors(schedule.next_after(after), |last| schedule.next_after(*last));
        Some(coming.take(count).collect())
    }
}

/// Not a key of jobs.yaml: a digest of the days on which the job can be due.
const CALENDAR_DIGEST: &str = "calendar.digest";

/// The keys that say when a job is due.
fn cause(due: &Due) -> Vec<(String, String)> {
    match due {
        Due::After(upstreams) => {
            let each = upstreams.iter().map(|(job, condition)| (format!("after.{job}"), condition.as_str().to_owned()));
            each.collect()
        }
        Due::At(schedule) => {
            let expressions: Vec<&str> = schedule.expressions().collect();
            let written = match expressions.as_slice() {
                [one] => (*one).to_owned(),
                several => list(several),
            };
            let mut keys = vec![("schedule".to_owned(), written)];
            if schedule.zone_name() != ZONE {
                keys.push(("timezone".to_owned(), schedule.zone_name().to_owned()));
            }
            if schedule.dst() != Dst::default() {
                keys.push(("dst".to_owned(), schedule.dst().as_str().to_owned()));
            }
            keys.extend(schedule.calendar().into_iter().flat_map(calendar));
            keys
        }
    }
}

fn calendar(calendar: &Calendar) -> Vec<(String, String)> {
    let names: [(&str, Vec<&str>); 2] =
        [("calendar.exclude", calendar.exclude().collect()), ("calendar.only", calendar.only().collect())];
    let names = names.into_iter().filter(|(_, names)| !names.is_empty());
    let names = names.map(|(key, names)| (key.to_owned(), list(&names)));
    names.chain([(CALENDAR_DIGEST.to_owned(), calendar.digest().to_owned())]).collect()
}

/// The values of all other keys, except `environment`.
fn texts(job: &Job) -> Vec<(String, String)> {
    // No `..`: a new key must not be forgotten here.
    let Job {
        name: _,
        description,
        due: _,
        splay,
        command,
        enabled,
        environment: _,
        environment_file,
        secrets,
        parameters,
        run_as,
        nice,
        limits,
        working_directory,
        umask,
        timeout,
        kill_grace,
        retries,
        overlap,
        concurrency_group,
        run_on,
        run_where,
        lock,
        misfire,
        misfire_window,
        misfire_limit,
        interrupted,
        on_lease_end,
        success_exit_codes,
        max_output,
        history_limit,
        alarms: AlarmLimits { late_after, long_after, stale_after },
        hooks,
        notify,
    } = job;
    let mut texts = Vec::new();
    let mut add = |key: &str, value: Option<String>| texts.extend(value.map(|value| (key.to_owned(), value)));
    add("description", description.clone());
    add("splay", Some(duration::format(splay.within())));
    add("command", Some(command_text(command)));
    add("shell", shell_text(command));
    add("enabled", Some(enabled.to_string()));
    add("environment_file", (!environment_file.is_empty()).then(|| texts_of(environment_file)));
    for (name, path) in secrets {
        add(&format!("secrets.{name}.file"), Some(path.display().to_string()));
    }
    add("parameters", (!parameters.is_empty()).then(|| list(parameters)));
    add("user", run_as.user.clone());
    add("group", run_as.group.clone());
    add("nice", text(*nice));
    add("limits.memory", text(limits.memory));
    add("limits.processes", text(limits.processes));
    add("limits.open_files", text(limits.open_files));
    add("limits.cpu_time", limits.cpu_time.map(duration::format));
    add("working_directory", working_directory.as_ref().map(|path| path.display().to_string()));
    add("umask", Some(format!("{umask:03o}")));
    add("timeout", timeout.map(duration::format));
    add("kill_grace", Some(duration::format(*kill_grace)));
    add("retries.limit", text(Some(retries.limit)));
    add("retries.delay", Some(duration::format(retries.delay)));
    add("retries.backoff", text(Some(retries.backoff)));
    add("retries.max_delay", Some(duration::format(retries.max_delay)));
    add("overlap", word(words::OVERLAP, *overlap));
    add("concurrency_group.name", concurrency_group.as_ref().map(|group| group.name.clone()));
    add("concurrency_group.limit", text(concurrency_group.as_ref().map(|group| group.limit)));
    add("run_on", word(words::RUN_ON, *run_on));
    add("run_where", (!run_where.is_empty()).then(|| texts_of(&run_where.0)));
    add("lock", (!lock.is_empty()).then(|| texts_of(lock)));
    add("misfire", word(words::MISFIRE, *misfire));
    add("misfire_window", misfire_window.map(duration::format));
    add("misfire_limit", text(Some(misfire_limit)));
    add("interrupted", word(words::INTERRUPTED, *interrupted));
    add("on_lease_end", word(words::ON_LEASE_END, *on_lease_end));
    add("success_exit_codes", Some(list(success_exit_codes)));
    add("max_output", text(Some(max_output)));
    add("history_limit", text(Some(history_limit)));
    add("late_after", late_after.map(duration::format));
    add("long_after", long_after.map(duration::format));
    add("stale_after", stale_after.map(duration::format));
    for (hook, command) in hooks {
        add(hook.as_str(), Some(command_text(command)));
    }
    for (channel, kinds) in &notify.0 {
        let kinds = kinds.as_ref().map(|kinds| kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>());
        add(
            &format!("notify.{channel}"),
            Some(kinds.map_or_else(|| "as the channel says".to_owned(), |kinds| list(&kinds))),
        );
    }
    texts
}

fn text(value: Option<impl Display>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn list(items: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(items).unwrap_or_default()
}

fn texts_of(items: &[impl ToString]) -> String {
    list(&items.iter().map(ToString::to_string).collect::<Vec<_>>())
}

fn word<T: PartialEq>(words: &[(&str, T)], value: T) -> Option<String> {
    words.iter().find(|(_, known)| *known == value).map(|(word, _)| (*word).to_owned())
}

fn command_text(command: &CommandLine) -> String {
    match command {
        CommandLine::Argv(argv) => list(argv),
        CommandLine::Shell(script) | CommandLine::OtherShell { script, .. } => script.clone(),
    }
}

/// The shell, if it is not the default; without effect on a list, so it has none.
fn shell_text(command: &CommandLine) -> Option<String> {
    match command {
        CommandLine::Argv(_) | CommandLine::Shell(_) => None,
        CommandLine::OtherShell { shell, .. } => match shell.as_slice() {
            [program, option] if option == "-c" => Some(program.clone()),
            argv => Some(list(argv)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(keys: &str, salt: &str) -> Definition {
        let text = format!("jobs: {{a: {{schedule: '0 2 * * *', command: x, {keys}}}}}");
        let (set, _) = super::super::parse("j", text.as_bytes()).unwrap_or_else(|problems| panic!("{problems:?}"));
        Definitions::of(&set, salt).jobs.into_values().next().unwrap()
    }

    #[test]
    fn keys_with_their_default_are_left_out() {
        let written_out = "timezone: UTC, dst: once, overlap: skip, umask: '022', retries: {limit: 0}, environment: {}";
        let expected: BTreeMap<String, String> =
            [("schedule", "0 2 * * *"), ("command", "x")].map(|(key, value)| (key.into(), value.into())).into();
        assert_eq!(definition(written_out, "s"), Definition { keys: expected, hidden: BTreeMap::new() });
        let keys = definition("retries: {limit: 3}, lock: /locks/a, timeout: 90s, on_failure: [page, me]", "s").keys;
        let value = |key: &str| keys.get(key).map(String::as_str);
        assert_eq!((value("retries.limit"), value("retries.delay")), (Some("3"), None));
        assert_eq!((value("lock"), value("on_lease_end")), (Some("[\"/locks/a\"]"), Some("kill")));
        assert_eq!((value("timeout"), value("on_failure")), (Some("1m30s"), Some("[\"page\",\"me\"]")));
    }

    #[test]
    fn where_a_job_runs_is_shown_unless_it_is_the_leader() {
        let keys = definition("run_on: any, run_where: [gpu, zone=eu, '!old']", "s").keys;
        assert_eq!((keys["run_on"].as_str(), keys["run_where"].as_str()), ("any", "[\"gpu\",\"zone=eu\",\"!old\"]"));
        assert!(!definition("run_on: leader", "s").keys.contains_key("run_on"));
    }

    #[test]
    fn the_files_that_a_job_is_given_are_shown_by_their_paths() {
        let keys = definition("environment_file: [/a, -/b], secrets: {DB: {file: /c}}", "s").keys;
        assert_eq!((keys["environment_file"].as_str(), keys["secrets.DB.file"].as_str()), ("[\"/a\",\"-/b\"]", "/c"));
    }

    #[test]
    fn a_shell_is_shown_if_it_is_another_one() {
        let shell = |keys: &str| definition(keys, "s").keys.get("shell").cloned();
        for keys in ["shell: /bin/sh", "shell: ~", "shell: [/bin/sh, -c]"] {
            assert_eq!(shell(keys), None, "{keys}");
        }
        assert_eq!(shell("shell: /bin/bash").as_deref(), Some("/bin/bash"));
        assert_eq!(shell("shell: [/bin/bash, -c]").as_deref(), Some("/bin/bash"));
        assert_eq!(shell("shell: [/bin/bash, -euc]").as_deref(), Some("[\"/bin/bash\",\"-euc\"]"));
        assert_eq!(definition("shell: /bin/bash", "s").keys["command"], "x");
    }

    #[test]
    fn values_of_environment_are_hidden_and_can_be_compared() {
        let of = |value: &str, salt: &str| definition(&format!("environment: {{TOKEN: {value}}}"), salt);
        assert_eq!(of("hunter2", "s"), of("hunter2", "s"));
        assert_ne!(of("hunter2", "s").hidden, of("hunter3", "s").hidden);
        assert_ne!(of("hunter2", "s").hidden, of("hunter2", "t").hidden);
        assert!(!serde_json::to_string(&of("hunter2", "s")).unwrap().contains("hunter2"));
    }

    #[test]
    fn occurrences_follow_from_a_definition() {
        let name = JobName::parse("a").unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let berlin = definition("timezone: Europe/Berlin", "s");
        let noon = at("2026-11-20T12:00:00Z");
        assert_eq!(berlin.coming(&name, noon, 1), Some(vec![at("2026-11-21T01:00:00Z")]));
        assert_eq!(definition("enabled: false", "s").coming(&name, noon, 1), Some(vec![]));
    }
}
