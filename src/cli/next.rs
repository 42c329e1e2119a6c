//! `cronkeeper next`: lists upcoming occurrences, without a daemon, or those that a node knows.

mod show;

use std::cell::LazyCell;
use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde::{Deserialize, Serialize};

use super::ask::{AskFailure, ClientArgs};
use super::jobs::{JobsFile, find};
use super::{DEFAULT_JOBS, Error, Io, json};
use crate::api::client::{AskError, Client};
use crate::api::next::{Coming, ComingOccurrence, LeftOut, LeftOutInstant, NoOccurrence, all_left_out, steps};
use crate::status::{NodeStatus, NodesDocument, PlaceState, away_in_words};
use cronkeeper_core::escape;
use cronkeeper_core::job::{Job, JobName, Requirement, RunOn, RunWhere};
use cronkeeper_core::schedule::{Dst, Schedule};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show only these jobs; with --schedule, the job name that determines `H`
    #[arg(value_name = "JOB")]
    names: Vec<String>,
    /// Occurrences of each job or expression [default: 1 of every job; 5 if jobs or an expression are given]
    #[arg(short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    n: Option<u32>,
    /// Show occurrences after this instant [default: now]
    #[arg(long, value_name = "RFC3339")]
    from: Option<Timestamp>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    jobs: JobsFile,
    /// Show this expression instead of jobs, such as "30 2 * * *"
    #[arg(long, value_name = "EXPR")]
    schedule: Option<String>,
    /// The time zone of --schedule
    #[arg(long, value_name = "TZ", default_value = "UTC", requires = "schedule")]
    timezone: String,
    #[command(flatten)]
    client: ClientArgs,
}

struct Occurrence {
    instant: Timestamp,
    job: Option<JobName>,
    local: Zoned,
    /// What a clock shift does to it.
    clock_shift: Option<String>,
    /// What the job's calendar leaves out before it.
    left_out: Option<LeftOut>,
}

/// A line of `--json`. Programs depend on its fields: docs/contract.md.
#[derive(Serialize)]
struct JsonLine<'a> {
    job: Option<&'a str>,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<JsonLeftOut>,
}

#[derive(Serialize)]
struct JsonLeftOut {
    count: u64,
    first: Vec<JsonLeftOutInstant>,
}

#[derive(Serialize)]
struct JsonLeftOutInstant {
    at: String,
    calendar: String,
}

