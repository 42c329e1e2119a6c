//! Who leads, who waits for whom, and what is wrong: the top of the page.

use maud::{Markup, html};

use super::words;
use crate::status::{LastLeader, LedgerPart, NodeState, QueuedCandidate, Status, drain_in_words, shown};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::election::Member;
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::NodeName;

/// Where to see what is left out.
const HIDDEN: &str = "shown on the Unix socket, and to who has signed in";
/// Most nodes to which leadership can be handed over by a button.
const MOST_BUTTONS: usize = 10;

/// The line that a screen reader announces when it changes.
pub(super) fn leader_line(status: &Status) -> Markup {
    html! {
        @match &status.role.leader_node {
            Some(leader) => {
                strong { (leader) } " leads"
                @if status.is_disconnected() { ", but starts nothing without a connection" }
            }
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
        section #queue .old[status.unread.is_some()] data-live="" aria-labelledby="queue-title" {
            h2 #queue-title { "Nodes" }
            p #leader role="status" aria-live="polite" { (leader_line(status)) }
            @if let (Some(_), Some(read_at)) = (&status.unread, status.read_at) {
                p.unknown { "The queue as it was read at " (words::time(read_at, status.at)) " UTC:" }
            }
            @if !status.knows(LedgerPart::Queue) { p.unknown { "The queue is not known." } }
            @else if status.queue.is_empty() { p { "The queue is empty." } }
            ol.queue {
                @for (place, queued) in status.queue.iter().enumerate() { (entry(status, place, queued)) }
            }
            (outside(status))
            (places(status))
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
            facts.extend(published.never_leads.then(|| "never leads".to_owned()));
            facts.extend(published.draining.then(|| "stopping".to_owned()));
            facts.extend(published.jobs_invalid.then(|| "jobs file rejected".to_owned()));
            facts.extend((*version != status.version).then(|| format!("version {version}")));
        }
    }
    facts.extend(
        status.drift.contains(node).then(|| "another jobs file or other time zones than the leader".to_owned()),
    );
    facts
}

/// The nodes that are alive but not in the queue, and those that are gone.
fn outside(status: &Status) -> Markup {
    let queued = |node: &NodeName| status.queue.iter().any(|queued| queued.node.as_ref() == Some(node));
    // An old or unknown queue does not tell who is not in it.
    let is_known = status.unread.is_none() && status.knows(LedgerPart::Queue);
    let outside: Vec<_> = status.members.iter().filter(|member| is_known && !queued(&member.node)).collect();
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
                    li { (missing.node) " is missing, gone since " (words::time(missing.gone_since, status.at)) " UTC"
                        @if let (true, Some(seen)) = (missing.is_vague(), missing.last_seen) {
                            " at the latest; it was last seen alive at " (words::time(seen, status.at)) " UTC"
                        }
                        "." }
                }
            }
        }
    }
}

/// The nodes as places to run jobs, if any is known.
fn places(status: &Status) -> Markup {
    let nodes = status.nodes();
    html! {
        @if !nodes.is_empty() {
            details #places {
                summary { "Where jobs run…" }
                table {
                    thead { tr { th { "Node" } th { "Labels" } th { "Weight" } th { "Runs" } th { "Placed" } th { "Notes" } } }
                    tbody {
                        @for node in &nodes {
                            tr data-key={ "node-" (node.node) } {
                                th scope="row" { (node.node) }
                                td data-label="Labels" { (node.labels_in_words()) }
                                td data-label="Weight" { (node.weight) }
                                td data-label="Runs" { (node.running) }
                                td data-label="Placed" { (node.placed) }
                                td data-label="Notes" { (node.notes(|at| format!("away since {} UTC", stamp(at)))) }
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
    if status.has_none_that_may_lead() {
        problems.push("Nobody leads and nothing new is run: no node that may lead is alive".to_owned());
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
            format!(": who leads is unknown since {} UTC ({node} until then)", stamp(*unknown_since))
        });
        problems.push(format!("Nobody can lead as far as {} knows{}", status.node, since.unwrap_or_default()));
    }
    if !status.jobs_file.valid {
        let used = match status.jobs_file.last_good {
            true => format!("the node uses the last good jobs, of {} UTC", stamp(status.jobs_file.loaded_at)),
            false => "the jobs loaded before stay in use".to_owned(),
        };
        problems.push(format!("The jobs file was rejected; {used}"));
        problems.extend(each_shown(&status.jobs_file.errors, "error"));
    }
    problems.extend(unread(status));
    problems.extend(each_shown(&status.damaged, "damaged path"));
    problems
}

/// The first of these texts; of texts that the visitor may not see only their number.
fn each_shown(texts: &[String], what: &str) -> Vec<String> {
    match texts.iter().any(|text| shown(text).is_none()) {
        true => vec![format!("{}, {HIDDEN}", counted(texts.len(), what))],
        false => texts.iter().take(20).cloned().collect(),
    }
}

/// That the ledger was not read, why, and what that means for the rest of the page.
fn unread(status: &Status) -> Option<String> {
    let why = status.unread.as_deref()?;
    let why = shown(why).map_or_else(|| format!("; the cause is {HIDDEN}"), |why| format!(": {why}"));
    let mut text = format!("The ledger was not read{why}");
    if let Some(read_at) = status.read_at {
        text.push_str(&format!(". What is shown of it is what it held at {} UTC", stamp(read_at)));
    }
    if !status.unknown.is_empty() {
        let parts: Vec<&str> = status.unknown.iter().map(|part| part.describe()).collect();
        text.push_str(&format!(". Not known: {}", parts.join("; ")));
    }
    Some(text)
}

/// Says on any page that the ledger was not read.
pub(super) fn unread_note(status: &Status) -> Markup {
    html! {
        section #problems data-live="" aria-label="Problems" {
            @if let Some(text) = unread(status) { ul.problems { li { (text) } } }
        }
    }
}
