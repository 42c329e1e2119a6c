//! The first line of the overview, which is its title too: what needs attention, and how the cluster is.
//!
//! It claims nothing that this node does not know. What it knew before is said in the past tense.

use jiff::SignedDuration;
use maud::{Markup, html};

use super::times::Clock;
use super::words::{counted, number};
use crate::status::{Activity, JobStatus, LastLeader, LedgerPart, MissingMember, NodeState, RunStatus, Status};
use cronkeeper_core::term::NodeName;

/// Most missing or drained nodes that are named.
const MOST_NAMED: usize = 3;
/// How long the record of an end may take.
const MOMENT: SignedDuration = SignedDuration::from_secs(5);

/// How a part of the line is coloured. Its words say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tone {
    Bad,
    Odd,
    Good,
    Plain,
    Unknown,
}

#[derive(Debug)]
struct Part {
    tone: Tone,
    text: String,
}

/// The parts of the line, what is most urgent first.
#[derive(Debug)]
pub(super) struct Headline(Vec<Part>);

impl Headline {
    pub fn of(status: &Status, clock: &Clock) -> Self {
        let mut line = Self(Vec::new());
        let has_leader = status.role.leader_node.is_some() && !is_idle_leader(status);
        if !has_leader {
            line.leader(status, clock);
        }
        line.jobs(status);
        line.running(status);
        if has_leader {
            line.leader(status, clock);
        }
        line.nodes(status);
        if let Some(first) = line.0.first_mut() {
            first.text = capitalized(&first.text);
        }
        line
    }

    fn add(&mut self, tone: Tone, text: impl Into<String>) {
        self.0.push(Part { tone, text: text.into() });
    }

    fn jobs(&mut self, status: &Status) {
        let all = status.jobs.len();
        if !status.jobs_file.valid {
            self.add(Tone::Bad, "jobs file rejected");
        }
        if all == 0 {
            return self.add(Tone::Plain, "no jobs yet");
        }
        let failing = status.jobs.iter().filter(|job| has_failed(job)).count();
        let other = status.jobs.iter().filter(|job| job.is_failing()).count() - failing;
        let of_all = format!("{} of {}", number(failing), counted(all, "job"));
        match (status.knows_who_fails(), status.unread.is_some(), failing) {
            (true, _, 0) if other > 0 => {}
            (true, false, 0) => self.add(Tone::Good, format!("{}, none failing", counted(all, "job"))),
            (true, true, 0) => {
                self.add(Tone::Unknown, format!("none of {} failed when last known", counted(all, "job")));
            }
            (true, false, 1) => self.add(Tone::Bad, format!("{of_all} fails")),
            (true, false, _) => self.add(Tone::Bad, format!("{of_all} fail")),
            (true, true, _) => self.add(Tone::Bad, format!("{of_all} failed when last known")),
            (false, _, 0) => {
                self.add(Tone::Unknown, format!("{}, not known which fail", counted(all, "job")));
            }
            (false, ..) => self.add(Tone::Bad, format!("at least {of_all} failed, the rest is not known")),
        }
        if other > 0 {
            let of_all = if failing == 0 { format!(" of {}", counted(all, "job")) } else { " more".to_owned() };
            let verb = match (status.unread.is_some(), other) {
                (true, _) => "needed attention when last known",
                (false, 1) => "needs attention",
                (false, _) => "need attention",
            };
            self.add(Tone::Bad, format!("{}{of_all} {verb}", number(other)));
        }
        let paused = status.jobs.iter().filter(|job| job.paused.is_some()).count();
        if paused > 0 {
            self.add(Tone::Odd, format!("{} paused", number(paused)));
        }
    }

    fn running(&mut self, status: &Status) {
        let (is_known, is_old) = (status.knows(LedgerPart::Runs), status.has_old_runs());
        let count = |activity| status.runs.iter().filter(|run| status.activity(run) == activity).count();
        let [running, ran] = [Activity::Running, Activity::WasRunning].map(|activity| count(Some(activity)));
        let waiting = count(Some(Activity::Waiting)) + count(Some(Activity::WasWaiting));
        let (cut_off, unrecorded) = (count(None), unrecorded(status));
        match (is_known, is_old, running) {
            (false, _, 0) => self.add(Tone::Unknown, "not known what runs"),
            (false, ..) => self.add(Tone::Unknown, format!("{} running here, elsewhere not known", number(running))),
            (true, true, _) => {
                let here = if running == 0 { "nothing".to_owned() } else { number(running) };
                self.add(Tone::Unknown, format!("{here} running here, {} elsewhere when last known", number(ran)));
            }
            (true, false, 0) => self.add(Tone::Plain, "nothing running"),
            (true, false, _) => self.add(Tone::Plain, format!("{} running", number(running))),
        }
        if waiting > 0 {
            self.add(if is_old { Tone::Unknown } else { Tone::Plain }, format!("{} waiting", number(waiting)));
        }
        if unrecorded > 0 {
            self.add(Tone::Plain, format!("{} ended, not recorded yet", number(unrecorded)));
        }
        if cut_off > 0 {
            self.add(Tone::Bad, format!("{} cut off", counted(cut_off, "run")));
        }
    }

