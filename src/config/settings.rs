//! The check of every value in one block, a job or the defaults.
//!
//! A block distinguishes missing keys, null and values, so that a job can be merged with its file's defaults
//! afterwards. `values` defines the rules for single texts; `validate` checks rules between values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::IgnoredAny;

use super::after::{self, Upstream};
use super::calendars::CalendarsOfFile;
use super::channels;
use super::process::{self, LimitSettings};
use super::raw::merged;
use super::raw::{Given, TextOrTexts};
use super::schema::{self, shown, shown_key};
use super::spanned::{Fault, MapEntry, Node, Position};
use super::values;
use cronkeeper_core::duration;
use cronkeeper_core::environment_file::is_variable_name;
use cronkeeper_core::job::{CommandLine, Condition, Group, JobName, Notify, Retries, RunWhere};
use cronkeeper_core::schedule::{DatesFile, Dst, Schedule};
use cronkeeper_core::suggest::{did_you_mean, nearest};

/// The given keys of `retries`.
#[derive(Clone, Debug, Default)]
pub(super) struct RetrySettings {
    pub limit: Given<u32>,
    pub delay: Given<Duration>,
    pub backoff: Given<f64>,
    pub max_delay: Given<Duration>,
}

/// The given keys of `calendar`.
#[derive(Clone, Debug, Default)]
pub(super) struct CalendarSettings {
    pub exclude: Given<Vec<DatesFile>>,
    pub only: Given<Vec<DatesFile>>,
}

/// Maximum number of secrets of a job.
pub(super) const MOST_SECRETS: usize = 32;

/// Files with secrets, by their names.
pub(super) type Secrets = BTreeMap<String, PathBuf>;

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

/// Checks the values of one block.
pub(super) struct ValueChecker<'a> {
    node: &'a Node,
    title: &'a str,
    zones: &'a mut Zones,
    calendars: CalendarsOfFile<'a>,
    faults: &'a mut Vec<Fault>,
}

impl<'a> ValueChecker<'a> {
    pub fn new(
        node: &'a Node,
        title: &'a str,
        zones: &'a mut Zones,
        calendars: CalendarsOfFile<'a>,
        faults: &'a mut Vec<Fault>,
    ) -> Self {
        Self { node, title, zones, calendars, faults }
    }

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

    pub fn value<T, U, E: Display>(
        &mut self,
        key: &str,
        given: Given<T>,
        check: impl FnOnce(T) -> Result<U, E>,
    ) -> Given<U> {
        self.found(key, given.map(|value| value.map(check).transpose()))
    }

    fn found<U, E: Display>(&mut self, key: &str, checked: Option<Result<Option<U>, E>>) -> Given<U> {
        match checked {
            None => None,
            Some(Ok(value)) => Some(value),
            Some(Err(why)) => {
                self.fault(self.position(key), key, why);
                None
            }
        }
    }

    pub fn word<T: Copy>(&mut self, key: &str, given: Given<String>, words: &[(&str, T)]) -> Given<T> {
        self.value(key, given, |text| {
            let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
            found.ok_or_else(|| not_a_word(&text, words.iter().map(|(word, _)| *word)))
        })
    }

    pub fn zone(&mut self, key: &str, given: Given<String>) -> Given<String> {
        let check = given.map(|name| name.map(|name| self.zones.known(name)).transpose());
        self.found(key, check)
    }

