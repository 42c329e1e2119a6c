//! The conversion of a file's blocks to jobs.
//!
//! It merges each job with the defaults and checks the rules between values.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::after::Outline;
use super::hooks;
use super::host::Host;
use super::lint;
use super::process;
use super::raw::{self, Given};
use super::schema::{self, shown};
use super::settings::{self, RetrySettings, Settings, Zones};
use super::source::{self, Lines};
use super::spanned::{self, Fault, MapEntry, Node, Position};
use crate::job::{Due, Interrupted, Job, JobName, OnLeaseEnd, Retries, RunAs, Splay};
use crate::schedule::{Place, Schedule};

const DEFAULT_ZONE: &str = "UTC";
const DEFAULT_UMASK: u32 = 0o022;
const DEFAULT_KILL_GRACE: Duration = Duration::from_secs(10);
const DEFAULT_MISFIRE_LIMIT: usize = 100;
const DEFAULT_MAX_OUTPUT: u64 = 1 << 20;

/// The result of checking one file. The jobs are complete only if there are no faults.
#[derive(Default)]
pub(super) struct Checked {
    pub jobs: Vec<(Position, Arc<Job>)>,
    /// Every name under `jobs`, even an invalid one; `None` if the file could not be parsed that far.
    pub names: Option<Vec<String>>,
    /// Upstreams of all jobs with valid names.
    pub outlines: Vec<Outline>,
    pub faults: Vec<Fault>,
    pub warnings: Vec<Fault>,
}

/// Checks one file: positions, form, types, values, relations, and the host.
pub(super) fn file(bytes: &[u8], host: &mut Host) -> Checked {
    let text = match source::text(bytes) {
        Ok(text) => text,
        Err(fault) => return Checked { faults: vec![fault], ..Checked::default() },
    };
    let spanned::Spanned { root, mut faults } = spanned::read(text);
    let names = root.as_ref().map(|root| names(root));
    let Some(sound) = root.and_then(|root| schema::sound_part(&root, &mut faults)) else {
        return Checked { faults, names, ..Checked::default() };
    };
    let raw = match typed(text, &sound, faults.is_empty()) {
        Ok(raw) => raw,
        Err(fault) => {
            faults.push(fault);
            return Checked { faults, names, ..Checked::default() };
        }
    };
    let checked = Checked { faults, names, ..Checked::default() };
    FileCheck { lines: Lines::of(text), zones: Zones::default(), host, checked }.run(raw, &sound)
}

fn names(root: &Node) -> Vec<String> {
    let jobs = root.entry("jobs").map_or(&[][..], |jobs| jobs.value.entries());
    jobs.iter().map(|job| job.key.clone()).collect()
}

/// Runs the second pass. A file with faults is never used; its sound part is parsed only to report all errors.
fn typed(text: &str, sound: &Node, is_faultless: bool) -> Result<raw::File, Fault> {
    let read = if is_faultless {
        serde_yaml::from_str(text)
    } else {
        let mut rest = String::new();
        spanned::write(sound, &mut rest);
        serde_yaml::from_str(&rest)
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
    pub settings: Settings,
    pub node: Option<Rc<Node>>,
}

impl LocatedSettings {
    /// The position of a key's value, if this block has the key.
    pub fn position(&self, key: &str) -> Option<Position> {
        self.node.as_ref()?.entry(key).map(schema::position_of)
    }
}

struct FileCheck<'a> {
    lines: Lines<'a>,
    zones: Zones,
    host: &'a mut Host,
    checked: Checked,
}

