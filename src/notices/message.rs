//! What a message says: a title, a text for people, and JSON for programs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::plan::Batch;
use cronkeeper_core::clock::instant;
use cronkeeper_core::duration;
use cronkeeper_core::escape;
use cronkeeper_core::job::{ChannelName, NoticeKind};
use cronkeeper_core::run::{Notice, Outcome};
use cronkeeper_core::term::NodeName;

/// Most notices that a text lists.
const LISTED: usize = 20;
/// Most notices in JSON.
const IN_JSON: usize = 100;
/// Most characters of a run's output in a text.
const LONGEST_TAIL: usize = 4_000;
/// Most bytes of JSON: services refuse larger requests for good.
const MOST_BYTES: usize = 256 << 10;
/// Makes a mention of everybody an ordinary text.
const NO_SPACE: char = '\u{200b}';
const SECOND_COPY: &str = "This may be the second copy: cronkeeper cannot tell whether an earlier one arrived.";

/// A message to one channel.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub id: String,
    /// One line.
    pub title: String,
    /// Ends with a line break.
    pub text: String,
    /// Title and text for a chat, in its markup.
    pub chat: String,
    pub json: Vec<u8>,
}

/// Where a text is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    /// In Slack or a compatible service.
    Chat,
}

impl Form {
    /// A line of cronkeeper's own.
    fn own(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            // Three characters have a meaning of their own there.
            Self::Chat => text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"),
        }
    }

    /// What somebody else has written, such as a program: it must call nobody.
    fn foreign(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            // Slack takes mentions in angle brackets; others take the bare `@all` and `@channel`, also in code.
            Self::Chat => self.own(&text.replace('@', &format!("@{NO_SPACE}"))),
        }
    }

    /// The output of a program.
    fn output(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Chat => format!("```\n{}```\n", self.foreign(text).replace("```", "` ` `")),
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    v: u32,
    id: &'a str,
    channel: &'a ChannelName,
    /// The node that sends it.
    sent_by: &'a NodeName,
    sent_at: Timestamp,
    /// An earlier copy with the same id may have arrived.
    may_be_second_copy: bool,
    title: &'a str,
    text: &'a str,
    /// Number of notices, also of those that are left out.
    count: usize,
    notices: Vec<Cow<'a, Notice>>,
}

impl Message {
    /// `notices`: those of the batch, the oldest first, at least one.
    pub fn of(
        channel: &ChannelName,
        batch: &Batch,
        notices: &[&Notice],
        sent_by: &NodeName,
        sent_at: Timestamp,
    ) -> Self {
        let title = format!("cronkeeper: {}", title(notices));
        let text = |form| {
            let text = match notices {
                [one] => alone(one, form),
                several => list(several, form),
            };
            if batch.is_again { format!("{SECOND_COPY}\n\n{text}") } else { text }
        };
        let chat = format!("*{}*\n{}", Form::Chat.own(&title), text(Form::Chat).trim_end());
        let text = text(Form::Plain);
        let document = Document {
            v: 1,
            id: &batch.id,
            channel,
            sent_by,
            sent_at,
            may_be_second_copy: batch.is_again,
            title: &title,
            text: &text,
            count: notices.len(),
            notices: notices.iter().take(IN_JSON).map(|&notice| Cow::Borrowed(notice)).collect(),
        };
        let json = document.bounded();
        Self { id: batch.id.clone(), title, text, chat, json }
    }

    /// The body for Slack and compatible services.
    pub fn slack(&self) -> Vec<u8> {
        serde_json::json!({ "text": self.chat }).to_string().into_bytes()
    }
}

impl Document<'_> {
    /// As JSON. Where it would be too large, it does without outputs, from the oldest notice on.
    fn bounded(mut self) -> Vec<u8> {
        let json = |document: &Self| serde_json::to_vec(document).unwrap_or_default();
        let whole = json(&self);
        let mut excess = whole.len().saturating_sub(MOST_BYTES);
        if excess == 0 {
            return whole;
        }
        for notice in self.notices.iter_mut().filter(|notice| !notice.tail.is_empty()) {
            if excess == 0 {
                break;
            }
            let saved = serde_json::to_vec(&notice.tail).map_or(0, |tail| tail.len());
            notice.to_mut().tail.clear();
            excess = excess.saturating_sub(saved);
        }
        loop {
            let shorter = json(&self);
            if shorter.len() <= MOST_BYTES || self.notices.len() <= 1 {
                return shorter;
            }
            // `count` counts those that are left out, too.
            self.notices.truncate(self.notices.len() / 2);
        }
    }
}

fn title(notices: &[&Notice]) -> String {
    if let [one] = notices {
        return line(one);
    }
    let mut kinds: BTreeMap<NoticeKind, usize> = BTreeMap::new();
    notices.iter().for_each(|notice| *kinds.entry(notice.kind).or_default() += 1);
    let counts: Vec<String> = kinds.into_iter().map(|(kind, count)| counted(kind, count)).collect();
    counts.join(", ")
}

