//! The check of every value in one block, a job or the defaults.
//!
//! A block distinguishes missing keys, null and values, so that a job can be merged with its file's defaults
//! afterwards. `values` defines the rules for single texts; `validate` checks rules between values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use super::after::{self, Upstream};
use super::hooks::{self, HookSettings};
use super::process::{self, LimitSettings};
use super::raw::{self, Given, TextOrTexts};
use super::schema::{self, did_you_mean, shown, shown_key};
use super::spanned::{Fault, MapEntry, Node, Position};
use super::{size, values};
use crate::duration;
use crate::job::{CommandLine, Condition, Group, Interrupted, JobName, Misfire, OnLeaseEnd, Overlap};
use crate::schedule::{Dst, Schedule};

/// A block whose values are valid, each on its own.
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

/// The given keys of `retries`.
#[derive(Clone, Debug, Default)]
pub(super) struct RetrySettings {
    pub limit: Given<u32>,
    pub delay: Given<Duration>,
    pub backoff: Given<f64>,
    pub max_delay: Given<Duration>,
}

/// Checks every value of `block`, whose positions are in `node`. Reports invalid values and leaves them out.
pub(super) fn check(
    mut block: raw::Block,
    node: &Node,
    title: &str,
    zones: &mut Zones,
    faults: &mut Vec<Fault>,
) -> Settings {
    let mut checker = ValueChecker { node, title, faults };
    Settings {
        hooks: hooks::checked(&mut block, |key, given| checker.command(key, given)),
        description: block.description,
        schedule: checker.value("schedule", block.schedule, values::expressions),
        after: checker.after(block.after),
        timezone: checker.value("timezone", block.timezone, |name| zones.known(name)),
        dst: checker.word("dst", block.dst, &[("once", Dst::Once), ("skip", Dst::Skip), ("twice", Dst::Twice)]),
        splay: checker.value("splay", block.splay, |text| duration::parse(&text)),
        command: checker.command("command", block.command),
        enabled: block.enabled,
        environment: checker.environment(block.environment),
        user: checker.value("user", block.user, process::account),
        group: checker.value("group", block.group, process::account),
        nice: checker.value("nice", block.nice, process::nice),
        limits: checker.limits(block.limits),
        working_directory: checker.value("working_directory", block.working_directory, values::absolute_path),
        umask: checker.value("umask", block.umask, values::umask),
        timeout: checker.value("timeout", block.timeout, values::positive_duration),
        kill_grace: checker.value("kill_grace", block.kill_grace, values::positive_duration),
        retries: checker.retries(block.retries),
        overlap: checker.word(
            "overlap",
            block.overlap,
            &[
                ("skip", Overlap::Skip),
                ("queue", Overlap::Queue),
                ("allow", Overlap::Allow),
                ("replace", Overlap::Replace),
            ],
        ),
        concurrency_group: checker.group(block.concurrency_group),
        misfire: checker.word(
            "misfire",
            block.misfire,
            &[("skip", Misfire::Skip), ("run-once", Misfire::RunOnce), ("run-all", Misfire::RunAll)],
        ),
        misfire_window: checker.value("misfire_window", block.misfire_window, |text| duration::parse(&text)),
        misfire_limit: checker.value("misfire_limit", block.misfire_limit, values::misfire_limit),
        interrupted: checker.word(
            "interrupted",
            block.interrupted,
            &[("skip", Interrupted::Skip), ("rerun", Interrupted::Rerun)],
        ),
        on_lease_end: checker.word(
            "on_lease_end",
            block.on_lease_end,
            &[("keep", OnLeaseEnd::Keep), ("kill", OnLeaseEnd::Kill)],
        ),
        success_exit_codes: checker.exit_codes(block.success_exit_codes),
        max_output: checker.value("max_output", block.max_output, |text| size::parse(&text)),
    }
}

/// A cache of time zone checks, because thousands of jobs share a few zones.
#[derive(Default)]
pub(super) struct Zones(BTreeMap<String, Option<String>>);

impl Zones {
    /// Checks a zone by parsing an expression that is valid in every zone.
    fn known(&mut self, name: String) -> Result<String, String> {
        let check = || Schedule::parse(&["0 0 * * *"], &name, Dst::Once, "").err().map(|error| error.to_string());
        match self.0.entry(name.clone()).or_insert_with(check) {
            None => Ok(name),
            Some(why) => Err(why.clone()),
        }
    }
}

struct ValueChecker<'a> {
    node: &'a Node,
    title: &'a str,
    faults: &'a mut Vec<Fault>,
}

