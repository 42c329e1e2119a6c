//! The words of a sentence that are computed of several fields, or of one in more than one way.

use super::causes::cause;
use super::{Facts, Value, lasting};
use cronkeeper_core::engine::END_OF_PAUSE;
use cronkeeper_core::escape;
use cronkeeper_core::run::RunId;

/// A word, absent if there is nothing to say.
type Word = fn(&Facts<'_>) -> Option<String>;

/// Lateness below this is not worth a word.
const PUNCTUAL_MS: u64 = 100;
/// Clocks that differ by less agree.
const AGREEING_MS: u64 = 1_000;
/// Most characters of a reason of which the rest is in the field `error`: an outage takes a line of at most 160.
const BRIEF: usize = 80;

/// The beginning of an error that is only a wait.
const WAITING: &str = "waiting for ";
/// The reason for which a node stops in order.
const ASKED: &str = "asked to";

/// The placeholders of templates that are no fields. One with a field's name replaces it.
pub(super) const WORDS: &[(&str, Word)] = &[
    ("service", |f| f.any("service").or_else(|| Some(f.service.to_owned()))),
    ("again", again),
    ("ahead", |f| Some(ahead(f))),
    ("brief", |f| f.text("error").map(brief)),
    ("cause", |f| f.text("reason").map(|reason| cause(&f.line.event, reason).to_owned())),
    ("doubt", |f| {
        matches!(f.value("second_copy"), Some(Value::Bool(true))).then(|| "it may have arrived before".to_owned())
    }),
    ("ended", |f| Some(ended(f))),
    ("how", |f| {
        let by = f.text("by")?;
        Some(
            by.strip_prefix(END_OF_PAUSE)
                .map_or_else(|| format!(" by {by}"), |whose| format!(": the pause of {whose} is over")),
        )
    }),
    ("how_stopped", |f| {
        Some(match f.text("reason") {
            None => String::new(),
            Some(ASKED) => " on request".to_owned(),
            Some(reason) => format!(": {reason}"),
        })
    }),
    ("late", |f| f.time("lateness_ms").filter(|_| f.number("lateness_ms") > Some(PUNCTUAL_MS) && again(f).is_none())),
    ("leader", |f| Some(f.text("leader_node").map_or("nobody leads now".into(), |leader| format!("{leader} leads")))),
    ("manual", manual),
    ("pipe", |f| {
        Some(match f.text("stream") {
            None | Some("stdout" | "stderr") => "|".to_owned(),
            Some(hook) => format!("{hook} |"),
        })
    }),
    ("set", |f| {
        by(f).map(|(by, is_ahead)| if is_ahead { format!("forward by {by}") } else { format!("back by {by}") })
    }),
    ("skew", skew),
    ("stall", |f| {
        f.text("error").map(|error| match error.starts_with(WAITING) {
            true => format!("the node is {error}"),
            false => format!("the node is stalled: {error}"),
        })
    }),
    ("successor", |f| Some(f.text("to").unwrap_or("the next in the queue").to_owned())),
    ("then", |f| Some(f.text("to").map_or("waiting for another node".into(), |to| format!("placed on {to}")))),
    ("when", |f| {
        Some(match f.number("delay_ms")? {
            0 => "at once".to_owned(),
            delay => format!("in {}", lasting(delay)),
        })
    }),
    ("where", |f| f.any("path").or_else(|| f.any("address"))),
    ("which", |f| {
        let which = match f.any("count") {
            Some(count) => format!("{count} times, {} to {}", f.instant("first")?, f.instant("last")?),
            // The node follows.
            None => manual(f)
                .map(|run| run.split('@').next().unwrap_or_default().to_owned())
                .or_else(|| f.instant("scheduled_at"))?,
        };
        Some(match f.text("run").and_then(|run| run.split_once('@')) {
            Some((_, node)) => format!("{which} on {node}"),
            None => which,
        })
    }),
];

/// The reason in a few words. What is known of several servers is shortened by naming fewer of them.
fn brief(text: &str) -> String {
    let fits = |text: &str| text.chars().count() <= BRIEF;
    if fits(text) {
        return text.to_owned();
    }
    let mut groups = groups(text);
    // What most servers do comes first.
    groups.sort_by_key(|(servers, _)| std::cmp::Reverse(servers.len()));
    let Some((most, does)) = groups.first() else { return ends(text) };
    let named = |(servers, does): &(Vec<&str>, String)| match servers[..] {
        [server] => format!("{server}: {does}"),
        _ => format!("{} and {} more: {does}", servers[0], servers.len() - 1),
    };
    let named: Vec<String> = groups.iter().map(named).collect();
    let some = (1..=named.len()).rev().map(|count| {
        let rest = if count < named.len() { "; …" } else { "" };
        format!("{}{rest}", named[..count].join("; "))
    });
    let counted = format!("{} server{}: {does}", most.len(), if most.len() == 1 { "" } else { "s" });
    some.chain([counted, does.clone()]).find(|text| fits(text)).unwrap_or_else(|| escape::short(does, BRIEF - 1))
}

/// The servers of a reason, `a:1, b:1: connection refused; c:1: timed out`, with what they do; empty if it names none.
fn groups(text: &str) -> Vec<(Vec<&str>, String)> {
    let is_server = |name: &&str| {
        let port = name.rsplit_once(':').map_or("", |(_, port)| port);
        !name.contains(char::is_whitespace) && !port.is_empty() && port.chars().all(|c| c.is_ascii_digit())
    };
    let mut groups: Vec<(Vec<&str>, String)> = Vec::new();
    for part in text.split("; ") {
        let (servers, does) = part.split_once(": ").unwrap_or(("", part));
        let servers: Vec<&str> = servers.split(", ").collect();
        match (servers.iter().all(is_server), groups.last_mut()) {
            (true, _) => groups.push((servers, does.to_owned())),
            (false, Some((_, does))) => does.push_str(&format!("; {part}")),
            (false, None) => return Vec::new(),
        }
    }
    groups
}

/// The beginning and the end, which say what is meant and what is wrong with it.
fn ends(text: &str) -> String {
    let end: String = text.chars().skip(text.chars().count() - BRIEF / 2).collect();
    format!("{}{}", escape::short(text, BRIEF / 2 - 1), end)
}

/// The run, if somebody triggered it: its time alone could be that of an occurrence.
fn manual(f: &Facts<'_>) -> Option<String> {
    let run = f.text("run")?;
    RunId::parse(run).ok()?.trigger().map(|_| run.to_owned())
}

/// The attempt, from the second on.
fn again(f: &Facts<'_>) -> Option<String> {
    f.number("attempt").filter(|&attempt| attempt > 1).map(|attempt| attempt.to_string())
}

/// Names the entry ahead if no node of cronkeeper made it.
const ANOTHER_CLIENT: &str = "another client";

/// Who is before this node in the queue.
fn ahead(f: &Facts<'_>) -> String {
    match (f.text("predecessor_node"), f.text("leader_node")) {
        (Some(ahead), Some(leader)) if leader == ahead => format!("{leader}, which leads"),
        (ahead, Some(leader)) => format!("{}; {leader} leads", ahead.unwrap_or(ANOTHER_CLIENT)),
        (Some(ahead), None) => format!("{ahead}; no node leads yet"),
        (None, None) => ANOTHER_CLIENT.to_owned(),
    }
}

/// How an attempt ended: `success in 1 ms`, `failure, exit code 3, after 2.3 s`, `killed by root, signal 15`.
fn ended(f: &Facts<'_>) -> String {
    let outcome = f.any("outcome").unwrap_or_else(|| "?".into());
    let mut text = format!("{outcome}{}", why(f));
    let bare = text.len();
    match (f.number("exit_code"), f.number("signal")) {
        (Some(code @ 1..), _) => text.push_str(&format!(", exit code {code}")),
        (_, Some(signal)) => text.push_str(&format!(", signal {signal}")),
        _ => {}
    }
    if let Some(time) = f.time("duration_ms") {
        let is_plain = text.len() == bare && outcome == "success";
        text.push_str(&format!("{} {time}", if is_plain { " in" } else { ", after" }));
    }
    again(f).map_or(text.clone(), |attempt| format!("{text}, attempt {attempt}"))
}

/// What is behind an outcome: who killed the run, or the cause and its details.
fn why(f: &Facts<'_>) -> String {
    if let Some(by) = f.text("by").filter(|_| f.text("outcome") == Some("killed")) {
        return format!(" by {by}");
    }
    let cause = f.text("reason").map(|reason| cause(&f.line.event, reason));
    match (cause, f.text("detail")) {
        (Some(cause), Some(detail)) => format!(" ({cause}: {detail})"),
        (Some(text), None) | (None, Some(text)) => format!(" ({text})"),
        (None, None) => String::new(),
    }
}

/// `by_ms` as a length, and whether it is more than 0.
fn by(f: &Facts<'_>) -> Option<(String, bool)> {
    let by: i64 = f.any("by_ms")?.parse().ok()?;
    Some((lasting(by.unsigned_abs()), by > 0))
}

fn skew(f: &Facts<'_>) -> Option<String> {
    let (by, is_ahead) = by(f)?;
    let agrees = f.any("by_ms")?.parse::<i64>().is_ok_and(|by| by.unsigned_abs() < AGREEING_MS);
    Some(match (agrees, is_ahead) {
        (true, _) => "agrees again with".to_owned(),
        (false, true) => format!("is {by} ahead of"),
        (false, false) => format!("is {by} behind"),
    })
}
