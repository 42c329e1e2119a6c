//! The sentence of a log line: its event's template from [`log_event`], filled with the line's fields.
//!
//! All formats show it. A line that is none of the listed events, such as a library's, is its message and its fields.

mod causes;
mod words;

use std::time::Duration;

use jiff::Timestamp;

use super::line::{Line, Value};
use cronkeeper_core::log_event;
use cronkeeper_core::suggest::counted;

/// What a sentence takes from the process instead of from the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    /// The service that the node depends on, as people call it.
    pub service: &'static str,
    pub now: fn() -> Timestamp,
}

/// A line's sentence. It is not escaped yet.
#[derive(Debug, PartialEq)]
pub(super) struct Sentence {
    /// The job that it is about.
    pub job: Option<String>,
    /// True if the job is the subject of the text.
    is_subject: bool,
    pub text: String,
}

impl Sentence {
    pub fn of(line: &Line, scene: &Scene) -> Self {
        let facts = Facts { line, now: (scene.now)(), service: scene.service };
        let Some(event) = log_event::by_name(&line.event) else {
            return Self { job: None, is_subject: false, text: facts.continued(unlisted(line)) };
        };
        let job = facts.text("job").filter(|_| event.fields.contains(&"job") || event.sentence.starts_with(NO_SUBJECT));
        let filled = facts.fill(event.sentence, false).unwrap_or_default();
        let text = filled.strip_prefix(NO_SUBJECT).unwrap_or(&filled).to_owned();
        Self { job: job.map(str::to_owned), is_subject: text.len() == filled.len(), text: facts.continued(text) }
    }

    /// The sentence for a format that has all fields besides: a line that is none of the events is its message there.
    pub fn beside_fields(line: &Line, scene: &Scene) -> String {
        match log_event::by_name(&line.event) {
            Some(_) => Self::of(line, scene).whole(),
            None => line.message.clone().unwrap_or_default(),
        }
    }

    /// The sentence with the job in front of it.
    pub fn whole(self) -> String {
        let Self { job, is_subject, text } = self;
        match job {
            Some(job) if is_subject => format!("{job} {text}"),
            Some(job) => format!("{job}: {text}"),
            None => text,
        }
    }
}

/// The command that shows the status of a node whose API is served on this line's socket.
pub(super) fn status_command(line: &Line) -> Option<String> {
    let path = line.fields.iter().find_map(|(name, value)| match value {
        Value::Text(path) if *name == "path" && line.event == log_event::API_LISTENING => Some(path),
        _ => None,
    })?;
    let (directory, _) = path.rsplit_once('/')?;
    Some(format!("cronkeeper status --runtime-dir {}", cronkeeper_core::escape::value(directory)))
}

/// How a template begins of which the job is not the subject.
const NO_SUBJECT: &str = ": ";

/// The message and the fields.
fn unlisted(line: &Line) -> String {
    let mut text = line.source.as_ref().map(|source| format!("{source}: ")).unwrap_or_default();
    if line.source.is_none() && line.event != "log" {
        text.push_str(&format!("{}: ", line.event));
    }
    text.push_str(line.message.as_deref().unwrap_or_default());
    for (name, value) in &line.fields {
        text.push_str(&format!(" {name}={value}"));
    }
    text
}

/// The fields of a line. A field that is missing, or of another type than usual, still gives a readable sentence.
struct Facts<'a> {
    line: &'a Line,
    now: Timestamp,
    service: &'a str,
}

impl Facts<'_> {
    /// Fills a template. `None` if it `is_optional` and lacks something.
    fn fill(&self, template: &str, is_optional: bool) -> Option<String> {
        let mut text = String::new();
        let mut rest = template;
        while let Some(at) = rest.find(['{', '[']) {
            let (before, from) = rest.split_at(at);
            text.push_str(before);
            let is_part = from.starts_with('[');
            let (inside, after) = from[1..].split_once(if is_part { ']' } else { '}' })?;
            rest = after;
            if is_part {
                text.push_str(&self.fill(inside, true).unwrap_or_default());
            } else {
                match self.shown(inside) {
                    Some(shown) if !is_optional || !self.is_nothing(inside) => text.push_str(&shown),
                    _ if is_optional => return None,
                    _ => text.push('?'),
                }
            }
        }
        text.push_str(rest);
        Some(text)
    }

    /// What stands for a placeholder.
    fn shown(&self, placeholder: &str) -> Option<String> {
        if let Some(name) = placeholder.strip_prefix('@') {
            return self.instant(name);
        }
        match placeholder.split_once(':') {
            Some((name, noun)) => self.count(name, noun),
            None => match words::WORDS.iter().find(|(word, _)| *word == placeholder) {
                Some((_, word)) => word(self),
                None if placeholder.ends_with("_ms") => self.time(placeholder),
                None => self.any(placeholder),
            },
        }
    }

    /// True for a placeholder of which the field is 0.
    fn is_nothing(&self, placeholder: &str) -> bool {
        self.number(placeholder.split(':').next().unwrap_or_default()) == Some(0)
    }

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

    /// A field of any type.
    fn any(&self, name: &str) -> Option<String> {
        match self.value(name) {
            Some(Value::Text(text)) => Some(text.clone()),
            Some(number) => Some(number.to_string()),
            None if name == "message" => self.line.message.clone(),
            None => None,
        }
    }

    fn count(&self, name: &str, noun: &str) -> Option<String> {
        Some(counted(usize::try_from(self.number(name)?).ok()?, noun))
    }

    fn time(&self, name: &str) -> Option<String> {
        self.number(name).map(lasting)
    }

    /// An instant, without its day if that is today.
    fn instant(&self, name: &str) -> Option<String> {
        let text = self.text(name)?;
        let Ok(at) = text.parse::<Timestamp>() else { return Some(text.to_owned()) };
        let day = |at: Timestamp| at.as_second().div_euclid(86_400);
        let is_today = day(at) == day(self.now);
        Some(at.strftime(if is_today { "%H:%M:%SZ" } else { "%Y-%m-%d %H:%M:%SZ" }).to_string())
    }

    /// Marks a text that goes on in the next line.
    fn continued(&self, text: String) -> String {
        if self.value("continues").is_some() { format!("{text} …") } else { text }
    }
}

/// A number of milliseconds as people read it: `12 ms`, `2.3 s`, `1h5m`.
fn lasting(millis: u64) -> String {
    match millis {
        ..1_000 => format!("{millis} ms"),
        1_000..60_000 if millis.is_multiple_of(1_000) => format!("{} s", millis / 1_000),
        1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        _ => cronkeeper_core::duration::format(Duration::from_secs(millis / 1_000)),
    }
}

#[cfg(test)]
mod tests;
