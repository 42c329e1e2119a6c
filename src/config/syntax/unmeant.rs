//! Escapes in double quotes that YAML has, and that a person probably did not mean: `"C:\temp"` has a tab in it.

use crate::config::source::Lines;
use crate::config::spanned::Position;

/// An escape that changes a text silently.
pub(in crate::config) struct Unmeant {
    pub at: Position,
    /// What is behind the backslash.
    pub letter: char,
    /// What YAML makes of both.
    pub meaning: &'static str,
}

/// The first such escape of a text in double quotes that is at these positions.
///
/// Numbers such as `\x1b` are meant. So is `\n` in `"cd x\nmake"`, but not in `"C:\new"`; and `\/` where every slash is
/// escaped, as some programs that write JSON do.
pub(in crate::config) fn first(lines: &Lines<'_>, at: Position, end: Position) -> Option<Unmeant> {
    let mut quoted = characters(lines, at, end).filter(|_| lines.from(at).starts_with('"'));
    let mut word = String::new();
    while let Some((at, c)) = quoted.next() {
        if c != '\\' {
            word.push(c);
            if c.is_whitespace() || matches!(c, '"' | '\'' | '=') {
                word.clear();
            }
            continue;
        }
        let (_, letter) = quoted.next()?;
        let is_meant = match letter {
            'n' => !is_of_windows(&word),
            '/' => !has_bare_slash(lines, at, end),
            _ => false,
        };
        if let Some(meaning) = meaning(letter).filter(|_| !is_meant) {
            return Some(Unmeant { at, letter, meaning });
        }
        word.extend([c, letter]);
    }
    None
}

fn meaning(letter: char) -> Option<&'static str> {
    Some(match letter {
        '0' => "a NUL",
        'a' => "a bell (U+0007)",
        'b' => "a backspace",
        't' => "a tab",
        'n' => "a line break",
        'v' => "a vertical tab",
        'f' => "a form feed",
        'r' => "a carriage return",
        'e' => "an escape character (U+001B)",
        ' ' => "a space",
        '/' => "a slash",
        'N' => "a next line (U+0085)",
        '_' => "a no-break space (U+00A0)",
        'L' => "a line separator (U+2028)",
        'P' => "a paragraph separator (U+2029)",
        _ => return None,
    })
}

/// True for the beginning of a Windows path, as it is written: `C:`, `C:\\x`, `\\\\host`.
fn is_of_windows(word: &str) -> bool {
    let is_drive = |word: &str| word.len() == 1 && word.starts_with(|c: char| c.is_ascii_alphabetic());
    word.split_once(':').is_some_and(|(drive, rest)| is_drive(drive) && (rest.is_empty() || rest.starts_with('\\')))
        || word.starts_with(r"\\")
}

fn has_bare_slash(lines: &Lines<'_>, at: Position, end: Position) -> bool {
    let mut before = ' ';
    characters(lines, at, end).any(|(_, c)| std::mem::replace(&mut before, c) != '\\' && c == '/')
}

/// The characters between two positions, with a line break at the end of each line.
fn characters<'a>(lines: &'a Lines<'_>, at: Position, end: Position) -> impl Iterator<Item = (Position, char)> + 'a {
    let of_line = move |line: usize| {
        let all = lines.line(line).chars().chain(['\n']).enumerate();
        all.map(move |(index, c)| (Position { line, column: index + 1 }, c))
    };
    (at.line..=end.line).flat_map(of_line).filter(move |(here, _)| *here >= at && *here < end)
}
