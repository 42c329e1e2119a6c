//! JSON that commands print, safe on a terminal: it contains texts of jobs, of operators and of other programs.

use std::io::{self, Write};

use serde::Serialize;

use cronkeeper_core::escape;

/// Prints a value on one line.
pub(super) fn line(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", escape::json(&serde_json::to_string(value)?))
}

/// Prints a value on several lines.
pub(super) fn pretty(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", escape::json(&serde_json::to_string_pretty(value)?))
}