impl Args {
    /// Lists the occurrences by time.
    ///
    /// # Errors
    /// When the jobs or the expression are invalid, or a named job does not exist.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let from = self.from.unwrap_or_else(|| cronkeeper_core::clock::system::now().wall);
        let mut occurrences = match &self.schedule {
            Some(expression) => self.of_expression(expression, from, io)?,
            None => match self.client.host.client().map_err(AskFailure::from)? {
                Some(client) => self.of_host(&client, from, io)?,
                None => match self.own_daemon() {
                    Some(Ok(client)) => self.of_host(&client, from, io)?,
                    Some(Err(error)) => self.of_jobs(from, io).inspect_err(|_| {
                        // What cannot be said does not hide the error.
                        let _ = writeln!(io.err, "cronkeeper: {error}");
                    })?,
                    None => self.of_jobs(from, io)?,
                },
            },
        };
        occurrences.sort_by(|a, b| (a.instant, &a.job).cmp(&(b.instant, &b.job)));
        if self.json {
            return json(&occurrences, io);
        }
        if !occurrences.is_empty() {
            show::table(&occurrences, from, io.out)?;
            show::left_out(&occurrences, io.out)?;
        }
        Ok(())
    }

    fn count(&self) -> usize {
        let is_overview = self.names.is_empty() && self.schedule.is_none();
        self.n.unwrap_or(if is_overview { 1 } else { 5 }) as usize
    }

    /// The occurrences of `--schedule`. Without `--json`, a description of the expression is printed first.
    fn of_expression(&self, expression: &str, from: Timestamp, io: &mut Io<'_>) -> Result<Vec<Occurrence>, Error> {
        let name = match self.names.as_slice() {
            [] if is_hashed(expression) => return Err(Error::HashedWithoutName),
            [] => "",
            [name] => name,
            [_, _, ..] => return Err(Error::SeveralNames),
        };
        let schedule = Schedule::parse(&[expression], &self.timezone, Dst::default(), name)
            .map_err(|source| Error::Schedule { expression: expression.to_owned(), source })?;
        if !self.json {
            writeln!(io.out, "{}, {}\n", schedule.describe(), schedule.zone_name())?;
        }
        let upcoming = upcoming(None, &schedule, from, self.count());
        if upcoming.is_empty() {
            writeln!(io.err, "the expression has no further occurrences")?;
        }
        Ok(upcoming)
    }

    fn of_jobs(&self, from: Timestamp, io: &mut Io<'_>) -> Result<Vec<Occurrence>, Error> {
        let mut occurrences = Vec::new();
        let nodes = LazyCell::new(|| self.nodes());
        for job in self.selected()? {
            self.say_where(&job.name, job.run_on, &job.run_where, &nodes, io)?;
            if !job.enabled {
                writeln!(io.err, "job `{}` is disabled, so it has no occurrences", job.name)?;
                continue;
            }
            let Some(schedule) = job.schedule() else {
                writeln!(io.err, "job `{}` has no schedule: it runs after {}", job.name, upstreams(&job))?;
                continue;
            };
            let upcoming = upcoming(Some(&job.name), schedule, from, self.count());
            if upcoming.len() < self.count() {
                let last = upcoming.last().map_or(from, |last| last.instant);
                let why = all_left_out(schedule, last).map(|why| format!(": {}", escape::plain(&why)));
                if upcoming.is_empty() || why.is_some() {
                    let why = why.unwrap_or_default();
                    writeln!(io.err, "job `{}` has no further occurrences{why}", job.name)?;
                }
            }
            occurrences.extend(upcoming);
        }
        Ok(occurrences)
    }

    /// The daemon on this host, which has the jobs of some file, if none is named and there is none at the default path.
    fn own_daemon(&self) -> Option<Result<Client, AskError>> {
        let is_default = self.jobs.path.as_os_str() == DEFAULT_JOBS;
        let asked = || {
            let client = self.client.client()?;
            client.get::<NodesDocument>("/v1/nodes").map(|_| client)
        };
        (is_default && !self.jobs.path.exists()).then(asked)
    }

    /// Says where a job runs, unless that is the leader. With many jobs it would hide their lines.
    fn say_where(
        &self,
        job: &JobName,
        run_on: RunOn,
        run_where: &RunWhere,
        nodes: &LazyCell<Vec<NodeStatus>, impl FnOnce() -> Vec<NodeStatus>>,
        io: &mut Io<'_>,
    ) -> Result<(), Error> {
        if self.names.is_empty() || self.json || !run_on.is_placed() {
            return Ok(());
        }
        let place = if nodes.is_empty() { place(run_on, run_where) } else { place_among(run_on, run_where, nodes) };
        writeln!(io.err, "job `{job}` runs {place}")?;
        Ok(())
    }

    fn of_host(&self, client: &Client, from: Timestamp, io: &mut Io<'_>) -> Result<Vec<Occurrence>, Error> {
        let mut path = format!("/v1/next?n={}&from={from}", self.count());
        for name in &self.names {
            // Any other name is no job's, and its characters could mean something in a path.
            let name = JobName::parse(name).map_err(|_| Error::NoSuchJob { name: name.clone(), nearest: None })?;
            path.push_str(&format!("&job={name}"));
        }
        let Coming { occurrences, none } = client.get(&path).map_err(AskFailure::from)?;
        if !self.names.is_empty() && !self.json {
            let Placed { jobs } = client.get("/v1/jobs").map_err(AskFailure::from)?;
            let nodes = LazyCell::new(|| nodes_of(client));
            for job in jobs.iter().filter(|job| self.names.iter().any(|name| *name == job.name.as_str())) {
                self.say_where(&job.name, job.run_on(), &job.run_where(), &nodes, io)?;
            }
        }
        for NoOccurrence { job, why } in none {
            writeln!(io.err, "job `{job}`: {}", escape::plain(&why))?;
        }
        let local = |at: Timestamp, zone: &str| at.in_tz(zone).unwrap_or_else(|_| at.to_zoned(TimeZone::UTC));
        let occurrence = |coming: ComingOccurrence| Occurrence {
            instant: coming.at,
            job: Some(coming.job),
            local: local(coming.at, &coming.timezone),
            clock_shift: coming.clock_shift,
            left_out: coming.left_out,
        };
        Ok(occurrences.into_iter().map(occurrence).collect())
    }

    /// The nodes that a daemon here knows. Without one, and where nothing is placed, the file says all that is known.
    fn nodes(&self) -> Vec<NodeStatus> {
        self.client.client().map(|client| nodes_of(&client)).unwrap_or_default()
    }

    fn selected(&self) -> Result<Vec<Arc<Job>>, Error> {
        let set = self.jobs.load_to_show()?.set;
        if self.names.is_empty() {
            return Ok(set.jobs.into_values().collect());
        }
        let mut selected: Vec<Arc<Job>> = Vec::new();
        for name in &self.names {
            let job = find(&set, name)?;
            if !selected.iter().any(|other| other.name == job.name) {
                selected.push(Arc::clone(job));
            }
        }
        Ok(selected)
    }
}

