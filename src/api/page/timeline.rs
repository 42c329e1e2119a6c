//! What is due next: a lane for each job on a common axis of time, with a line for now and what ran just before it.

use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};

use super::times::Clock;
use super::words;
use crate::status::{JobStatus, LastRun, Status};
use cronkeeper_core::job::{Job, JobName, JobSet};

/// Most jobs on the timeline: those that are due first.
const MOST_JOBS: usize = 12;
/// Most occurrences of a job that are drawn one by one. Of more, only the parts of the axis are drawn that have any.
const MOST_TIMES: usize = 40;
/// Parts of the axis.
const PARTS: i32 = 100;
/// The line for now moves in this many steps over the span.
const STEPS: i64 = 120;
const SHORTEST: SignedDuration = SignedDuration::from_hours(1);
const LONGEST: SignedDuration = SignedDuration::from_hours(24);
/// The width of the picture; a tenth of it shows the past.
const WIDTH: i64 = 1_000;
const NOW: i64 = 100;

/// A job and its next occurrences.
#[derive(Debug)]
struct Lane {
    job: JobName,
    next: Timestamp,
    times: Vec<Timestamp>,
    /// The times in which it is due too often for single strokes; then there are no `times`.
    spans: Vec<(Timestamp, Timestamp)>,
    /// How often that is.
    described: Option<String>,
    /// What a clock shift does to some of them.
    shifts: Vec<String>,
    last: Option<LastRun>,
    running_since: Option<Timestamp>,
}

/// The timeline of the jobs that are due first.
#[derive(Debug)]
pub(super) struct Timeline {
    /// The moment at which the line for now is drawn: a little before the status, so that the picture changes seldom.
    now: Timestamp,
    until: Timestamp,
    lanes: Vec<Lane>,
    /// A leader is known, so what is due will run.
    has_leader: bool,
    has_jobs: bool,
}

impl Timeline {
    /// Paused jobs are left out, because nothing of them will run.
    pub fn of(status: &Status, set: &JobSet) -> Self {
        let next = |job: &JobStatus| job.next.filter(|_| job.paused.is_none()).map(|next| (next, job.name.clone()));
        let mut first: Vec<(Timestamp, JobName)> = status.jobs.iter().filter_map(next).collect();
        first.sort_unstable();
        first.truncate(MOST_JOBS);
        let furthest = first.last().map_or(status.at, |(next, _)| *next);
        // In whole hours, so that the scale does not change all the time.
        let hours = (furthest.duration_since(status.at).as_secs() + 3_599) / 3_600;
        let axis = |hours| {
            let span = SignedDuration::from_hours(hours).clamp(SHORTEST, LONGEST);
            let step = span.as_secs() / STEPS;
            let now = Timestamp::from_second(status.at.as_second().div_euclid(step) * step).unwrap_or(status.at);
            (now, now.saturating_add(span).unwrap_or(Timestamp::MAX))
        };
        // The line for now is drawn up to a step late, so the axis may end before what is due furthest away.
        let shortest = Some(axis(hours)).filter(|(_, until)| *until >= furthest);
        let (now, until) = shortest.unwrap_or_else(|| axis(hours + 1));
        let lanes = first.iter().filter_map(|(next, name)| {
            let shown = status.jobs.iter().find(|job| job.name == *name)?;
            Some(Lane::of(set.jobs.get(name)?, shown, *next, status, until)).filter(|_| *next <= until)
        });
        let has_leader = status.role.leader_node.is_some();
        Self { now, until, lanes: lanes.collect(), has_leader, has_jobs: !status.jobs.is_empty() }
    }

