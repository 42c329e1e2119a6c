//! The nodes as a picture: who leads, who waits behind which node, who is drained or missing, and what is wrong.

use maud::{Markup, html};

use super::headline::is_idle_leader;
use super::times::Clock;
use super::words;
use crate::status::{LastLeader, LedgerPart, MissingMember, NodeState, QueuedCandidate, Status, away_at, shown};
use cronkeeper_core::election::Member;
use cronkeeper_core::run::Drain;
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::NodeName;

/// Where to see what is left out.
const HIDDEN: &str = "shown on the Unix socket, or after signing in";
/// Most nodes to which leadership can be handed over by a button.
const MOST_BUTTONS: usize = 10;

/// Most nodes of the queue that are drawn at once.
const MOST_DRAWN: usize = 12;

/// The line that a screen reader announces when it changes.
fn leader_line(status: &Status, clock: &Clock) -> Markup {
    html! {
        @match &status.role.leader_node {
            Some(leader) => {
                strong { (leader) } " leads"
                @if let Some(since) = status.role.term_since.filter(|_| *leader == status.node) {
                    " since " (clock.short(since))
                }
                @if is_idle_leader(status) { ", but starts nothing without a connection" }
            }
            None if let Some(why) = status.why_nobody_leads() => { strong { "Nobody leads" } ": " (why) },
            None => {
                strong { "No leader is known" }
                @if let Some(LastLeader { node, unknown_since }) = &status.role.last_leader {
                    " since " (clock.short(*unknown_since)) "; until then " (node) " led"
                }
            }
        }
        "."
    }
}

/// The queue as a row of boxes: the leader, and behind it the nodes that wait for each other. Then the others.
pub(super) fn queue(status: &Status, may_act: bool, clock: &Clock) -> Markup {
    let is_old = status.unread.is_some();
    let (drawn, folded) = status.queue.split_at(status.queue.len().min(MOST_DRAWN));
    html! {
        section #queue .old[is_old] data-live="" aria-labelledby="queue-title" {
            h2 #queue-title { "Nodes" }
            p #leader role="status" aria-live="polite" { (leader_line(status, clock)) }
            @if let Some(read_at) = status.parts_read_at.get(&LedgerPart::Queue) {
                p.unknown { "The queue as it was at " (clock.short(*read_at)) ":" }
            }
            @if !status.knows(LedgerPart::Queue) { p.unknown { "The queue is not known." } }
            @else if status.queue.is_empty() { p.quiet { "The queue is empty." } }
            div.nodes {
                @if !drawn.is_empty() {
                    ol.queue role="list" { @for (place, queued) in drawn.iter().enumerate() { (entry(status, place, queued)) } }
                }
                (outside(status, may_act, clock))
            }
            @if !folded.is_empty() {
                details #more-nodes {
                    summary { (words::number(folded.len())) " more wait behind them" }
                    ol.queue.behind {
                        @for (place, queued) in folded.iter().enumerate() {
                            (entry(status, MOST_DRAWN + place, queued))
                        }
                    }
                }
            }
            (places(status, clock))
            @if may_act { (handover(status)) (drain(status)) }
        }
    }
}

fn entry(status: &Status, place: usize, queued: &QueuedCandidate) -> Markup {
    let name = queued.node.as_ref().map_or("an entry that is not cronkeeper's", NodeName::as_str);
    let before = place.checked_sub(1).and_then(|before| status.queue.get(before));
    let is_leader = queued.node.is_some() && queued.node == status.role.leader_node;
    let is_old = status.unread.is_some();
    html! {
        li data-key=(queued.candidate) class=[is_leader.then_some("leads")] {
            strong.name { (name) }
            " "
            span.role {
                @match before {
                    _ if is_leader => "leads",
                    None if is_old => "was first",
                    None => "is first",
                    Some(before) => {
                        @if is_old { "waited for " } @else { "waits for " }
                        (before.node.as_ref().map_or("the entry before it", NodeName::as_str))
                    },
                }
            }
            @for fact in facts(status, queued.node.as_ref()) { " " (fact) }
        }
    }
}

