//! The metrics as text: OpenMetrics, written by `prometheus-client`, or the older text format of Prometheus.
//!
//! Every family is always described, also while it has no series, so that each scrape lists all metrics. What a node
//! does not know is left out rather than shown as 0. docs/monitoring says what each metric means.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::channels::ChannelHealth;
use super::counts::{Counts, Histogram, JobCounts};
use crate::status::{JobStatus, LedgerPart, PlaceState, RunStatus, Status};
use cronkeeper_core::clock::later;
use cronkeeper_core::job::{Alarm, ChannelName, JobName};
use cronkeeper_core::run::RunState;

/// All that one scrape shows.
#[derive(Debug)]
pub struct Scrape {
    /// As of now, with the queue as it was read for this scrape, or with the reason why it was not.
    pub status: Status,
    /// The node takes part in the cluster.
    pub is_ready: bool,
    /// The daemon's loop turns.
    pub is_turning: bool,
    pub counts: Counts,
    /// The last successes according to the ledger; empty on a node that does not lead.
    pub successes: BTreeMap<JobName, Timestamp>,
    /// Requests over TCP with a wrong token.
    pub wrong_tokens: u64,
    /// How the channels of notifications do.
    pub channels: BTreeMap<ChannelName, ChannelHealth>,
}

/// The format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4, for clients that do not ask for OpenMetrics.
    Classic,
}

impl Format {
    /// The format that the values of a request's `Accept` ask for.
    pub fn accepted<'a>(mut accept: impl Iterator<Item = &'a str>) -> Self {
        let is_wanted = accept.any(|value| value.to_ascii_lowercase().contains("application/openmetrics-text"));
        if is_wanted { Self::OpenMetrics } else { Self::Classic }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

impl Scrape {
    /// The metrics as text.
    ///
    /// # Errors
    /// None in practice: memory takes any text.
    pub fn write(self, format: Format) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("cronkeeper");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(match format {
            Format::OpenMetrics => text,
            Format::Classic => classic(&text),
        })
    }
}

/// Turns OpenMetrics into the older format: there a counter's family is named like its series, with `_total`, and the
/// end is not marked.
fn classic(text: &str) -> String {
    let mut classic = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if line.starts_with("# HELP ") {
            help = Some(line);
            continue;
        }
        let counter = line.strip_prefix("# TYPE ").and_then(|described| described.strip_suffix(" counter"));
        match (counter, help.take()) {
            (Some(name), help) => {
                let text = help.and_then(|help| help.strip_prefix("# HELP ")?.strip_prefix(name)).unwrap_or_default();
                classic.push_str(&format!("# HELP {name}_total{text}\n# TYPE {name}_total counter\n"));
            }
            (None, _) if line == "# EOF" => {}
            (None, help) => [help, Some(line)].into_iter().flatten().for_each(|line| {
                classic.push_str(line);
                classic.push('\n');
            }),
        }
    }
    classic
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        self.node(&mut families)?;
        self.cluster(&mut families)?;
        self.jobs_file(&mut families)?;
        families.counter("api_wrong_tokens", "Requests over TCP with a wrong token", self.wrong_tokens)?;
        self.notifications(&mut families)?;
        self.runs(&mut families)?;
        self.jobs(&mut families)
    }
}

