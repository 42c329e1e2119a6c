//! `cronkeeper next`: when jobs are due, without a daemon.

use std::sync::Arc;

use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, Zoned};
use serde::Serialize;

use super::jobs::{JobsFile, find};
use super::{Error, Io};
use crate::duration;
use crate::job::Job;
use crate::schedule::{Dst, Schedule};

/// Show coming occurrences, of jobs or of one expression.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only of these jobs
    #[arg(value_name = "JOB", conflicts_with = "schedule")]
    names: Vec<String>,
    /// How many of each; default 1, or 5 where jobs or an expression are named
    #[arg(short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    n: Option<u32>,
    /// Only what comes after this instant; default now
    #[arg(long, value_name = "RFC3339")]
    from: Option<Timestamp>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    jobs: JobsFile,
    /// An expression instead of jobs, such as "30 2 * * *"
    #[arg(long, value_name = "EXPR")]
    schedule: Option<String>,
    /// The time zone of the expression
    #[arg(long, value_name = "TZ", default_value = "UTC", requires = "schedule")]
    timezone: String,
}

/// One line of the result.
struct Occurrence {
    instant: Timestamp,
    job: Option<String>,
    local: Zoned,
}

/// The same for programs; the contract fixes its fields.
#[derive(Serialize)]
struct JsonLine<'a> {
    job: Option<&'a str>,
    at: String,
}

impl Args {
    /// Lists the occurrences by time.
    ///
    /// # Errors
    /// When the jobs or the expression are wrong, or a job is not there.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let from = self.from.unwrap_or_else(|| crate::clock::system::now().wall);
        let is_overview = self.names.is_empty() && self.schedule.is_none();
        let count = self.n.unwrap_or(if is_overview { 1 } else { 5 }) as usize;
        let mut occurrences = match &self.schedule {
            Some(expression) => {
                let schedule = Schedule::parse(&[expression], &self.timezone, Dst::default(), "")
                    .map_err(|source| Error::Schedule { expression: expression.clone(), source })?;
                coming(None, &schedule, from, count)
            }
            None => of_jobs(&self.selected(io)?, from, count),
        };
        occurrences.sort_by(|a, b| (a.instant, &a.job).cmp(&(b.instant, &b.job)));
        if self.json { json(&occurrences, io) } else { table(&occurrences, from, io) }
    }

    fn selected(&self, io: &mut Io<'_>) -> Result<Vec<Arc<Job>>, Error> {
        let set = self.jobs.load_to_look()?.set;
        if self.names.is_empty() {
            return Ok(set.jobs.into_values().filter(|job| job.enabled).collect());
        }
        let mut selected: Vec<Arc<Job>> = Vec::new();
        for name in &self.names {
            let job = find(&set, name)?;
            if !job.enabled {
                writeln!(io.err, "job `{name}` is disabled: it has no occurrences")?;
            } else if !selected.iter().any(|other| other.name == job.name) {
                selected.push(Arc::clone(job));
            }
        }
        Ok(selected)
    }
}

fn of_jobs(jobs: &[Arc<Job>], from: Timestamp, count: usize) -> Vec<Occurrence> {
    jobs.iter().flat_map(|job| coming(Some(job.name.as_str()), &job.schedule, from, count)).collect()
}

fn coming(job: Option<&str>, schedule: &Schedule, from: Timestamp, count: usize) -> Vec<Occurrence> {
    let zone = zone(schedule);
    std::iter::successors(schedule.next_after(from), |last| schedule.next_after(*last))
        .take(count)
        .map(|instant| Occurrence { instant, job: job.map(str::to_owned), local: instant.to_zoned(zone.clone()) })
        .collect()
}

/// A schedule was only made with a zone that is there.
fn zone(schedule: &Schedule) -> TimeZone {
    let name = schedule.zone_name();
    let found = jiff::tz::db().get(name).or_else(|_| TimeZoneDatabase::bundled().get(name));
    found.unwrap_or(TimeZone::UTC)
}

fn json(occurrences: &[Occurrence], io: &mut Io<'_>) -> Result<(), Error> {
    for occurrence in occurrences {
        let at = occurrence.local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
        let line = serde_json::to_string(&JsonLine { job: occurrence.job.as_deref(), at });
        writeln!(io.out, "{}", line.map_err(std::io::Error::from)?)?;
    }
    Ok(())
}