/// True if a field has an `H`. No name of a month or weekday begins with one.
fn is_hashed(expression: &str) -> bool {
    expression.split(|c: char| c.is_whitespace() || c == ',').any(|item| item.starts_with('H'))
}

/// What is read of `GET /v1/jobs`.
#[derive(Deserialize)]
struct Placed {
    jobs: Vec<PlacedJob>,
}

#[derive(Deserialize)]
struct PlacedJob {
    name: JobName,
    #[serde(default)]
    run_on: Option<String>,
    #[serde(default)]
    run_where: Vec<String>,
}

impl PlacedJob {
    fn run_on(&self) -> RunOn {
        let named = RunOn::ALL.into_iter().find(|(name, _)| self.run_on.as_deref() == Some(name));
        named.map_or(RunOn::Leader, |(_, run_on)| run_on)
    }

    fn run_where(&self) -> RunWhere {
        RunWhere(self.run_where.iter().filter_map(|text| Requirement::parse(text).ok()).collect())
    }
}

fn nodes_of(client: &Client) -> Vec<NodeStatus> {
    client.get::<NodesDocument>("/v1/nodes").map(|document| document.nodes).unwrap_or_default()
}

/// Where a job runs that is placed: `on any node with gpu and with zone=eu`.
fn place(run_on: RunOn, run_where: &RunWhere) -> String {
    let which = run_where.in_words();
    let which = if which.is_empty() { which } else { format!(" {which}") };
    format!("on {} node{which}", run_on.as_str())
}

/// The same among these nodes: `on any of host-a, host-b (with gpu)`, `on every: host-a; not now: host-c [away]`.
fn place_among(run_on: RunOn, run_where: &RunWhere, nodes: &[NodeStatus]) -> String {
    let which = run_where.in_words();
    let which = if which.is_empty() { which } else { format!(" ({which})") };
    let fitting: Vec<&NodeStatus> = nodes.iter().filter(|node| run_where.is_met_by(&node.node, &node.labels)).collect();
    if fitting.is_empty() {
        return format!("nowhere now: no node fits{which}");
    }
    let (now, others): (Vec<_>, Vec<_>) = fitting.into_iter().partition(|node| takes_now(node, run_on));
    let named =
        |nodes: &[&NodeStatus]| nodes.iter().map(|node| with_notes(node, run_on)).collect::<Vec<_>>().join(", ");
    let (here, others) = (named(&now), named(&others));
    match (here.is_empty(), run_on) {
        (true, _) => format!("nowhere now{which}: {others}"),
        (false, RunOn::Every) => format!("on every: {here}{which}{}", not_now(&others)),
        (false, RunOn::Any | RunOn::Leader) => format!("on any of {here}{which}{}", not_now(&others)),
    }
}

fn not_now(others: &str) -> String {
    if others.is_empty() { String::new() } else { format!("; not now: {others}") }
}

fn takes_now(node: &NodeStatus, run_on: RunOn) -> bool {
    let is_open = matches!(node.state(), PlaceState::Available | PlaceState::Suspect);
    is_open && !has_no_weight(node, run_on) && (run_on != RunOn::Every || node.node.may_have_shares())
}

/// Nothing is spread to a node without a weight.
fn has_no_weight(node: &NodeStatus, run_on: RunOn) -> bool {
    node.weight == 0 && run_on != RunOn::Every
}