impl ValueChecker<'_> {
    /// The position of a key's value.
    fn position(&self, key: &str) -> Position {
        self.node.entry(key).map_or(self.node.at, schema::position_of)
    }

    /// The position of an item of a list.
    fn item_position(&self, key: &str, index: usize) -> Position {
        let item = self.node.entry(key).and_then(|entry| entry.value.items().get(index));
        item.map_or_else(|| self.position(key), |item| item.at)
    }

    fn fault(&mut self, at: Position, key: &str, why: impl Display) {
        self.faults.push(Fault::new(at, format!("{}: `{key}`: {why}", self.title)));
    }

    fn value<T, U, E: Display>(
        &mut self,
        key: &str,
        given: Given<T>,
        check: impl FnOnce(T) -> Result<U, E>,
    ) -> Given<U> {
        match given.map(|value| value.map(check).transpose()) {
            None => None,
            Some(Ok(value)) => Some(value),
            Some(Err(why)) => {
                self.fault(self.position(key), key, why);
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
            self.fault(self.position("after"), "after", "must name at least one job");
        }
        if let Some(entry) = entries.get(after::MAX_ADJACENT) {
            self.fault(entry.at, "after", format!("a job may run after at most {} others", after::MAX_ADJACENT));
        }
        Some(Some(entries.iter().filter_map(|entry| self.upstream(entry)).collect()))
    }

    fn upstream(&mut self, entry: &MapEntry) -> Option<Upstream> {
        const WORDS: [Condition; 2] = [Condition::Success, Condition::Always];
        let text = entry.value.text()?;
        let condition = WORDS.into_iter().find(|word| word.as_str() == text);
        if condition.is_none() {
            let known = WORDS.iter().map(|word| word.as_str());
            self.fault(entry.value.at, "after", format!("`{}`: {}", shown(&entry.key), not_a_word(text, known)));
        }
        let name = JobName::parse(&entry.key);
        if name.is_err() {
            self.fault(entry.at, "after", format!("`{}` is not a job name", shown(&entry.key)));
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
            self.fault(self.item_position(key, 0), key, "the first item must name a program");
            return None;
        }
        let wrong: Vec<_> =
            argv.iter().enumerate().filter_map(|(i, item)| Some((i, values::not_passable(item)?))).collect();
        for (index, why) in &wrong {
            self.fault(self.item_position(key, *index), key, why);
        }
        wrong.is_empty().then_some(Some(CommandLine::Argv(argv)))
    }

    fn environment(&mut self, given: Given<BTreeMap<String, String>>) -> Given<BTreeMap<String, String>> {
        let Some(Some(variables)) = given else { return given };
        for entry in self.node.entry("environment").map_or(&[][..], |entry| entry.value.entries()) {
            let name = &entry.key;
            if name.is_empty() || name.contains(['=', '\0']) {
                self.fault(entry.at, "environment", format!("`{}` is not a variable name", shown_key(name)));
            }
            if let Some(why) = variables.get(name).and_then(|value| values::not_passable(value)) {
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
            max_delay: self.field("retries", "max_delay", &mut fields, values::positive_duration),
        }))
    }

    /// Both keys of a group are required; neither has a default.
    fn group(&mut self, given: Given<BTreeMap<String, Option<String>>>) -> Given<Group> {
        let key = "concurrency_group";
        let Some(Some(mut fields)) = given else { return given.map(|_| None) };
        for name in ["name", "limit"] {
            if fields.get(name).is_none_or(Option::is_none) {
                self.fault(self.position(key), key, format!("`{name}` is missing"));
            }
        }
        let name = self.field(key, "name", &mut fields, values::group_name);
        let limit = self.field(key, "limit", &mut fields, values::group_limit);
        Some(Some(Group { name: name??, limit: limit?? }))
    }

    /// Checks a key `name` of the map under `key`.
    fn field<U, E: Display>(
        &mut self,
        key: &str,
        name: &str,
        fields: &mut BTreeMap<String, Option<String>>,
        check: impl FnOnce(String) -> Result<U, E>,
    ) -> Given<U> {
        match fields.remove(name).map(|value| value.map(check).transpose()) {
            None => None,
            Some(Ok(value)) => Some(value),
            Some(Err(why)) => {
                let entry = self.node.entry(key).and_then(|entry| entry.value.entry(name));
                let at = entry.map_or_else(|| self.position(key), schema::position_of);
                self.fault(at, key, format!("`{name}`: {why}"));
                None
            }
        }
    }

    fn exit_codes(&mut self, given: Given<Vec<u64>>) -> Given<BTreeSet<i32>> {
        let Some(Some(codes)) = given else { return given.map(|_| None) };
        let key = "success_exit_codes";
        if codes.is_empty() {
            self.fault(self.position(key), key, "the list is empty, so no run could succeed");
        }
        let mut set = BTreeSet::new();
        for (index, code) in codes.into_iter().enumerate() {
            match u8::try_from(code) {
                Ok(code) => drop(set.insert(i32::from(code))),
                Err(_) => {
                    self.fault(
                        self.item_position(key, index),
                        key,
                        format!("{code} is not an exit code: expected 0 to 255"),
                    );
                }
            }
        }
        Some(Some(set))
    }
}

fn not_a_word<'a>(text: &str, words: impl Iterator<Item = &'a str> + Clone) -> String {
    let list: Vec<String> = words.clone().map(|word| format!("`{word}`")).collect();
    let hint = did_you_mean(text, words);
    format!("`{}` is not one of {}{hint}", shown(text), list.join(", "))
}