/// What is special about a node of the queue.
fn facts(status: &Status, node: Option<&NodeName>) -> Vec<Markup> {
    let Some(node) = node else { return Vec::new() };
    let plain = |text: &str| html! { span.fact { (text) } };
    let odd = |text: &str| html! { span.fact.odd { (text) } };
    let mut facts = Vec::new();
    if *node == status.node {
        facts.push(plain("this node"));
    }
    let running = status.runs.iter().filter(|run| run.node == *node && run.ended.is_none() && run.is_running()).count();
    if running > 0 && !status.has_old_runs() {
        facts.push(html! { span.fact.live { (words::number(running)) " running" } });
    }
    match status.members.iter().find(|member| member.node == *node) {
        None => facts.push(html! { span.fact.bad { "not alive" } }),
        Some(Member { published, version, .. }) => {
            facts.extend((published.priority > 0).then(|| plain(&format!("priority {}", published.priority))));
            facts.extend(published.never_leads.then(|| plain("never leads")));
            facts.extend(published.draining.then(|| odd(NodeState::Draining.in_words())));
            facts.extend(published.jobs_invalid.then(|| html! { span.fact.bad { "jobs file rejected" } }));
            facts.extend((*version != status.version).then(|| odd(&format!("version {version}"))));
        }
    }
    facts.extend(status.drift.contains(node).then(|| odd("its jobs or time zones differ from the leader's")));
    facts
}

/// The nodes that are not in the queue: drained, alive for other reasons, or gone.
fn outside(status: &Status, may_act: bool, clock: &Clock) -> Markup {
    let queued = |node: &NodeName| status.queue.iter().any(|queued| queued.node.as_ref() == Some(node));
    let is_missing = |node: &NodeName| status.missing.iter().any(|missing| missing.node == *node);
    let drains: Vec<_> = status.drained.iter().filter(|(node, _)| !queued(node) && !is_missing(node)).collect();
    // An old or unknown queue does not tell who is not in it.
    let is_known = status.unread.is_none() && status.knows(LedgerPart::Queue);
    let is_apart = |member: &&Member| is_known && !queued(&member.node) && !status.drained.contains_key(&member.node);
    let apart: Vec<_> = status.members.iter().filter(is_apart).collect();
    html! {
        @if !drains.is_empty() || !apart.is_empty() || !status.missing.is_empty() {
            ul.queue role="list" aria-label="Not in the queue" {
                @for (node, drain) in drains {
                    li.drained data-key={ "drained-" (node) } {
                        strong.name { (node) } " " (drained(drain, clock))
                        @for fact in facts(status, Some(node)) { " " (fact) }
                        @if may_act {
                            " " button form="act" formaction="/undrain" name="to" value=(node) { "Undrain" }
                        }
                    }
                }
                @for member in apart {
                    li.apart data-key={ "apart-" (member.node) } {
                        strong.name { (member.node) } " " span.role { "alive, not in the queue" }
                        @for fact in facts(status, Some(&member.node)) { " " (fact) }
                    }
                }
                @for missing in &status.missing { (gone(missing, status, clock)) }
            }
        }
    }
}

fn drained(drain: &Drain, clock: &Clock) -> Markup {
    html! {
        span.role { "drained" }
        span.details {
            @if let Some(by) = shown(&drain.by) { " by " (by) "," }
            " " @match drain.since() { Some(at) => (clock.distance(at)), None => "at an unknown time" }
            @if let Some(reason) = drain.reason.as_deref().and_then(shown) { ": " (reason) }
        }
    }
}

fn gone(missing: &MissingMember, status: &Status, clock: &Clock) -> Markup {
    html! {
        li class=(if missing.stopped { "drained" } else { "missing" }) data-key={ "missing-" (missing.node) } {
            strong.name { (missing.node) } " "
            span.role { @if missing.stopped { "was stopped" } @else { "missing" } }
            span.details {
                @if missing.stopped { " " (clock.distance(missing.gone_since)) }
                @else { @match missing.seen_well_before() {
                    Some(seen) => {
                        " its session ended between " (clock.short(seen)) " and " (clock.short(missing.gone_since))
                    }
                    None => { " its session ended " (clock.distance(missing.gone_since)) }
                } }
            }
            @if status.drained.contains_key(&missing.node) { " " span.fact.odd { "drained" } }
        }
    }
}

