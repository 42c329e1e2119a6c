//! The values of one block, a job or the defaults, each judged by itself and reported at its place.
//!
//! A block keeps apart what is not given, given as null, and given, so that a job can be laid over its file's
//! defaults afterwards. What a single text may be is in `values`; what depends on more than one value is `validate`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use super::after::{self, Upstream};
use super::hooks::{self, HookSettings};
use super::process::{self, LimitSettings};
use super::raw::{self, Given, TextOrTexts};
use super::schema::{self, meant, shown, shown_key};
use super::spanned::{Entry, Fault, Node, Position};
use super::{size, values};
use crate::duration;
use crate::job::{CommandLine, Condition, Group, Interrupted, JobName, Misfire, OnLeaseEnd, Overlap};
use crate::schedule::{Dst, Schedule};

/// A block whose values are good, one by one.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub description: Given<String>,
    pub schedule: Given<Vec<String>>,
    pub after: Given<Vec<Upstream>>,
    pub timezone: Given<String>,
    pub dst: Given<Dst>,
    pub splay: Given<Duration>,
    pub command: Given<CommandLine>,
    pub enabled: Given<bool>,
    pub environment: Given<BTreeMap<String, String>>,
    pub user: Given<String>,
    pub group: Given<String>,
    pub nice: Given<i32>,
    pub limits: Given<LimitSettings>,
    pub working_directory: Given<PathBuf>,
    pub umask: Given<u32>,
    pub timeout: Given<Duration>,
    pub kill_grace: Given<Duration>,
    pub retries: Given<RetrySettings>,
    pub overlap: Given<Overlap>,
    pub concurrency_group: Given<Group>,
    pub misfire: Given<Misfire>,
    pub misfire_window: Given<Duration>,
    pub misfire_limit: Given<usize>,
    pub interrupted: Given<Interrupted>,
    pub on_lease_end: Given<OnLeaseEnd>,
    pub success_exit_codes: Given<BTreeSet<i32>>,
    pub max_output: Given<u64>,
    pub hooks: HookSettings,
}

/// What is given of `retries`, key by key.
#[derive(Clone, Debug, Default)]
pub(super) struct RetrySettings {
    pub limit: Given<u32>,
    pub delay: Given<Duration>,
    pub backoff: Given<f64>,
    pub max_delay: Given<Duration>,
}

/// Judges every value of `block`, whose places are in `node`; a value that is wrong is reported and left out.
pub(super) fn judge(
    mut block: raw::Block,
    node: &Node,
    title: &str,
    zones: &mut Zones,
    faults: &mut Vec<Fault>,
) -> Settings {
    let mut judge = Judge { node, title, faults };
    Settings {
        hooks: hooks::judged(&mut block, |key, given| judge.command(key, given)),
        description: block.description,
        schedule: judge.value("schedule", block.schedule, values::expressions),
        after: judge.after(block.after),
        timezone: judge.value("timezone", block.timezone, |name| zones.known(name)),
        dst: judge.word("dst", block.dst, &[("once", Dst::Once), ("skip", Dst::Skip), ("twice", Dst::Twice)]),
        splay: judge.value("splay", block.splay, |text| duration::parse(&text)),
        command: judge.command("command", block.command),
        enabled: block.enabled,
        environment: judge.environment(block.environment),
        user: judge.value("user", block.user, process::account),
        group: judge.value("group", block.group, process::account),
        nice: judge.value("nice", block.nice, process::nice),
        limits: judge.limits(block.limits),
        working_directory: judge.value("working_directory", block.working_directory, values::absolute_path),
        umask: judge.value("umask", block.umask, values::umask),
        timeout: judge.value("timeout", block.timeout, values::some_time),
        kill_grace: judge.value("kill_grace", block.kill_grace, values::some_time),
        retries: judge.retries(block.retries),
        overlap: judge.word(
            "overlap",
            block.overlap,
            &[
                ("skip", Overlap::Skip),
                ("queue", Overlap::Queue),
                ("allow", Overlap::Allow),
                ("replace", Overlap::Replace),
            ],
        ),
        concurrency_group: judge.group(block.concurrency_group),
        misfire: judge.word(
            "misfire",
            block.misfire,
            &[("skip", Misfire::Skip), ("run-once", Misfire::RunOnce), ("run-all", Misfire::RunAll)],
        ),
        misfire_window: judge.value("misfire_window", block.misfire_window, |text| duration::parse(&text)),
        misfire_limit: judge.value("misfire_limit", block.misfire_limit, values::misfire_limit),
        interrupted: judge.word(
            "interrupted",
            block.interrupted,
            &[("skip", Interrupted::Skip), ("rerun", Interrupted::Rerun)],
        ),
        on_lease_end: judge.word(
            "on_lease_end",
            block.on_lease_end,
            &[("keep", OnLeaseEnd::Keep), ("kill", OnLeaseEnd::Kill)],
        ),
        success_exit_codes: judge.exit_codes(block.success_exit_codes),
        max_output: judge.value("max_output", block.max_output, |text| size::parse(&text)),
    }
}

