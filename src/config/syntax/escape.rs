//! Escapes in double quotes that YAML does not have, such as those of `"C:\dir"` and `"grep \d"`.

use crate::config::source::Lines;
use crate::config::spanned::{Fault, Position};

pub(super) const ADVICE: &str = "a backslash in double quotes begins an escape, and YAML does not have this one; use \
                                 single quotes or `|`, or double the backslash";

/// Finds the first bad escape of the quoted text that begins at `at`. Quotes nothing of it.
pub(super) fn explain(lines: &Lines<'_>, at: Position, info: &str) -> Option<Fault> {
    let is_escape = info.contains("quoted scalar") && (info.contains("escape") || info.contains("hexadecimal"));
    let mut column = at.column + 1;
    let mut text = lines.from(at).strip_prefix('"').filter(|_| is_escape)?;
    for number in at.line..=lines.count() {
        match first_bad(text) {
            Found::Bad(offset) => return Some(Fault::new(Position { line: number, column: column + offset }, ADVICE)),
            Found::End => return None,
            Found::More => (text, column) = (lines.line(number + 1), 1),
        }
    }
    None
}

enum Found {
    /// The offset of its backslash, in characters.
    Bad(usize),
    /// The quote ends in this line.
    End,
    /// The quote continues in the next line.
    More,
}

fn first_bad(text: &str) -> Found {
    let mut rest = text.chars().enumerate();
    while let Some((offset, c)) = rest.next() {
        match c {
            '"' => return Found::End,
            '\\' if !is_good(&mut rest) => return Found::Bad(offset),
            _ => {}
        }
    }
    Found::More
}

/// Reads what is behind a backslash.
fn is_good(rest: &mut impl Iterator<Item = (usize, char)>) -> bool {
    let digits = match rest.next().map(|(_, c)| c) {
        Some('x') => 2,
        Some('u') => 4,
        Some('U') => 8,
        // At the end of the line, it joins the next one.
        None => return true,
        Some(c) => return "0abt\tnvfe \"/\\N_LP".contains(c),
    };
    let number: String = rest.take(digits).map(|(_, c)| c).collect();
    let is_whole = number.len() == digits && number.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_whole && u32::from_str_radix(&number, 16).ok().and_then(char::from_u32).is_some()
}