/// The nodes as places to run jobs, if any is known.
fn places(status: &Status, clock: &Clock) -> Markup {
    let nodes = status.nodes();
    html! {
        @if !nodes.is_empty() {
            details #places {
                summary { "Where jobs are placed" }
                table {
                    thead { tr {
                        th { "Node" } th { "Labels" } th { "Weight" } th { "Runs" } th { "Placed" } th { "Notes" }
                    } }
                    tbody {
                        @for node in &nodes {
                            tr data-key={ "node-" (node.node) } {
                                th scope="row" { (node.node) }
                                td data-label="Labels" { (node.labels_in_words()) }
                                td data-label="Weight" { (node.weight) }
                                td data-label="Runs" { (node.running) }
                                td data-label="Placed" { (node.placed) }
                                td data-label="Notes" { (node.notes(|since, last_seen| away_at(since, last_seen, |at| clock.short(at)))) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The buttons that hand leadership over. Only the leader can do that.
fn handover(status: &Status) -> Markup {
    let waits = |queued: &&QueuedCandidate| queued.node.as_ref().is_some_and(|node| *node != status.node);
    let others: Vec<&NodeName> = status.queue.iter().filter(waits).filter_map(|queued| queued.node.as_ref()).collect();
    html! {
        @if status.state == NodeState::Leading && !others.is_empty() {
            details #handover {
                summary { "Hand over leadership…" }
                p.actions {
                    button #handover-next form="act" formaction="/handover" { "To the next in line" }
                    @for node in others.iter().take(MOST_BUTTONS) {
                        " "
                        button form="act" formaction="/handover" name="to" value=(node) { "To " (node) }
                    }
                }
            }
        }
    }
}

/// The form that drains a node.
fn drain(status: &Status) -> Markup {
    let may_be = |member: &&Member| !status.drained.contains_key(&member.node);
    let nodes: Vec<&NodeName> = status.members.iter().filter(may_be).map(|member| &member.node).collect();
    html! {
        @if !nodes.is_empty() {
            details #drain {
                summary { "Drain a node…" }
                p.quiet { "A drained node does not lead and starts nothing. Its runs in flight continue." }
                div.action {
                    label { "Node " select #drain-node form="act-drain" name="to" {
                        @for node in nodes { option value=(node) { (node) } }
                    } }
                    label { "Reason " input #drain-reason form="act-drain" name="reason" maxlength="1000"
                        placeholder="why it is drained"; }
                    button #drain-now form="act-drain" formaction="/drain" { "Drain" }
                }
            }
        }
    }
}

/// What somebody should look at, apart from jobs that fail.
pub(super) fn problems(status: &Status, clock: &Clock) -> Markup {
    let problems = worded(status, clock);
    html! {
        section #problems data-live="" aria-label="Problems" {
            @if !problems.is_empty() {
                ul.problems { @for problem in problems { li { (problem) } } }
            }
        }
    }
}

fn worded(status: &Status, clock: &Clock) -> Vec<String> {
    let mut problems = Vec::new();
    if status.is_all_drained() {
        problems.push("Nobody leads and no job runs: every node is drained".to_owned());
    }
    if status.has_none_that_may_lead() {
        problems.push("Nobody leads and nothing new runs: no node that may lead is alive".to_owned());
    }
    if !status.ready {
        let awaited = status.awaiting.as_deref().unwrap_or("its turn to take part");
        problems.push(format!("{} is not ready: it waits for {awaited}", status.node));
    }
    if status.is_disconnected() {
        problems.push(format!("{} is not connected to {}", status.node, status.backend));
    }
    if status.role.leader_node.is_none() && (status.is_disconnected() || status.unread.is_some()) {
        let since = status.role.last_leader.as_ref().map(|LastLeader { node, unknown_since }| {
            format!(": who leads is unknown since {} ({node} until then)", clock.short(*unknown_since))
        });
        problems.push(format!("Nobody can lead as far as {} knows{}", status.node, since.unwrap_or_default()));
    }
    if !status.jobs_file.valid {
        let used = match status.jobs_file.last_good {
            true => format!("the node uses the last good jobs, of {}", clock.short(status.jobs_file.loaded_at)),
            false => "the previous jobs stay in use".to_owned(),
        };
        problems.push(format!("The jobs file was rejected; {used}"));
        problems.extend(each_shown(&status.jobs_file.errors, "error"));
    }
    problems.extend(unread(status, clock));
    problems.extend(each_shown(&status.damaged, "damaged path"));
    problems.extend(status.failing_channels.iter().map(|failing| {
        let why = shown(&failing.error).map_or_else(|| format!("; the cause is {HIDDEN}"), |why| format!(": {why}"));
        format!("Channel {}{why}", failing.in_words(&clock.short(failing.since)))
    }));
    problems
}

/// The first of these texts; of texts that the visitor may not see only their number.
fn each_shown(texts: &[String], what: &str) -> Vec<String> {
    match texts.iter().any(|text| shown(text).is_none()) {
        true => vec![format!("{}, {HIDDEN}", counted(texts.len(), what))],
        false => texts.iter().take(20).cloned().collect(),
    }
}

/// Says that the ledger was not read, why, and what that means for the rest of the page.
fn unread(status: &Status, clock: &Clock) -> Option<String> {
    let why = status.unread.as_deref()?;
    let why = shown(why).map_or_else(|| format!("; the cause is {HIDDEN}"), |why| format!(": {why}"));
    let mut text = format!("The ledger was not read{why}");
    if let Some(parts) = status.parts_in_words(|at| clock.short(at)) {
        text.push_str(&format!(". What you see of it is {parts}"));
    }
    if !status.unknown.is_empty() {
        let parts: Vec<&str> = status.unknown.iter().map(|part| part.describe()).collect();
        text.push_str(&format!(". Not known: {}", parts.join("; ")));
    }
    Some(text)
}

/// Says on any page that the ledger was not read.
pub(super) fn unread_note(status: &Status, clock: &Clock) -> Markup {
    html! {
        section #problems data-live="" aria-label="Problems" {
            @if let Some(text) = unread(status, clock) { ul.problems { li { (text) } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::page::times::Zone;
    use crate::status::sample;

    fn text(status: &Status) -> String {
        queue(status, true, &Clock::new(status.at, Zone::utc())).into_string()
    }

    #[test]
    fn missing_and_drained_nodes_are_drawn_as_what_they_are() {
        let mut status = sample::leader();
        status.queue.truncate(1);
        status.drained = sample::drained("host-b");
        status.missing.push(sample::missing("host-c"));
        let text = text(&status);
        assert!(
            text.contains("class=\"leads\"") && text.contains("<strong>host-a</strong> leads since Nov 19 23:12:00."),
            "{text}"
        );
        assert!(
            text.contains("class=\"drained\"") && text.contains("drained</span><span class=\"details\"> by alice, "),
            "{text}"
        );
        assert!(
            text.contains("class=\"missing\"")
                && text.contains(" its session ended <time")
                && text.contains("3 min ago"),
            "{text}"
        );
    }

    #[test]
    fn who_may_act_can_drain_a_node_and_undrain_a_drained_one() {
        let mut status = sample::leader();
        status.drained = sample::drained("host-b");
        status.queue.retain(|queued| queued.node.as_ref().is_none_or(|node| node.as_str() != "host-b"));
        let shown = text(&status);
        assert!(shown.contains("formaction=\"/undrain\" name=\"to\" value=\"host-b\""), "{shown}");
        assert!(shown.contains("<option value=\"host-a\">") && !shown.contains("<option value=\"host-b\">"), "{shown}");
        let for_others = queue(&status, false, &Clock::new(status.at, Zone::utc())).into_string();
        assert!(!for_others.contains("formaction"), "{for_others}");
    }

    #[test]
    fn an_old_queue_names_no_leader() {
        let mut status = sample::leader();
        (status.role.leader_node, status.unread) = (None, Some("away".into()));
        let text = text(&status);
        assert!(text.contains("was first") && text.contains("waited for host-a"), "{text}");
        assert!(!text.contains("leads") && text.contains("No leader is known"), "{text}");
    }

    #[test]
    fn a_long_queue_is_folded() {
        let mut status = sample::leader();
        let one = status.queue[0].clone();
        let candidate = |number| cronkeeper_core::term::CandidateName(format!("n-{number}"));
        status.queue = (0..50).map(|number| QueuedCandidate { candidate: candidate(number), ..one.clone() }).collect();
        assert!(text(&status).contains("38 more wait behind them"), "{}", text(&status));
    }
}
