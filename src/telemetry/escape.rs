//! Text from outside (output of jobs, names, errors) made fit for one line of a terminal.
//!
//! Escaped are all control characters (C0, DEL, C1: a bare U+009B starts an escape sequence), line and paragraph
//! separators, and the marks that turn the direction of text, with which a line can be made to read as another.

use std::borrow::Cow;
use std::fmt::Write as _;

/// True for a character that could break the line or act on the terminal.
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// `text` with what is harmful escaped: `\n`, `\t`, `\u{1b}`.
pub fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful)
}

/// `text` as the value of `key=value`: as it is where that is clear, else in quotes.
pub fn value(text: &str) -> Cow<'_, str> {
    let unclear = |c: char| c.is_whitespace() || matches!(c, '"' | '=') || is_harmful(c);
    if !text.is_empty() && !text.contains(unclear) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("\"{}\"", escaped(text, |c| matches!(c, '"' | '\\') || is_harmful(c))))
}

fn escaped(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_bad) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            c if !is_bad(c) => out.push(c),
            '\n' | '\r' | '\t' | '"' | '\\' => out.extend(c.escape_default()),
            // Writing to a String cannot fail.
            c => drop(write!(out, "{}", c.escape_unicode())),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_screen_clearing_line_stays_text() {
        assert_eq!(plain("ok\u{1b}[2J\rroot# \u{9b}m"), "ok\\u{1b}[2J\\rroot# \\u{9b}m");
    }

    #[test]
    fn a_value_is_quoted_only_where_needed() {
        assert_eq!(value("host-a"), "host-a");
        assert_eq!(value("C:\\x"), "C:\\x");
        assert_eq!(value(""), "\"\"");
        assert_eq!(value("two words"), "\"two words\"");
        assert_eq!(value("say \"hi\" \\"), "\"say \\\"hi\\\" \\\\\"");
        assert_eq!(value("Grüße"), "Grüße");
    }

    proptest! {
        #[test]
        fn nothing_harmful_is_left(text in "\\PC*|.*") {
            prop_assert!(!plain(&text).contains(is_harmful));
            prop_assert!(!value(&text).contains(is_harmful));
        }
    }
}
