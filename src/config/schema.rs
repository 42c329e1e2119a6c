//! The check for unknown keys and wrong types in jobs.yaml.
//!
//! It returns the sound part of the file, which serde_yaml then reads into the types of `keys`. So values are checked
//! even if something else in the file is wrong.

use std::rc::Rc;

use super::hints;
use super::raw::{Form, Key};
use super::spanned::{Fault, MapEntry, Node, Position, Value};
use cronkeeper_core::escape;
use cronkeeper_core::suggest::{did_you_mean, nearest};

/// Checks all keys and forms, adds errors to `faults`, and returns the file without the faulty parts.
pub(super) fn sound_part(root: &Node, keys: Keys, faults: &mut Vec<Fault>) -> Option<Rc<Node>> {
    Check { keys, faults }.file(root)
}

/// The keys that a file may have.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub of_jobs: &'static [Key],
    /// Keys that `defaults` must not have.
    pub not_in_defaults: &'static [&'static str],
}

struct Check<'a> {
    keys: Keys,
    faults: &'a mut Vec<Fault>,
}

impl Check<'_> {
    fn fault(&mut self, at: Position, message: impl Into<String>) {
        self.faults.push(Fault::new(at, message));
    }

    fn file(&mut self, root: &Node) -> Option<Rc<Node>> {
        if root.is_null() {
            self.fault(Position::START, "the file is empty; write `jobs: {}` for no jobs");
            return None;
        }
        let Value::Map(entries) = &root.value else {
            self.fault(root.at, format!("a jobs file is a map with `jobs` and `defaults`, not {}", kind(root)));
            return None;
        };
        if root.entry("jobs").is_none() {
            self.fault(root.at, "`jobs` is missing; write `jobs: {}` for no jobs");
        }
        Some(rebuilt(root, entries.iter().filter_map(|entry| self.top_entry(entry)).collect()))
    }

    fn top_entry(&mut self, entry: &MapEntry) -> Option<MapEntry> {
        match entry.key.as_str() {
            "defaults" if entry.value.is_null() => Some(entry.clone()),
            "defaults" => self.block(entry, "defaults", self.keys.not_in_defaults),
            "jobs" => self.jobs(entry),
            // Checked with the values.
            "notify" => Some(entry.clone()),
            key => {
                let hint = did_you_mean(nearest(key, ["defaults", "jobs", "notify"]));
                self.fault(entry.at, format!("`{}` is not a key of a jobs file{hint}", shown_key(key)));
                None
            }
        }
    }

    fn jobs(&mut self, jobs: &MapEntry) -> Option<MapEntry> {
        let Value::Map(entries) = &jobs.value.value else {
            let right = match &jobs.value.value {
                Value::List(items) if !items.is_empty() => hints::about_list_of_jobs(&jobs.value),
                _ => "write `jobs: {}` for no jobs".to_owned(),
            };
            let message = format!("`jobs` is a map from names to jobs, not {}; {right}", kind(&jobs.value));
            self.fault(position_of(jobs), message);
            return None;
        };
        let sound =
            entries.iter().filter_map(|job| self.block(job, &format!("job `{}`", shown(&job.key)), &[])).collect();
        Some(MapEntry { value: rebuilt(&jobs.value, sound), ..jobs.clone() })
    }

    /// Checks a job or the defaults.
    fn block(&mut self, block: &MapEntry, title: &str, excluded: &[&str]) -> Option<MapEntry> {
        let Value::Map(entries) = &block.value.value else {
            self.fault(position_of(block), format!("{title}: must be a map of keys, not {}", kind(&block.value)));
            return None;
        };
        if excluded.is_empty() {
            self.missing_keys(block, title);
        }
        let sound = entries.iter().filter(|entry| self.key(entry, title, excluded)).cloned().collect();
        Some(MapEntry { value: rebuilt(&block.value, sound), ..block.clone() })
    }

    /// Reports missing keys, unless an unknown key is probably meant for them: that is reported instead.
    fn missing_keys(&mut self, job: &MapEntry, title: &str) {
        let has = |key| job.value.entry(key).is_some_and(|entry| !entry.value.is_null());
        let known = || self.keys.of_jobs.iter().map(|key| key.name);
        let unknown = job.value.entries().iter().filter(|entry| !known().any(|known| known == entry.key));
        let meant: Vec<&str> = unknown.filter_map(|entry| hints::meant(&entry.key, known())).collect();
        let is_meant = |key| meant.contains(&key);
        if !has("schedule") && !has("after") && !is_meant("schedule") && !is_meant("after") {
            self.fault(job.at, format!("{title}: `schedule` is missing"));
        }
        if let Some(after) = job.value.entry("after").filter(|_| has("schedule") && has("after")) {
            self.fault(after.at, format!("{title}: `after` replaces `schedule`; a job must have exactly one of them"));
        }
        if !has("command") && !is_meant("command") {
            self.fault(job.at, format!("{title}: `command` is missing"));
        }
    }

    /// True if the key exists and its value has the right form.
    fn key(&mut self, entry: &MapEntry, title: &str, excluded: &[&str]) -> bool {
        let key = entry.key.as_str();
        if excluded.contains(&key) {
            self.fault(entry.at, format!("{title}: `{key}` belongs to a job, not to `defaults`"));
            return false;
        }
        let Some(Key { form, .. }) = self.keys.of_jobs.iter().find(|known| known.name == key) else {
            let known = self.keys.of_jobs.iter().map(|key| key.name);
            let hint = hints::about_key(key, known.filter(|name| !excluded.contains(name)));
            self.fault(entry.at, format!("{title}: `{}` is not a key of a job{hint}", shown_key(key)));
            return false;
        };
        let wrong = wrong_form(*form, entry);
        let is_sound = wrong.is_empty();
        self.faults.extend(wrong.into_iter().map(|(at, why)| Fault::new(at, format!("{title}: {why}"))));
        is_sound
    }
}

