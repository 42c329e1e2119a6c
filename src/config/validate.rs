//! The conversion of a file's blocks to jobs.
//!
//! It merges each job with the defaults and checks the rules between values.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::after::Outline;
use super::calendars::CalendarsOfFile;
use super::channels::{self, Defined, Mention};
use super::host::Host;
use super::keys::{self, BlockSettings, Merged};
use super::lint;
use super::raw::merged;
use super::schema::{self, shown};
use super::settings::{CalendarSettings, MOST_SECRETS, Zones};
use super::source::{self, Lines};
use super::spanned::{self, Fault, MapEntry, Node, Position};
use cronkeeper_core::job::{Due, Interrupted, Job, JobName, OnLeaseEnd, RunOn};
use cronkeeper_core::schedule::{Calendar, FaultPosition, Patterns, Schedule};

/// The result of checking one file. The jobs are complete only if there are no faults.
#[derive(Default)]
pub(super) struct Checked {
    pub jobs: Vec<(Position, Arc<Job>)>,
    /// Every name under `jobs`, even an invalid one; `None` if the file could not be parsed that far.
    pub names: Option<Vec<String>>,
    /// Upstreams of all jobs with valid names.
    pub outlines: Vec<Outline>,
    pub channels: Vec<Defined>,
    /// Where jobs, and the defaults, name channels.
    pub mentions: Vec<Mention>,
    /// A channel is left out, because something is wrong with it or with the file.
    pub has_lost_channels: bool,
    pub faults: Vec<Fault>,
    pub warnings: Vec<Fault>,
}

/// Checks one file: positions, form, types, values, relations, and the host.
pub(super) fn file(bytes: &[u8], calendars: CalendarsOfFile<'_>, host: &mut Host) -> Checked {
    let text = match source::text(bytes) {
        Ok(text) => text,
        Err(fault) => return Checked { faults: vec![fault], has_lost_channels: true, ..Checked::default() },
    };
    let spanned::Spanned { root, mut faults, .. } = spanned::read(text);
    let names = root.as_ref().map(|root| names(root));
    let Some(sound) = root.and_then(|root| schema::sound_part(&root, keys::KEYS, &mut faults)) else {
        return Checked { faults, names, has_lost_channels: true, ..Checked::default() };
    };
    let raw = match typed(text, &sound, faults.is_empty()) {
        Ok(raw) => raw,
        Err(fault) => {
            faults.push(fault);
            return Checked { faults, names, has_lost_channels: true, ..Checked::default() };
        }
    };
    let before = faults.len();
    let channels = sound.entry("notify").map(|notify| channels::defined(notify, &mut faults)).unwrap_or_default();
    let has_lost_channels = faults.len() > before;
    let mut warnings = Vec::new();
    for Defined { at, name, channel } in &channels {
        // The file can be mended without a reload, and the jobs must not wait for that.
        let wrong = host.unfit_channel(&channel.target).into_iter();
        let lost = "this node could not deliver its messages";
        warnings.extend(wrong.map(|why| Fault::new(*at, format!("channel `{name}`: {why}: {lost}"))));
    }
    let checked = Checked { faults, warnings, names, channels, has_lost_channels, ..Checked::default() };
    let calendars = FileCalendars { named: calendars, made: BTreeMap::new() };
    FileCheck {
        lines: Lines::of(text),
        zones: Zones::default(),
        patterns: Patterns::default(),
        calendars,
        host,
        checked,
    }
    .run(raw, &sound)
}

fn names(root: &Node) -> Vec<String> {
    let jobs = root.entry("jobs").map_or(&[][..], |jobs| jobs.value.entries());
    jobs.iter().map(|job| job.key.clone()).collect()
}

