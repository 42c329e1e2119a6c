//! Brackets and braces that are not closed.

use super::words;
use crate::config::source::Lines;
use crate::config::spanned::{Fault, Position};

/// A list or map that a person writes in brackets has no more lines than this.
const MOST_LINES: usize = 200;
/// Most brackets that are followed to their ends, so that the cost of a file does not grow with its size squared.
const MOST_FOLLOWED: usize = 20;

/// What the parser says about brackets; at the end of the file, it misses what a node has.
const OF_BRACKETS: [&str; 3] = ["flow ", "illegal placement of ':'", "expected node content"];
/// All that it says in a line that is indented less than the list.
const INDENTED_LESS: &str = "invalid indentation";

/// Finds the bracket that the parser missed the end of, if it is about one: the last that is open there. Or finds that it
/// stopped behind a quoted text at one that closes none.
pub(super) fn explain(lines: &Lines<'_>, at: Position, info: &str) -> Option<Fault> {
    if info.contains("after double-quoted scalar") && lines.from(at).starts_with([']', '}']) {
        return Some(Fault::new(at, format!("this is not YAML: {}", words::STRAY)));
    }
    let is_of_flow = info == INDENTED_LESS || OF_BRACKETS.iter().any(|part| info.contains(part));
    let ahead = (at.line.saturating_sub(MOST_LINES).max(1)..=at.line).rev().filter(|_| is_of_flow);
    let mut opened = ahead.filter_map(|number| opening(lines, number)).take(MOST_FOLLOWED);
    let (open, at) = opened.find_map(|start| unclosed(lines, start, at.line + MOST_LINES))?;
    let close = if open == '[' { ']' } else { '}' };
    Some(Fault::new(at, format!("this is not YAML: this `{open}` is not closed; its `{close}` is missing")))
}

/// The first bracket of a line that begins a value.
fn opening(lines: &Lines<'_>, number: usize) -> Option<Position> {
    let line = lines.line(number);
    let begins = |index: usize| {
        let ahead = &line[..index];
        ahead.trim().is_empty() || ahead.ends_with(": ") || ahead.trim_start().trim_end_matches(' ') == "-"
    };
    let (index, _) = line.match_indices(['[', '{']).find(|(index, _)| begins(*index))?;
    Some(Position { line: number, column: 1 + line[..index].chars().count() })
}

/// The innermost bracket that is not closed by its own counterpart.
fn unclosed(lines: &Lines<'_>, start: Position, last: usize) -> Option<(char, Position)> {
    let mut open: Vec<(char, Position)> = Vec::new();
    let mut quote = None;
    for number in start.line..=last.min(lines.count()) {
        let skipped = if number == start.line { start.column - 1 } else { 0 };
        let mut before = ' ';
        // A quote inside a word is part of the word.
        let mut may_begin = true;
        for (index, c) in lines.line(number).chars().enumerate().skip(skipped) {
            match (quote, c) {
                (Some(end), _) if c == end && before != '\\' => quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') if may_begin => quote = Some(c),
                (None, '#') if before.is_whitespace() => break,
                (None, '[' | '{') => open.push((c, Position { line: number, column: index + 1 })),
                (None, ']' | '}') => {
                    let (opened, at) = open.pop()?;
                    if (opened == '[') != (c == ']') {
                        return Some((opened, at));
                    }
                    if open.is_empty() {
                        return None;
                    }
                }
                (None, _) => {}
            }
            may_begin = matches!(c, '[' | '{' | ',' | ':') || may_begin && c.is_whitespace();
            before = c;
        }
    }
    open.pop()
}