impl Scrape {
    fn node(&self, families: &mut Families<'_>) -> fmt::Result {
        let token = self.status.role.token.filter(|_| self.leads());
        let lease = self.status.session.as_ref().and_then(|session| session.lease_remaining_ms);
        let version = [(self.status.version.as_str(), 1.0)];
        families.labelled("build_info", "The node's version, as a label; always 1", "version", version)?;
        families.one("ready", "1 if the node takes part in the cluster, else 0", Some(flag(self.is_ready)))?;
        families.one("leader", "1 if the node leads, else 0", Some(flag(self.leads())))?;
        families.one("drained", "1 if an operator keeps the node from leading, else 0", self.is_drained().map(flag))?;
        families.integer("fencing_token", "Token of the node's own term", token.map(|token| token.0))?;
        let elections = self.counts.elections;
        families.counter("leadership_changes", "Terms as leader that the node has begun", elections)?;
        let help = "Time that the node may still act without hearing from the quorum";
        families.one("session_lease_seconds", help, lease.map(seconds))?;
        let may_rewind = self.status.service.as_ref().map(|worth| flag(worth.may_rewind));
        let help = "1 if a failover of the coordination service may lose what it has acknowledged, else 0";
        families.one("coordination_may_rewind", help, may_rewind)?;
        let skew = self.status.clock_skew_ms;
        let help = "By how much, at least, the node's clock is ahead of the coordination service's";
        #[expect(clippy::cast_precision_loss, reason = "a skew beyond 2^53 ms is as bad as any")]
        families.one("clock_skew_seconds", help, skew.map(|skew| skew as f64 / 1_000.0))
    }

    /// False while the daemon's loop stalls: the backend ends the term of such a node.
    fn leads(&self) -> bool {
        self.status.role.token.is_some() && self.is_turning
    }

    /// `None` while the node has not read whether it is drained: it does so before it joins the queue.
    fn is_drained(&self) -> Option<bool> {
        let status = &self.status;
        let is_drained = status.drained.contains_key(&status.node);
        let is_read = is_drained || status.knows(LedgerPart::Queue) || status.role.candidate.is_some();
        is_read.then_some(is_drained)
    }

    fn cluster(&self, families: &mut Families<'_>) -> fmt::Result {
        let status = &self.status;
        let is_read = status.unread.is_none() && status.knows(LedgerPart::Queue);
        let known = |count: usize| is_read.then(|| number(count));
        let own = status.role.candidate.as_ref();
        let ahead = status.queue.iter().position(|entry| Some(&entry.candidate) == own);
        let place = ahead.filter(|_| own.is_some()).and_then(|ahead| known(ahead + 1));
        families.one("queue_position", "The node's place in the queue; 1 is the leader's", place)?;
        families.one("members", "Number of nodes that are alive", known(status.members.len()))?;
        let help = "Number of nodes whose jobs or time zones differ from the leader's";
        families.one("jobs_drift", help, known(status.drift.len()))
    }

    fn jobs_file(&self, families: &mut Families<'_>) -> fmt::Result {
        families.one("jobs", "Number of jobs in use", Some(number(self.status.jobs.len())))?;
        let help = "1 if the jobs file is valid, 0 if it was rejected";
        families.one("jobs_config_valid", help, Some(flag(self.status.jobs_file.valid)))
    }

    /// What the node, as leader, sends.
    fn notifications(&self, families: &mut Families<'_>) -> fmt::Result {
        let of = |value: fn(&ChannelHealth) -> u64| {
            self.channels.iter().map(move |(name, health)| (name.as_str(), value(health)))
        };
        let help = "Messages about jobs and the cluster that a channel got from the node";
        families.counter_by("notifications_sent", help, "channel", of(|health| health.sent))?;
        let help = "Failed attempts of the node to send a message";
        families.counter_by("notifications_failed", help, "channel", of(|health| health.failed))?;
        let help = "Notifications that the node has given up";
        families.counter_by("notifications_given_up", help, "channel", of(|health| health.given_up))?;
        #[expect(clippy::cast_precision_loss, reason = "there are some thousands at most")]
        let pending = of(|health| health.pending).map(|(name, count)| (name, count as f64));
        let help = "Notifications that wait to be sent to a channel";
        families.labelled("notifications_pending", help, "channel", pending.filter(|_| self.leads()))
    }

    fn runs(&self, families: &mut Families<'_>) -> fmt::Result {
        let Counts { lateness, durations, commits, .. } = &self.counts;
        families.histogram("run_lateness_seconds", "From when a run is due to its start", lateness)?;
        families.histogram("run_duration_seconds", "Duration of the last attempt of a run", durations)?;
        families.histogram("commit_duration_seconds", "From the request of a ledger write to its answer", commits)?;
        families.counters("runs", "Runs that ended", "outcome", self.counted(|job| &job.outcomes))?;
        families.counters("runs_skipped", "Occurrences that were skipped", "reason", self.counted(|job| &job.skips))?;
        self.placing(families)
    }

