//! What a `tracing` event says, gathered for either format.

use std::fmt;

use tracing::field::{Field, Visit};

use super::{TARGET, event};

/// A field's value, typed as far as the log's readers can use it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Bool(bool),
}

/// One line to be.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The event's name; `log` for a line that is none of ours.
    pub event: String,
    /// Where the line comes from; only of a line that is no event.
    pub source: Option<String>,
    /// Its words, if it has any.
    pub message: Option<String>,
    /// The rest, in the order given.
    pub fields: Vec<(&'static str, Value)>,
}

impl Line {
    pub fn of(event: &tracing::Event<'_>) -> Self {
        let mut line = Self { event: "log".into(), ..Self::default() };
        event.record(&mut line);
        let target = event.metadata().target();
        line.name_it(is_ours(target), target);
        line
    }

    /// Only our own lines are events: a library's field of that name stays a field.
    fn name_it(&mut self, is_ours: bool, target: &str) {
        let named = self.fields.iter().position(|(name, _)| *name == "event").filter(|_| is_ours);
        if let Some(at) = named
            && let (_, Value::Text(name)) = self.fields.remove(at)
        {
            self.event = name;
            return;
        }
        // Lines of the crate `log` come under one target and carry their own as a field.
        let own = self.fields.iter().find_map(|(name, value)| match value {
            Value::Text(text) if *name == "log.target" => Some(text.clone()),
            _ => None,
        });
        self.source = Some(own.unwrap_or_else(|| target.to_owned()));
        self.fields.retain(|(name, _)| !name.starts_with("log."));
    }

    /// Its words, or those that the list has for its event.
    pub fn words(&self) -> &str {
        let listed = || event::by_name(&self.event).map(|event| event.message);
        self.message.as_deref().or_else(listed).unwrap_or_default()
    }
}

impl Line {
    fn push(&mut self, field: &Field, value: Value) {
        self.fields.push((field.name(), value));
    }
}

impl Visit for Line {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, Value::Signed(value));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Value::Unsigned(value));
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, Value::Float(value));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::Bool(value));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = Some(value.to_owned()),
            _ => self.push(field, Value::Text(value.to_owned())),
        }
    }
    fn record_error(&mut self, field: &Field, error: &(dyn std::error::Error + 'static)) {
        self.push(field, Value::Text(chain(error)));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// True for what this program says itself.
pub(super) fn is_ours(target: &str) -> bool {
    target.strip_prefix(TARGET).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// An error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
