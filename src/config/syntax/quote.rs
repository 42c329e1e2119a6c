//! A quote that is not closed, where YAML takes the beginning of the next quoted text for its end.
//!
//! The parser stops behind that. So this module reads each line by itself, as a person does.

use super::words::QUOTE;
use crate::config::source::Lines;
use crate::config::spanned::{Fault, Position};

/// A quoted text that a person writes has no more lines than this.
const MOST_LINES: usize = 200;

/// Finds the quote that was not closed, if the parser stopped behind another one.
pub(super) fn explain(lines: &Lines<'_>, at: Position) -> Option<Fault> {
    let line = lines.line(at.line);
    let ahead: String = line.chars().take(at.column - 1).collect();
    let ahead = ahead.trim_end();
    let quote = ahead.chars().next_back().filter(|c| is_quote(*c))?;
    let column = ahead.chars().count();
    let quoted = quoted(line);
    let opened = match quoted.iter().find(|quoted| quoted.start == column) {
        Some(_) => above(lines, at.line, quote)?,
        None => Position { column: before(ahead, &quoted, column)?, ..at },
    };
    Some(Fault::new(opened, QUOTE))
}

/// The last quote above a line that is not closed before it.
fn above(lines: &Lines<'_>, number: usize, quote: char) -> Option<Position> {
    let mut ahead = (number.saturating_sub(MOST_LINES).max(1)..number).rev();
    let line = ahead.find(|number| lines.line(*number).contains(quote))?;
    let open = quoted(lines.line(line)).pop().filter(|quoted| quoted.end.is_none() && quoted.quote == quote)?;
    Some(Position { line, column: open.start })
}

/// The quote whose text ends at a column with a comma or a colon: what separates it from the next text is in it.
fn before(ahead: &str, all: &[Quoted], column: usize) -> Option<usize> {
    let quoted = all.iter().find(|quoted| quoted.end == Some(column))?;
    let text: String = ahead.chars().take(column - 1).skip(quoted.start).collect();
    let separates = text.ends_with(' ') && text.trim_end().ends_with([',', ':']);
    (separates && !quoted.is_value).then_some(quoted.start)
}

/// A quoted text of a line, with the columns of its quotes.
struct Quoted {
    quote: char,
    start: usize,
    /// Absent if the line ends before it does.
    end: Option<usize>,
    /// It is all that is behind a key.
    is_value: bool,
}

/// The quoted texts of a line, as a person reads it: a quote inside a word is part of the word.
fn quoted(line: &str) -> Vec<Quoted> {
    let mut found: Vec<Quoted> = Vec::new();
    let (mut before, mut may_begin, mut is_value) = (' ', true, false);
    for (index, c) in line.chars().enumerate() {
        let column = index + 1;
        match found.last_mut().filter(|quoted| quoted.end.is_none()) {
            Some(open) if c == open.quote && before != '\\' => open.end = Some(column),
            Some(_) => {}
            None if is_quote(c) && may_begin => found.push(Quoted { quote: c, start: column, end: None, is_value }),
            None if c == '#' && before.is_whitespace() => break,
            None => {}
        }
        let is_dash = c == '-' && line.chars().take(index).all(|c| c.is_whitespace() || c == '-');
        may_begin = matches!(c, '[' | '{' | ',' | ':') || is_dash || may_begin && c.is_whitespace();
        is_value = c == ':' || is_value && c.is_whitespace();
        before = c;
    }
    found
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\'')
}