    /// The nodes as places to run jobs. Only the leader knows what each has and whether it answers.
    fn places(&self, families: &mut Families<'_>) -> fmt::Result {
        let nodes = if self.leads() { self.status.nodes() } else { Vec::new() };
        let states = PlaceState::ALL.into_iter().filter(|_| !nodes.is_empty());
        let count = |state| number(nodes.iter().filter(|node| node.state() == state).count());
        let states = states.map(|state| (state.as_str(), count(state)));
        families.labelled("places", "Number of nodes as places to run jobs, by state", "state", states)?;
        let load = nodes.iter().map(|node| (node.node.as_str(), number(node.running + node.placed)));
        let help = "Runs that a node has, and those that are placed on it";
        families.labelled("place_load", help, "node", load)
    }

    fn placing(&self, families: &mut Families<'_>) -> fmt::Result {
        let Counts { placing, jobs, .. } = &self.counts;
        let placed = placing.placed.iter().map(|(node, count)| (node.as_str(), *count));
        families.counter_by("placed", "Attempts that the node, as leader, placed on a node", "node", placed)?;
        let by_reason = |(reason, count): (&&'static str, &u64)| (*reason, *count);
        let help = "Placed attempts that the node, as leader, took back";
        families.counter_by("moves", help, "reason", placing.moves.iter().map(by_reason))?;
        let help = "Attempts that the node refused to run";
        families.counter_by("refusals", help, "reason", placing.refusals.iter().map(by_reason))?;
        let unplaced = jobs.iter().filter(|(_, job)| job.unplaced > 0);
        let unplaced = unplaced.map(|(name, job)| (name.as_str(), job.unplaced));
        families.counter_by("runs_unplaced", "Runs that had to wait for a node", "job", unplaced)?;
        self.places(families)
    }

    /// The counters of the jobs in use: job, value of the other label, count.
    fn counted<'a>(
        &'a self,
        of: impl Fn(&'a JobCounts) -> &'a BTreeMap<&'static str, u64> + 'a,
    ) -> impl Iterator<Item = (&'a str, &'static str, u64)> + 'a {
        let each = move |(name, job)| of(job).iter().map(move |(label, count)| (JobName::as_str(name), *label, *count));
        self.counts.jobs.iter().flat_map(each)
    }

    fn jobs(&self, families: &mut Families<'_>) -> fmt::Result {
        let status = &self.status;
        let own = |run: &RunStatus| run.is_running() && run.ended.is_none() && run.node == status.node;
        families.labelled("running", "The node's runs that have a process", "job", self.in_flight(own))?;
        // Only the leader knows who is cut off.
        let cut_off = |run: &RunStatus| run.state == RunState::CutOff && self.leads();
        let help = "Runs that may still be running on a node that is cut off";
        families.labelled("cut_off", help, "job", self.in_flight(cut_off))?;
        let help = "When a run of the job last succeeded, in seconds since 1970";
        families.labelled("last_success_timestamp_seconds", help, "job", self.last_successes())?;
        let help = "1 for each active alarm of a job";
        families.gauges("job_alarm", help, "alarm", self.alarms())?;
        let help = "1 for each job that no node can run now";
        let is_unplaceable = |job: &&JobStatus| job.unplaceable.is_some() && self.leads();
        let unplaceable = status.jobs.iter().filter(is_unplaceable).map(|job| (job.name.as_str(), 1.0));
        families.labelled("job_unplaceable", help, "job", unplaceable)?;
        let next = status.jobs.iter().filter_map(|job| Some((job.name.as_str(), timestamp(job.next?))));
        let help = "The job's next occurrence, in seconds since 1970";
        families.labelled("next_run_timestamp_seconds", help, "job", next.filter(|_| self.leads()))
    }

    fn in_flight(&self, is_wanted: impl Fn(&RunStatus) -> bool) -> BTreeMap<&str, f64> {
        let mut counts = BTreeMap::new();
        for run in self.status.runs.iter().filter(|run| is_wanted(run)) {
            *counts.entry(run.run.job().as_str()).or_default() += 1.0;
        }
        counts
    }