/// The zones asked for so far: thousands of jobs share a few.
#[derive(Default)]
pub(super) struct Zones(BTreeMap<String, Option<String>>);

impl Zones {
    /// Asks `schedule`, with an expression that is right in every zone, what is wrong with this one.
    fn known(&mut self, name: String) -> Result<String, String> {
        let ask = || Schedule::parse(&["0 0 * * *"], &name, Dst::Once, "").err().map(|error| error.to_string());
        match self.0.entry(name.clone()).or_insert_with(ask) {
            None => Ok(name),
            Some(why) => Err(why.clone()),
        }
    }
}

struct Judge<'a> {
    node: &'a Node,
    title: &'a str,
    faults: &'a mut Vec<Fault>,
}

impl Judge<'_> {
    /// Where the value of a key stands.
    fn place(&self, key: &str) -> Position {
        self.node.entry(key).map_or(self.node.at, schema::place)
    }

    /// Where an item of a list stands.
    fn item_place(&self, key: &str, index: usize) -> Position {
        let item = self.node.entry(key).and_then(|entry| entry.value.items().get(index));
        item.map_or_else(|| self.place(key), |item| item.at)
    }

    fn fault(&mut self, at: Position, key: &str, why: impl Display) {
        self.faults.push(Fault::new(at, format!("{}: `{key}`: {why}", self.title)));
    }

    fn value<T, U, E: Display>(
        &mut self,
        key: &str,
        given: Given<T>,
        judge: impl FnOnce(T) -> Result<U, E>,
    ) -> Given<U> {
        match given.map(|value| value.map(judge).transpose()) {
            None => None,
            Some(Ok(value)) => Some(value),
            Some(Err(why)) => {
                self.fault(self.place(key), key, why);
                None
            }
        }
    }

    fn word<T: Copy>(&mut self, key: &str, given: Given<String>, words: &[(&str, T)]) -> Given<T> {
        self.value(key, given, |text| {
            let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
            found.ok_or_else(|| not_a_word(&text, words.iter().map(|(word, _)| *word)))
        })
    }

    fn after(&mut self, given: Given<BTreeMap<String, String>>) -> Given<Vec<Upstream>> {
        let Some(Some(_)) = given else { return given.map(|_| None) };
        let entries = self.node.entry("after").map_or(&[][..], |entry| entry.value.entries());
        if entries.is_empty() {
            self.fault(self.place("after"), "after", "it names no job");
        }
        if let Some(entry) = entries.get(after::MOST) {
            self.fault(entry.at, "after", format!("a job runs after at most {} others", after::MOST));
        }
        Some(Some(entries.iter().filter_map(|entry| self.upstream(entry)).collect()))
    }

    fn upstream(&mut self, entry: &Entry) -> Option<Upstream> {
        const WORDS: [Condition; 2] = [Condition::Success, Condition::Always];
        let text = entry.value.text()?;
        let condition = WORDS.into_iter().find(|word| word.as_str() == text);
        if condition.is_none() {
            let known = WORDS.iter().map(|word| word.as_str());
            self.fault(entry.value.at, "after", format!("`{}`: {}", shown(&entry.key), not_a_word(text, known)));
        }
        let name = JobName::parse(&entry.key);
        if name.is_err() {
            self.fault(entry.at, "after", format!("`{}` is no job name", shown(&entry.key)));
        }
        Some(Upstream { name: name.ok()?, condition: condition?, at: entry.at })
    }

    fn command(&mut self, key: &str, given: Given<TextOrTexts>) -> Given<CommandLine> {
        let Some(Some(command)) = given else { return given.map(|_| None) };
        match command {
            TextOrTexts::Texts(argv) => self.argv(key, argv),
            TextOrTexts::Text(text) => self.value(key, Some(Some(text)), values::shell_command),
        }
    }

    fn argv(&mut self, key: &str, argv: Vec<String>) -> Given<CommandLine> {
        if argv.first().is_none_or(String::is_empty) {
            self.fault(self.item_place(key, 0), key, "it names no program");
            return None;
        }
        let wrong: Vec<_> = argv.iter().enumerate().filter_map(|(i, item)| Some((i, values::unfit(item)?))).collect();
        for (index, why) in &wrong {
            self.fault(self.item_place(key, *index), key, why);
        }
        wrong.is_empty().then_some(Some(CommandLine::Argv(argv)))
    }

    fn environment(&mut self, given: Given<BTreeMap<String, String>>) -> Given<BTreeMap<String, String>> {
        let Some(Some(variables)) = given else { return given };
        for entry in self.node.entry("environment").map_or(&[][..], |entry| entry.value.entries()) {
            let name = &entry.key;
            if name.is_empty() || name.contains(['=', '\0']) {
                self.fault(entry.at, "environment", format!("`{}` is no name of a variable", shown_key(name)));
            }
            if let Some(why) = variables.get(name).and_then(|value| values::unfit(value)) {
                self.fault(entry.value.at, "environment", format!("`{}`: {why}", shown(name)));
            }
        }
        Some(Some(variables))
    }

    fn limits(&mut self, given: Given<BTreeMap<String, Option<String>>>) -> Given<LimitSettings> {
        let Some(Some(mut fields)) = given else { return given.map(|_| None) };
        Some(Some(LimitSettings {
            memory: self.field("limits", "memory", &mut fields, process::memory),
            processes: self.field("limits", "processes", &mut fields, process::count),
            open_files: self.field("limits", "open_files", &mut fields, process::count),
            cpu_time: self.field("limits", "cpu_time", &mut fields, process::cpu_time),
        }))
    }

    fn retries(&mut self, given: Given<BTreeMap<String, Option<String>>>) -> Given<RetrySettings> {
        let Some(Some(mut fields)) = given else { return given.map(|_| None) };
        Some(Some(RetrySettings {
            limit: self.field("retries", "limit", &mut fields, values::retry_limit),
            delay: self.field("retries", "delay", &mut fields, |text| duration::parse(&text)),
            backoff: self.field("retries", "backoff", &mut fields, values::backoff),
            max_delay: self.field("retries", "max_delay", &mut fields, values::some_time),
        }))
    }

    /// Neither of its keys has a default.
    fn group(&mut self, given: Given<BTreeMap<String, Option<String>>>) -> Given<Group> {
        let key = "concurrency_group";
        let Some(Some(mut fields)) = given else { return given.map(|_| None) };
        for name in ["name", "limit"] {
            if fields.get(name).is_none_or(Option::is_none) {
                self.fault(self.place(key), key, format!("`{name}` is missing"));
            }
        }
        let name = self.field(key, "name", &mut fields, values::group_name);
        let limit = self.field(key, "limit", &mut fields, values::group_limit);
        Some(Some(Group { name: name??, limit: limit?? }))
    }

    /// A key of a map that is the value of a key.
    fn field<U, E: Display>(
        &mut self,
        key: &str,
        name: &str,
        fields: &mut BTreeMap<String, Option<String>>,
        judge: impl FnOnce(String) -> Result<U, E>,
    ) -> Given<U> {
        match fields.remove(name).map(|value| value.map(judge).transpose()) {
            None => None,
            Some(Ok(value)) => Some(value),
            Some(Err(why)) => {
                let entry = self.node.entry(key).and_then(|entry| entry.value.entry(name));
                let at = entry.map_or_else(|| self.place(key), schema::place);
                self.fault(at, key, format!("`{name}`: {why}"));
                None
            }
        }
    }

    fn exit_codes(&mut self, given: Given<Vec<u64>>) -> Given<BTreeSet<i32>> {
        let Some(Some(codes)) = given else { return given.map(|_| None) };
        let key = "success_exit_codes";
        if codes.is_empty() {
            self.fault(self.place(key), key, "the list is empty, so that no run could succeed");
        }
        let mut set = BTreeSet::new();
        for (index, code) in codes.into_iter().enumerate() {
            match u8::try_from(code) {
                Ok(code) => drop(set.insert(i32::from(code))),
                Err(_) => {
                    self.fault(self.item_place(key, index), key, format!("{code} is no exit code: they are 0 to 255"));
                }
            }
        }
        Some(Some(set))
    }
}

fn not_a_word<'a>(text: &str, words: impl Iterator<Item = &'a str> + Clone) -> String {
    let list: Vec<String> = words.clone().map(|word| format!("`{word}`")).collect();
    let hint = meant(text, words);
    format!("`{}` is none of {}{hint}", shown(text), list.join(", "))
}