    pub fn markup(&self, clock: &Clock) -> Markup {
        html! {
            section #timeline .old[!self.has_leader] data-live="" aria-labelledby="timeline-title" {
                @if self.has_jobs {
                    h2 #timeline-title { "Coming" }
                    @if !self.has_leader && !self.lanes.is_empty() {
                        p.unknown { "None of these start while no node leads." }
                    }
                    @if self.lanes.is_empty() { p.quiet { "Nothing is due in the next " (self.hours()) "." } }
                    @else {
                        p.quiet { "What is due first, in the next " (self.hours()) "." }
                        div.timeline {
                            div.row.axis aria-hidden="true" { span {} span {} (self.axis(clock)) }
                            ul { @for lane in &self.lanes { (self.row(lane, clock)) } }
                        }
                        p.legend aria-hidden="true" {
                            span.key.now {} " now" span.key.due {} " due" span.key.often {} " due many times"
                            span.key.ran {} " ran" span.key.runs {} " running"
                        }
                    }
                }
            }
        }
    }

    fn hours(&self) -> String {
        match self.until.duration_since(self.now).as_secs() {
            0..5_400 => "hour".to_owned(),
            seconds => format!("{} hours", (seconds + 1_800) / 3_600),
        }
    }

    /// The labels of the axis: round times of the visitor's zone.
    fn axis(&self, clock: &Clock) -> Markup {
        html! {
            svg.labels width="100%" height="18" {
                @for (at, label) in self.ticks(clock) {
                    @let x = self.place(at);
                    text y="13" x={ (x / 10) "." (x % 10) "%" } text-anchor="middle" { (label) }
                }
            }
        }
    }

    fn ticks(&self, clock: &Clock) -> Vec<(Timestamp, String)> {
        let span = self.until.duration_since(self.now).as_secs();
        let step = [600, 1_200, 1_800, 3_600, 7_200, 10_800, 14_400, 21_600].into_iter().find(|step| span / step <= 6);
        let step = step.unwrap_or(21_600);
        let offset = clock.offset(self.now);
        let first = (self.now.as_second() + offset).div_euclid(step) * step - offset;
        let ticks = (1..=7).filter_map(|count| Timestamp::from_second(first + count * step).ok());
        // A label at the edge would be cut off.
        let ticks = ticks.filter(|at| (NOW + 110..WIDTH - 30).contains(&self.place(*at)));
        let mut ticks: Vec<_> = ticks.map(|at| (at, clock.minute(at))).collect();
        ticks.insert(0, (self.now, "now".to_owned()));
        ticks
    }

    fn row(&self, lane: &Lane, clock: &Clock) -> Markup {
        html! {
            li.row data-key={ "lane-" (lane.job) } {
                a.name href={ "/jobs/" (lane.job) } { (lane.job) }
                span.next {
                    @if self.has_leader { (clock.due(lane.next)) } @else { (clock.short(lane.next)) }
                    @for shift in &lane.shifts { " " span.fact.odd { (shift) } }
                }
                (self.picture(lane, clock))
            }
        }
    }

    fn picture(&self, lane: &Lane, clock: &Clock) -> Markup {
        let grid: String =
            self.ticks(clock).iter().skip(1).map(|(at, _)| format!("M{} 0v16", self.place(*at))).collect();
        let span = |(from, to): &(Timestamp, Timestamp)| format!("M{} 8H{}", self.place(*from), self.place(*to));
        let often: String = lane.spans.iter().map(span).collect();
        let due: String = lane.times.iter().map(|at| format!("M{} 2v12", self.place(*at))).collect();
        let running = lane.running_since.map(|since| self.place(since).clamp(0, NOW - 4));
        html! {
            svg.lane role="img" aria-label=(lane.in_words()) viewBox="0 0 1000 16" preserveAspectRatio="none" {
                path.grid d=(grid) {}
                path.line d="M0 8h1000" {}
                @if let Some(last) = lane.last.as_ref().filter(|last| self.place(last.at) > 0) {
                    // The line for now is drawn a little late.
                    @let end = self.place(last.at).min(NOW);
                    @let begin = self.place(last.run.scheduled_at()).clamp(0, end.max(4) - 4);
                    path class={ "ran " (words::class(last.outcome)) } d={ "M" (begin) " 8H" (end) } {}
                }
                @if let Some(begin) = running { path.runs d={ "M" (begin) " 8H" (NOW) } {} }
                @if !often.is_empty() { path.often d=(often) {} }
                @if !due.is_empty() { path.due d=(due) {} }
                path.now d={ "M" (NOW) " 0v16" } {}
            }
        }
    }

    /// Where an instant is in the picture.
    fn place(&self, at: Timestamp) -> i64 {
        let whole = self.until.duration_since(self.now).as_secs().max(1);
        NOW + at.duration_since(self.now).as_secs() * (WIDTH - NOW) / whole
    }
}

impl Lane {
    fn of(job: &Job, shown: &JobStatus, next: Timestamp, status: &Status, until: Timestamp) -> Self {
        let from = status.at;
        let times = std::iter::successors(Some(next), |at| job.next_after(*at));
        let mut times: Vec<Timestamp> = times.take_while(|at| *at <= until).take(MOST_TIMES + 1).collect();
        let shifts = times.iter().filter_map(|at| shift(job, *at)).take(4).collect();
        let is_often = times.len() > MOST_TIMES;
        let spans = if is_often { spans(job, next, until) } else { Vec::new() };
        let described = job.schedule().filter(|_| is_often).map(|schedule| schedule.describe());
        if is_often {
            times.clear();
        }
        // What ran elsewhere when the ledger was last read may be over.
        let is_known = |run: &&crate::status::RunStatus| run.is_running() && run.ended.is_none() && !status.is_old(run);
        let running = status.runs.iter().filter(|run| run.run.job() == &job.name).find(is_known);
        let last = shown.last.as_deref().filter(|last| last.at <= from).cloned();
        let running_since = running.map(|run| run.since);
        Self { job: job.name.clone(), next, times, spans, described, shifts, last, running_since }
    }