    pub fn after(&mut self, given: Given<BTreeMap<String, String>>) -> Given<Vec<Upstream>> {
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

    pub fn command(&mut self, key: &str, given: Given<TextOrTexts>) -> Given<CommandLine> {
        let Some(Some(command)) = given else { return given.map(|_| None) };
        match command {
            TextOrTexts::Texts(argv) => self.argv(key, argv).map(|argv| argv.map(CommandLine::Argv)),
            TextOrTexts::Text(text) => self.value(key, Some(Some(text)), values::shell_command),
        }
    }

    pub fn shell(&mut self, key: &str, given: Given<TextOrTexts>) -> Given<Vec<String>> {
        let Some(Some(shell)) = given else { return given.map(|_| None) };
        match shell {
            TextOrTexts::Texts(argv) => self.argv(key, argv),
            TextOrTexts::Text(program) => self.value(key, Some(Some(program)), values::shell),
        }
    }

    /// What a job asks of its nodes. Each part that is wrong is reported at its place.
    pub fn run_where(&mut self, key: &str, given: Given<TextOrTexts>) -> Given<RunWhere> {
        let Some(Some(parts)) = given else { return given.map(|_| None) };
        let texts = match parts {
            TextOrTexts::Text(text) => vec![text],
            TextOrTexts::Texts(texts) => texts,
        };
        if texts.len() > values::MOST_REQUIREMENTS {
            self.fault(self.position(key), key, format!("a job has at most {} of them", values::MOST_REQUIREMENTS));
            return None;
        }
        let mut found = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            match values::requirement(text) {
                Ok(requirement) if found.contains(&requirement) => {}
                Ok(requirement) => match found.iter().find(|other| requirement.contradicts(other)) {
                    Some(other) => {
                        let why = format!("no node can meet both `{other}` and `{requirement}`; leave one of them out");
                        self.fault(self.item_position(key, index), key, why);
                    }
                    None => found.push(requirement),
                },
                Err(why) => self.fault(self.item_position(key, index), key, why),
            }
        }
        Some(Some(RunWhere(found)))
    }

    fn argv(&mut self, key: &str, argv: Vec<String>) -> Given<Vec<String>> {
        if argv.first().is_none_or(String::is_empty) {
            self.fault(self.item_position(key, 0), key, "the first item must name a program");
            return None;
        }
        let wrong: Vec<_> =
            argv.iter().enumerate().filter_map(|(i, item)| Some((i, values::not_passable(item)?))).collect();
        for (index, why) in &wrong {
            self.fault(self.item_position(key, *index), key, why);
        }
        wrong.is_empty().then_some(Some(argv))
    }

    pub fn environment(&mut self, given: Given<BTreeMap<String, String>>) -> Given<BTreeMap<String, String>> {
        let Some(Some(variables)) = given else { return given };
        for entry in self.node.entry("environment").map_or(&[][..], |entry| entry.value.entries()) {
            let name = &entry.key;
            if !is_variable_name(name) {
                self.fault(entry.at, "environment", format!("`{}` is not a variable name", shown_key(name)));
            }
            if let Some(why) = variables.get(name).and_then(|value| values::not_passable(value)) {
                self.fault(entry.value.at, "environment", format!("`{}`: {why}", shown(name)));
            }
        }
        Some(Some(variables))
    }

    pub fn secrets(&mut self, given: Given<BTreeMap<String, BTreeMap<String, Option<String>>>>) -> Given<Secrets> {
        let Some(Some(_)) = given else { return given.map(|_| None) };
        let entries = self.node.entry("secrets").map_or(&[][..], |entry| entry.value.entries());
        Some(Some(entries.iter().filter_map(|entry| self.secret(entry)).collect()))
    }

    fn secret(&mut self, entry: &MapEntry) -> Option<(String, PathBuf)> {
        let (key, name) = ("secrets", &entry.key);
        let is_name = is_variable_name(name);
        if !is_name {
            self.fault(entry.at, key, format!("`{}` is not a variable name", shown_key(name)));
        }
        let Some(file) = entry.value.entry("file").filter(|file| !file.value.is_null()) else {
            self.fault(entry.at, key, format!("`{}`: `file` is missing", shown_key(name)));
            return None;
        };
        match values::file_of_secret(file.value.text()?.to_owned()) {
            Ok(path) => is_name.then(|| (name.clone(), path)),
            Err(why) => {
                self.fault(file.value.at, key, format!("`{}`: `file`: {why}", shown_key(name)));
                None
            }
        }
    }

    /// The channels that get notifications about the job.
    pub fn notify(&mut self, given: Given<IgnoredAny>) -> Given<Notify> {
        let Some(Some(IgnoredAny)) = given else { return given.map(|_| None) };
        Some(Some(channels::of_block(self.node, self.title, self.faults)?))
    }

    pub fn limits(&mut self, given: Given<BTreeMap<String, Option<String>>>) -> Given<LimitSettings> {
        let Some(Some(mut fields)) = given else { return given.map(|_| None) };
        Some(Some(LimitSettings {
            memory: self.field("limits", "memory", &mut fields, process::memory),
            processes: self.field("limits", "processes", &mut fields, process::count),
            open_files: self.field("limits", "open_files", &mut fields, process::count),
            cpu_time: self.field("limits", "cpu_time", &mut fields, process::cpu_time),
        }))
    }

