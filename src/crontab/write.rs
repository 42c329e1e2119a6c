//! Writes the lines of a crontab as jobs, in their order and with their comments.
//!
//! In a crontab, a setting applies to the entries that follow. Here, variables that all entries share are written under
//! `defaults`, and all others in each job. Remarks about a line are written before it; those about a loss are also
//! notes.

use std::collections::BTreeMap;

use super::entry::CrontabEntry;
use super::environment::{self, Environment};
use super::job::{JobCommand, YamlKeys};
use super::line::{Line, LineKind};
use super::mail::{self, MailChannels};
use super::name::JobNames;
use super::setting::Setting;
use super::when;
use super::yaml::{comment, quoted, scalar};
use super::{ImportError, ImportNote, Imported, Origin, Remark};
use crate::config;
use cronkeeper_core::job::RunAs;
use cronkeeper_core::schedule::{Dst, Fault, Schedule, ScheduleError, known_zone};

/// Most bytes of the result. Half of the limit of a jobs file, so that the limit on the number of values holds, too.
const LARGEST_JOBS: usize = config::LARGEST / 2;

pub(super) fn jobs(lines: &[Line], origin: &Origin<'_>) -> Result<Imported, ImportError> {
    let mut writer = Writer::new(lines, origin);
    for (index, line) in lines.iter().enumerate() {
        writer.line(lines, index);
        // Checked after each line: a variable is repeated in each job that does not share it, so the result could
        // become much larger than the crontab.
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
    /// Variables of the next entry.
    environment: Environment,
    /// Variables that all entries share.
    shared: Environment,
    zone: String,
    names: JobNames,
    mail: MailChannels,
    /// The channel that all jobs have unless they name another.
    shared_mail: Option<String>,
    /// Users and groups that were looked up, each with what is missing of them.
    looked_up: BTreeMap<RunAs, Option<String>>,
    body: YamlKeys,
    notes: Vec<ImportNote>,
    has_jobs: bool,
}

impl<'a> Writer<'a> {
    fn new(lines: &[Line], origin: &'a Origin<'a>) -> Self {
        let (shared, mut mail) = (environment::shared(lines), MailChannels::default());
        Self {
            origin,
            environment: Environment::new(),
            shared_mail: mail.channel(&shared).unwrap_or_default(),
            mail,
            shared,
            zone: origin.zone.to_owned(),
            names: JobNames::default(),
            looked_up: BTreeMap::new(),
            body: YamlKeys::new(2),
            notes: Vec::new(),
            has_jobs: false,
        }
    }

    fn line(&mut self, lines: &[Line], index: usize) {
        let line = &lines[index];
        match &line.kind {
            LineKind::Blank if self.body.text.ends_with("\n\n") || self.body.text.is_empty() => {}
            LineKind::Blank => self.body.text.push('\n'),
            LineKind::Comment(text) if describes(lines, index) && description(text).is_some() => {}
            LineKind::Comment(text) => self.body.line(&format!("#{}", comment(text))),
            LineKind::Setting(setting) => self.setting(line, setting),
            LineKind::Entry(entry) => self.entry(line, entry, described(lines, index)),
            LineKind::Refused(why) => self.refused(line, why),
        }
    }

    /// Writes a line as a comment, with the reason why it is not carried over.
    fn refused(&mut self, line: &Line, why: &str) {
        let why = format!("not carried over: {}", comment(why));
        self.body.line(&format!("# {why}"));
        self.body.line(&format!("# {}", comment(&line.text)));
        self.notes.push(ImportNote { line: line.number, text: why });
    }

    fn remark(&mut self, line: &Line, remark: &Remark) {
        let text = comment(&remark.text);
        self.body.line(&format!("# {text}"));
        if remark.is_loss {
            self.notes.push(ImportNote { line: line.number, text });
        }
    }

    fn setting(&mut self, line: &Line, setting: &Setting) {
        environment::set(&mut self.environment, setting);
        if let Some(why) = environment::refused(setting) {
            return self.refused(line, why);
        }
        let own = environment::remarks(setting);
        for remark in line.remarks.iter().chain(&own) {
            self.remark(line, remark);
        }
        if setting.name == "CRON_TZ" {
            self.zone = known_zone(&setting.value).unwrap_or_else(|| self.origin.zone.to_owned());
        }
    }

    fn entry(&mut self, line: &Line, entry: &CrontabEntry, description: Option<&str>) {
        let name = self.names.of(&entry.command);
        let command = JobCommand::of(entry, &self.environment);
        if let Err(why) = must_run(entry, &command, &self.zone, &name) {
            if let Some(text) = description {
                self.body.line(&format!("# {}", comment(text)));
            }
            return self.refused(line, &why);
        }
        let user = self.missing_user(entry);
        let (mail, mailless) = match self.mail.channel(&self.environment) {
            Ok(mail) => (mail, None),
            Err(remark) => (None, Some(remark)),
        };
        let remarks =
            line.remarks.iter().chain(&entry.when.remarks).chain(&entry.remarks).chain(&user).chain(&mailless);
        for remark in remarks {
            self.remark(line, remark);
        }
        let keys = self.keys(entry, &command, description, mail.as_deref());
        self.body.line(&format!("{}:", scalar(&name)));
        self.body.text.push_str(&keys.text);
        self.has_jobs = true;
    }

    /// A remark, if the user of an entry does not exist on this host.
    fn missing_user(&mut self, entry: &CrontabEntry) -> Option<Remark> {
        let user = entry.user.as_ref()?;
        let run_as = RunAs { user: Some(user.name.clone()), group: user.group.clone() };
        let missing = self.looked_up.entry(run_as).or_insert_with_key(self.origin.missing).as_ref()?;
        let text = format!(
            "{missing}: without it cronie refuses the entry, Debian's cron the whole crontab, and runs fail with `no-user`"
        );
        Some(Remark::loss(text))
    }

    fn keys(
        &self,
        entry: &CrontabEntry,
        command: &JobCommand,
        description: Option<&str>,
        mail: Option<&str>,
    ) -> YamlKeys {
        let mut keys = YamlKeys::new(4);
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
        if entry.is_of_each_host {
            keys.line("run_on: every");
        }
        if mail != self.shared_mail.as_deref() || (mail.is_some() && entry.mails_failures_only) {
            keys.line(&format!("notify: {}", mail::notify(mail, Some(entry))));
        }
        keys.command(command);
        let is_own = |(name, value): &(&String, &String)| self.shared.get(*name) != Some(*value);
        let own = self.environment.iter().filter(is_own).map(|(n, v)| (n.clone(), v.clone())).collect();
        keys.environment_of_a_job(&self.environment, own, command);
        keys
    }

    /// A note, if the owner of the crontab does not exist on this host.
    fn orphan(&self) -> Option<String> {
        let owner = self.origin.owner?;
        let missing = (self.origin.missing)(&RunAs { user: Some(owner.to_owned()), group: None })?;
        Some(format!("{missing}: without it cron ignores the whole crontab, and runs fail with `no-user`"))
    }

    fn done(mut self) -> Imported {
        if let Some(text) = self.orphan() {
            self.notes.insert(0, ImportNote { line: 1, text });
        }
        let mut file = YamlKeys::new(0);
        self.head(&mut file);
        file.line("");
        self.mail.write(&mut file);
        self.defaults(&mut file);
        file.line("");
        // With only comments below it, `jobs:` would be null and not a map.
        file.line(if self.has_jobs { "jobs:" } else { "jobs: {}" });
        file.text.push_str(self.body.text.trim_end());
        file.text.truncate(file.text.trim_end().len());
        file.line("");
        Imported { yaml: file.text, notes: self.notes, looks_like: None }
    }

    fn head(&self, file: &mut YamlKeys) {
        file.line(&format!("# Imported from {}.", comment(self.origin.name)));
        file.line("# As with cron, a job starts even while its last run is still running, and missed occurrences are");
        file.line(
            "# skipped. Unlike cron, output goes to the log, mail is sent only with MAILTO, and processes that a",
        );
        file.line("# command leaves in the background are killed when it ends.");
        file.line("# Take the entries out of cron on every host: as long as they are there, cron runs them too.");
        if !self.shared.contains_key("PATH") {
            file.line(
                "# A job without its own PATH gets /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin;",
            );
            file.line("# some crons set only /usr/bin:/bin.");
        }
        if let Some(text) = self.orphan() {
            file.line(&format!("# {}", comment(&text)));
        }
        let has_user = self.origin.system || self.origin.owner.is_some();
        if !has_user {
            file.line("# cron ran these entries as the owner of the crontab;");
            file.line("# here they run as the user of `cronkeeper run`.");
        }
    }

    fn defaults(&self, file: &mut YamlKeys) {
        file.line("defaults:");
        let mut keys = YamlKeys::new(2);
        keys.line(&format!("timezone: {}", scalar(self.origin.zone)));
        keys.line("overlap: allow");
        keys.line("misfire: skip");
        if let Some(owner) = self.origin.owner.filter(|owner| *owner != "root") {
            keys.line(&format!("user: {}", scalar(owner)));
        }
        if let Some(mail) = &self.shared_mail {
            keys.line(&format!("notify: {}", mail::notify(Some(mail), None)));
        }
        keys.environment(&self.shared);
        file.text.push_str(&keys.text);
    }
}

/// Finds errors that `cronkeeper check` would report about a job that cron accepts.
fn must_run(entry: &CrontabEntry, command: &JobCommand, zone: &str, name: &str) -> Result<(), String> {
    if command.is_too_long() {
        return Err("the command is longer than 128 KiB, which is the most that a process can get".to_owned());
    }
    match Schedule::parse(&[&entry.when.expression], zone, Dst::Once, name) {
        Ok(_) => Ok(()),
        Err(error @ ScheduleError::Expression { fault: Fault::Impossible { .. }, .. }) => {
            Err(format!("cron accepts it, but it {error}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The keys `user` and `group` of a job; root is the default.
fn user_keys(entry: &CrontabEntry) -> Vec<(&'static str, &str)> {
    let Some(user) = &entry.user else { return Vec::new() };
    let name = Some(("user", user.name.as_str())).filter(|(_, name)| *name != "root");
    name.into_iter().chain(user.group.as_deref().map(|group| ("group", group))).collect()
}

/// The description of an entry, taken from the comment before it.
fn described(lines: &[Line], index: usize) -> Option<&str> {
    let before = index.checked_sub(1).filter(|before| describes(lines, *before))?;
    match &lines[before].kind {
        LineKind::Comment(text) => description(text),
        _ => None,
    }
}

/// True for a comment of one line directly before an entry.
fn describes(lines: &[Line], index: usize) -> bool {
    let is_comment = |line: Option<&Line>| line.is_some_and(|line| matches!(line.kind, LineKind::Comment(_)));
    is_comment(lines.get(index))
        && !is_comment(index.checked_sub(1).and_then(|before| lines.get(before)))
        && matches!(lines.get(index + 1).map(|line| &line.kind), Some(LineKind::Entry(_)))
}

/// A comment that reads like text, and not like a table heading or an entry that is commented out.
fn description(text: &str) -> Option<&str> {
    const LONGEST: usize = 120;
    let text = text.trim_matches(['#', ' ', '\t', '-', '=']);
    let is_heading = text.contains("dom") && text.contains("mon");
    let has_words = text.starts_with(|c: char| c.is_alphabetic()) && text.len() <= LONGEST;
    (has_words && !is_heading && comment(text) == text && !holds_an_entry(text)).then_some(text)
}

/// True if times begin anywhere in a comment, as in `disabled: 0 5 * * * /usr/local/bin/old`.
fn holds_an_entry(text: &str) -> bool {
    let mut starts = text.match_indices(|c: char| c.is_ascii_digit() || matches!(c, '*' | '@'));
    starts.any(|(at, _)| when::take(&text[at..]).is_ok_and(|(_, command)| !command.is_empty()))
}
