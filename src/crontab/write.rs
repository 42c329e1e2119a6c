//! The lines of a crontab written as jobs, in their order and with their comments.
//!
//! A setting holds for the entries that follow, in cron as here: what all entries share stands under `defaults`, the
//! rest with each job. What is said about a line stands before it, and in the notes where something is lost.

use super::entry::Entry;
use super::environment::{self, Environment};
use super::job::{Command, Keys};
use super::line::{Line, What};
use super::name::Names;
use super::setting::Setting;
use super::yaml::{comment, quoted, scalar};
use super::{ImportError, Imported, Note, Origin, Remark};
use crate::config;
use crate::schedule::{Dst, Fault, Schedule, ScheduleError, known_zone};

/// Half of what a jobs file may be, so that it holds no more values than it may either, be they ever so short.
const LARGEST_JOBS: usize = config::LARGEST / 2;

/// Writes them.
pub(super) fn jobs(lines: &[Line], origin: &Origin<'_>) -> Result<Imported, ImportError> {
    let mut writer = Writer::new(lines, origin);
    for (index, line) in lines.iter().enumerate() {
        writer.line(lines, index);
        // A variable is repeated for every job that has it to itself: without a look now and then that grows.
        if writer.body.text.len() > LARGEST_JOBS {
            return Err(ImportError::TooMuch { line: line.number });
        }
    }
    let last = lines.last().map_or(1, |line| line.number);
    let imported = writer.done();
    if imported.yaml.len() > LARGEST_JOBS { Err(ImportError::TooMuch { line: last }) } else { Ok(imported) }
}

struct Writer<'a> {
    origin: &'a Origin<'a>,
    /// As it is for the next entry.
    environment: Environment,
    /// As it is for all entries.
    shared: Environment,
    zone: String,
    names: Names,
    body: Keys,
    notes: Vec<Note>,
    has_jobs: bool,
}

impl<'a> Writer<'a> {
    fn new(lines: &[Line], origin: &'a Origin<'a>) -> Self {
        Self {
            origin,
            environment: Environment::new(),
            shared: environment::shared(lines),
            zone: origin.zone.to_owned(),
            names: Names::default(),
            body: Keys::new(2),
            notes: Vec::new(),
            has_jobs: false,
        }
    }

    fn line(&mut self, lines: &[Line], index: usize) {
        let line = &lines[index];
        match &line.what {
            What::Blank if self.body.text.ends_with("\n\n") || self.body.text.is_empty() => {}
            What::Blank => self.body.text.push('\n'),
            What::Comment(text) if describes(lines, index) && description(text).is_some() => {}
            What::Comment(text) => self.body.line(&format!("#{}", comment(text))),
            What::Setting(setting) => self.setting(line, setting),
            What::Entry(entry) => self.entry(line, entry, described(lines, index)),
            What::Refused(why) => self.refused(line, why),
        }
    }

    /// A line that no job comes of.
    fn refused(&mut self, line: &Line, why: &str) {
        let why = format!("not carried over: {}", comment(why));
        self.body.line(&format!("# {why}"));
        self.body.line(&format!("# {}", comment(&line.text)));
        self.notes.push(Note { line: line.number, text: why });
    }

    fn remark(&mut self, line: &Line, remark: &Remark) {
        let text = comment(&remark.text);
        self.body.line(&format!("# {text}"));
        if remark.is_loss {
            self.notes.push(Note { line: line.number, text });
        }
    }

    fn setting(&mut self, line: &Line, setting: &Setting) {
        if let Some(why) = environment::refused(setting) {
            return self.refused(line, why);
        }
        let own = environment::remarks(setting);
        for remark in line.remarks.iter().chain(&own) {
            self.remark(line, remark);
        }
        environment::set(&mut self.environment, setting);
        if setting.name == "CRON_TZ" {
            self.zone = known_zone(&setting.value).unwrap_or_else(|| self.origin.zone.to_owned());
        }
    }

    fn entry(&mut self, line: &Line, entry: &Entry, description: Option<&str>) {
        let name = self.names.of(&entry.command);
        let command = Command::of(entry, &self.environment);
        if let Err(why) = must_run(entry, &command, &self.zone, &name) {
            if let Some(text) = description {
                self.body.line(&format!("# {}", comment(text)));
            }
            return self.refused(line, &why);
        }
        let remarks = line.remarks.iter().chain(&entry.when.remarks).chain(&entry.remarks);
        for remark in remarks {
            self.remark(line, remark);
        }
        let keys = self.keys(entry, &command, description);
        self.body.line(&format!("{}:", scalar(&name)));
        self.body.text.push_str(&keys.text);
        self.has_jobs = true;
    }

