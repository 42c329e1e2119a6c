//! Who leads, who waits for whom, and what is wrong: the top of the page.

use maud::{Markup, html};

use super::words;
use crate::status::{LastLeader, NodeState, QueuedCandidate, Status, drain_in_words};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::election::Member;
use cronkeeper_core::term::NodeName;

/// Most nodes to which leadership can be handed over by a button.
const MOST_BUTTONS: usize = 10;

/// The line that a screen reader announces when it changes.
pub(super) fn leader_line(status: &Status) -> Markup {
    html! {
        @match &status.role.leader_node {
            Some(leader) => { strong { (leader) } " leads" }
            None => {
                strong { "No leader is known" }
                @if let Some(LastLeader { node, unknown_since }) = &status.role.last_leader {
                    " since " (stamp(*unknown_since)) " UTC; until then " (node) " led"
                }
            }
        }
        @if let Some(token) = status.role.token { ", token " (token) }
        "."
    }
}

/// The queue as a row of boxes: the leader, and behind it the nodes that wait for each other.
pub(super) fn queue(status: &Status, may_act: bool) -> Markup {
    html! {
        section #queue data-live="" aria-labelledby="queue-title" {
            h2 #queue-title { "Nodes" }
            p #leader role="status" aria-live="polite" { (leader_line(status)) }
            @if status.queue.is_empty() { p { "The queue is not known." } }
            ol.queue {
                @for (place, queued) in status.queue.iter().enumerate() { (entry(status, place, queued)) }
            }
            (outside(status))
            @if may_act { (handover(status)) }
        }
    }
}

fn entry(status: &Status, place: usize, queued: &QueuedCandidate) -> Markup {
    let name = queued.node.as_ref().map_or("an entry that is not cronkeeper's", NodeName::as_str);
    let before = place.checked_sub(1).and_then(|before| status.queue.get(before));
    let is_leader = place == 0 && status.role.leader_node.is_some();
    html! {
        li data-key=(queued.candidate) class=[is_leader.then_some("leads")] {
            strong { (name) }
            " "
            @match before {
                None => span.role { @if status.role.leader_node.is_some() { "leads" } @else { "is first" } },
                Some(before) => span.role {
                    "waits for " (before.node.as_ref().map_or("the entry before it", NodeName::as_str))
                },
            }
            @for fact in facts(status, queued.node.as_ref()) { " " span.fact { (fact) } }
        }
    }
}

/// What is special about a node of the queue.
fn facts(status: &Status, node: Option<&NodeName>) -> Vec<String> {
    let Some(node) = node else { return Vec::new() };
    let mut facts = Vec::new();
    if *node == status.node {
        facts.push("this node".to_owned());
    }
    let member = status.members.iter().find(|member| member.node == *node);
    match member {
        None => facts.push("not alive".to_owned()),
        Some(Member { published, version, .. }) => {
            facts.extend((published.priority > 0).then(|| format!("priority {}", published.priority)));
            facts.extend(published.draining.then(|| "stopping".to_owned()));
            facts.extend(published.jobs_invalid.then(|| "jobs file rejected".to_owned()));
            facts.extend((*version != status.version).then(|| format!("version {version}")));
        }
    }
    facts.extend(status.drift.contains(node).then(|| "other jobs or time zones than the leader".to_owned()));
    facts
}

/// The nodes that are alive but not in the queue, and those that are gone.
fn outside(status: &Status) -> Markup {
    let queued = |node: &NodeName| status.queue.iter().any(|queued| queued.node.as_ref() == Some(node));
    let outside: Vec<_> = status.members.iter().filter(|member| !queued(&member.node)).collect();
    html! {
        @if !outside.is_empty() || !status.missing.is_empty() {
            ul {
                @for member in outside {
                    @match status.drained.get(&member.node) {
                        Some(drain) => li { (drain_in_words(&member.node, drain)) "." },
                        None => li { (member.node) " is alive, but not in the queue." },
                    }
                }
                @for missing in &status.missing {
                    li { (missing.node) " is missing, gone since " (words::time(missing.gone_since, status.at)) " UTC." }
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
                summary { "Hand leadership over…" }
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

/// What somebody should look at, apart from jobs that fail.
pub(super) fn problems(status: &Status) -> Markup {
    let problems = worded(status);
    html! {
        section #problems data-live="" aria-label="Problems" {
            @if !problems.is_empty() {
                ul.problems { @for problem in problems { li { (problem) } } }
            }
        }
    }
}

fn worded(status: &Status) -> Vec<String> {
    let mut problems = Vec::new();
    if status.is_all_drained() {
        problems.push("Nobody leads and no job runs: every node is drained".to_owned());
    }
    if !status.ready {
        let awaited = status.awaiting.as_deref().unwrap_or("its turn to take part");
        problems.push(format!("{} is not ready: it waits for {awaited}", status.node));
    }
    if status.session.as_ref().is_some_and(|session| !session.connected) {
        problems.push(format!("{} is not connected to {}", status.node, status.backend));
    }
    if !status.jobs_file.valid {
        let used = match status.jobs_file.last_good {
            true => format!("the node uses the last good jobs, of {} UTC", stamp(status.jobs_file.loaded_at)),
            false => "the jobs loaded before stay in use".to_owned(),
        };
        problems.push(format!("The jobs file was rejected; {used}"));
        problems.extend(status.jobs_file.errors.iter().take(20).cloned());
    }
    problems.extend(status.unread.iter().map(|why| format!("The ledger was not read, the rest may be old: {why}")));
    problems.extend(status.damaged.iter().take(20).map(|damage| format!("Damaged: {damage}")));
    problems
}
