//! Writes texts as YAML so that a parser reads them back unchanged, whatever they contain.

use std::fmt::Write as _;

/// Writes a value: plain if no parser could misread it, else quoted.
pub(super) fn scalar(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { quoted(text) }
}

/// Writes a value in the quotes that are easiest to read.
pub(super) fn quoted(text: &str) -> String {
    let is_easy = text.chars().all(is_printable);
    match (is_easy, text.contains(['"', '\\'])) {
        (true, false) => format!("\"{text}\""),
        (true, true) => format!("'{}'", text.replace('\'', "''")),
        (false, _) => escaped(text),
    }
}

/// Writes a text of several lines as a block behind `|`, or quoted if it would not be read back unchanged.
pub(super) fn block(text: &str, indent: usize) -> String {
    let body = text
        .strip_suffix('\n')
        .filter(|body| !body.is_empty() && !body.ends_with('\n') && !body.starts_with([' ', '\n']));
    let Some(body) = body.filter(|body| body.split('\n').all(is_line)) else { return quoted(text) };
    let margin = " ".repeat(indent);
    body.split('\n').fold("|".to_owned(), |block, line| match line {
        "" => block + "\n",
        line => format!("{block}\n{margin}{line}"),
    })
}

/// Escapes a text for a comment: one line, no characters that YAML forbids.
pub(super) fn comment(text: &str) -> String {
    let legible = |c: char| if is_printable(c) || c == '\t' { c.to_string() } else { c.escape_default().to_string() };
    text.trim_end().chars().map(legible).collect()
}

/// True if a block may contain this line. A line of blanks only would be read as indentation.
fn is_line(line: &str) -> bool {
    line.chars().all(is_printable) && (line.is_empty() || !line.trim().is_empty())
}

fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-'))
        && !WORDS.iter().any(|word| word.eq_ignore_ascii_case(text))
}

fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        // Characters that YAML forbids or treats as line breaks, or that are invisible.
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{feff}' => false,
        '\u{a0}'..='\u{fffd}' | '\u{10000}'.. => true,
        _ => false,
    }
}

fn escaped(text: &str) -> String {
    let mut out = "\"".to_owned();
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if is_printable(c) => out.push(c),
            // Writing to a string cannot fail.
            c => drop(write!(out, "\\U{:08X}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> String {
        let job = format!("jobs:\n  a:\n    schedule: \"0 0 * * *\"\n    command: x\n    description: {text}\n");
        let (set, _) =
            crate::config::parse("j", job.as_bytes()).unwrap_or_else(|problems| panic!("{problems:?}: {job}"));
        set.jobs.into_values().next().and_then(|job| job.description.clone()).unwrap_or_else(|| panic!("none: {job}"))
    }

    #[test]
    fn texts_are_written_in_the_simplest_form() {
        for (text, written) in [
            ("backup", "backup"),
            ("/usr/bin/env", "/usr/bin/env"),
            ("yes", "\"yes\""),
            ("0027", "\"0027\""),
            ("", "\"\""),
            ("a b # c: d", "\"a b # c: d\""),
            ("echo \"it's\"", "'echo \"it''s\"'"),
            ("a\tb", "\"a\\tb\""),
            ("Größe %", "\"Größe %\""),
            ("a\u{1b}[31m", "\"a\\U0000001B[31m\""),
        ] {
            assert_eq!(scalar(text), written);
        }
        assert_eq!(block("a\n  b\n\nc\n", 2), "|\n  a\n    b\n\n  c");
        assert_eq!(block("a\n\n", 2), "\"a\\n\\n\"");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_read_back_unchanged(text in "[^\\x00]{0,30}|[ -~]{0,20}|([a#: '\"\\\\\\-\\n\\t]){0,12}") {
            prop_assert_eq!(read(&scalar(&text)), text.clone());
            prop_assert_eq!(read(&quoted(&text)), text.clone());
            let lines = text + "\n";
            prop_assert_eq!(read(&block(&lines, 6)), lines);
        }

        #[test]
        fn any_text_can_be_a_comment(text in any::<String>()) {
            let value = read(&format!("x # {}", comment(&text)));
            prop_assert_eq!(value, "x");
        }
    }
}