fn counted(kind: NoticeKind, count: usize) -> String {
    let (one, several) = match kind {
        NoticeKind::Failure => ("failure", "failures"),
        NoticeKind::Recovery => ("recovery", "recoveries"),
        NoticeKind::Missed => ("job with missed runs", "jobs with missed runs"),
        NoticeKind::Late => ("late run", "late runs"),
        NoticeKind::Long => ("long run", "long runs"),
        NoticeKind::Stale => ("stale job", "stale jobs"),
        NoticeKind::Output => ("output", "outputs"),
        NoticeKind::LeaderChanged => ("change of leader", "changes of leader"),
        NoticeKind::NodeMissing => ("node missing", "nodes missing"),
        NoticeKind::NodeBack => ("node back", "nodes back"),
        NoticeKind::Test => ("test", "tests"),
    };
    format!("{count} {}", if count == 1 { one } else { several })
}

fn list(notices: &[&Notice], form: Form) -> String {
    let mut text = String::new();
    for notice in notices.iter().take(LISTED) {
        let _ = writeln!(text, "{}  {}", instant(notice.at), form.own(&line(notice)));
    }
    if notices.len() > LISTED {
        let _ = writeln!(text, "and {} more: see `cronkeeper history`", notices.len() - LISTED);
    }
    text
}

/// A notice in one line.
fn line(notice: &Notice) -> String {
    let job = notice.job.as_ref().map_or_else(|| "a job".to_owned(), ToString::to_string);
    let node = notice.node.as_ref().map_or_else(|| "a node".to_owned(), ToString::to_string);
    let on = notice.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let limit = notice.limit_ms.map(|limit| duration::format(Duration::from_millis(limit))).unwrap_or_default();
    match notice.kind {
        // The outcome `failure` says nothing more.
        NoticeKind::Failure if notice.outcome == Some(Outcome::Failure) => {
            let why = details(notice).map(|why| format!(": {why}")).unwrap_or_default();
            format!("{job} failed{on}{why}")
        }
        NoticeKind::Failure => format!("{job} failed{on}: {}", outcome(notice)),
        NoticeKind::Recovery => format!("{job} succeeded again{on}"),
        NoticeKind::Missed => {
            let count = notice.count.unwrap_or(1);
            let what = if count == 1 { "an occurrence".to_owned() } else { format!("{count} occurrences") };
            format!("{job}: {what} did not run ({})", notice.reason.as_deref().unwrap_or("missed"))
        }
        NoticeKind::Late => format!("{job} is late: it has not started {limit} after it was due"),
        NoticeKind::Long => format!("{job} is taking too long: it has been running for more than {limit}"),
        NoticeKind::Stale => format!("{job} has not succeeded for {limit}"),
        NoticeKind::Output => format!("output of {job}{on} ({})", outcome(notice)),
        NoticeKind::LeaderChanged => format!("{node} leads now"),
        NoticeKind::NodeMissing => format!("node {node} is missing"),
        NoticeKind::NodeBack => format!("node {node} is back"),
        NoticeKind::Test => format!("a test, sent by {node}"),
    }
}

fn outcome(notice: &Notice) -> String {
    let outcome = notice.outcome.map_or("unknown", |outcome| outcome.as_str());
    details(notice).map_or_else(|| outcome.to_owned(), |details| format!("{outcome}, {details}"))
}

fn details(notice: &Notice) -> Option<String> {
    match (notice.exit_code, notice.signal, &notice.reason) {
        (_, _, Some(reason)) => Some(reason.clone()),
        (_, Some(signal), _) => Some(format!("signal {signal}")),
        (Some(code), ..) if code != 0 => Some(format!("exit code {code}")),
        _ => None,
    }
}

/// A notice that has a message of its own.
fn alone(notice: &Notice, form: Form) -> String {
    let mut text = format!("{}\n\n", form.own(&line(notice)));
    let millis = |ms: u64| duration::format(Duration::from_millis(ms));
    let facts = [
        ("job", notice.job.as_ref().map(ToString::to_string)),
        ("run", notice.run.as_ref().map(ToString::to_string)),
        ("node", notice.node.as_ref().map(ToString::to_string)),
        ("at", Some(instant(notice.at).to_string())),
        ("attempt", notice.attempt.map(|attempt| attempt.to_string())),
        ("took", notice.duration_ms.map(millis)),
        ("started late", notice.late_ms.filter(|&late| late >= 1_000).map(millis)),
        ("since", notice.since.map(|since| instant(since).to_string())),
        ("detail", notice.detail.clone()),
    ];
    for (name, value) in facts {
        if let Some(value) = value {
            let value = if name == "detail" { form.foreign(&value) } else { form.own(&value) };
            let _ = writeln!(text, "{name:<14}{value}");
        }
    }
    if !notice.tail.is_empty() {
        let _ = write!(text, "\nThe end of its output:\n\n{}", form.output(&tail(&notice.tail)));
        let run = notice.run.as_ref().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "\n`cronkeeper logs {run}` shows all that is kept.");
    }
    text
}

