//! Log format `journald`: journal entries with fields, in the journal's native protocol.
//!
//! A field is a line `NAME=value`, and an entry is a message of such lines; see
//! <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>. Values are escaped and never contain a line end, so no text can end
//! an entry or forge its priority. MESSAGE is the event's sentence, as on a terminal; all facts are in fields. A long text
//! is spread over several entries, as the format `text` spreads it over several lines: an entry must fit into a message, and `journalctl -o json` hides values of more than 4,096 bytes unless `--all` is given.

use std::fmt::{self, Write as _};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::line::{Line, Value};
use super::sentence::{Scene, Sentence};
use cronkeeper_core::escape;
use cronkeeper_core::term::NodeName;

/// The socket of the journal. In a unit with a `LogNamespace=`, this path leads to the journal of its namespace.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

/// The name for `journalctl -t`: the same that systemd gives to what the unit writes to stderr.
const IDENTIFIER: &str = "cronkeeper";

/// Fields with a meaning to the journal, see systemd.journal-fields(7). Events must not use them.
const RESERVED: [&str; 11] = [
    "MESSAGE",
    "MESSAGE_ID",
    "PRIORITY",
    "CODE_FILE",
    "CODE_LINE",
    "CODE_FUNC",
    "ERRNO",
    "EVENT",
    "NODE",
    "TARGET",
    "UNIT",
];
const RESERVED_PREFIXES: [&str; 4] = ["OBJECT_", "SYSLOG_", "COREDUMP_", "USER_"];
/// Maximum length of a field's name in the journal.
const LONGEST_NAME: usize = 64;

pub(super) struct Journal {
    scene: Scene,
    node: String,
}

impl Journal {
    pub fn new(node: &NodeName, scene: Scene) -> Self {
        Self { scene, node: node.as_str().to_owned() }
    }

    /// The entries of one event, separated by empty lines.
    fn entries(&self, level: Level, line: Line) -> Result<String, fmt::Error> {
        let entries: Result<Vec<_>, _> = line.pieces().iter().map(|line| self.entry(level, line)).collect();
        Ok(entries?.join("\n"))
    }

    fn entry(&self, level: Level, line: &Line) -> Result<String, fmt::Error> {
        let mut entry = format!("PRIORITY={}\nSYSLOG_IDENTIFIER={IDENTIFIER}", priority(level));
        field(&mut entry, "MESSAGE", &Sentence::beside_fields(line, &self.scene))?;
        field(&mut entry, "EVENT", &line.event)?;
        field(&mut entry, "NODE", &self.node)?;
        if let Some(source) = &line.source {
            field(&mut entry, "TARGET", source)?;
        }
        for (name, value) in &line.fields {
            let Some(name) = name_of(name) else { continue };
            match value {
                Value::Text(text) => field(&mut entry, &name, text)?,
                number => write!(entry, "\n{name}={number}")?,
            }
        }
        entry.push('\n');
        Ok(entry)
    }
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        out.write_str(&self.entries(*event.metadata().level(), Line::of(event))?)
    }
}

/// The priority of syslog(3).
pub(super) fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Splits the text of one event into its entries.
pub(super) fn split(entries: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = entries;
    std::iter::from_fn(move || {
        let end = rest.windows(2).position(|two| two == b"\n\n").map_or(rest.len(), |at| at + 1);
        let (entry, more) = rest.split_at(end);
        rest = more.strip_prefix(b"\n").unwrap_or(more);
        Some(entry).filter(|entry| !entry.is_empty())
    })
}

fn field(entry: &mut String, name: &str, text: &str) -> fmt::Result {
    write!(entry, "\n{name}={}", escape::plain(text))
}