    /// The active alarms, only on the leader, which raises and ends them.
    fn alarms(&self) -> impl Iterator<Item = (&str, &'static str, f64)> {
        let standing = |job: &JobStatus, alarm: Alarm| job.alarms.iter().any(|standing| standing.alarm == alarm);
        let jobs = self.status.jobs.iter().filter(|_| self.leads());
        let of_jobs = jobs.flat_map(|job| Alarm::ALL.map(|alarm| (job, alarm)));
        let standing = of_jobs.filter(move |(job, alarm)| standing(job, *alarm));
        standing.map(|(job, alarm)| (job.name.as_str(), alarm.as_str(), 1.0))
    }

    fn last_successes(&self) -> BTreeMap<&str, f64> {
        // It comes from a clock that was ahead. A run may have ended just after the status was published.
        let latest = later(self.status.at, Duration::from_secs(1));
        let is_past = |at: &Timestamp| *at <= latest;
        let read = |name: &JobName| self.successes.get(name).copied().filter(is_past);
        let seen = |name: &JobName| self.counts.jobs.get(name)?.last_success.filter(is_past);
        let names = self.status.jobs.iter().map(|job| &job.name);
        names.filter_map(|name| Some((name.as_str(), timestamp(read(name).max(seen(name))?)))).collect()
    }
}

fn flag(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

#[expect(clippy::cast_precision_loss, reason = "there are far fewer than 2^53")]
fn number(count: usize) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "a time in milliseconds is below 2^53")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "a timestamp in milliseconds is below 2^53")]
fn timestamp(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1_000.0
}