impl FileCheck<'_> {
    fn run(mut self, raw: raw::File, sound: &Node) -> Checked {
        let defaults = self.defaults(raw.defaults, sound);
        let mut blocks: BTreeMap<String, raw::Block> = raw.jobs;
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

    fn defaults(&mut self, block: Option<raw::Block>, sound: &Node) -> LocatedSettings {
        let node = sound.entry("defaults").map(|entry| Rc::clone(&entry.value));
        let settings = match (block, &node) {
            (Some(block), Some(node)) => {
                settings::check(block, node, "defaults", &mut self.zones, &mut self.checked.faults)
            }
            _ => Settings::default(),
        };
        LocatedSettings { settings, node }
    }

    fn job(&mut self, entry: &MapEntry, block: raw::Block, defaults: &LocatedSettings) {
        let title = format!("job `{}`", shown(&entry.key));
        let settings = settings::check(block, &entry.value, &title, &mut self.zones, &mut self.checked.faults);
        let own = LocatedSettings { settings, node: Some(Rc::clone(&entry.value)) };
        let name = JobName::parse(&entry.key)
            .map_err(|error| self.fault(entry.at, error.to_string().replace(&entry.key, &shown(&entry.key))))
            .ok();
        self.contradictions(&title, &own, defaults);
        self.on_this_host(&title, &own, defaults);
        let schedule = self.schedule(&title, entry, &own.settings, &defaults.settings);
        self.checked.warnings.extend(lint::about(&title, &own, defaults, schedule.as_ref(), &self.lines));
        let upstreams = own.settings.after.clone().flatten();
        if let Some(name) = name.clone() {
            let enabled = is_enabled(&own.settings, &defaults.settings);
            self.checked.outlines.push(Outline { name, enabled, upstreams: upstreams.clone().unwrap_or_default() });
        }
        let after =
            upstreams.map(|upstreams| Due::After(upstreams.into_iter().map(|up| (up.name, up.condition)).collect()));
        if let (Some(name), Some(due)) = (name, after.or(schedule.map(Due::At)))
            && let Some(job) = job(name, due, own.settings, &defaults.settings)
        {
            self.checked.jobs.push((entry.at, Arc::new(job)));
        }
    }

    /// Checks values that contradict each other. Reports the fault at the job's own value; if both are the job's, at
    /// `on_lease_end`; if neither is, in the defaults.
    fn contradictions(&mut self, title: &str, own: &LocatedSettings, defaults: &LocatedSettings) {
        let reruns = merged(&own.settings.interrupted, &defaults.settings.interrupted) == Some(Interrupted::Rerun);
        let keeps = merged(&own.settings.on_lease_end, &defaults.settings.on_lease_end) == Some(OnLeaseEnd::Keep);
        if !(reruns && keeps) {
            return;
        }
        let own_position = own.position("on_lease_end").or_else(|| own.position("interrupted"));
        let (title, at) = match own_position {
            Some(at) => (title, Some(at)),
            None => ("defaults", defaults.position("on_lease_end")),
        };
        let message = "`on_lease_end: keep` with `interrupted: rerun`: another node may start the run again, \
                       so this one must be killed; leave `on_lease_end` out or write `kill`";
        self.fault(at.unwrap_or(Position::START), format!("{title}: {message}"));
    }

    fn on_this_host(&mut self, title: &str, own: &LocatedSettings, defaults: &LocatedSettings) {
        for objection in self.host.objections(own, defaults) {
            let title = if objection.is_default { "defaults" } else { title };
            let fault = Fault::new(objection.at, format!("{title}: {}", objection.message));
            if objection.is_error { self.checked.faults.push(fault) } else { self.checked.warnings.push(fault) }
        }
    }

    fn schedule(&mut self, title: &str, job: &MapEntry, own: &Settings, defaults: &Settings) -> Option<Schedule> {
        let expressions = own.schedule.clone().flatten()?;
        let expressions: Vec<&str> = expressions.iter().map(String::as_str).collect();
        let zone = merged(&own.timezone, &defaults.timezone);
        let dst = merged(&own.dst, &defaults.dst).unwrap_or_default();
        let parsed = Schedule::parse(&expressions, zone.as_deref().unwrap_or(DEFAULT_ZONE), dst, &job.key);
        parsed
            .map_err(|error| {
                let at = self.position_in_schedule(job, error.offset());
                let expression = error.offset().and_then(|place| expressions.get(place.expression)).copied();
                let hint = expression.and_then(|text| error.hint(text)).map(|hint| format!(" ({hint})"));
                self.fault(at, format!("{title}: `schedule`: {error}{}", hint.unwrap_or_default()));
            })
            .ok()
    }

    fn position_in_schedule(&self, job: &MapEntry, place: Option<Place>) -> Position {
        let Some(schedule) = job.value.entry("schedule") else { return job.at };
        let Some(Place { expression, offset, .. }) = place else { return schedule.value.at };
        let node = schedule.value.items().get(expression).unwrap_or(&schedule.value);
        node.text().map_or(node.at, |text| self.lines.inside(node.at, text, offset))
    }
}