/// `host-b [drained]`. Which of its jobs another jobs file defines otherwise is not known here, and a node that never leads
/// runs them all the same.
fn with_notes(node: &NodeStatus, run_on: RunOn) -> String {
    let weight = has_no_weight(node, run_on).then(|| "weight 0: only jobs with `run_on: every` run there".to_owned());
    let state = NodeStatus { same_jobs: None, never_leads: false, ..node.clone() }.notes(away_in_words);
    let notes = weight.into_iter().chain(Some(state).filter(|state| !state.is_empty()));
    match notes.collect::<Vec<_>>().join(", ") {
        notes if notes.is_empty() => node.node.to_string(),
        notes => format!("{} [{notes}]", node.node),
    }
}

/// Lists the upstreams of a job: `` `extract` (success) and `clean` (always) ``.
fn upstreams(job: &Job) -> String {
    let upstreams = job.upstreams().into_iter().flatten();
    let each = upstreams.map(|(name, condition)| format!("`{name}` ({})", condition.as_str()));
    each.collect::<Vec<_>>().join(" and ")
}

fn upcoming(job: Option<&JobName>, schedule: &Schedule, from: Timestamp, count: usize) -> Vec<Occurrence> {
    let occurrence = |(before, instant): (Timestamp, Timestamp)| Occurrence {
        instant,
        job: job.cloned(),
        local: schedule.local(instant),
        clock_shift: schedule.dst_effect(instant).map(|effect| effect.describe(&schedule.local(instant))),
        left_out: LeftOut::between(schedule, before, instant),
    };
    steps(schedule, from).take(count).map(occurrence).collect()
}

fn json(occurrences: &[Occurrence], io: &mut Io<'_>) -> Result<(), Error> {
    for occurrence in occurrences {
        let zone = occurrence.local.time_zone();
        let instant = |LeftOutInstant { at, calendar }: &LeftOutInstant| JsonLeftOutInstant {
            at: rfc3339(&at.to_zoned(zone.clone())),
            calendar: calendar.clone(),
        };
        let left_out = occurrence.left_out.as_ref();
        let left_out = left_out.map(|LeftOut { count, first }| {
            let first = first.iter().map(instant).collect();
            JsonLeftOut { count: *count, first }
        });
        let job = occurrence.job.as_ref().map(JobName::as_str);
        json::line(&JsonLine { job, at: rfc3339(&occurrence.local), left_out }, io.out)?;
    }
    Ok(())
}