/// Runs the second pass. A file with faults is never used; its sound part is parsed only to report all errors.
///
/// YAML has a tab separate two values as a space does. This parser does not take it everywhere, so a text that it
/// cannot read and that has a tab is read as the first pass has understood it.
fn typed(text: &str, sound: &Node, is_faultless: bool) -> Result<keys::File, Fault> {
    let of_tree = || {
        let mut rest = String::new();
        spanned::write(sound, &mut rest);
        serde_yaml::from_str(&rest)
    };
    let read = match is_faultless {
        true => serde_yaml::from_str(text).or_else(|error| {
            let has_tab = text.contains('\t');
            if has_tab { of_tree().map_err(|_| error) } else { Err(error) }
        }),
        false => of_tree(),
    };
    read.map_err(|error: serde_yaml::Error| {
        let at = error.location().filter(|_| is_faultless);
        let at = at.map_or(Position::START, |at| Position { line: at.line(), column: at.column() });
        // The error's own text would quote the value, which may be secret.
        Fault::new(at, "this value does not have the type that its key requires; put it in quotes")
    })
}

/// A block's settings, and the node with their positions.
pub(super) struct LocatedSettings {
    pub settings: BlockSettings,
    pub node: Option<Rc<Node>>,
}

impl LocatedSettings {
    /// The position of a key's value, if this block has the key.
    pub fn position(&self, key: &str) -> Option<Position> {
        self.node.as_ref()?.entry(key).map(schema::position_of)
    }
}

/// The calendars of a file's jobs. Many jobs have the same one, so each is made once.
struct FileCalendars<'a> {
    named: CalendarsOfFile<'a>,
    made: BTreeMap<[Vec<String>; 2], Calendar>,
}

impl FileCalendars<'_> {
    fn of(&mut self, settings: &CalendarSettings) -> Option<Calendar> {
        let files = [&settings.exclude, &settings.only].map(|files| files.clone().flatten().unwrap_or_default());
        if files.iter().all(Vec::is_empty) {
            return None;
        }
        let names = files.each_ref().map(|files| files.iter().map(|file| file.name.clone()).collect());
        let [exclude, only] = files;
        Some(self.made.entry(names).or_insert_with(|| Calendar::new(exclude, only)).clone())
    }
}

struct FileCheck<'a> {
    lines: Lines<'a>,
    zones: Zones,
    patterns: Patterns,
    calendars: FileCalendars<'a>,
    host: &'a mut Host,
    checked: Checked,
}

