//! Log format `text` where stderr is no terminal: time, level and sentence of each event.
//!
//! ```text
//! 2026-11-20T18:40:01.123Z INFO  backup started
//! ```
//!
//! The journal adds time and level itself. A line for a stream that leads to the journal begins with its priority
//! instead, as described in sd-daemon(3), so that `journalctl -p warning` works.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::journal;
use super::line::{Line, Value};
use super::sentence::{Scene, Sentence};
use cronkeeper_core::escape;

pub(super) struct Text {
    scene: Scene,
    /// A line begins with its priority, as the journal expects it on a stream.
    is_for_journal: bool,
}

impl Text {
    pub fn new(scene: Scene, is_for_journal: bool) -> Self {
        Self { scene, is_for_journal }
    }

    fn write(&self, out: &mut dyn fmt::Write, paint: Paint, level: Level, line: &Line) -> fmt::Result {
        if self.is_for_journal {
            write!(out, "<{}>", journal::priority(level))?;
        } else {
            write!(out, "{} ", (self.scene.now)().strftime("%Y-%m-%dT%H:%M:%S%.3fZ"))?;
            paint.write(out, of_level(level), format_args!("{:<5} ", level.as_str()))?;
        }
        writeln!(out, "{}", escape::plain(&Sentence::of(line, &self.scene).whole()))
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

    fn written(is_for_journal: bool, level: Level, line: &Line, colour: bool) -> String {
        let now = || "2026-11-20T18:40:01.123456Z".parse().unwrap();
        let mut out = String::new();
        let text = Text::new(Scene { service: "ZooKeeper", now }, is_for_journal);
        text.write(&mut out, Paint { on: colour }, level, line).unwrap();
        out
    }

    #[test]
    fn a_line_has_time_with_zone_level_and_sentence() {
        let elected = Line {
            event: "leader.elected".into(),
            fields: vec![("token", Value::Signed(42)), ("took_ms", Value::Unsigned(12))],
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
            .map(|(level, line)| written(false, level, &line, false))
            .concat();
        assert_eq!(
            shown,
            "\
2026-11-20T18:40:01.123Z INFO  now the leader (token 42, 12 ms)
2026-11-20T18:40:01.123Z INFO  load | 3 rows\\u{1b}[2J
2026-11-20T18:40:01.123Z WARN  zookeeper_client: connection\\nlost
"
        );
    }

    #[test]
    fn a_terminal_gets_our_colours_and_no_others() {
        let line = Line { event: "log".into(), message: Some("a\u{1b}[31mb".into()), ..Line::default() };
        assert_eq!(
            written(false, Level::ERROR, &line, true),
            "2026-11-20T18:40:01.123Z \u{1b}[1;31mERROR \u{1b}[0ma\\u{1b}[31mb\n"
        );
    }

    #[test]
    fn a_line_for_the_journal_has_a_priority_and_no_time() {
        let fields = vec![("reason", Value::Text("lease".into()))];
        let line = Line { event: "leader.lost".into(), fields, ..Line::default() };
        assert_eq!(written(true, Level::WARN, &line, false), "<4>no longer the leader: its lease ran out\n");
    }

    #[test]
    fn fuzz_text_of_a_line() {
        Fuzz { longest: 16 << 10, ..Fuzz::of("escape", &["\u{1b}[2J", "\u{9b}", "\"", "\\", "\n<3>", "\u{202e}"]) }
            .run(|input| {
                let text = text(input).into_owned();
                let fields = vec![("line", Value::Text(text.clone()))];
                let line = Line { event: text.clone(), source: Some(text.clone()), message: Some(text), fields };
                let shown = written(true, Level::INFO, &line, false);
                assert!(shown.starts_with("<6>") && !shown.trim_end_matches('\n').contains(is_harmful), "{shown}");
                shown.ends_with('\n')
            });
    }
}
