//! Log format `text` where stderr is no terminal: a line of fields for each event, with times in UTC.
//!
//! ```text
//! 2026-11-20 18:40:01.123 INFO  leader.elected     node=host-a candidate=… token=… took_ms=12
//! ```
//!
//! The journal adds the time itself. A line for a stream that leads to the journal begins with its priority instead, as
//! described in sd-daemon(3), so that `journalctl -p warning` works.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::journal;
use super::line::{Line, Value};
use cronkeeper_core::escape;
use cronkeeper_core::term::NodeName;

pub(super) struct Text {
    node: Arc<str>,
    prefix: LinePrefix,
}

/// The beginning of a line.
enum LinePrefix {
    /// The time of the event.
    Time(fn() -> Timestamp),
    /// The level, as the journal expects it on a stream.
    Priority,
    /// For entries of the journal, which have time and priority of their own.
    Nothing,
}

impl Text {
    pub fn new(node: &NodeName, is_for_journal: bool) -> Self {
        let prefix = if is_for_journal { LinePrefix::Priority } else { LinePrefix::Time(super::wall) };
        Self { node: node.as_str().into(), prefix }
    }

    /// The format of the MESSAGE field of a journal entry.
    pub fn for_entries(node: &NodeName) -> Self {
        Self { node: node.as_str().into(), prefix: LinePrefix::Nothing }
    }

    fn write(&self, out: &mut dyn fmt::Write, paint: Paint, level: Level, line: &Line) -> fmt::Result {
        match self.prefix {
            LinePrefix::Time(now) => write!(out, "{} ", now().strftime("%Y-%m-%d %H:%M:%S%.3f"))?,
            LinePrefix::Priority => write!(out, "<{}>", journal::priority(level))?,
            LinePrefix::Nothing => {}
        }
        self.write_body(out, paint, level, line)?;
        out.write_char('\n')
    }

    /// Writes the line without its prefix, colours and line end.
    pub fn body(&self, out: &mut dyn fmt::Write, level: Level, line: &Line) -> fmt::Result {
        self.write_body(out, Paint { on: false }, level, line)
    }

    fn write_body(&self, out: &mut dyn fmt::Write, paint: Paint, level: Level, line: &Line) -> fmt::Result {
        paint.write(out, of_level(level), format_args!("{:<5}", level.as_str()))?;
        // As wide as the longest name of a frequent event.
        paint.write(out, "1", format_args!(" {:<18}", escape::plain(&line.event)))?;
        if let Some(source) = &line.source {
            write!(out, " {}:", escape::plain(source))?;
        }
        if let Some(message) = &line.message {
            write!(out, " {}", escape::plain(message))?;
        }
        paint.write(out, "2", format_args!(" node="))?;
        out.write_str(&escape::value(&self.node))?;
        for (name, value) in &line.fields {
            paint.write(out, "2", format_args!(" {name}="))?;
            write!(out, "{value}")?;
        }
        Ok(())
    }
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        each_line(event, &mut out, |out, paint, level, line| self.write(out, paint, level, line))
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&escape::value(text)),
            Self::Signed(number) => number.fmt(f),
            Self::Unsigned(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Bool(truth) => truth.fmt(f),
        }
    }
}

/// Writes each line of an event, in colour if the writer is a terminal's.
pub(super) fn each_line(
    event: &Event<'_>,
    out: &mut Writer<'_>,
    write: impl Fn(&mut dyn fmt::Write, Paint, Level, &Line) -> fmt::Result,
) -> fmt::Result {
    let paint = Paint { on: out.has_ansi_escapes() };
    let level = *event.metadata().level();
    Line::of(event).pieces().iter().try_for_each(|line| write(&mut *out, paint, level, line))
}

/// Writes text in colour if `on`.
#[derive(Clone, Copy)]
pub(super) struct Paint {
    pub on: bool,
}

impl Paint {
    pub fn write(self, out: &mut dyn fmt::Write, style: &str, what: fmt::Arguments<'_>) -> fmt::Result {
        if self.on { write!(out, "\x1b[{style}m{what}\x1b[0m") } else { out.write_fmt(what) }
    }
}

/// The colour of a level.
pub(super) fn of_level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "1;31",
        Level::WARN => "33",
        Level::INFO => "32",
        _ => "2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};
    use cronkeeper_core::escape::is_harmful;

    fn shown(level: Level, line: &Line, colour: bool) -> String {
        written(false, level, line, colour)
    }

    fn written(is_for_journal: bool, level: Level, line: &Line, colour: bool) -> String {
        let now = || "2026-11-20T18:40:01.123456Z".parse().unwrap();
        let mut out = String::new();
        let prefix = if is_for_journal { LinePrefix::Priority } else { LinePrefix::Time(now) };
        let text = Text { node: "host-a".into(), prefix };
        text.write(&mut out, Paint { on: colour }, level, line).unwrap();
        out
    }

    #[test]
    fn lines_are_aligned() {
        let elected = Line {
            event: "leader.elected".into(),
            fields: vec![("candidate", Value::Text("_c_1-lock-0000000007".into())), ("token", Value::Signed(42))],
            ..Line::default()
        };
        let output = Line {
            event: "run.output".into(),
            fields: vec![("job", Value::Text("load".into())), ("line", Value::Text("3 rows\u{1b}[2J".into()))],
            ..Line::default()
        };
        let library = Line {
            event: "log".into(),
            source: Some("zookeeper_client".into()),
            message: Some("connection\nlost".into()),
            ..Line::default()
        };
        let shown = [(Level::INFO, elected), (Level::INFO, output), (Level::WARN, library)]
            .map(|(level, line)| shown(level, &line, false))
            .concat();
        assert_eq!(
            shown,
            "\
2026-11-20 18:40:01.123 INFO  leader.elected     node=host-a candidate=_c_1-lock-0000000007 token=42
2026-11-20 18:40:01.123 INFO  run.output         node=host-a job=load line=\"3 rows\\u{1b}[2J\"
2026-11-20 18:40:01.123 WARN  log                zookeeper_client: connection\\nlost node=host-a
"
        );
    }

    #[test]
    fn a_terminal_gets_our_colours_and_no_others() {
        let line = Line { event: "log".into(), message: Some("a\u{1b}[31mb".into()), ..Line::default() };
        assert_eq!(
            shown(Level::ERROR, &line, true),
            "2026-11-20 18:40:01.123 \u{1b}[1;31mERROR\u{1b}[0m\u{1b}[1m log               \u{1b}[0m a\\u{1b}[31mb\u{1b}[2m node=\u{1b}[0mhost-a\n"
        );
    }

    #[test]
    fn a_line_for_the_journal_has_a_priority_and_no_time() {
        let line = Line { event: "leader.lost".into(), ..Line::default() };
        assert_eq!(written(true, Level::WARN, &line, false), "<4>WARN  leader.lost        node=host-a\n");
    }

    #[test]
    fn fuzz_text_of_a_line() {
        Fuzz { longest: 16 << 10, ..Fuzz::of("escape", &["\u{1b}[2J", "\u{9b}", "\"", "\\", "\n<3>", "\u{202e}"]) }
            .run(|input| {
                let text = text(input).into_owned();
                let fields = vec![("line", Value::Text(text.clone()))];
                let line = Line { event: text.clone(), source: Some(text.clone()), message: Some(text), fields };
                let shown = written(true, Level::INFO, &line, false);
                assert!(shown.starts_with("<6>INFO ") && !shown.trim_end_matches('\n').contains(is_harmful), "{shown}");
                shown.ends_with('\n')
            });
    }
}