/// The end of an output, as text that controls no terminal.
fn tail(output: &str) -> String {
    let from = output.char_indices().rev().nth(LONGEST_TAIL - 1).map_or(0, |(index, _)| index);
    let lines = output[from..].lines().map(|line| escape::short(line, LONGEST_TAIL) + "\n");
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cronkeeper_core::job::JobName;
    use cronkeeper_core::run::{NoticeKey, Outcome};

    fn failure(number: u64) -> Notice {
        Notice {
            job: Some(JobName::parse(&format!("job-{number}")).unwrap()),
            node: Some(NodeName::new("host-a")),
            outcome: Some(Outcome::Failure),
            exit_code: Some(3),
            tail: "no space\nleft \u{1b}[2J\n".into(),
            ..Notice::new(NoticeKind::Failure, number.to_string(), Timestamp::UNIX_EPOCH)
        }
    }

    fn message(notices: &[Notice], is_again: bool) -> Message {
        let batch =
            Batch { notices: [NoticeKey::of(&notices[0])].into(), id: "abc".into(), is_again, is_output: false };
        let notices: Vec<&Notice> = notices.iter().collect();
        let channel = ChannelName::parse("ops").unwrap();
        Message::of(&channel, &batch, &notices, &NodeName::new("host-b"), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn one_failure_says_all_that_is_known() {
        let message = message(&[failure(1)], false);
        assert_eq!(message.title, "cronkeeper: job-1 failed on host-a: exit code 3");
        for part in ["job-1", "host-a", "no space\nleft ", "cronkeeper logs"] {
            assert!(message.text.contains(part), "{part}: {}", message.text);
        }
        assert!(!message.text.contains('\u{1b}'), "no output controls a terminal");
        let json: serde_json::Value = serde_json::from_slice(&message.json).unwrap();
        assert_eq!((&json["v"], &json["notices"][0]["exit_code"]), (&1.into(), &3.into()));
        assert_eq!(json["may_be_second_copy"], false);
    }

    #[test]
    fn a_thousand_failures_are_counted_and_the_first_listed() {
        let many: Vec<Notice> = (0..1000).map(failure).collect();
        let message = message(&many, false);
        assert_eq!(message.title, "cronkeeper: 1000 failures");
        assert_eq!(message.text.lines().count(), 21);
        assert!(message.text.contains("and 980 more"));
        let json: serde_json::Value = serde_json::from_slice(&message.json).unwrap();
        assert_eq!((&json["count"], json["notices"].as_array().unwrap().len()), (&1000.into(), 100));
    }

    #[test]
    fn a_message_that_may_have_arrived_says_so() {
        let message = message(&[failure(1)], true);
        assert!(message.text.starts_with("This may be the second copy"), "{}", message.text);
        assert!(String::from_utf8(message.slack()).unwrap().contains("second copy"));
    }

    #[test]
    fn what_a_chat_would_interpret_is_escaped() {
        let tail = "<!channel> & co, mail a@b, @all\n```\n*bold*\n".into();
        let notice = Notice { tail, detail: Some("@here <x>".into()), ..failure(1) };
        let message = message(&[notice], false);
        let slack: serde_json::Value = serde_json::from_slice(&message.slack()).unwrap();
        let text = slack["text"].as_str().unwrap();
        assert!(
            text.contains("```\n&lt;!channel&gt; &amp; co, mail a@\u{200b}b, @\u{200b}all\n` ` `\n*bold*\n```\n"),
            "{text}"
        );
        assert!(text.contains("@\u{200b}here &lt;x&gt;"), "{text}");
        assert_eq!(text.matches("```").count(), 2, "{text}");
        assert!(message.text.contains("mail a@b, @all\n```\n"), "other texts are as they were: {}", message.text);
    }

    #[test]
    fn a_body_is_bounded_and_the_newest_keep_their_outputs() {
        let many: Vec<Notice> =
            (0..100).map(|number| Notice { tail: "\u{1}".repeat(4_096), ..failure(number) }).collect();
        let message = message(&many, false);
        assert!(message.json.len() <= MOST_BYTES, "{}", message.json.len());
        let json: serde_json::Value = serde_json::from_slice(&message.json).unwrap();
        let notices = json["notices"].as_array().unwrap();
        let has_tail: Vec<bool> = notices.iter().map(|notice| notice.get("tail").is_some()).collect();
        assert_eq!((has_tail.len(), has_tail[0], has_tail[99]), (100, false, true));
        assert!(has_tail.is_sorted());
    }
}
