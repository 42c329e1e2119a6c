//! A node's log, read while the node runs.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// One line of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Event(Value);

impl Event {
    fn parse(line: &str) -> Self {
        // A panic or output of a library is not JSON: it is kept for failure reports.
        Self(serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.into())))
    }

    /// The event's name; empty for a line that is not an event.
    pub fn name(&self) -> &str {
        self.text("event")
    }

    /// A field as text; empty if it is absent or not a text.
    pub fn text(&self, field: &str) -> &str {
        self.0.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// A field as a number, or as a text that contains a number.
    pub fn number(&self, field: &str) -> Option<i64> {
        let value = self.0.get(field)?;
        value.as_i64().or_else(|| value.as_str()?.parse().ok())
    }

    /// A line that is not an event, unchanged; empty for an event.
    pub fn plain(&self) -> &str {
        self.0.as_str().unwrap_or_default()
    }

    /// The whole line.
    pub fn json(&self) -> &Value {
        &self.0
    }
}

/// All events so far; tests can wait for further ones.
#[derive(Debug, Default)]
pub struct Events {
    so_far: Mutex<Log>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Log {
    events: Vec<Event>,
    ended: bool,
}

impl Events {
    /// Collects everything from a pipe until no process holds its other end.
    pub fn read(pipe: impl Read + Send + 'static) -> Arc<Self> {
        let events = Arc::new(Self::default());
        thread::spawn({
            let events = Arc::clone(&events);
            move || events.take_all(pipe)
        });
        events
    }

    pub fn len(&self) -> usize {
        self.lock().events.len()
    }

    pub fn all(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// The events with this name so far.
    pub fn named(&self, name: &str) -> Vec<Event> {
        self.lock().events.iter().filter(|event| event.name() == name).cloned().collect()
    }

    /// The number of events with this name so far.
    pub fn count(&self, name: &str) -> usize {
        self.count_where(|event| event.name() == name)
    }

    /// The number of events so far that `wanted` accepts.
    pub fn count_where(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.lock().events.iter().filter(|event| wanted(event)).count()
    }

    /// Waits for an event that `wanted` accepts, after the first `seen`. `None` on a timeout or at the end of the log.
    pub fn wait(&self, seen: usize, timeout: Duration, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
        let find = |log: &Log| log.events.iter().skip(seen).find(|event| wanted(event)).cloned();
        let lacking = |log: &mut Log| !log.ended && find(log).is_none();
        let waited = self.more.wait_timeout_while(self.lock(), timeout, lacking);
        find(&waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0)
    }

    /// Waits until no process holds the other end and everything is read.
    pub fn await_end(&self, timeout: Duration) {
        // On a timeout the events read so far must do.
        let _ = self.more.wait_timeout_while(self.lock(), timeout, |log| !log.ended);
    }

    /// The newest lines, for failure reports.
    pub fn tail(&self) -> String {
        let log = self.lock();
        let newest = &log.events[log.events.len().saturating_sub(60)..];
        newest.iter().map(|event| format!("  {}\n", event.0)).collect()
    }

    /// All lines.
    pub fn text(&self) -> String {
        self.lock().events.iter().map(|event| format!("{}\n", event.0)).collect()
    }

    fn take_all(&self, pipe: impl Read) {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            self.lock().events.push(Event::parse(&String::from_utf8_lossy(&line)));
            self.more.notify_all();
        }
        self.lock().ended = true;
        self.more.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.so_far.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