    fn leader(&mut self, status: &Status, clock: &Clock) {
        if let (None, Some(why)) = (&status.role.leader_node, status.why_nobody_leads()) {
            return self.add(Tone::Bad, format!("nobody leads: {why}"));
        }
        match (&status.role.leader_node, &status.role.last_leader) {
            (Some(leader), _) if is_idle_leader(status) => {
                self.add(Tone::Bad, format!("leader {leader} has lost its connection and starts nothing"));
            }
            (Some(leader), _) => self.add(Tone::Plain, format!("{leader} leads")),
            (None, Some(LastLeader { node, unknown_since })) => {
                self.add(
                    Tone::Bad,
                    format!("no leader known since {} ({node} until then)", clock.short(*unknown_since)),
                );
            }
            (None, None) => self.add(Tone::Bad, "no leader known"),
        }
    }

    fn nodes<'s>(&mut self, status: &'s Status) {
        // Without a leader no node is ready.
        if !status.ready && status.state != NodeState::Drained && status.role.leader_node.is_some() {
            self.add(Tone::Bad, format!("{} is not ready", status.node));
        }
        let (stopped, missing): (Vec<_>, Vec<_>) = status.missing.iter().partition(|missing| missing.stopped);
        let names = |gone: Vec<&'s MissingMember>| gone.into_iter().map(|gone| &gone.node).collect();
        self.named(Tone::Bad, names(missing), ["missing"; 2]);
        self.named(Tone::Odd, names(stopped), ["was stopped", "were stopped"]);
        let is_here = |node: &&NodeName| !status.missing.iter().any(|gone| gone.node == **node);
        self.named(Tone::Odd, status.drained.keys().filter(is_here).collect(), ["drained"; 2]);
    }

    /// Names these nodes, or says how many they are. What they are is worded for one and for many.
    fn named(&mut self, tone: Tone, nodes: Vec<&NodeName>, [of_one, of_many]: [&str; 2]) {
        if nodes.len() > MOST_NAMED {
            return self.add(tone, format!("{} nodes {of_many}", nodes.len()));
        }
        for node in nodes {
            self.add(tone, format!("{node} {of_one}"));
        }
    }

    /// The line as text.
    pub fn title(&self) -> String {
        self.0.iter().map(|part| part.text.as_str()).collect::<Vec<_>>().join(" · ")
    }

    pub fn markup(&self) -> Markup {
        let worst = match &self.0 {
            parts if parts.iter().any(|part| part.tone == Tone::Bad) => "bad",
            parts if parts.iter().any(|part| part.tone == Tone::Unknown) => "unknown",
            parts if parts.iter().any(|part| part.tone == Tone::Odd) => "odd",
            parts if parts.iter().any(|part| part.tone == Tone::Good) => "good",
            _ => "plain",
        };
        html! {
            section #headline data-live="" aria-label="Summary" {
                h1 class={ "headline " (worst) } {
                    @for (place, Part { tone, text }) in self.0.iter().enumerate() {
                        @if place > 0 { " " span.dot aria-hidden="true" { "·" } " " }
                        span class=(tone.class()) { (text) }
                    }
                }
            }
        }
    }
}

fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Odd => "odd",
            Self::Good => "good",
            Self::Plain => "plain",
            Self::Unknown => "unknown",
        }
    }
}

/// How many runs have ended a while ago and are not recorded: each is for a moment.
fn unrecorded(status: &Status) -> usize {
    let has_just_ended = |run: &RunStatus| {
        let mut lasts = status.jobs.iter().filter_map(|job| job.last.as_ref());
        lasts.any(|last| last.run == run.run && status.at.duration_since(last.at) < MOMENT)
    };
    let ended = status.runs.iter().filter(|run| status.activity(run) == Some(Activity::Unrecorded));
    ended.filter(|run| !has_just_ended(run)).count()
}

/// True if this node leads and has lost its connection. Of another leader it does not know that.
pub(super) fn is_idle_leader(status: &Status) -> bool {
    status.is_disconnected() && status.role.leader_node.as_ref() == Some(&status.node)
}