    fn keys(&self, entry: &Entry, command: &Command, description: Option<&str>) -> Keys {
        let mut keys = Keys::new(4);
        if let Some(text) = description {
            keys.line(&format!("description: {}", quoted(text)));
        }
        keys.line(&format!("schedule: \"{}\"", entry.when.expression));
        if self.zone != self.origin.zone {
            keys.line(&format!("timezone: {}", scalar(&self.zone)));
        }
        for (key, value) in user_keys(entry) {
            keys.line(&format!("{key}: {}", scalar(value)));
        }
        if entry.single {
            keys.line("overlap: skip");
        }
        keys.command(command);
        let is_own = |(name, value): &(&String, &String)| self.shared.get(*name) != Some(*value);
        keys.environment(&self.environment.iter().filter(is_own).map(|(n, v)| (n.clone(), v.clone())).collect());
        keys
    }

    fn done(self) -> Imported {
        let mut file = Keys::new(0);
        self.head(&mut file);
        file.line("");
        self.defaults(&mut file);
        file.line("");
        // A map that holds nothing but comments would be no map.
        file.line(if self.has_jobs { "jobs:" } else { "jobs: {}" });
        file.text.push_str(self.body.text.trim_end());
        file.text.truncate(file.text.trim_end().len());
        file.line("");
        Imported { yaml: file.text, notes: self.notes }
    }

    fn head(&self, file: &mut Keys) {
        file.line(&format!("# Imported from {}.", comment(self.origin.name)));
        file.line(
            "# As with cron: a job starts also while its last run still goes on, and what came due while nothing ran",
        );
        file.line(
            "# is not made up. Not as with cron: output goes into the log, not into mail, and what a command leaves",
        );
        file.line("# running in the background is ended with it.");
        if !self.shared.contains_key("PATH") {
            file.line("# A job without a PATH of its own has /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; some crons");
            file.line("# give only /usr/bin:/bin.");
        }
        let has_user = self.origin.system || self.origin.owner.is_some();
        if !has_user {
            file.line("# cron ran these as the user whose crontab it is; here it is the user of `cronkeeper run`.");
        }
    }

    fn defaults(&self, file: &mut Keys) {
        file.line("defaults:");
        let mut keys = Keys::new(2);
        keys.line(&format!("timezone: {}", scalar(self.origin.zone)));
        keys.line("overlap: allow");
        keys.line("misfire: skip");
        if let Some(owner) = self.origin.owner.filter(|owner| *owner != "root") {
            keys.line(&format!("user: {}", scalar(owner)));
        }
        keys.environment(&self.shared);
        file.text.push_str(&keys.text);
    }
}

/// What `check` would say about a job that cron accepted.
fn must_run(entry: &Entry, command: &Command, zone: &str, name: &str) -> Result<(), String> {
    if command.is_too_long() {
        return Err("the command is longer than the 128 KiB that can be handed to a process".to_owned());
    }
    match Schedule::parse(&[&entry.when.expression], zone, Dst::Once, name) {
        Ok(_) => Ok(()),
        Err(error @ ScheduleError::Expression { fault: Fault::Impossible { .. }, .. }) => {
            Err(format!("cron takes it, but it {error}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Jobs run as root where nothing else is said.
fn user_keys(entry: &Entry) -> Vec<(&'static str, &str)> {
    let Some(user) = &entry.user else { return Vec::new() };
    let name = Some(("user", user.name.as_str())).filter(|(_, name)| *name != "root");
    name.into_iter().chain(user.group.as_deref().map(|group| ("group", group))).collect()
}

/// The comment before an entry that says what it is for.
fn described(lines: &[Line], index: usize) -> Option<&str> {
    let before = index.checked_sub(1).filter(|before| describes(lines, *before))?;
    match &lines[before].what {
        What::Comment(text) => description(text),
        _ => None,
    }
}

/// True for a comment of one line directly before an entry.
fn describes(lines: &[Line], index: usize) -> bool {
    let is_comment = |line: Option<&Line>| line.is_some_and(|line| matches!(line.what, What::Comment(_)));
    is_comment(lines.get(index))
        && !is_comment(index.checked_sub(1).and_then(|before| lines.get(before)))
        && matches!(lines.get(index + 1).map(|line| &line.what), Some(What::Entry(_)))
}

/// A comment in words; not the heading of a table, nor an entry that is commented out.
fn description(text: &str) -> Option<&str> {
    const LONGEST: usize = 120;
    let text = text.trim_matches(['#', ' ', '\t', '-', '=']);
    let is_heading = text.contains("dom") && text.contains("mon");
    let has_words = text.starts_with(|c: char| c.is_alphabetic()) && text.len() <= LONGEST;
    (has_words && !is_heading && comment(text) == text).then_some(text)
}
