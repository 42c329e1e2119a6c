//! What an event says to people: a sentence made of the event's fields.
//!
//! Every event of [`log_event::EVENTS`] has one. Anything else, such as a library's line, is its message and its fields.

mod runs;

use jiff::Timestamp;

use crate::telemetry::line::{Line, Value};
use cronkeeper_core::escape;
use cronkeeper_core::log_event;
use cronkeeper_core::suggest::counted;

/// A line without its time and level.
#[derive(Debug, PartialEq)]
pub(super) struct Sentence {
    /// The job that it is about.
    pub job: Option<String>,
    pub text: String,
}

/// The sentence for a line that is written at `now`. It is not escaped yet.
pub(super) fn of(line: &Line, now: Timestamp) -> Sentence {
    let facts = Facts { line, now };
    match known(&facts) {
        Some(text) => Sentence { job: facts.text("job").map(str::to_owned), text: facts.continued(text) },
        None => Sentence { job: None, text: other(line) },
    }
}

/// The command that shows the status of a node whose API is served on this line's socket.
pub(super) fn status_command(line: &Line) -> Option<String> {
    let facts = Facts { line, now: Timestamp::UNIX_EPOCH };
    let path = facts.text("path")?;
    let (directory, _) = path.rsplit_once('/')?;
    Some(format!("cronkeeper status --runtime-dir {}", escape::value(directory)))
}

/// The words for an event of [`log_event::EVENTS`].
fn known(facts: &Facts<'_>) -> Option<String> {
    node(facts).or_else(|| cluster(facts)).or_else(|| runs::words(facts)).or_else(|| of_its_message(facts))
}

/// Events of which the message alone says everything.
fn of_its_message(facts: &Facts<'_>) -> Option<String> {
    let is_one = matches!(
        facts.line.event.as_str(),
        log_event::NODE_UNSETTLED
            | log_event::NODE_STUCK
            | log_event::NODE_UNSTUCK
            | log_event::NODE_STOOD_STILL
            | log_event::JOBS_WARNING
            | log_event::JOBS_ERROR
            | log_event::JOBS_UNWATCHED
            | log_event::JOBS_UNCOPIED
            | log_event::ZONES_DRIFT
            | log_event::MEMBER_GONE
            | log_event::MEMBER_BACK
            | log_event::NODE_UNDRAINED
            | log_event::ELECTION_UNFIT
            | log_event::ELECTION_ALL_DRAINED
            | log_event::ELECTION_NOBODY_MAY_LEAD
            | log_event::LEADER_HANDING_OVER
            | log_event::LEADER_HANDOVER_FAILED
            | log_event::COORDINATION_EXAMINED
            | log_event::COORDINATION_UNEXAMINED
            | log_event::COORDINATION_FILLING
            | log_event::COORDINATION_STALLED
            | log_event::COORDINATION_RECOVERED
            | log_event::COORDINATION_REWOUND
            | log_event::COORDINATION_FAILED
            | log_event::COORDINATION_DAMAGED
            | log_event::COORDINATION_REPAIRED
            | log_event::COORDINATION_EXPOSED
            | log_event::COORDINATION_SECURED
            | log_event::COORDINATION_NUMBERS_LOW
            | log_event::COORDINATION_NUMBERS_RESTARTED
            | log_event::COORDINATION_SUSPENDED
            | log_event::COORDINATION_RESUMED
            | log_event::COORDINATION_EXPIRED
            | log_event::RUN_OUTLIVED
            | log_event::RUN_UNKILLABLE
            | log_event::RUN_OBSTRUCTED
            | log_event::WARDEN_FAILED
            | log_event::LOCK_REFUSED
            | log_event::HISTORY_UNTRIMMED
            | log_event::JOB_MARK_AHEAD
            | log_event::JOB_RECOUNTED
            | log_event::ARCHIVE_FAILED
            | log_event::ARCHIVE_RECOVERED
            | log_event::ARCHIVE_COPIED
            | log_event::ARCHIVE_INCOMPLETE
            | log_event::OUTPUT_FAILED
            | log_event::OUTPUT_RECOVERED
            | log_event::OPERATOR_REQUESTED
            | log_event::OPERATOR_REFUSED
            | log_event::API_FAILED
            | log_event::API_RELOADED
            | log_event::API_REJECTED
            | log_event::API_UNENCRYPTED
            | log_event::API_REFUSED
            | log_event::API_SIGNED_IN
            | log_event::STATE_FAILED
            | log_event::INTERNAL_ERROR
    );
    is_one.then(|| facts.line.message_or_default().to_owned())
}

