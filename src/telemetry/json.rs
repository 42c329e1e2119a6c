//! Log format `json`: one object per line, with the promised fields at the top level.

use std::fmt;
use std::io;
use std::sync::Arc;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::journal;
use super::line::{Line, Value};
use super::sentence::{Scene, Sentence};
use cronkeeper_core::escape;
use cronkeeper_core::term::NodeName;

/// The keys that this format writes itself.
const RESERVED: [&str; 6] = ["timestamp", "level", "event", "message", "node", "target"];

pub(super) struct Json {
    node: Arc<str>,
    /// A line begins with its priority, as the journal expects it on a stream: sd-daemon(3).
    is_for_journal: bool,
    scene: Scene,
}

impl Json {
    pub fn new(node: &NodeName, scene: Scene, is_for_journal: bool) -> Self {
        Self { node: node.as_str().into(), is_for_journal, scene }
    }

    fn line(&self, level: tracing::Level, line: &Line) -> serde_json::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(256);
        let mut json = serde_json::Serializer::with_formatter(&mut out, TerminalSafe);
        let mut object = json.serialize_map(None)?;
        object.serialize_entry("timestamp", &format_args!("{:.6}", (self.scene.now)()))?;
        object.serialize_entry("level", level.as_str())?;
        object.serialize_entry("event", &line.event)?;
        object.serialize_entry("message", &line.shortened(Sentence::beside_fields(line, &self.scene)))?;
        object.serialize_entry("node", &*self.node)?;
        if let Some(source) = &line.source {
            object.serialize_entry("target", source)?;
        }
        for (name, value) in &line.fields {
            // Of two equal keys, some readers would use the first and others the last.
            if RESERVED.contains(name) {
                object.serialize_entry(&format_args!("field.{name}"), value)?;
            } else {
                object.serialize_entry(name, value)?;
            }
        }
        object.end()?;
        Ok(out)
    }
}

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        for line in Line::of(event).pieces() {
            let json = self.line(*event.metadata().level(), &line).map_err(|_| fmt::Error)?;
            if self.is_for_journal {
                write!(out, "<{}>", journal::priority(*event.metadata().level()))?;
            }
            writeln!(out, "{}", std::str::from_utf8(&json).map_err(|_| fmt::Error)?)?;
        }
        Ok(())
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(to),
            Self::Signed(number) => number.serialize(to),
            Self::Unsigned(number) => number.serialize(to),
            Self::Float(number) => number.serialize(to),
            Self::Bool(truth) => truth.serialize(to),
        }
    }
}

/// Compact JSON that is safe on a terminal.
///
/// It escapes characters that JSON itself allows: DEL, C1 controls, and those that change the direction of text.
struct TerminalSafe;

impl serde_json::ser::Formatter for TerminalSafe {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, to: &mut W, fragment: &str) -> io::Result<()> {
        to.write_all(escape::json(fragment).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;
    use crate::fuzz::{Fuzz, text};
    use cronkeeper_core::escape::is_harmful;

    fn shown(level: Level, line: &Line) -> String {
        let scene = Scene { service: "ZooKeeper", now: || "2026-11-20T18:40:01.5Z".parse().unwrap() };
        let json = Json::new(&NodeName::new("host-a"), scene, false);
        String::from_utf8(json.line(level, line).unwrap()).unwrap()
    }

    #[test]
    fn an_event_is_one_object_with_all_fields_at_the_top_level() {
        let line = Line {
            event: "leader.elected".into(),
            fields: vec![
                ("candidate", Value::Text("_c_1-lock-0000000007".into())),
                ("token", Value::Signed(4_294_967_301)),
                ("took_ms", Value::Unsigned(12)),
            ],
            ..Line::default()
        };
        assert_eq!(
            shown(Level::INFO, &line),
            r#"{"timestamp":"2026-11-20T18:40:01.500000Z","level":"INFO","event":"leader.elected","message":"now the leader (token 4294967301, 12 ms)","node":"host-a","candidate":"_c_1-lock-0000000007","token":4294967301,"took_ms":12}"#
        );
    }

    #[test]
    fn output_of_a_job_can_neither_break_the_line_nor_reach_the_terminal() {
        let hostile = "a\nb\u{1b}[2J\u{9b}m\u{7f}\u{202e}\"\\\u{1f980}";
        let line =
            Line { event: "run.output".into(), fields: vec![("line", Value::Text(hostile.into()))], ..Line::default() };
        let shown = shown(Level::INFO, &line);
        assert!(!shown.contains(is_harmful), "{shown}");
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["line"], hostile);
    }

    #[test]
    fn fields_of_a_library_do_not_replace_ours() {
        let line = Line {
            event: "log".into(),
            source: Some("zookeeper_client::session".into()),
            message: Some("connecting".into()),
            fields: vec![
                ("event", Value::Text("x".into())),
                ("node", Value::Bool(true)),
                ("n", Value::Float(f64::NAN)),
            ],
        };
        let read: serde_json::Value = serde_json::from_str(&shown(Level::WARN, &line)).unwrap();
        assert_eq!((&read["event"], &read["node"]), (&"log".into(), &"host-a".into()));
        assert_eq!((&read["field.event"], &read["field.node"]), (&"x".into(), &true.into()));
        assert_eq!((&read["target"], &read["n"]), (&"zookeeper_client::session".into(), &serde_json::Value::Null));
    }

    #[test]
    fn fuzz_json_of_a_line() {
        Fuzz { longest: 16 << 10, ..Fuzz::of("escape", &["\u{1b}[2J", "\u{9b}", "\"", "\\", "\u{1f980}", "\u{202e}"]) }
            .run(|input| {
                let text = text(input).into_owned();
                let fields = vec![("line", Value::Text(text.clone()))];
                let line = Line { event: "run.output".into(), fields, ..Line::default() };
                let shown = shown(Level::INFO, &line);
                assert!(!shown.contains(is_harmful), "{shown}");
                let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
                assert_eq!(read["line"], text);
                assert!(text.is_empty() || read["message"] != "");
                true
            });
    }
}
