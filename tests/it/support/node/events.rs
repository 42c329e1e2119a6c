//! The log of a node as it comes.

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
        // A panic of the daemon, or a library's own words, are no JSON: they are kept for the report.
        Self(serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.into())))
    }

    /// Its name; empty for a line that is no event.
    pub fn name(&self) -> &str {
        self.text("event")
    }

    /// A field as text; empty if it is absent, or no text.
    pub fn text(&self, field: &str) -> &str {
        self.0.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// A field as a number; a number in a text counts.
    pub fn number(&self, field: &str) -> Option<i64> {
        let value = self.0.get(field)?;
        value.as_i64().or_else(|| value.as_str()?.parse().ok())
    }

    /// A line that is no event, as it stands; empty for an event.
    pub fn plain(&self) -> &str {
        self.0.as_str().unwrap_or_default()
    }

    /// The whole line.
    pub fn json(&self) -> &Value {
        &self.0
    }
}

/// All events so far, and a way to wait for the next.
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
    /// All that comes out of a pipe, until nobody holds its other end any more.
    pub fn read(pipe: impl Read + Send + 'static) -> Arc<Self> {
        let events = Arc::new(Self::default());
        thread::spawn({
            let events = Arc::clone(&events);
            move || events.take_all(pipe)
        });
        events
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// All so far.
    pub fn all(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// Those of this name so far.
    pub fn named(&self, name: &str) -> Vec<Event> {
        self.lock().events.iter().filter(|event| event.name() == name).cloned().collect()
    }

    /// How many of this name there are so far.
    pub fn count(&self, name: &str) -> usize {
        self.count_where(|event| event.name() == name)
    }

    /// How many there are so far that are as wanted.
    pub fn count_where(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.lock().events.iter().filter(|event| wanted(event)).count()
    }

    /// Waits for one that is as wanted, after the first `seen`. `None`: not in time, or the log has ended.
    pub fn wait(&self, seen: usize, timeout: Duration, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
        let find = |log: &Log| log.events.iter().skip(seen).find(|event| wanted(event)).cloned();
        let lacking = |log: &mut Log| !log.ended && find(log).is_none();
        let waited = self.more.wait_timeout_while(self.lock(), timeout, lacking);
        find(&waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0)
    }

    /// Waits until nobody holds the other end any more, and all is read.
    pub fn await_end(&self, timeout: Duration) {
        // What was read is what there is, in time or not.
        let _ = self.more.wait_timeout_while(self.lock(), timeout, |log| !log.ended);
    }

    /// The newest lines, to be read by a person.
    pub fn tail(&self) -> String {
        let log = self.lock();
        let newest = &log.events[log.events.len().saturating_sub(60)..];
        newest.iter().map(|event| format!("  {}\n", event.0)).collect()
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