/// The errors in the form of a value. Null is always valid, because it restores the default.
pub(super) fn wrong_form(form: Form, entry: &MapEntry) -> Vec<(Position, String)> {
    let (key, node) = (&entry.key, &entry.value);
    if node.is_null() {
        return Vec::new();
    }
    let wrong = |expected: &str| {
        let right = hints::about_form(form, entry);
        vec![(node.at, format!("`{key}` must be {expected}, not {}{right}", kind(node)))]
    };
    match (form, &node.value) {
        (Form::Text | Form::Duration | Form::Size | Form::Words(_), Value::Text { .. }) => Vec::new(),
        (Form::Text | Form::Duration | Form::Size | Form::Words(_), _) => wrong("a text"),
        (Form::TextOrTexts, Value::Text { text, plain: true }) if is_read_otherwise(text) => {
            vec![(
                node.at,
                format!(
                    "`{key}` must be a text, but YAML reads this as a number or boolean; quote it: \"{}\"",
                    shown(text)
                ),
            )]
        }
        (Form::TextOrTexts, Value::Text { .. }) => Vec::new(),
        (Form::TextOrTexts, Value::List(items)) => items.iter().filter_map(|item| wrong_item(key, item)).collect(),
        (Form::TextOrTexts, _) => wrong("a text or a list of texts"),
        (Form::Flag, _) if matches!(node.plain(), Some("true" | "false")) => Vec::new(),
        (Form::Flag, _) => wrong("`true` or `false`"),
        (Form::Number { .. }, _) if is_number(node) => Vec::new(),
        (Form::Number { .. }, _) => wrong("a whole number"),
        (Form::Numbers, Value::List(items)) => items
            .iter()
            .filter(|item| !is_number(item))
            .map(|item| (item.at, format!("`{key}` must hold whole numbers, not {}", kind(item))))
            .collect(),
        (Form::Numbers, _) => wrong("a list of whole numbers"),
        (Form::Texts, Value::Map(entries)) => entries.iter().filter_map(|entry| wrong_pair(key, entry)).collect(),
        (Form::Texts, _) => wrong("a map of texts"),
        (Form::Fields(known), Value::Map(entries)) => {
            entries.iter().filter_map(|entry| wrong_field(key, entry, known)).collect()
        }
        (Form::Lists(known), Value::Map(entries)) => {
            entries.iter().flat_map(|entry| wrong_list(key, entry, known)).collect()
        }
        (Form::Fields(known) | Form::Lists(known), _) => {
            wrong(&format!("a map of {}", known.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")))
        }
        (Form::Named(known), Value::Map(entries)) => {
            entries.iter().flat_map(|entry| wrong_named(key, entry, known)).collect()
        }
        (Form::Named(_), _) => wrong("a map of maps"),
        (Form::Notify, Value::Map(entries)) => {
            let events = |entry: &MapEntry| {
                let wrong = wrong_form(Form::TextOrTexts, entry).into_iter();
                wrong.map(|(at, why)| (at, format!("`{key}`: {why}"))).collect::<Vec<_>>()
            };
            entries.iter().flat_map(events).collect()
        }
        (Form::Notify, _) => wrong_form(Form::TextOrTexts, entry),
    }
}

fn wrong_item(key: &str, item: &Node) -> Option<(Position, String)> {
    match item.text() {
        None => {
            let right = hints::in_quotes(key);
            Some((item.at, format!("an item of `{key}` must be a text, not {}{right}", kind(item))))
        }
        Some("") if item.is_null() => {
            Some((item.at, format!("an item of `{key}` is missing; for an empty one write `\"\"`")))
        }
        Some(_) => None,
    }
}

fn wrong_pair(key: &str, entry: &MapEntry) -> Option<(Position, String)> {
    let name = shown_key(&entry.key);
    if entry.value.is_null() {
        return Some((position_of(entry), format!("`{key}`: `{name}` has no value; for an empty one write `\"\"`")));
    }
    let wrong = entry.value.text().is_none();
    wrong.then(|| (entry.value.at, format!("`{key}`: `{name}` must be a text, not {}", kind(&entry.value))))
}

fn wrong_list(key: &str, entry: &MapEntry, known: &[Key]) -> Vec<(Position, String)> {
    match unknown_field(key, entry, known) {
        Some(unknown) => vec![unknown],
        None => {
            wrong_form(Form::TextOrTexts, entry).into_iter().map(|(at, why)| (at, format!("`{key}`: {why}"))).collect()
        }
    }
}

fn unknown_field(key: &str, entry: &MapEntry, known: &[Key]) -> Option<(Position, String)> {
    let known = known.iter().map(|key| key.name);
    let is_known = known.clone().any(|known| known == entry.key);
    let hint = || did_you_mean(nearest(&entry.key, known));
    (!is_known).then(|| (entry.at, format!("`{key}`: `{}` is not one of its keys{}", shown_key(&entry.key), hint())))
}

fn wrong_field(key: &str, entry: &MapEntry, known: &[Key]) -> Option<(Position, String)> {
    if let Some(unknown) = unknown_field(key, entry, known) {
        return Some(unknown);
    }
    let name = shown_key(&entry.key);
    let wrong = entry.value.text().is_none();
    wrong.then(|| (entry.value.at, format!("`{key}`: `{name}` must be a text or number, not {}", kind(&entry.value))))
}

fn wrong_named(key: &str, entry: &MapEntry, known: &'static [Key]) -> Vec<(Position, String)> {
    let name = shown_key(&entry.key);
    let Value::Map(fields) = &entry.value.value else {
        let right = hints::about_form(Form::Fields(known), entry);
        let message = format!("`{key}`: `{name}` must be a map, not {}{right}", kind(&entry.value));
        return vec![(position_of(entry), message)];
    };
    fields.iter().filter_map(|field| wrong_field(&format!("{key}.{name}"), field, known)).collect()
}

/// The position of a value, or of its key if the value is missing.
pub(super) fn position_of(entry: &MapEntry) -> Position {
    if entry.value.plain() == Some("") { entry.at } else { entry.value.at }
}

fn is_number(node: &Node) -> bool {
    node.plain().is_some_and(|text| {
        text.len() < 19 && text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'))
    })
}

/// True if YAML reads an unquoted text as a number, or as a boolean in another spelling.
fn is_read_otherwise(text: &str) -> bool {
    let like_a_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    match text {
        "True" | "TRUE" | "False" | "FALSE" => true,
        _ if !like_a_number || text.contains(char::is_whitespace) => false,
        _ => !matches!(serde_yaml::from_str(text), Ok(serde_yaml::Value::String(_))),
    }
}

fn rebuilt(node: &Node, entries: Vec<MapEntry>) -> Rc<Node> {
    Rc::new(node.with(Value::Map(entries)))
}

/// The kind of a value, for error messages.
fn kind(node: &Node) -> &'static str {
    match &node.value {
        Value::Map(_) => "a map",
        Value::List(_) => "a list",
        Value::Text { .. } if node.is_null() => "nothing",
        Value::Text { plain: true, text } if matches!(text.as_str(), "true" | "false") => "a boolean",
        Value::Text { plain: true, text } if text.parse::<f64>().is_ok() => "a number",
        Value::Text { .. } => "a text",
    }
}

/// Quotes a key of the file for a message. In YAML, all of `{NAME=value}` is a key, and the value may be secret, so it
/// is left out.
pub(super) fn shown_key(key: &str) -> String {
    key.find('=').map_or_else(|| shown(key), |index| shown(&key[..=index]))
}

/// Quotes a word of the file for a message: on one line and with limited length.
pub(super) fn shown(word: &str) -> String {
    escape::short(word, 100)
}