    fn in_words(&self) -> String {
        match (self.times.len(), &self.described) {
            (0, Some(described)) => format!("due many times: {described}"),
            (0, None) => "due many times".to_owned(),
            (count, _) => format!("due {}", words::counted(count, "time")),
        }
    }
}

/// The parts of the axis in which a job is due.
fn spans(job: &Job, from: Timestamp, until: Timestamp) -> Vec<(Timestamp, Timestamp)> {
    let part = until.duration_since(from) / PARTS;
    let mut spans: Vec<(Timestamp, Timestamp)> = Vec::new();
    for number in 0..PARTS {
        let begin = from.saturating_add(part * number).unwrap_or(until);
        let end = from.saturating_add(part * (number + 1)).unwrap_or(until);
        if number > 0 && job.next_after(begin).is_none_or(|next| next > end) {
            continue;
        }
        match spans.last_mut() {
            Some((_, to)) if *to == begin => *to = end,
            _ => spans.push((begin, end)),
        }
    }
    spans
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
    use crate::api::page::times::Zone;
    use crate::status::sample;

    fn timeline(yaml: &str, at: &str, zone: &str) -> (Timeline, String) {
        let (set, _) = crate::config::parse("jobs.yaml", yaml.as_bytes()).unwrap();
        let mut status = sample::leader();
        status.at = sample::at(at);
        for job in &mut status.jobs {
            job.next = set.jobs.get(&job.name).and_then(|defined| defined.next_after(status.at));
        }
        let timeline = Timeline::of(&status, &set);
        let text = timeline.markup(&Clock::new(status.at, Zone::parse(zone).unwrap())).into_string();
        (timeline, text)
    }

    #[test]
    fn what_is_due_first_comes_first_and_a_clock_shift_is_told_in_words() {
        let yaml = "jobs:\n  load: {schedule: '30 * * * *', command: 'true'}\n  nightly-backup: \
                    {schedule: '30 2 * * *', timezone: Europe/Berlin, command: 'true'}\n";
        let (timeline, text) = timeline(yaml, "2027-03-27T23:00:00Z", "UTC");
        let lanes: Vec<_> = timeline.lanes.iter().map(|lane| (lane.job.as_str(), lane.times.len())).collect();
        assert_eq!(lanes, [("load", 2), ("nightly-backup", 1)]);
        assert_eq!(timeline.lanes[1].shifts, ["03:00 CEST: for 02:30, which is skipped"]);
        assert!(text.contains("in the next 2 hours") && text.contains("for 02:30, which is skipped"), "{text}");
    }

    #[test]
    fn the_axis_has_round_times_of_the_visitors_zone_and_a_line_for_now() {
        let yaml = "jobs:\n  load: {schedule: '30 * * * *', command: 'true'}\n";
        let (_, text) = timeline(yaml, "2026-11-20T03:07:10Z", "Asia/Kolkata");
        assert!(text.contains(">now<") && text.contains(">08:50<") && text.contains(">09:30<"), "{text}");
        // 22 min 40 s of an hour; the picture is drawn for the half minute.
        assert!(text.contains("class=\"due\" d=\"M445 2v12\""), "{text}");
    }

    #[test]
    fn what_is_due_at_the_end_of_the_span_is_on_the_picture() {
        let yaml = "jobs:\n  load: {schedule: '0 3 * * *', command: 'true'}\n";
        for minute in 0..60 {
            let (timeline, _) = timeline(yaml, &format!("2026-11-19T10:{minute:02}:12Z"), "UTC");
            assert_eq!(timeline.lanes.len(), 1, "{minute}");
            assert!(timeline.lanes[0].next <= timeline.until, "{minute}");
        }
    }

    #[test]
    fn what_is_due_very_often_is_drawn_where_it_is_due_and_nowhere_else() {
        let often = "jobs:\n  load: {schedule: '* * * * * *', command: 'true'}\n";
        let (timeline, text) = self::timeline(often, "2026-11-20T03:00:00Z", "UTC");
        let lane = &timeline.lanes[0];
        assert_eq!((lane.times.len(), lane.spans.len()), (0, 1));
        assert_eq!(lane.spans[0].1, timeline.until);
        assert!(text.contains("class=\"often\"") && text.contains("every second"), "{text}");
        let minutes = "jobs:\n  load: {schedule: '* 10,40 * * * *', command: 'true'}\n";
        let (timeline, _) = self::timeline(minutes, "2026-11-20T03:00:00Z", "UTC");
        let spans = &timeline.lanes[0].spans;
        assert_eq!(spans.len(), 2, "{spans:?}");
        assert!(spans.iter().all(|(from, to)| to.duration_since(*from) < SignedDuration::from_mins(3)), "{spans:?}");
    }
}
