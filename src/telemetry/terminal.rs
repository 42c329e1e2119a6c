//! Log format `text` on a terminal: the sentences of the events, with as little as possible beside them.
//!
//! ```text
//! 2026-11-22 (UTC), node host-a
//! 03:38:00.004 INFO  heartbeat  started
//! 03:38:00.004 INFO  heartbeat  | hello
//! 03:38:00.005 INFO  heartbeat  success in 1 ms
//! 03:38:57.610 INFO  now the leader (token 3, 1 ms)
//! ```
//!
//! The job comes first where there is one. The day, in UTC, is given once and whenever it changes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::line::Line;
use super::sentence::{Scene, Sentence, status_command};
use super::text::{Paint, each_line, of_level};
use cronkeeper_core::escape;
use cronkeeper_core::term::NodeName;

/// Narrowest and widest column of job names. It grows with the names seen, so that lines stay aligned and short.
const NARROW: usize = 8;
const WIDE: usize = 24;

pub(super) struct Terminal {
    node: Arc<str>,
    scene: Scene,
    /// The day of the last line, in days since 1970.
    day: AtomicI64,
    /// Current width of the column of job names.
    width: AtomicUsize,
    /// The command that shows the status was named.
    is_status_named: AtomicBool,
}

impl Terminal {
    pub fn new(node: &NodeName, scene: Scene) -> Self {
        Self {
            node: node.as_str().into(),
            scene,
            day: AtomicI64::new(i64::MIN),
            width: AtomicUsize::new(NARROW),
            is_status_named: AtomicBool::new(false),
        }
    }

    fn write(&self, out: &mut dyn fmt::Write, paint: Paint, level: Level, line: &Line) -> fmt::Result {
        let now = (self.scene.now)();
        let day = now.as_second().div_euclid(86_400);
        if self.day.swap(day, Relaxed) != day {
            let node = escape::plain(&self.node);
            paint.write(out, "2", format_args!("{} (UTC), node {node}", now.strftime("%Y-%m-%d")))?;
            out.write_char('\n')?;
        }
        let sentence = Sentence::of(line, &self.scene);
        write!(out, "{} ", now.strftime("%H:%M:%S%.3f"))?;
        paint.write(out, of_level(level), format_args!("{:<5}", level.as_str()))?;
        if let Some(job) = &sentence.job {
            let job = escape::plain(job);
            let width = self.width_for(&job);
            paint.write(out, "1", format_args!(" {job:<width$}"))?;
            out.write_char(' ')?;
        }
        writeln!(out, " {}", escape::plain(&sentence.text))?;
        self.name_status(out, paint, line)
    }

    /// The width of the column, for this job and all before.
    fn width_for(&self, job: &str) -> usize {
        let needed = job.chars().count().clamp(NARROW, WIDE);
        self.width.fetch_max(needed, Relaxed).max(needed)
    }

    /// Says once how to look at the node, as soon as it can be asked.
    fn name_status(&self, out: &mut dyn fmt::Write, paint: Paint, line: &Line) -> fmt::Result {
        let Some(command) = status_command(line) else {
            return Ok(());
        };
        if self.is_status_named.swap(true, Relaxed) {
            return Ok(());
        }
        paint.write(out, "2", format_args!("See who leads and what runs: {command}"))?;
        out.write_char('\n')
    }
}

impl<S, N> FormatEvent<S, N> for Terminal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        each_line(event, &mut out, |out, paint, level, line| self.write(out, paint, level, line))
    }
}

#[cfg(test)]
mod tests;