/// The name of a field in the journal; `None` if it would be invalid or reserved.
fn name_of(field: &str) -> Option<String> {
    let name: String =
        field.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    let begins_well = name.starts_with(|c: char| c.is_ascii_uppercase());
    let is_reserved =
        RESERVED.contains(&name.as_str()) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    (begins_well && name.len() <= LONGEST_NAME && !is_reserved).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> Journal {
        let now = || "2026-11-20T18:40:01Z".parse().unwrap();
        Journal::new(&NodeName::new("host-a"), Scene { service: "ZooKeeper", now })
    }

    fn entry(level: Level, line: &Line) -> String {
        journal().entry(level, line).unwrap()
    }

    #[test]
    fn the_message_is_the_sentence_and_each_field_is_a_field_of_the_entry() {
        let line = Line {
            event: "run.finished".into(),
            fields: vec![
                ("job", Value::Text("load".into())),
                ("attempt", Value::Unsigned(2)),
                ("outcome", Value::Text("failure".into())),
                ("exit_code", Value::Signed(3)),
                ("duration_ms", Value::Unsigned(40_000)),
                ("leftovers", Value::Unsigned(0)),
            ],
            ..Line::default()
        };
        assert_eq!(
            entry(Level::WARN, &line),
            "PRIORITY=4\nSYSLOG_IDENTIFIER=cronkeeper\nMESSAGE=load failure, exit code 3, after 40 s, attempt 2\n\
             EVENT=run.finished\nNODE=host-a\nJOB=load\nATTEMPT=2\nOUTCOME=failure\nEXIT_CODE=3\n\
             DURATION_MS=40000\nLEFTOVERS=0\n"
        );
    }

    #[test]
    fn no_text_adds_a_field_or_another_entry() {
        let forged = "x\nPRIORITY=3\nMESSAGE=leader.lost\n\n\u{1b}[2J<3>";
        let fields = vec![("line", Value::Text(forged.into())), ("priority", Value::Signed(0))];
        let line = Line { event: "run.output".into(), message: Some(forged.into()), fields, ..Line::default() };
        let entry = entry(Level::INFO, &line);
        let names: Vec<_> = entry.lines().map(|line| line.split_once('=').unwrap().0).collect();
        assert_eq!(names, ["PRIORITY", "SYSLOG_IDENTIFIER", "MESSAGE", "EVENT", "NODE", "LINE"]);
        assert!(entry.starts_with("PRIORITY=6\n") && !entry.contains('\u{1b}'), "{entry}");
    }

    #[test]
    fn a_long_text_is_spread_over_several_entries_and_nothing_is_lost() {
        let text = "x".repeat(9_000);
        let fields = vec![("job", Value::Text("load".into())), ("line", Value::Text(text.clone()))];
        let line = Line { event: "run.output".into(), fields, ..Line::default() };
        let entries = journal().entries(Level::INFO, line).unwrap();
        let entries: Vec<&str> = split(entries.as_bytes()).map(|entry| std::str::from_utf8(entry).unwrap()).collect();
        let value = |entry: &&str| entry.lines().find_map(|line| line.strip_prefix("LINE=")).unwrap().to_owned();
        assert_eq!(entries.iter().map(value).collect::<String>(), text);
        assert!(
            entries.len() > 1
                && entries.iter().all(|entry| entry.starts_with("PRIORITY=6\n") && entry.contains("\nJOB=load\n"))
        );
        let continues: Vec<_> = entries.iter().map(|entry| entry.contains("\nCONTINUES=true\n")).collect();
        assert_eq!(continues, [true, true, false]);
    }

    #[test]
    fn reserved_names_are_not_used() {
        assert_eq!(name_of("exit_code").as_deref(), Some("EXIT_CODE"));
        assert_eq!(name_of("log.line").as_deref(), Some("LOG_LINE"));
        for reserved in ["message", "object_pid", "_pid", "syslog_facility", "", "9", "user_unit"] {
            assert_eq!(name_of(reserved), None, "{reserved}");
        }
    }

    #[test]
    fn all_promised_fields_have_names_that_the_journal_accepts() {
        for event in cronkeeper_core::log_event::EVENTS {
            for field in event.fields {
                assert!(name_of(field).is_some(), "{field} of {}", event.name);
            }
        }
    }
}