/// Events of the node itself and of its jobs file.
fn node(f: &Facts<'_>) -> Option<String> {
    Some(match f.line.event.as_str() {
        log_event::NODE_STARTED => {
            format!(
                "cronkeeper {} starts with {}, backend {}",
                f.any("version"),
                f.count("jobs", "job"),
                f.any("backend")
            )
        }
        log_event::NODE_STATE => format!("state: {}", f.any("state")),
        log_event::NODE_DRAINING if f.number("runs") == Some(0) => "stops".to_owned(),
        log_event::NODE_DRAINING => format!(
            "stops, but waits up to {} for {}{}; press Ctrl-C again to stop now",
            f.time("timeout_ms"),
            f.count("runs", "run"),
            f.with(": ", "waits_for"),
        ),
        log_event::NODE_DRAINED => format!(
            "drained by {}{}; leads no more, has {}{}",
            f.any("by"),
            f.with(": ", "reason"),
            f.count("runs", "run"),
            f.with(": ", "waits_for"),
        ),
        log_event::NODE_STOPPING => format!("asked again to stop: kills {}", f.count("runs", "run")),
        log_event::NODE_STOPPED => format!("stopped{}", f.with(": ", "reason")),
        log_event::JOBS_LOADED => format!("loaded {} from {}{}", f.count("jobs", "job"), f.any("path"), changes(f)),
        log_event::JOBS_REJECTED => format!(
            "{} has {}, so {} stay in force: {}",
            f.any("path"),
            f.count("errors", "error"),
            f.text("last_good")
                .map_or("the jobs loaded before".to_owned(), |at| format!("the last good jobs, of {at},")),
            f.any("first"),
        ),
        log_event::JOBS_DRIFT => format!("{} has loaded another jobs file", f.any("other")),
        log_event::JOBS_DRIFT_ENDED => format!("{} has the same jobs file again", f.any("other")),
        log_event::ZONES_DRIFT_ENDED => format!("{} has the same time zone data again", f.any("other")),
        log_event::NODE_SUSPECT => {
            format!("{} does not accept in time what is placed there; others get runs first", f.any("other"))
        }
        log_event::NODE_FORGOTTEN => {
            format!("{} is gone: jobs on every node no longer count on it", f.any("other"))
        }
        log_event::CLOCK_STEPPED => format!("the system clock was set by {} ms", f.any("by_ms")),
        log_event::CLOCK_SKEWED => format!("{} ({} ms)", f.line.message_or_default(), f.any("by_ms")),
        log_event::WARDEN_SILENT => format!("{} ({})", f.line.message_or_default(), f.count("runs", "run")),
        log_event::API_LISTENING => format!("serves the API at {}", f.text("path").unwrap_or(&f.any("address"))),
        log_event::NOTICE_SENT => {
            format!("channel {} got a message about {}", f.any("channel"), f.count("count", "notification"))
        }
        log_event::NOTICE_FAILED => {
            format!("channel {} did not get a message{}", f.any("channel"), f.with(": ", "error"))
        }
        log_event::NOTICE_GIVEN_UP => format!(
            "channel {} never gets {}{}",
            f.any("channel"),
            f.count("count", "notification"),
            f.with(": ", "error"),
        ),
        log_event::NOTICE_DROPPED => {
            format!("nobody gets the notification {}{}", f.any("notice"), f.with(": ", "reason"))
        }
        log_event::LOG_DROPPED => {
            let (output, other) = (f.any("output_lines"), f.any("other_lines"));
            format!(
                "the log could not be written fast enough: {output} lines of output and {other} other lines are lost"
            )
        }
        _ => return None,
    })
}

/// Which jobs a newly loaded file has changed.
fn changes(f: &Facts<'_>) -> String {
    let kinds = [("added ", "added_jobs"), ("changed ", "changed_jobs"), ("removed ", "removed_jobs")];
    let named: Vec<String> = kinds.iter().map(|(word, name)| f.with(word, name)).filter(|it| !it.is_empty()).collect();
    if named.is_empty() { String::new() } else { format!(": {}", named.join("; ")) }
}

