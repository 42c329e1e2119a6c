//! The coming occurrences: which jobs are due next, on a common scale of time.

use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};

use super::words;
use crate::status::{JobStatus, Status};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::job::{Job, JobName, JobSet};
use cronkeeper_core::suggest::counted;

/// Most jobs on the timeline: those that are due first.
const MOST_JOBS: usize = 12;
/// Most occurrences of a job that are drawn one by one.
const MOST_TIMES: usize = 60;
const SHORTEST: SignedDuration = SignedDuration::from_hours(1);
const LONGEST: SignedDuration = SignedDuration::from_hours(24);

/// A job and its next occurrences.
#[derive(Debug)]
struct Lane {
    job: JobName,
    times: Vec<Timestamp>,
    /// What a clock shift does to some of them.
    shifts: Vec<String>,
    /// There are more in this time than are drawn.
    goes_on: bool,
}

/// The timeline of the jobs that are due first.
#[derive(Debug)]
pub(super) struct Timeline {
    from: Timestamp,
    until: Timestamp,
    lanes: Vec<Lane>,
    /// A leader is known, so what is due will run.
    has_leader: bool,
}

impl Timeline {
    /// Paused jobs are left out, because nothing of them will run.
    pub fn of(status: &Status, set: &JobSet) -> Self {
        let from = status.at;
        let next = |job: &JobStatus| job.next.filter(|_| job.paused.is_none()).map(|next| (next, job.name.clone()));
        let mut first: Vec<(Timestamp, JobName)> = status.jobs.iter().filter_map(next).collect();
        first.sort_unstable();
        first.truncate(MOST_JOBS);
        let furthest = first.last().map_or(from, |(next, _)| *next);
        let span = furthest.duration_since(from).clamp(SHORTEST, LONGEST);
        let until = from.saturating_add(span).unwrap_or(Timestamp::MAX);
        let lanes = first.iter().filter_map(|(_, name)| Some(lane(set.jobs.get(name)?, from, until)));
        let has_leader = status.role.leader_node.is_some();
        Self { from, until, lanes: lanes.filter(|lane| !lane.times.is_empty()).collect(), has_leader }
    }

    pub fn markup(&self) -> Markup {
        html! {
            section #timeline data-live="" aria-labelledby="timeline-title" {
                h2 #timeline-title { "Coming" }
                @if !self.has_leader && !self.lanes.is_empty() { p.unknown { "Nothing of this starts while no node leads." } }
                @if self.lanes.is_empty() {
                    p { "Nothing is due in the next " (self.hours()) "." }
                } @else {
                    table.timeline {
                        caption { "What is due first, in the next " (self.hours()) "; times in UTC" }
                        thead { tr { th scope="col" { "Job" } th scope="col" { "Due" } th.wide scope="col" { "Until "
                            (stamp(self.until)) } } }
                        tbody { @for lane in &self.lanes { (self.row(lane)) } }
                    }
                }
            }
        }
    }

    fn hours(&self) -> String {
        match self.until.duration_since(self.from).as_secs() {
            0..5_400 => "hour".to_owned(),
            seconds => format!("{} hours", (seconds + 1_800) / 3_600),
        }
    }

    fn row(&self, lane: &Lane) -> Markup {
        html! {
            tr data-key={ "lane-" (lane.job) } {
                th scope="row" { a href={ "/jobs/" (lane.job) } { (lane.job) } }
                td {
                    @match lane.times.first() {
                        Some(next) if self.has_leader => (words::time(*next, self.from)),
                        next => { @if let Some(next) = next { (stamp(*next)) } },
                    }
                    @for shift in &lane.shifts { br; span.fact { (shift) } }
                }
                td.wide {
                    svg.lane role="img" aria-label=(lane.count()) viewBox="0 0 1000 16"
                        preserveAspectRatio="none" {
                        path.line d="M0 8h1000" {}
                        path.due d=(self.path(lane)) {}
                    }
                }
            }
        }
    }

    fn path(&self, lane: &Lane) -> String {
        let whole = self.until.duration_since(self.from).as_secs().max(1);
        let place = |at: &Timestamp| at.duration_since(self.from).as_secs() * 1_000 / whole;
        let mut path: String = lane.times.iter().map(|at| format!("M{} 1v14", place(at))).collect();
        if let Some(last) = lane.times.last().filter(|_| lane.goes_on) {
            // Two lines instead of ever more strokes.
            path.push_str(&format!("M{0} 4H1000M{0} 12H1000", place(last)));
        }
        path
    }
}

impl Lane {
    fn count(&self) -> String {
        let more = if self.goes_on { "more than " } else { "" };
        format!("{more}{}", counted(self.times.len(), "time"))
    }
}

fn lane(job: &Job, from: Timestamp, until: Timestamp) -> Lane {
    let times = std::iter::successors(job.next_after(from), |at| job.next_after(*at));
    let mut times: Vec<Timestamp> = times.take_while(|at| *at <= until).take(MOST_TIMES + 1).collect();
    let goes_on = times.len() > MOST_TIMES;
    times.truncate(MOST_TIMES);
    let shifts = times.iter().filter_map(|at| shift(job, *at)).take(4).collect();
    Lane { job: job.name.clone(), times, shifts, goes_on }
}

/// What a clock shift does to this occurrence, in words.
pub(super) fn shift(job: &Job, at: Timestamp) -> Option<String> {
    let schedule = job.schedule()?;
    let local = schedule.local(at);
    Some(format!("{}: {}", local.strftime("%H:%M %Z"), schedule.dst_effect(at)?.describe(&local)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    #[test]
    fn what_is_due_first_comes_first_and_a_clock_shift_is_told_in_words() {
        let yaml = b"jobs:\n  load: {schedule: '30 * * * *', command: 'true'}\n  nightly-backup: \
                     {schedule: '30 2 * * *', timezone: Europe/Berlin, command: 'true'}\n";
        let (set, _) = crate::config::parse("jobs.yaml", yaml).unwrap();
        let mut status = sample::leader();
        status.at = sample::at("2027-03-27T23:00:00Z");
        for job in &mut status.jobs {
            job.next = set.jobs.get(&job.name).and_then(|defined| defined.next_after(status.at));
        }
        let timeline = Timeline::of(&status, &set);
        let lanes: Vec<_> = timeline.lanes.iter().map(|lane| (lane.job.as_str(), lane.times.len())).collect();
        assert_eq!(lanes, [("load", 2), ("nightly-backup", 1)]);
        assert_eq!(timeline.lanes[1].shifts, ["03:00 CEST: for 02:30, which is skipped"]);
        let text = timeline.markup().into_string();
        assert!(text.contains("in the next 2 hours") && text.contains("for 02:30, which is skipped"), "{text}");
    }
}