/// True if the job's own program is at fault, as far as is known, and not an operator or a node.
fn has_failed(job: &JobStatus) -> bool {
    job.is_failing() && job.telling_end().is_some_and(|last| last.outcome.is_failed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::page::times::Zone;
    use crate::status::sample;
    use cronkeeper_core::run::{Outcome, RunState};

    fn line(status: &Status) -> String {
        Headline::of(status, &Clock::new(status.at, Zone::utc())).title()
    }

    #[test]
    fn it_says_first_what_needs_attention() {
        let mut status = sample::leader();
        assert_eq!(line(&status), "3 jobs, none failing · 1 running · host-a leads");
        status.jobs[0].last.as_mut().expect("it has run").outcome = Outcome::Failure;
        status.jobs[1].error = Some("x".into());
        status.missing.push(sample::missing("host-c"));
        status.drained = sample::drained("host-b");
        let worst = "1 of 3 jobs fails · 1 more needs attention · 1 running · host-a leads · \
                     host-c missing · host-b drained";
        assert_eq!(line(&status), worst);
        let text = Headline::of(&status, &Clock::new(status.at, Zone::utc())).markup().into_string();
        assert!(
            text.contains("headline bad") && text.contains("<span class=\"bad\">1 of 3 jobs fails</span>"),
            "{text}"
        );
    }

    #[test]
    fn it_claims_nothing_that_is_not_known() {
        let mut status = sample::leader();
        status.node = NodeName::new("host-b");
        status.state = NodeState::Following;
        status.role.leader_node = None;
        status.role.token = None;
        let last = LastLeader { node: NodeName::new("host-a"), unknown_since: sample::at("2026-11-20T02:59:12Z") };
        status.role.last_leader = Some(last);
        status.unread = Some("away".into());
        let old = "No leader known since 02:59:12 (host-a until then) · none of 3 jobs failed when last known · \
                   nothing running here, 1 elsewhere when last known";
        assert_eq!(line(&status), old);
        status.unknown = LedgerPart::ALL.to_vec();
        status.runs.clear();
        status.role.last_leader = None;
        assert_eq!(line(&status), "No leader known · 3 jobs, not known which fail · not known what runs");
        status.jobs[0].last.as_mut().expect("it has run").outcome = Outcome::Failure;
        assert!(line(&status).contains("· at least 1 of 3 jobs failed, the rest is not known ·"), "{}", line(&status));
    }

    #[test]
    fn a_node_that_was_asked_to_stop_is_not_missing_and_needs_no_attention() {
        let mut status = sample::leader();
        status.missing.push(sample::missing("host-c"));
        status.missing[0].stopped = true;
        assert_eq!(line(&status), "3 jobs, none failing · 1 running · host-a leads · host-c was stopped");
        let text = Headline::of(&status, &Clock::new(status.at, Zone::utc())).markup().into_string();
        assert!(!text.contains("bad"), "{text}");
    }

    #[test]
    fn where_all_nodes_are_drained_it_is_known_that_nobody_leads() {
        let mut status = sample::leader();
        status.drained = ["host-a", "host-b"].into_iter().flat_map(sample::drained).collect();
        status.role.leader_node = None;
        assert!(line(&status).starts_with("Nobody leads: every node is drained · "), "{}", line(&status));
    }

    #[test]
    fn only_what_has_a_process_is_counted_as_running() {
        let mut status = sample::leader();
        let run = status.runs[0].clone();
        let other = |state, ended| RunStatus { state, ended, ..run.clone() };
        status.runs.push(other(RunState::Retrying, None));
        status.runs.push(other(RunState::Running, Some(Outcome::Interrupted)));
        let counts = "1 running · 1 waiting · 1 ended, not recorded yet · host-a leads";
        assert!(line(&status).ends_with(counts), "{}", line(&status));
        let mut just_ended = status.clone();
        let last = just_ended.jobs[0].last.as_mut().expect("it has run");
        (last.run, last.at) = (run.run.clone(), status.at);
        assert!(line(&just_ended).ends_with("1 running · 1 waiting · host-a leads"), "{}", line(&just_ended));
        (status.state, status.unread) = (NodeState::Following, Some("away".into()));
        status.runs.push(RunStatus { node: NodeName::new("host-z"), ..run });
        let old = "1 running here, 1 elsewhere when last known · 1 waiting · 1 ended, not recorded yet";
        assert!(line(&status).contains(old), "{}", line(&status));
    }

    #[test]
    fn only_of_itself_a_node_says_that_a_leader_has_lost_its_connection() {
        let mut status = sample::leader();
        status.session.as_mut().expect("it has a session").connected = false;
        let idle = "Leader host-a has lost its connection and starts nothing · 3 jobs, none failing · 1 running";
        assert_eq!(line(&status), idle);
        status.node = NodeName::new("host-b");
        assert_eq!(line(&status), "3 jobs, none failing · 1 running · host-a leads");
    }

    #[test]
    fn what_an_operator_or_a_dead_node_ended_has_not_failed() {
        let mut status = sample::leader();
        status.jobs[0].last.as_mut().expect("it has run").outcome = Outcome::Killed;
        assert_eq!(line(&status), "1 of 3 jobs needs attention · 1 running · host-a leads");
    }

    #[test]
    fn without_jobs_it_does_not_call_all_of_them_well() {
        let mut status = sample::leader();
        (status.jobs, status.runs) = Default::default();
        assert_eq!(line(&status), "No jobs yet · nothing running · host-a leads");
    }
}