/// Events of the election, and of the coordination service.
fn cluster(f: &Facts<'_>) -> Option<String> {
    Some(match f.line.event.as_str() {
        log_event::ELECTION_JOINED => "joined the queue".to_owned(),
        log_event::ELECTION_OBSERVING => match f.text("leader_node") {
            Some(leader) => format!("never leads; {leader} leads"),
            None => "never leads, and nobody else does now".to_owned(),
        },
        log_event::ELECTION_FOLLOWING => {
            let ahead = f.text("predecessor_node").unwrap_or("another client");
            match f.text("leader_node") {
                Some(leader) if leader != ahead => format!("waits behind {ahead}; {leader} leads"),
                Some(leader) => format!("waits behind {leader}, which leads"),
                None => format!("waits behind {ahead}"),
            }
        }
        log_event::LEADER_ELECTED => {
            format!("leads{} (token {}, {})", f.with(" after ", "after"), f.any("token"), f.time("took_ms"))
        }
        log_event::LEADER_RESIGNED => "no longer leads: gave leadership up".to_owned(),
        log_event::LEADER_LOST => format!("no longer leads: {}", end_of_term(&f.any("reason"))),
        log_event::TAKEOVER_DONE => {
            let cut_off = match f.number("cut_off") {
                None | Some(0) => String::new(),
                Some(_) => format!(", {} cut off", f.count("cut_off", "run")),
            };
            let missed = f.count("missed", "missed occurrence");
            match (f.number("settled"), f.number("missed"), cut_off.is_empty()) {
                (Some(0), Some(0), true) => format!("took over in {}", f.time("took_ms")),
                _ => {
                    let settled = f.count("settled", "run");
                    format!("took over in {}: {settled} settled{cut_off}, {missed}", f.time("took_ms"))
                }
            }
        }
        log_event::COORDINATION_UNREACHABLE => {
            let why = f.line.message.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("the coordination service does not answer, trying again{why}")
        }
        log_event::COORDINATION_RESTORED => format!("the coordination service is back after {}", f.time("away_ms")),
        _ => return None,
    })
}

fn end_of_term(reason: &str) -> &str {
    match reason {
        "lease" => "its lease ended",
        "entry-gone" => "its entry in the queue is gone",
        "session-expired" => "its session expired",
        "fenced" => "another node leads",
        "stalled" => "its loop stood still",
        other => other,
    }
}

/// The message and fields of a line that is none of our events.
fn other(line: &Line) -> String {
    let mut text = line.source.as_ref().map(|source| format!("{source}: ")).unwrap_or_default();
    if line.source.is_none() && line.event != "log" {
        text.push_str(&format!("{}: ", line.event));
    }
    text.push_str(line.message_or_default());
    for (name, value) in &line.fields {
        text.push_str(&format!(" {name}={value}"));
    }
    text
}

/// The fields of a line. A field that is missing, or of another type than usual, still gives a readable sentence.
struct Facts<'a> {
    line: &'a Line,
    now: Timestamp,
}

impl Facts<'_> {
    fn value(&self, name: &str) -> Option<&Value> {
        self.line.fields.iter().find_map(|(known, value)| (*known == name).then_some(value))
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.value(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A field of any type, `?` if it is missing.
    fn any(&self, name: &str) -> String {
        match self.value(name) {
            Some(Value::Text(text)) => text.clone(),
            Some(number) => number.to_string(),
            None => "?".to_owned(),
        }
    }

    /// `prefix` and the field, or nothing if it is missing.
    fn with(&self, prefix: &str, name: &str) -> String {
        if self.value(name).is_some() { format!("{prefix}{}", self.any(name)) } else { String::new() }
    }

    fn count(&self, name: &str, noun: &str) -> String {
        self.number(name).and_then(|count| usize::try_from(count).ok()).map_or("?".into(), |count| counted(count, noun))
    }

    /// A number of milliseconds as people read it: `12 ms`, `2.3 s`, `1h5m`.
    fn time(&self, name: &str) -> String {
        match self.number(name) {
            None => "?".to_owned(),
            Some(millis @ ..1_000) => format!("{millis} ms"),
            Some(millis @ ..60_000) if millis % 1_000 == 0 => format!("{} s", millis / 1_000),
            Some(millis @ ..60_000) => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
            Some(millis) => cronkeeper_core::duration::format(std::time::Duration::from_secs(millis / 1_000)),
        }
    }

    /// An instant: its time alone if it is of today.
    fn at(&self, name: &str) -> String {
        let Some(at) = self.text(name).and_then(|text| text.parse::<Timestamp>().ok()) else { return self.any(name) };
        let is_today = at.as_second().div_euclid(86_400) == self.now.as_second().div_euclid(86_400);
        at.strftime(if is_today { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" }).to_string()
    }

    /// Marks a text that goes on in the next line.
    fn continued(&self, text: String) -> String {
        if self.value("continues").is_some() { format!("{text} …") } else { text }
    }
}