fn table(occurrences: &[Occurrence], from: Timestamp, io: &mut Io<'_>) -> Result<(), Error> {
    if occurrences.is_empty() {
        writeln!(io.err, "nothing is due any more")?;
        return Ok(());
    }
    let rows = occurrences.iter().map(|occurrence| {
        let Occurrence { instant, job, local } = occurrence;
        [
            local.strftime("%a %Y-%m-%d %H:%M:%S").to_string(),
            zone_shown(local),
            format!("in {}", briefly(*instant, from)),
            job.clone().unwrap_or_default(),
        ]
    });
    let mut rows: Vec<[String; 4]> = rows.collect();
    rows.insert(0, ["LOCAL TIME", "ZONE", "TIME UNTIL", "JOB"].map(str::to_owned));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let [first, second, third] = [0, 1, 2].map(width);
    for [time, zone, until, job] in &rows {
        let line = format!("{time:first$}  {zone:second$}  {until:third$}  {job}");
        writeln!(io.out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// `Europe/Berlin CET`: the hour that comes twice is told apart by its abbreviation.
fn zone_shown(local: &Zoned) -> String {
    let name = local.time_zone().iana_name().unwrap_or_default();
    let abbreviation = local.strftime("%Z").to_string();
    if name == abbreviation { abbreviation } else { format!("{name} {abbreviation}") }
}

/// The two largest units are enough for people.
fn briefly(instant: Timestamp, from: Timestamp) -> String {
    let seconds = instant.duration_since(from).unsigned_abs().as_secs();
    let unit = match seconds {
        86_400.. => 3600,
        3600.. => 60,
        _ => 1,
    };
    duration::format(std::time::Duration::from_secs(seconds / unit * unit))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use crate::cli::Exit;
    use crate::cli::tests::typed;

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
        let (_, out, _) = typed(&line, &[]);
        assert_eq!(
            out.lines().collect::<Vec<_>>(),
            [
                "LOCAL TIME               ZONE                  TIME UNTIL  JOB",
                "Sun 2026-03-08 03:00:00  America/New_York EDT  in 14h",
                "Mon 2026-03-09 02:30:00  America/New_York EDT  in 1d13h",
                "Tue 2026-03-10 02:30:00  America/New_York EDT  in 2d13h",
            ]
        );
    }

    #[test]
    fn jobs_are_shown_by_time_and_disabled_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.yaml");
        let text = "jobs: {late: &j {schedule: \"0 20 * * *\", command: x}, \
                    early: {schedule: \"0 19 * * *\", command: x}, \
                    off: {schedule: \"0 19 * * *\", command: x, enabled: false}}";
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let asked = |names: &[&str]| {
            let line = ["next", "--jobs", path.to_str().unwrap(), "--from", FROM, "--json", "-n1"];
            typed(&[&line[..], names].concat(), &[])
        };
        let (exit, out, _) = asked(&[]);
        assert_eq!(
            (exit, out.as_str()),
            (
                Exit::Fine,
                "{\"job\":\"early\",\"at\":\"2026-03-07T19:00:00+00:00\"}\n\
                 {\"job\":\"late\",\"at\":\"2026-03-07T20:00:00+00:00\"}\n"
            )
        );
        assert_eq!(asked(&["late", "late"]).1.lines().count(), 1);
        let (exit, out, err) = asked(&["off"]);
        assert_eq!(
            (exit, out.as_str(), err.as_str()),
            (Exit::Fine, "", "job `off` is disabled: it has no occurrences\n")
        );
        let (exit, _, err) = asked(&["erly"]);
        assert_eq!(
            (exit, err.as_str()),
            (Exit::Usage, "cronkeeper: no job is called `erly`\nhint: did you mean `early`?\n")
        );
    }

    #[test]
    fn a_wrong_expression_is_wrong_usage() {
        let (exit, _, err) = typed(&["next", "--schedule", "*"], &[]);
        assert_eq!(exit, Exit::Usage);
        assert!(err.starts_with("cronkeeper: `*` is no schedule: "), "{err}");
        assert!(err.ends_with("hint: put the expression in quotes, so that the shell hands it over as one\n"), "{err}");
        assert_eq!(typed(&["next", "--schedule", "@daily", "job"], &[]).0, Exit::Usage);
        assert_eq!(typed(&["next", "--timezone", "UTC"], &[]).0, Exit::Usage);
        assert_eq!(typed(&["next", "-n", "0"], &[]).0, Exit::Usage);
    }
}
