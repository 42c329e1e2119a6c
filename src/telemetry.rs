//! Log set-up, and the list of the events that others rely on.
//!
//! `tracing` carries the events, `tracing-subscriber` filters them, the formats are our own, and
//! a thread of its own writes the lines: whoever logs never waits for stderr (see [`sink`]). Spans are not shown; an
//! event says all about itself.
//!
//! ```text
//! info!(target: TARGET, event = event::RUN_STARTED, …) ─▶ filter ─▶ repeated ─▶ text | json ─▶ sink ─▶ stderr
//!                                                                             └▶ journal ───▶ sink ─▶ journald
//! ```
//!
//! Job output goes by [`OUTPUT`] as its target: it alone may be dropped early when stderr does not take it, and
//! `--log cronkeeper=info,cronkeeper::output=off` leaves it out.

pub mod escape;
pub mod event;
mod filter;
mod journal;
mod json;
mod line;
mod repeated;
pub mod sink;
mod text;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use jiff::Timestamp;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

pub use filter::{BadFilter, LogFilter};

use crate::clock;
use crate::term::NodeName;
use repeated::Repeated;
use sink::{Lost, Sink, Way};

/// The target of the daemon's own events.
pub const TARGET: &str = "cronkeeper";
/// The target of `run.output`.
pub const OUTPUT: &str = "cronkeeper::output";

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One object a line.
    Json,
    /// Fields of entries of the systemd journal.
    Journald,
}

/// Why no log could be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The writer's thread did not start.
    #[error("the log's thread cannot be started")]
    Thread(#[source] io::Error),
    /// The journal was asked for and is not there.
    #[error("the journal takes nothing at {}: leave `--log-format journald` out", journal::SOCKET)]
    NoJournal(#[source] io::Error),
    /// This process has a log already.
    #[error("the log is set up already")]
    Already,
}

/// The log of this process. Dropping it gives the last lines a second to be written.
#[derive(Debug)]
pub struct Telemetry {
    sink: Sink,
}

/// Sets the log up. It starts a thread: the warden is forked before. Without a `format` it is the journal's where stderr leads there,
/// else text.
///
/// # Errors
/// When the thread cannot be started, a log was set up before, or the journal was asked for and is not there.
pub fn init(format: Option<Format>, filter: &LogFilter, node: &NodeName) -> Result<Telemetry, InitError> {
    let stderr = io::stderr();
    let colour = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let journal = || Way::journal(journal::SOCKET);
    let (format, way) = match format {
        Some(Format::Journald) => (Format::Journald, journal().map_err(InitError::NoJournal)?),
        None if is_journal(&stderr)
            && let Ok(way) = journal() =>
        {
            (Format::Journald, way)
        }
        other => (other.unwrap_or(Format::Text), Way::stream(duplicate(&stderr).map_err(InitError::Thread)?)),
    };
    let sink = Sink::start(way, report_lost).map_err(InitError::Thread)?;
    let layer = tracing_subscriber::fmt::layer().with_writer(sink.clone()).log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter.to_env_filter()).with(Repeated::default());
    let set = match format {
        Format::Json => registry.with(layer.with_ansi(false).event_format(json::Json::new(node))).try_init(),
        Format::Journald => registry.with(layer.with_ansi(false).event_format(journal::Journal::new(node))).try_init(),
        Format::Text => {
            registry.with(layer.with_ansi(colour).event_format(text::Text::new(node, is_journal(&stderr)))).try_init()
        }
    };
    set.map_err(|_| InitError::Already)?;
    log_panics(sink.clone());
    Ok(Telemetry { sink })
}

impl Telemetry {
    /// Waits until all lines are written, at most `limit`; false when it was not enough.
    pub fn flush(&self, limit: Duration) -> bool {
        self.sink.flush(limit)
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.flush(Duration::from_secs(1));
    }
}

/// Without a stderr, lines are counted as lost rather than the daemon refused.
fn duplicate(stderr: &io::Stderr) -> io::Result<OwnedFd> {
    stderr.as_fd().try_clone_to_owned().or_else(|_| File::open("/dev/null").map(Into::into))
}

/// Whether a stream leads to the journal. systemd names the stream it gave in JOURNAL_STREAM, which is inherited also by who
/// writes elsewhere.
fn is_journal(stream: impl AsFd) -> bool {
    std::env::var("JOURNAL_STREAM").is_ok_and(|name| is_named(stream, &name))
}

fn is_named(stream: impl AsFd, name: &str) -> bool {
    rustix::fs::fstat(stream).is_ok_and(|stat| name == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// A scheduled instant as the log shows it: without fractions.
pub fn instant(at: Timestamp) -> impl std::fmt::Display {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Says that lines are missing, as a line of its own.
fn report_lost(lost: Lost) {
    tracing::warn!(
        target: TARGET,
        output_lines = lost.output,
        other_lines = lost.other,
        "log lines were dropped: they were not taken in time",
    );
}

/// A panic's own text would break a line of JSON, and its write could block.
fn log_panics(sink: Sink) {
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let what = panic.payload_as_str().unwrap_or("no text");
        tracing::error!(target: TARGET, place, "panic: {what}");
        sink.flush(Duration::from_secs(1));
    }));
}

/// When a line was made.
fn wall() -> Timestamp {
    clock::system::now().wall
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_known_by_its_file() {
        use std::os::unix::fs::MetadataExt as _;
        let file = tempfile::tempfile().unwrap();
        let metadata = file.metadata().unwrap();
        assert!(is_named(&file, &format!("{}:{}", metadata.dev(), metadata.ino())));
        assert!(!is_named(&file, &format!("{}:{}", metadata.dev(), metadata.ino() + 1)));
        assert!(!is_named(&file, ""));
    }

    #[test]
    fn a_scheduled_instant_has_no_fractions() {
        let at: Timestamp = "2026-11-20T02:30:00.25Z".parse().unwrap();
        assert_eq!(instant(at).to_string(), "2026-11-20T02:30:00Z");
    }
}
