//! Formats history records as comma-separated values, as RFC 4180 quotes them. Times are RFC 3339 in UTC, parameters a
//! JSON object. A new column comes last, because scripts count them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use jiff::Timestamp;

use crate::status::{EndedRun, HistoryEntry, Skipped};
use cronkeeper_core::escape;

pub(super) const HEADING: &str = "kind,job,run,due,started,ended,duration_ms,node,attempt,outcome,reason,exit_code,\
                                  signal,count,triggered_by,parameters,triggered_for,killed_by";

pub(super) fn write(record: &HistoryEntry, out: &mut dyn Write) -> io::Result<()> {
    let fields = match record {
        HistoryEntry::Run(run) => of_run(run)?,
        HistoryEntry::Skip(skip) => of_skip(skip),
    };
    writeln!(out, "{}", fields.map(|field| quoted(&field)).join(","))
}

fn of_run(run: &EndedRun) -> io::Result<[String; 18]> {
    Ok([
        "run".to_owned(),
        run.job.to_string(),
        run.run.to_string(),
        run.scheduled_at.to_string(),
        optional(run.started_at.as_ref()),
        run.ended_at.to_string(),
        optional(run.duration_ms.as_ref()),
        run.node.to_string(),
        run.attempt.to_string(),
        run.outcome.as_str().to_owned(),
        run.reason.map(|reason| reason.as_str().to_owned()).unwrap_or_default(),
        optional(run.exit_code.as_ref()),
        optional(run.signal.as_ref()),
        "1".to_owned(),
        run.triggered_by.clone().unwrap_or_default(),
        parameters(&run.parameters)?,
        optional(run.triggered_for.as_ref()),
        run.killed_by.clone().unwrap_or_default(),
    ])
}

/// `ended` is when the last occurrence was skipped.
fn of_skip(skip: &Skipped) -> [String; 18] {
    [
        "skip".to_owned(),
        skip.job.to_string(),
        skip.run.to_string(),
        skip.first.to_string(),
        optional(None::<&Timestamp>),
        skip.decided_at.to_string(),
        String::new(),
        skip.node.to_string(),
        String::new(),
        "skipped".to_owned(),
        skip.reason.as_str().to_owned(),
        String::new(),
        String::new(),
        skip.count.to_string(),
        skip.triggered_by.clone().unwrap_or_default(),
        String::new(),
        optional(skip.triggered_for.as_ref()),
        String::new(),
    ]
}

/// A JSON object, in which harmful characters are escaped as JSON escapes them; empty if there are none.
fn parameters(all: &BTreeMap<String, String>) -> io::Result<String> {
    if all.is_empty() {
        return Ok(String::new());
    }
    Ok(escape::json(&serde_json::to_string(all)?).into_owned())
}

fn optional(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// A field on one line: in quotes if it has a comma or a quote.
fn quoted(field: &str) -> String {
    let field = escape::plain(field);
    match field.contains([',', '"']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_a_json_object_on_a_line() {
        let all = [("DAY", "a, \"b\"\n\u{200b}\u{e0001}"), ("REGION", "eu")];
        let all: BTreeMap<_, _> = all.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let written = parameters(&all).unwrap();
        assert_eq!(written, r#"{"DAY":"a, \"b\"\n\u200b\udb40\udc01","REGION":"eu"}"#);
        assert_eq!(serde_json::from_str::<BTreeMap<String, String>>(&written).unwrap(), all);
        assert_eq!(escape::plain(&written), written);
        assert_eq!(parameters(&BTreeMap::new()).unwrap(), "");
    }

    #[test]
    fn fields_are_quoted_where_needed_and_stay_on_a_line() {
        assert_eq!(quoted("host-a"), "host-a");
        assert_eq!(quoted("Smith, \"Jo\"\n"), "\"Smith, \"\"Jo\"\"\\n\"");
        assert_eq!(quoted(""), "");
    }
}