    pub fn retries(&mut self, given: Given<BTreeMap<String, Option<String>>>) -> Given<RetrySettings> {
        let Some(Some(mut fields)) = given else { return given.map(|_| None) };
        Some(Some(RetrySettings {
            limit: self.field("retries", "limit", &mut fields, values::retry_limit),
            delay: self.field("retries", "delay", &mut fields, |text| duration::parse(&text)),
            backoff: self.field("retries", "backoff", &mut fields, values::backoff),
            max_delay: self.field("retries", "max_delay", &mut fields, values::positive_duration),
        }))
    }

    pub fn calendar(&mut self, given: Given<BTreeMap<String, Option<TextOrTexts>>>) -> Given<CalendarSettings> {
        let Some(Some(mut lists)) = given else { return given.map(|_| None) };
        let mut files = |name| Some(lists.remove(name)?.map(|names| self.dates(name, names)));
        Some(Some(CalendarSettings { exclude: files("exclude"), only: files("only") }))
    }

    /// The files that a key of `calendar` names.
    fn dates(&mut self, list: &str, names: TextOrTexts) -> Vec<DatesFile> {
        let names = match names {
            TextOrTexts::Text(name) => vec![name],
            TextOrTexts::Texts(names) => names,
        };
        let entry = self.node.entry("calendar").and_then(|entry| entry.value.entry(list));
        let at = entry.map_or_else(|| self.position("calendar"), schema::position_of);
        let items = entry.map_or(&[][..], |entry| entry.value.items());
        if names.is_empty() && list == "only" {
            self.faults.push(Fault::new(at, format!("{}: `calendar`: `only`: the list is empty", self.title)));
        }
        let mut files = Vec::new();
        for (index, name) in names.iter().enumerate() {
            match self.calendars.find(name) {
                Ok(file) => files.extend(file),
                Err(why) => {
                    let at = items.get(index).map_or(at, |item| item.at);
                    self.fault(at, "calendar", format!("`{}`: {why}", shown(name)));
                }
            }
        }
        files
    }

    /// Both keys of a group are required; neither has a default.
    pub fn group(&mut self, given: Given<BTreeMap<String, Option<String>>>) -> Given<Group> {
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

    pub fn exit_codes(&mut self, given: Given<Vec<u64>>) -> Given<BTreeSet<i32>> {
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
    let hint = did_you_mean(nearest(text, words));
    format!("`{}` is not one of {}{hint}", shown(text), list.join(", "))
}

/// Merges a job's retries with the defaults, key by key.
pub(super) fn retries(own: &Given<RetrySettings>, defaults: &Given<RetrySettings>) -> Retries {
    let own = match own {
        Some(None) => return Retries::default(),
        given => given.clone().flatten().unwrap_or_default(),
    };
    let (defaults, builtin) = (defaults.clone().flatten().unwrap_or_default(), Retries::default());
    Retries {
        limit: merged(&own.limit, &defaults.limit).unwrap_or(builtin.limit),
        delay: merged(&own.delay, &defaults.delay).unwrap_or(builtin.delay),
        backoff: merged(&own.backoff, &defaults.backoff).unwrap_or(builtin.backoff),
        max_delay: merged(&own.max_delay, &defaults.max_delay).unwrap_or(builtin.max_delay),
    }
}

/// Merges a job's calendar with the defaults, key by key.
pub(super) fn calendar(own: &Given<CalendarSettings>, defaults: &Given<CalendarSettings>) -> CalendarSettings {
    let own = match own {
        Some(None) => return CalendarSettings::default(),
        given => given.clone().flatten().unwrap_or_default(),
    };
    let defaults = defaults.clone().flatten().unwrap_or_default();
    CalendarSettings {
        exclude: Some(merged(&own.exclude, &defaults.exclude)),
        only: Some(merged(&own.only, &defaults.only)),
    }
}

/// Merges a job's map, `environment` or `secrets`, with that of the defaults, key by key.
pub(super) fn merged_maps<T: Clone>(
    own: &Given<BTreeMap<String, T>>,
    defaults: &Given<BTreeMap<String, T>>,
) -> BTreeMap<String, T> {
    match own {
        Some(None) => BTreeMap::new(),
        None => defaults.clone().flatten().unwrap_or_default(),
        Some(Some(own)) => {
            let mut all = defaults.clone().flatten().unwrap_or_default();
            all.extend(own.clone());
            all
        }
    }
}
