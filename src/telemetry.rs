//! Logging: set-up, formats, and the list of promised events.
//!
//! `tracing` carries the events, `tracing-subscriber` filters them, and the formats are our own. A separate thread
//! writes the lines, so that logging never waits for stderr (see [`sink`]). Spans are not shown: an event contains all
//! its context.
//!
//! ```text
//! log!(RUN_STARTED, …) ─▶ filter ─▶ sentence ─▶ terminal | text | json ─▶ sink ─▶ stderr
//!                                            └▶ journal ───▶ sink ─▶ journald
//! ```
//!
//! Job output has the target [`OUTPUT`]: it is the first to be dropped when stderr is too slow, and
//! `--log cronkeeper=info,cronkeeper::output=off` turns it off.

mod filter;
mod journal;
mod json;
mod line;
mod sentence;
pub mod sink;
mod terminal;
mod text;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use jiff::Timestamp;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

pub use filter::{BadFilter, LogFilter};

use cronkeeper_core::clock;
use cronkeeper_core::log;
use cronkeeper_core::term::NodeName;
use sentence::Scene;
use sink::{Destination, LineCounts, Sink};

/// The `tracing` target of `run.output`.
pub const OUTPUT: &str = "cronkeeper::output";

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A sentence for each event
    Text,
    /// One JSON object per line
    Json,
    /// Entries of the systemd journal, with fields
    Journald,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("cannot start the thread that writes the log")]
    Thread(#[source] io::Error),
    /// `--log-format journald` was given, but no journal listens on its socket.
    #[error("no journal listens at `{}`; remove `--log-format journald`", journal::SOCKET)]
    NoJournal(#[source] io::Error),
    #[error("logging is already set up in this process")]
    Already,
}

/// The log of this process. Dropping it waits up to one second for the last lines to be written.
#[derive(Debug)]
pub struct Telemetry {
    sink: Sink,
}

/// Sets up logging. Without a `format` it logs to the journal if stderr leads there, and as text otherwise.
///
/// `service` is what the node depends on, as people call it.
///
/// It starts a thread, so the warden must have been forked before.
///
/// # Errors
/// When the thread cannot be started, logging is already set up, or `format` is `Journald` and no journal listens.
pub fn init(
    format: Option<Format>,
    filter: &LogFilter,
    node: &NodeName,
    service: &'static str,
) -> Result<Telemetry, InitError> {
    let stderr = io::stderr();
    let journal = || Destination::journal(journal::SOCKET);
    let (format, destination) = match format {
        Some(Format::Journald) => (Format::Journald, journal().map_err(InitError::NoJournal)?),
        None if is_journal(&stderr)
            && let Ok(destination) = journal() =>
        {
            (Format::Journald, destination)
        }
        other => (other.unwrap_or(Format::Text), Destination::stream(duplicate(&stderr).map_err(InitError::Thread)?)),
    };
    let sink = Sink::start(destination, report_lost).map_err(InitError::Thread)?;
    let layer = tracing_subscriber::fmt::layer().with_writer(sink.clone()).log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter.to_env_filter());
    let (scene, is_for_journal) = (Scene { service, now: wall }, is_journal(&stderr));
    let plain = layer.with_ansi(false);
    let set = match format {
        Format::Json => registry.with(plain.event_format(json::Json::new(node, scene, is_for_journal))).try_init(),
        Format::Journald => registry.with(plain.event_format(journal::Journal::new(node, scene))).try_init(),
        Format::Text if stderr.is_terminal() => {
            let terminal = terminal::Terminal::new(node, scene);
            registry.with(plain.with_ansi(has_colours()).event_format(terminal)).try_init()
        }
        Format::Text => registry.with(plain.event_format(text::Text::new(scene, is_for_journal))).try_init(),
    };
    set.map_err(|_| InitError::Already)?;
    log_panics(sink.clone());
    Ok(Telemetry { sink })
}

impl Telemetry {
    /// Waits up to `limit` until all lines are written. Returns false if some are not.
    pub fn flush(&self, limit: Duration) -> bool {
        self.sink.flush(limit)
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.flush(Duration::from_secs(1));
    }
}

/// A daemon without a stderr still starts: writing to the read-only `/dev/null` fails, so its lines count as lost.
fn duplicate(stderr: &io::Stderr) -> io::Result<OwnedFd> {
    stderr.as_fd().try_clone_to_owned().or_else(|_| File::open("/dev/null").map(Into::into))
}

/// True unless the user, or the kind of terminal, rules colours out.
fn has_colours() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_some_and(|kind| kind != "dumb")
}

/// The text, or for a stream that leads to the journal the text with the priority of an error before each line, as in
/// sd-daemon(3): `journalctl -p warning` shows it then.
pub fn error_on(stream: impl AsFd, text: &str) -> String {
    match is_journal(stream) {
        true => text
            .split_inclusive('\n')
            .map(|line| format!("<{}>{line}", journal::priority(tracing::Level::ERROR)))
            .collect(),
        false => text.to_owned(),
    }
}

/// True if a stream leads to the journal.
///
/// systemd sets JOURNAL_STREAM to the device and inode of the stream it opened. The stream must be compared with it,
/// because a process whose output goes elsewhere inherits the variable too.
fn is_journal(stream: impl AsFd) -> bool {
    std::env::var("JOURNAL_STREAM").is_ok_and(|name| is_named(stream, &name))
}

fn is_named(stream: impl AsFd, name: &str) -> bool {
    rustix::fs::fstat(stream).is_ok_and(|stat| name == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Logs how many lines were dropped.
fn report_lost(lost: LineCounts) {
    log!(LOG_DROPPED, output_lines = lost.output, other_lines = lost.other);
}

/// Logs panics as events: the standard output of a panic would break the JSON format, and writing it could block.
fn log_panics(sink: Sink) {
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let what = panic.payload_as_str().unwrap_or("no text");
        log!(INTERNAL_ERROR, place, "panic: {what}");
        sink.flush(Duration::from_secs(1));
    }));
}

/// The time stamp of a line.
fn wall() -> Timestamp {
    clock::system::now().wall
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_recognized_by_device_and_inode() {
        use std::os::unix::fs::MetadataExt as _;
        let file = tempfile::tempfile().unwrap();
        let metadata = file.metadata().unwrap();
        assert!(is_named(&file, &format!("{}:{}", metadata.dev(), metadata.ino())));
        assert!(!is_named(&file, &format!("{}:{}", metadata.dev(), metadata.ino() + 1)));
        assert!(!is_named(&file, ""));
    }
}