/// A job's own value, otherwise that of the defaults. Null in either means the built-in default.
pub(super) fn merged<T: Clone>(own: &Given<T>, defaults: &Given<T>) -> Option<T> {
    own.clone().unwrap_or_else(|| defaults.clone().flatten())
}

fn is_enabled(own: &Settings, defaults: &Settings) -> bool {
    merged(&own.enabled, &defaults.enabled).unwrap_or(true)
}

fn job(name: JobName, due: Due, own: Settings, defaults: &Settings) -> Option<Job> {
    let enabled = is_enabled(&own, defaults);
    let interrupted = merged(&own.interrupted, &defaults.interrupted).unwrap_or_default();
    let on_lease_end = match interrupted {
        Interrupted::Rerun => OnLeaseEnd::Kill,
        Interrupted::Skip => merged(&own.on_lease_end, &defaults.on_lease_end).unwrap_or_default(),
    };
    let splay = match due {
        Due::At(_) => merged(&own.splay, &defaults.splay).unwrap_or_default(),
        // A job without a schedule has no occurrences to spread.
        Due::After(_) => Duration::ZERO,
    };
    Some(Job {
        splay: Splay::new(splay, name.as_str()),
        name,
        description: merged(&own.description, &defaults.description),
        due,
        command: own.command.flatten()?,
        enabled,
        environment: environment(own.environment, &defaults.environment),
        run_as: RunAs { user: merged(&own.user, &defaults.user), group: merged(&own.group, &defaults.group) },
        nice: merged(&own.nice, &defaults.nice),
        limits: process::limits(own.limits, &defaults.limits),
        working_directory: merged(&own.working_directory, &defaults.working_directory),
        umask: merged(&own.umask, &defaults.umask).unwrap_or(DEFAULT_UMASK),
        timeout: merged(&own.timeout, &defaults.timeout),
        kill_grace: merged(&own.kill_grace, &defaults.kill_grace).unwrap_or(DEFAULT_KILL_GRACE),
        retries: retries(own.retries, &defaults.retries),
        overlap: merged(&own.overlap, &defaults.overlap).unwrap_or_default(),
        concurrency_group: merged(&own.concurrency_group, &defaults.concurrency_group),
        misfire: merged(&own.misfire, &defaults.misfire).unwrap_or_default(),
        misfire_window: merged(&own.misfire_window, &defaults.misfire_window),
        misfire_limit: merged(&own.misfire_limit, &defaults.misfire_limit).unwrap_or(DEFAULT_MISFIRE_LIMIT),
        interrupted,
        on_lease_end,
        success_exit_codes: merged(&own.success_exit_codes, &defaults.success_exit_codes)
            .unwrap_or_else(|| [0].into_iter().collect()),
        max_output: merged(&own.max_output, &defaults.max_output).unwrap_or(DEFAULT_MAX_OUTPUT),
        hooks: hooks::merged(own.hooks, &defaults.hooks),
    })
}

/// Merges a job's retries with the defaults, key by key.
fn retries(own: Given<RetrySettings>, defaults: &Given<RetrySettings>) -> Retries {
    let own = match own {
        Some(None) => return Retries::default(),
        given => given.flatten().unwrap_or_default(),
    };
    let (defaults, builtin) = (defaults.clone().flatten().unwrap_or_default(), Retries::default());
    Retries {
        limit: merged(&own.limit, &defaults.limit).unwrap_or(builtin.limit),
        delay: merged(&own.delay, &defaults.delay).unwrap_or(builtin.delay),
        backoff: merged(&own.backoff, &defaults.backoff).unwrap_or(builtin.backoff),
        max_delay: merged(&own.max_delay, &defaults.max_delay).unwrap_or(builtin.max_delay),
    }
}

/// Merges a job's environment with the defaults, key by key.
fn environment(
    own: Given<BTreeMap<String, String>>,
    defaults: &Given<BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    match own {
        Some(None) => BTreeMap::new(),
        None => defaults.clone().flatten().unwrap_or_default(),
        Some(Some(own)) => {
            let mut all = defaults.clone().flatten().unwrap_or_default();
            all.extend(own);
            all
        }
    }
}