impl FileCheck<'_> {
    fn run(mut self, raw: keys::File, sound: &Node) -> Checked {
        let defaults = self.defaults(raw.defaults, sound);
        let mut blocks: BTreeMap<String, keys::Block> = raw.jobs;
        for entry in sound.entry("jobs").map_or(&[][..], |jobs| jobs.value.entries()) {
            match blocks.remove(&entry.key) {
                Some(block) => self.job(entry, block, &defaults),
                None => self.fault(entry.at, "the second YAML parser reads this name differently; quote it"),
            }
        }
        self.checked
    }

    fn fault(&mut self, at: Position, message: impl Into<String>) {
        self.checked.faults.push(Fault::new(at, message));
    }

    fn defaults(&mut self, block: Option<keys::Block>, sound: &Node) -> LocatedSettings {
        let node = sound.entry("defaults").map(|entry| Rc::clone(&entry.value));
        let settings = match (block, &node) {
            (Some(block), Some(node)) => {
                keys::check(block, node, "defaults", &mut self.zones, self.calendars.named, &mut self.checked.faults)
            }
            _ => BlockSettings::default(),
        };
        let mentions = node.as_ref().map(|node| channels::mentions(node, "defaults"));
        self.checked.mentions.extend(mentions.into_iter().flatten());
        let defaults = LocatedSettings { settings, node };
        self.checked.warnings.extend(lint::about_defaults(&defaults, &self.lines));
        defaults
    }

    fn job(&mut self, entry: &MapEntry, block: keys::Block, defaults: &LocatedSettings) {
        let title = format!("job `{}`", shown(&entry.key));
        let (zones, faults) = (&mut self.zones, &mut self.checked.faults);
        let settings = keys::check(block, &entry.value, &title, zones, self.calendars.named, faults);
        self.checked.mentions.extend(channels::mentions(&entry.value, &title));
        let own = LocatedSettings { settings, node: Some(Rc::clone(&entry.value)) };
        let name = JobName::parse(&entry.key)
            .map_err(|error| self.fault(entry.at, error.to_string().replace(&entry.key, &shown(&entry.key))))
            .ok();
        self.contradictions(&title, &own, defaults);
        self.useless_run_where(&title, &own, defaults);
        self.on_this_host(&title, &own, defaults);
        let values = Merged::of(&own.settings, &defaults.settings);
        self.contradictory_secrets(&title, &own, &values);
        let schedule = self.schedule(&title, entry, &values);
        self.checked.warnings.extend(lint::about(&title, &own, defaults, schedule.as_ref(), &self.lines));
        let is_over = schedule.as_ref().is_some_and(|schedule| schedule.next_after(self.host.now).is_none());
        if is_over && values.enabled {
            let at = entry.value.entry("schedule").map_or(entry.at, |schedule| schedule.value.at);
            let of = if schedule.as_ref().is_some_and(|schedule| schedule.calendar().is_some()) {
                "`schedule` with its `calendar`"
            } else {
                "`schedule`"
            };
            let message = format!("{title}: {of} has no occurrence from now on, so the job never runs by itself");
            self.checked.warnings.push(Fault::new(at, message));
        }
        let upstreams = values.after.clone();
        if let Some(name) = name.clone() {
            let enabled = values.enabled;
            let upstreams = upstreams.clone().unwrap_or_default();
            let is_on_every_node = values.run_on == RunOn::Every;
            self.checked.outlines.push(Outline { name, enabled, is_on_every_node, is_over, upstreams });
        }
        let after =
            upstreams.map(|upstreams| Due::After(upstreams.into_iter().map(|up| (up.name, up.condition)).collect()));
        if let (Some(name), Some(due)) = (name, after.or(schedule.map(Due::At)))
            && let Some(job) = keys::job(name, due, values)
        {
            self.checked.jobs.push((entry.at, Arc::new(job)));
        }
    }

    /// Checks values that contradict each other. Reports the fault at the job's own value; if both are the job's, at
    /// `on_lease_end`; if neither is, in the defaults.
    fn contradictions(&mut self, title: &str, own: &LocatedSettings, defaults: &LocatedSettings) {
        if merged(&own.settings.on_lease_end, &defaults.settings.on_lease_end) != Some(OnLeaseEnd::Keep) {
            return;
        }
        let reruns = merged(&own.settings.interrupted, &defaults.settings.interrupted) == Some(Interrupted::Rerun);
        let locks = merged(&own.settings.lock, &defaults.settings.lock).is_some_and(|paths| !paths.is_empty());
        let (other, why) = match (reruns, locks) {
            (true, _) => ("interrupted", "`interrupted: rerun`: another node may start the run again"),
            (false, true) => ("lock", "`lock`: another client may get the lock"),
            (false, false) => return,
        };
        let own_position = own.position("on_lease_end").or_else(|| own.position(other));
        let (title, at) = match own_position {
            Some(at) => (title, Some(at)),
            None => ("defaults", defaults.position("on_lease_end")),
        };
        let message = format!(
            "`on_lease_end: keep` with {why}, so this run must be killed; leave out `on_lease_end` or write `kill`"
        );
        self.fault(at.unwrap_or(Position::START), format!("{title}: {message}"));
    }

    /// A job that says which nodes it runs on, and runs on the leader all the same, is a mistake. That of the defaults is
    /// for the jobs that are placed.
    fn useless_run_where(&mut self, title: &str, own: &LocatedSettings, defaults: &LocatedSettings) {
        let run_on = merged(&own.settings.run_on, &defaults.settings.run_on).unwrap_or_default();
        let asks = own.settings.run_where.as_ref().is_some_and(|own| own.as_ref().is_some_and(|own| !own.is_empty()));
        if let Some(at) = own.position("run_where").filter(|_| asks && !run_on.is_placed()) {
            let why = "the job runs on the node that leads, whatever its labels; write `run_on: any` or \
                       `run_on: every` too";
            self.fault(at, format!("{title}: `run_where` with `run_on: leader`: {why}"));
        }
    }

    /// Checks `secrets` as merged: their number, and that neither `environment` nor a trigger sets their variables too.
    fn contradictory_secrets(&mut self, title: &str, own: &LocatedSettings, values: &Merged) {
        let own_entry = |key: &str, name: &str| {
            let found = own.node.as_ref().and_then(|node| node.entry(key)?.value.entry(name));
            found.map(|entry| entry.at)
        };
        let here = own.node.as_ref().map_or(Position::START, |node| node.at);
        if values.secrets.len() > MOST_SECRETS {
            let at = own.position("secrets").unwrap_or(here);
            self.fault(at, format!("{title}: `secrets`: a job has at most {MOST_SECRETS} secrets"));
        }
        for name in values.secrets.keys() {
            let variable = format!("{name}_FILE");
            if values.environment.contains_key(&variable) {
                let at = own_entry("environment", &variable).or_else(|| own_entry("secrets", name)).unwrap_or(here);
                let why =
                    format!("`{}` sets the variable `{}`, and so does `environment`", shown(name), shown(&variable));
                self.fault(at, format!("{title}: `secrets`: {why}"));
            }
            if values.parameters.contains(&variable) {
                let at = own.position("parameters").or_else(|| own_entry("secrets", name)).unwrap_or(here);
                let why = format!(
                    "`{}` sets the variable `{}`, and `parameters` lists it too",
                    shown(name),
                    shown(&variable)
                );
                self.fault(at, format!("{title}: `secrets`: {why}"));
            }
        }
    }

    fn on_this_host(&mut self, title: &str, own: &LocatedSettings, defaults: &LocatedSettings) {
        for objection in self.host.objections(own, defaults) {
            let title = if objection.is_default { "defaults" } else { title };
            let fault = Fault::new(objection.at, format!("{title}: {}", objection.message));
            if objection.is_error { self.checked.faults.push(fault) } else { self.checked.warnings.push(fault) }
        }
    }

    fn schedule(&mut self, title: &str, job: &MapEntry, values: &Merged) -> Option<Schedule> {
        let expressions: Vec<&str> = values.schedule.as_ref()?.iter().map(String::as_str).collect();
        let parsed = Schedule::parse_sharing(&mut self.patterns, &expressions, &values.timezone, values.dst, &job.key);
        let calendar = self.calendars.of(&values.calendar);
        parsed
            .map(|schedule| if calendar.is_some() { schedule.with_calendar(calendar) } else { schedule })
            .map_err(|error| {
                let at = self.position_in_schedule(job, error.position());
                let expression = error.position().and_then(|position| expressions.get(position.expression)).copied();
                let hint = expression.and_then(|text| error.hint(text)).map(|hint| format!(" ({hint})"));
                self.fault(at, format!("{title}: `schedule`: {error}{}", hint.unwrap_or_default()));
            })
            .ok()
    }

    fn position_in_schedule(&self, job: &MapEntry, fault: Option<FaultPosition>) -> Position {
        let Some(schedule) = job.value.entry("schedule") else { return job.at };
        let Some(FaultPosition { expression, offset, .. }) = fault else { return schedule.value.at };
        let node = schedule.value.items().get(expression).unwrap_or(&schedule.value);
        node.text().map_or(node.at, |text| self.lines.inside(node.at, text, offset))
    }
}