/// Writes one family after the other.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    /// A gauge with one series, or none.
    fn one(&mut self, name: &str, help: &str, value: Option<f64>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        value.map_or(Ok(()), |value| family.encode_gauge(&value))
    }

    /// Like [`one`](Self::one), with all digits.
    fn integer(&mut self, name: &str, help: &str, value: Option<i64>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        value.map_or(Ok(()), |value| family.encode_gauge(&value))
    }

    /// A gauge by one label.
    fn labelled<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        series: impl IntoIterator<Item = (&'l str, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        series.into_iter().try_for_each(|(of, value)| family.encode_family(&[(label, of)])?.encode_gauge(&value))
    }

    /// A gauge by job and another label.
    fn gauges<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        series: impl Iterator<Item = (&'l str, &'static str, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (job, of, value) in series {
            family.encode_family(&[("job", job), (label, of)])?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, count: u64) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, _, u64>(&count, None)
    }

    /// A counter by one label.
    fn counter_by<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        series: impl Iterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (value, count) in series {
            family.encode_family(&[(label, value)])?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }

    /// A counter by job and another label.
    fn counters<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        series: impl Iterator<Item = (&'l str, &'static str, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (job, value, count) in series {
            let labels = [("job", job), (label, value)];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        family.encode_histogram::<NoLabelSet>(histogram.sum(), histogram.count(), &histogram.buckets(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{AlarmStatus, sample};
    use crate::test_records::{record, success};
    use cronkeeper_core::engine::Report;
    use cronkeeper_core::term::NodeName;

    fn scrape() -> Scrape {
        let mut status = sample::leader();
        status.put_queue(&sample::queue());
        let successes = BTreeMap::from([(sample::job("load"), sample::at("2026-11-20T02:40:00Z"))]);
        Scrape {
            status,
            is_ready: true,
            is_turning: true,
            counts: Counts::default(),
            successes,
            wrong_tokens: 0,
            channels: BTreeMap::new(),
        }
    }

    fn lines(scrape: Scrape) -> Vec<String> {
        scrape.write(Format::Classic).unwrap().lines().map(str::to_owned).collect()
    }

    fn has(lines: &[String], wanted: &str) -> bool {
        lines.iter().any(|line| line == wanted)
    }

    #[test]
    fn the_leader_shows_what_the_nodes_have_and_whether_they_answer() {
        let (mut leader, mut follower) = (scrape(), scrape());
        for scrape in [&mut leader, &mut follower] {
            scrape.status.places = sample::places();
            scrape.status.suspects.extend(["host-b", "host-c"].map(NodeName::new));
        }
        follower.status.role.token = None;
        let series = |scrape| -> Vec<String> {
            lines(scrape).into_iter().filter(|line| line.starts_with("cronkeeper_place")).collect()
        };
        let expected = [
            "cronkeeper_places{state=\"available\"} 1.0",
            "cronkeeper_places{state=\"suspect\"} 1.0",
            "cronkeeper_places{state=\"shutting-down\"} 0.0",
            "cronkeeper_places{state=\"drained\"} 0.0",
            "cronkeeper_places{state=\"away\"} 1.0",
            "cronkeeper_place_load{node=\"host-a\"} 1.0",
            "cronkeeper_place_load{node=\"host-b\"} 0.0",
            "cronkeeper_place_load{node=\"host-c\"} 0.0",
        ];
        assert_eq!(series(leader), expected);
        assert!(series(follower).is_empty());
    }

    #[test]
    fn only_the_leader_shows_the_jobs_that_no_node_can_run() {
        let (mut leader, mut follower) = (scrape(), scrape());
        for scrape in [&mut leader, &mut follower] {
            scrape.status.jobs[0].unplaceable = Some("no node has gpu (host-a: none)".into());
        }
        follower.status.role.token = None;
        let series = |scrape| -> Vec<String> {
            lines(scrape).into_iter().filter(|line| line.starts_with("cronkeeper_job_unplaceable")).collect()
        };
        assert_eq!(series(leader), ["cronkeeper_job_unplaceable{job=\"nightly-backup\"} 1.0"]);
        assert!(series(follower).is_empty());
    }

    #[test]
    fn only_the_leader_shows_the_alarms_that_stand() {
        let alarm = |status: &mut Status| {
            let at = sample::at("2026-11-20T02:40:00Z");
            status.jobs[0].alarms = vec![AlarmStatus { alarm: Alarm::Stale, since: at, raised_at: at, run: None }];
        };
        let mut leader = scrape();
        alarm(&mut leader.status);
        assert!(has(&lines(leader), "cronkeeper_job_alarm{job=\"nightly-backup\",alarm=\"stale\"} 1.0"));
        let mut follower = scrape();
        alarm(&mut follower.status);
        follower.status.role.token = None;
        assert!(!lines(follower).iter().any(|line| line.starts_with("cronkeeper_job_alarm")));
    }

    #[test]
    fn a_leader_shows_its_term_its_place_and_the_jobs() {
        let lines = lines(scrape());
        for wanted in [
            "cronkeeper_leader 1.0",
            "cronkeeper_fencing_token 4294967301",
            "cronkeeper_queue_position 1.0",
            "cronkeeper_members 2.0",
            "cronkeeper_jobs_drift 1.0",
            "cronkeeper_session_lease_seconds 4.87",
            "cronkeeper_leadership_changes_total 0",
            "cronkeeper_running{job=\"load\"} 1.0",
            "cronkeeper_last_success_timestamp_seconds{job=\"load\"} 1763606400.0",
            "cronkeeper_next_run_timestamp_seconds{job=\"load\"} 1763607660.0",
        ] {
            let wanted = wanted.replace("1763606400", &sample::at("2026-11-20T02:40:00Z").as_second().to_string());
            let wanted = wanted.replace("1763607660", &sample::at("2026-11-20T03:01:00Z").as_second().to_string());
            assert!(has(&lines, &wanted), "{wanted}: {lines:#?}");
        }
    }

    #[test]
    fn a_run_that_has_ended_has_no_process_although_its_end_is_not_recorded_yet() {
        let mut ended = scrape();
        ended.status.runs[0].ended = Some(cronkeeper_core::run::Outcome::Success);
        assert!(!lines(ended).iter().any(|line| line.starts_with("cronkeeper_running{")));
    }

    #[test]
    fn what_could_not_be_read_is_left_out_and_not_shown_as_none() {
        let has_any = |lines: &[String], name: &str| lines.iter().any(|line| line.starts_with(&format!("{name} ")));
        let mut never = scrape();
        never.status.queue.clear();
        never.status.members.clear();
        (never.status.unknown, never.status.role.candidate) = (LedgerPart::ALL.to_vec(), None);
        never.status.unread = Some("nobody answers".into());
        let mut old = scrape();
        old.status.unread = Some("nobody answers".into());
        let (never, old) = (lines(never), lines(old));
        for name in ["cronkeeper_members", "cronkeeper_jobs_drift", "cronkeeper_queue_position"] {
            assert!(!has_any(&never, name) && !has_any(&old, name), "{name}");
        }
        assert!(!has_any(&never, "cronkeeper_drained") && has(&old, "cronkeeper_drained 0.0"));
        assert!(has(&never, "cronkeeper_jobs 3.0"), "that is the node's own");
    }

    #[test]
    fn a_leader_whose_loop_stands_still_does_not_count_as_one() {
        let lines = lines(Scrape { is_ready: false, is_turning: false, ..scrape() });
        assert!(has(&lines, "cronkeeper_leader 0.0") && has(&lines, "cronkeeper_ready 0.0"));
        assert!(!lines.iter().any(|line| line.starts_with("cronkeeper_fencing_token")));
    }

    #[test]
    fn the_later_of_the_seen_and_the_read_success_is_shown_but_none_of_the_future() {
        let jobs = crate::config::parse("jobs.yaml", b"jobs: {load: {schedule: '@daily', command: x}}").unwrap().0;
        let now = scrape().status.at.as_second();
        for (second, is_seen_later) in [(60, false), (now - 1, true), (now + 60, false)] {
            let mut scrape = scrape();
            let end = success(record("load", second, "0x1"));
            let seen = end.ended_at;
            scrape.counts.add(&Report::Recorded(Box::new(end)), &jobs);
            let shown = scrape.last_successes()["load"];
            assert_eq!(shown == timestamp(seen), is_seen_later, "{shown} {seen}");
        }
    }

    #[test]
    fn counters_are_named_as_their_series_in_the_older_format_only() {
        let open = scrape().write(Format::OpenMetrics).unwrap();
        let classic = lines(scrape());
        assert!(open.contains("# TYPE cronkeeper_runs counter\n") && open.ends_with("# EOF\n"));
        assert!(has(&classic, "# TYPE cronkeeper_runs_total counter"));
        assert!(has(&classic, "# HELP cronkeeper_runs_total Runs that ended"));
        assert!(!classic.iter().any(|line| line == "# EOF"));
        let series =
            |text: &str| text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(series(&open), series(&classic.join("\n")));
    }

    #[test]
    fn the_format_follows_the_accept_header() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(Format::accepted([prometheus].into_iter()), Format::OpenMetrics);
        assert_eq!(Format::accepted(["text/html", "*/*"].into_iter()), Format::Classic);
        assert_eq!(Format::accepted(std::iter::empty()), Format::Classic);
    }

    #[test]
    fn ten_thousand_jobs_fit_into_one_answer() {
        let mut scrape = scrape();
        let job = scrape.status.jobs[1].clone();
        let names = (0..10_000).map(|n| sample::job(&format!("a-job-with-a-name-of-some-length-{n:05}")));
        let jobs = names.map(|name| crate::status::JobStatus { name, ..job.clone() });
        scrape.status.jobs = jobs.collect();
        for job in &scrape.status.jobs {
            let counts = scrape.counts.jobs.entry(job.name.clone()).or_default();
            counts.outcomes.extend([("success", 1), ("failure", 1)]);
            counts.skips.insert("missed", 1);
            scrape.successes.insert(job.name.clone(), sample::at("2026-11-20T02:40:00Z"));
        }
        let text = scrape.write(Format::Classic).unwrap();
        assert!(text.len() < 6 << 20, "{} bytes; one caller on TCP may have 8 MiB", text.len());
    }
}