fn rfc3339(local: &Zoned) -> String {
    local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use crate::cli::Exit;
    use crate::cli::tests::typed;
    use crate::status::{Status, sample};

    const FROM: &str = "2026-03-07T12:00:00-05:00";

    #[test]
    fn an_expression_is_shown_in_its_zone() {
        let line = ["next", "--schedule", "30 2 * * *", "--timezone", "America/New_York", "-n", "3", "--from", FROM];
        let (exit, out, err) = typed(&[&line[..], &["--json"]].concat(), &[]);
        assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
        assert_eq!(
            out,
            "{\"job\":null,\"at\":\"2026-03-08T03:00:00-04:00\"}\n\
             {\"job\":null,\"at\":\"2026-03-09T02:30:00-04:00\"}\n\
             {\"job\":null,\"at\":\"2026-03-10T02:30:00-04:00\"}\n"
        );
    }

    fn shown(line: &[&str]) -> Vec<String> {
        let (exit, out, err) = typed(line, &[]);
        assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
        out.lines().map(str::to_owned).collect()
    }

    #[test]
    fn an_expression_is_described_and_clock_shifts_are_marked() {
        let line = ["next", "--schedule", "30 2 * * *", "--timezone", "America/New_York", "-n", "3", "--from", FROM];
        assert_eq!(
            shown(&line),
            [
                "at 02:30 every day, America/New_York",
                "",
                "LOCAL TIME               ZONE                  TIME UNTIL  CLOCK SHIFT",
                "Sun 2026-03-08 03:00:00  America/New_York EDT  in 14h      for 02:30, which is skipped",
                "Mon 2026-03-09 02:30:00  America/New_York EDT  in 1d13h",
                "Tue 2026-03-10 02:30:00  America/New_York EDT  in 2d13h",
            ]
        );
        let autumn = ["--from", "2026-04-05T00:59:00+11:00", "--timezone", "Australia/Lord_Howe", "-n4"];
        assert_eq!(
            shown(&[&["next", "--schedule", "*/30 1 * * *"], &autumn[..]].concat()),
            [
                "every 30 minutes of hour 1 every day, Australia/Lord_Howe",
                "",
                "LOCAL TIME               ZONE                       TIME UNTIL  CLOCK SHIFT",
                "Sun 2026-04-05 01:00:00  Australia/Lord_Howe +11    in 1m",
                "Sun 2026-04-05 01:30:00  Australia/Lord_Howe +11    in 31m      the first 01:30 of two",
                "Sun 2026-04-05 01:30:00  Australia/Lord_Howe +1030  in 1h1m     the second 01:30 of two",
                "Mon 2026-04-06 01:00:00  Australia/Lord_Howe +1030  in 1d",
            ]
        );
        assert_eq!(
            shown(&["next", "--schedule", "@at 2026-12-24T18:00:00Z", "--from", "2026-12-24T17:59:58.5Z"]),
            [
                "once, at 2026-12-24T18:00:00Z, UTC",
                "",
                "LOCAL TIME               ZONE  TIME UNTIL",
                "Thu 2026-12-24 18:00:00  UTC   in 1s",
            ]
        );
    }

    #[test]
    fn an_expression_without_further_occurrences_is_reported() {
        let (exit, out, err) =
            typed(&["next", "--schedule", "@at 2020-01-01T00:00:00Z", "--from", FROM, "--json"], &[]);
        assert_eq!((exit, out.as_str(), err.as_str()), (Exit::Fine, "", "the expression has no further occurrences\n"));
    }

    #[test]
    fn a_hashed_time_needs_the_name_of_its_job() {
        let (exit, _, err) = typed(&["next", "--schedule", "0 5,H * * THU"], &[]);
        assert_eq!(exit, Exit::Usage);
        assert_eq!(
            err,
            "cronkeeper: `H` takes its value from the job's name, and no job is named\n\
             hint: name the job too: `cronkeeper next --schedule 'H * * * *' JOB`\n"
        );
        let (exit, out, _) = typed(&["next", "--schedule", "H H * * *", "nightly-backup", "--from", FROM], &[]);
        assert_eq!((exit, out.lines().next()), (Exit::Fine, Some("at 05:49 every day, UTC")));
        assert_eq!(typed(&["next", "--schedule", "0 5 * MARCH THU"], &[]).0, Exit::Fine);
        assert_eq!(typed(&["next", "--schedule", "H H * * *", "a", "b"], &[]).0, Exit::Usage);
    }

    #[test]
    fn jobs_are_shown_by_time_and_disabled_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.yaml");
        let text = "jobs: {late: &j {schedule: \"0 20 * * *\", command: x}, \
                    early: {schedule: \"0 19 * * *\", command: x}, \
                    off: {schedule: \"0 19 * * *\", command: x, enabled: false}, \
                    past: {schedule: \"@at 2020-01-01T00:00:00Z\", command: x}, \
                    then: {after: {early: success}, command: x}}";
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let next = |names: &[&str]| {
            let line = ["next", "--jobs", path.to_str().unwrap(), "--from", FROM, "--json", "-n1"];
            typed(&[&line[..], names].concat(), &[])
        };
        let (exit, out, err) = next(&[]);
        assert_eq!(
            err,
            "job `off` is disabled, so it has no occurrences\njob `past` has no further occurrences\n\
             job `then` has no schedule: it runs after `early` (success)\n"
        );
        assert_eq!(
            (exit, out.as_str()),
            (
                Exit::Fine,
                "{\"job\":\"early\",\"at\":\"2026-03-07T19:00:00+00:00\"}\n\
                 {\"job\":\"late\",\"at\":\"2026-03-07T20:00:00+00:00\"}\n"
            )
        );
        assert_eq!(next(&["late", "late"]).1.lines().count(), 1);
        let (exit, out, err) = next(&["off"]);
        assert_eq!(
            (exit, out.as_str(), err.as_str()),
            (Exit::Fine, "", "job `off` is disabled, so it has no occurrences\n")
        );
        let (exit, _, err) = next(&["erly"]);
        assert_eq!(
            (exit, err.as_str()),
            (Exit::Usage, "cronkeeper: there is no job `erly`\nhint: did you mean `early`?\n")
        );
    }

    #[test]
    fn a_job_that_is_placed_says_where_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.yaml");
        let text = "jobs: {video: {schedule: '@daily', command: x, run_on: any, run_where: [gpu, zone=eu, '!old']}, \
                    thumbs: {schedule: '@daily', command: x, run_on: any}, \
                    vacuum: {schedule: '@daily', command: x, run_on: every, run_where: db}, plain: {schedule: '@daily', command: x}}";
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let said = |names: &[&str]| {
            // No daemon is there.
            let here = dir.path().to_str().unwrap();
            let line = ["next", "--jobs", path.to_str().unwrap(), "--from", FROM, "--runtime-dir", here];
            typed(&[&line[..], names].concat(), &[]).2
        };
        assert_eq!(said(&["video"]), "job `video` runs on any node with gpu and with zone=eu and without old\n");
        assert_eq!(said(&["vacuum"]), "job `vacuum` runs on every node with db\n");
        assert_eq!(said(&["thumbs", "plain"]), "job `thumbs` runs on any node\n");
        assert_eq!(said(&[]), "");
    }

    #[test]
    fn where_the_nodes_are_known_a_job_says_on_which_it_runs() {
        let mut status = sample::leader();
        status.places = sample::places();
        let said = |status: &Status, keys: &str| {
            let yaml = format!("jobs:\n  load: {{schedule: '@daily', command: 'true', {keys}}}\n");
            let (set, _) = crate::config::parse("jobs.yaml", yaml.as_bytes()).unwrap();
            let job = &set.jobs[&sample::job("load")];
            super::place_among(job.run_on, &job.run_where, &status.nodes())
        };
        let without = "host-c [weight 0: only jobs with `run_on: every` run there, away]";
        assert_eq!(said(&status, "run_on: any"), format!("on any of host-a, host-b; not now: {without}"));
        assert_eq!(said(&status, "run_on: any, run_where: gpu"), "on any of host-a (with gpu)");
        assert_eq!(said(&status, "run_on: every"), "on every: host-a, host-b; not now: host-c [away]");
        assert_eq!(said(&status, "run_on: any, run_where: db"), format!("nowhere now (with db): {without}"));
        assert_eq!(said(&status, "run_on: any, run_where: ssd"), "nowhere now: no node fits (with ssd)");
        status.drained = sample::drained("host-b");
        let drained = format!("on any of host-a; not now: host-b [drained], {without}");
        assert_eq!(said(&status, "run_on: any"), drained);
        assert_eq!(
            said(&status, "run_on: every, run_where: '!gpu'"),
            "nowhere now (without gpu): host-b [drained], host-c [away]"
        );
    }

    #[test]
    fn a_wrong_expression_is_wrong_usage() {
        let (exit, _, err) = typed(&["next", "--schedule", "*"], &[]);
        assert_eq!(exit, Exit::Usage);
        assert!(err.starts_with("cronkeeper: `*` is not a valid schedule: "), "{err}");
        assert!(err.contains("\n  *\n  ^\nhint: "), "{err}");
        assert!(
            err.ends_with("hint: put the expression in quotes, so that the shell passes it as one argument\n"),
            "{err}"
        );
        let (exit, _, err) = typed(&["next", "--schedule", "0 2 * * * root"], &[]);
        assert_eq!(exit, Exit::Usage);
        assert_eq!(
            err.lines().collect::<Vec<_>>(),
            [
                "cronkeeper: `0 2 * * * root` is not a valid schedule: \
                 day of week: `root` is neither a number nor a name; \
                 allowed: 0 to 7 (0 and 7 are Sunday), sun to sat, mon#2, friL",
                "  0 2 * * * root",
                "            ^^^^",
                "hint: with six fields the first is the second; with five it is the minute",
            ]
        );
        assert_eq!(typed(&["next", "--timezone", "UTC"], &[]).0, Exit::Usage);
        assert_eq!(typed(&["next", "-n", "0"], &[]).0, Exit::Usage);
    }
}
