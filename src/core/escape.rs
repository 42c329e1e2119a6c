//! Escaping of text from outside (job output, names, errors) for one line of a terminal.
//!
//! Four groups of characters are escaped: control characters (C0, DEL, and C1, because a bare U+009B starts an escape
//! sequence); line and paragraph separators; marks that change the direction of text, which can make a line read as
//! another; and invisible characters, which can make two texts look the same.

use std::borrow::Cow;
use std::fmt::Write as _;

/// True for a character that could break the line, control the terminal, or hide in the text.
///
/// Invisible characters are those of Unicode's `Default_Ignorable_Code_Point` (DerivedCoreProperties.txt), which
/// includes ranges reserved for future ones, and the interlinear marks. Joiners and variation selectors are allowed,
/// because Persian, the scripts of India, and emoji need them.
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
        )
}

/// `text` with harmful characters escaped as `\n`, `\t`, `\u{1b}`.
pub fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful)
}

/// `text` with harmful characters escaped, except tabs, which a terminal shows correctly.
pub fn on_a_terminal(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\t' && is_harmful(c))
}

/// `text` of several lines with harmful characters escaped, except the ends of lines and tabs.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| !matches!(c, '\n' | '\t') && is_harmful(c))
}

/// `text`, which is JSON, with the harmful characters of its strings escaped as JSON escapes them: `\u202e`.
///
/// Any reader of JSON reads the same from it. Of harmful characters, JSON itself forbids C0 alone in strings, and outside
/// of strings there is nothing but ASCII.
pub fn json(text: &str) -> Cow<'_, str> {
    let is_bad = |c: char| !c.is_ascii_whitespace() && is_harmful(c);
    if !text.contains(is_bad) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 32);
    for c in text.chars() {
        if !is_bad(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    Cow::Owned(out)
}

/// `text` on one line with harmful characters escaped, and no more than `longest` characters of it.
pub fn short(text: &str, longest: usize) -> String {
    let mut short: String = text.chars().take(longest).collect();
    short = plain(&short).into_owned();
    if text.chars().nth(longest).is_some() {
        short.push('…');
    }
    short
}

/// `text` as the value of `key=value`: unchanged if it is unambiguous, else in quotes.
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
    use crate::fuzz::{Fuzz, text};

    #[test]
    fn a_short_text_is_one_line_of_limited_length() {
        assert_eq!(short("a\n\u{1b}[31mb", 100), r"a\n\u{1b}[31mb");
        assert_eq!((short("äöü", 3), short("äöü", 2)), ("äöü".to_owned(), "äö…".to_owned()));
    }

    #[test]
    fn a_screen_clearing_line_stays_text() {
        assert_eq!(plain("ok\u{1b}[2J\rroot# \u{9b}m"), "ok\\u{1b}[2J\\rroot# \\u{9b}m");
    }

    #[test]
    fn characters_that_reorder_or_hide_text_are_escaped() {
        assert_eq!(plain("a\u{61c}b\u{200b}c\u{e0041}d\u{2069}"), "a\\u{61c}b\\u{200b}c\\u{e0041}d\\u{2069}");
        // A family of emoji, a warning sign in colour, Persian with a non-joiner.
        for written in ["\u{1f469}\u{200d}\u{1f467}", "\u{26a0}\u{fe0f}", "\u{645}\u{6cc}\u{200c}\u{62e}\u{648}"] {
            assert_eq!(plain(written), written);
        }
    }

    #[test]
    fn json_means_the_same_and_stays_as_it_is_where_nothing_is_harmful() {
        let harmful = "a\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}\n\t\"\\\u{1f980}ö";
        for text in [serde_json::to_string(harmful), serde_json::to_string_pretty(&[harmful])].map(Result::unwrap) {
            let shown = json(&text);
            assert!(!shown.contains(|c: char| c != '\n' && is_harmful(c)), "{shown}");
            let [read, meant] = [&*shown, &text].map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
            assert_eq!(read, meant);
        }
        assert_eq!(json("\"\u{9b}\u{e0041}\""), r#""\u009b\udb40\udc41""#);
        assert!(matches!(json("{\n  \"ö\": 1\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(lines("a\n\tb\r\u{1b}c\u{202e}"), "a\n\tb\\r\\u{1b}c\\u{202e}");
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
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn nothing_harmful_is_left(text in "\\PC*|.*") {
            prop_assert!(!plain(&text).contains(is_harmful));
            prop_assert!(!value(&text).contains(is_harmful));
        }
    }

    /// True for a character that moves the cursor, ends the line or changes the direction of text.
    fn moves(c: char) -> bool {
        c < ' ' || ('\u{7f}'..='\u{9f}').contains(&c) || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    }

    #[test]
    fn fuzz_escaped_text() {
        let words =
            &["\u{1b}[2J", "\u{9b}m", "\r", "\u{202e}", "\u{2069}", "\u{200f}", "\"", "\\", "\\n", "key=", "<3>"];
        Fuzz::of("escape", words).run(|input| {
            let text = text(input);
            let (plain, value) = (super::plain(&text), super::value(&text));
            for shown in [&plain, &value] {
                assert!(!shown.contains(|c| is_harmful(c) || moves(c)), "{shown:?}");
            }
            assert_eq!(super::plain(&plain), plain);
            // Exactly one quote ends the value: text after it would look like another field.
            if let Some(inner) = value.strip_prefix('"') {
                let ends = inner.char_indices().scan(false, |escaped, (at, c)| {
                    let is_end = c == '"' && !*escaped;
                    *escaped = c == '\\' && !*escaped;
                    Some(is_end.then_some(at))
                });
                assert_eq!(ends.flatten().collect::<Vec<_>>(), [inner.len() - 1], "{value}");
            } else {
                assert!(!value.is_empty() && !value.contains([' ', '"', '=']), "{value}");
            }
            !matches!(plain, Cow::Borrowed(_))
        });
    }
}
