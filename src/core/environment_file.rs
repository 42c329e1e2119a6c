//! Files with environment variables, in the format of systemd's `EnvironmentFile=`: see systemd.exec(5).
//!
//! Nothing is expanded. A line without `=` is ignored, as a comment. Where systemd would log an error and continue, or
//! take what is left of a file that was cut off, the file is refused: a job must not run without half of its variables.
//! Errors name the line and what is wrong, never the text, which may be secret.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The kernel's limit for one argument or environment entry, including the final NUL (MAX_ARG_STRLEN).
pub const LONGEST_STRING: usize = 128 << 10;

/// A file whose variables a job gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentFile {
    pub path: PathBuf,
    /// It may be missing.
    pub is_optional: bool,
}

impl EnvironmentFile {
    /// Reads the form of jobs.yaml, in which a leading `-` means that the file may be missing.
    pub fn of(text: &str) -> Self {
        let required = text.strip_prefix('-');
        Self { path: Path::new(required.unwrap_or(text)).to_owned(), is_optional: required.is_some() }
    }
}

impl fmt::Display for EnvironmentFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_optional { "-" } else { "" }, self.path.display())
    }
}

/// A line that is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct BadLine {
    /// From 1. Of a value with several lines, the first.
    pub line: u32,
    pub fault: LineFault,
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum LineFault {
    #[error("what is before `=` is not a variable name")]
    Name,
    /// A line as a shell takes it. It has an error of its own because it is common.
    #[error("`export` belongs to a shell; leave it out: `NAME=value`")]
    Export,
    #[error("a NUL character cannot be passed to a process")]
    Nul,
    #[error("the quote is not closed")]
    Unclosed,
    #[error("it is longer than the 128 KiB that can be passed to a process")]
    TooLong,
}

/// A name, and a value that may be any bytes but NUL.
pub type Variable = (String, Vec<u8>);

/// True if a process can have a variable of this name, and a person can tell it from others.
pub fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c == '=' || c.is_whitespace() || c.is_control())
}

/// The lines of a file.
#[derive(Debug, Default)]
pub struct Lines {
    /// The variables in their order, each with its first line; of two with one name the later counts.
    pub variables: Vec<(Variable, u32)>,
    /// The first line that is neither a variable nor a comment.
    pub ignored: Option<u32>,
}

/// The variables of a file in their order; of two with one name the later counts.
///
/// # Errors
/// If a line is not accepted.
pub fn parse(bytes: &[u8]) -> Result<Vec<Variable>, BadLine> {
    Ok(parse_lines(bytes)?.variables.into_iter().map(|(variable, _)| variable).collect())
}

/// Like [`parse`], for callers that need the place of a variable, and what is none.
///
/// # Errors
/// If a line is not accepted.
pub fn parse_lines(bytes: &[u8]) -> Result<Lines, BadLine> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let all = Lines::default();
    let mut parser = Parser { line: 1, began: 1, state: State::Before, name: vec![], value: vec![], kept: 0, all };
    for &byte in bytes {
        parser.take(byte)?;
        parser.line = parser.line.saturating_add(u32::from(byte == b'\n'));
    }
    parser.end()?;
    Ok(parser.all)
}

/// The part of a line that the next byte belongs to. The states are those of systemd's own parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Before,
    Name,
    /// Before a value, or behind a quoted part of it.
    BeforeValue,
    Value,
    Escape,
    SingleQuotes,
    DoubleQuotes,
    EscapeInQuotes,
    Comment,
}

struct Parser {
    line: u32,
    /// The line in which the variable begins.
    began: u32,
    state: State,
    name: Vec<u8>,
    value: Vec<u8>,
    /// The length of the value without the blanks at its end, unless they are quoted or escaped.
    kept: usize,
    all: Lines,
}

impl Parser {
    fn take(&mut self, byte: u8) -> Result<(), BadLine> {
        self.state = match (self.state, byte) {
            (State::Before, b'#' | b';') => State::Comment,
            (State::Before, byte) if is_blank(byte) => State::Before,
            (State::Before, byte) => {
                self.began = self.line;
                self.name = vec![byte];
                // Not in the name: `=x` has none.
                if byte == b'=' { self.begin_value(0) } else { State::Name }
            }
            (State::Name, b'\n' | b'\r') => self.ignore(),
            (State::Comment, b'\n' | b'\r') => State::Before,
            (State::Name, b'=') => self.begin_value(self.name.len()),
            (State::Name, byte) => self.extend_name(byte),
            (State::BeforeValue | State::Value, b'\n' | b'\r') => return self.finish(),
            (State::BeforeValue, b'\'') => State::SingleQuotes,
            (State::BeforeValue, b'"') => State::DoubleQuotes,
            (State::BeforeValue | State::Value, b'\\') => State::Escape,
            (State::BeforeValue, byte) if is_blank(byte) => State::BeforeValue,
            (State::BeforeValue | State::Value, byte) => self.extend_value(byte, State::Value),
            // The end of a line that continues is dropped.
            (State::Escape, b'\n' | b'\r') => State::Value,
            (State::Escape, byte) => {
                let state = self.extend_value(byte, State::Value);
                self.kept = self.value.len();
                state
            }
            (State::SingleQuotes, b'\'') | (State::DoubleQuotes, b'"') => State::BeforeValue,
            (State::DoubleQuotes, b'\\') => State::EscapeInQuotes,
            (State::SingleQuotes | State::DoubleQuotes, byte) => self.extend_value(byte, self.state),
            (State::EscapeInQuotes, b'\n') => State::DoubleQuotes,
            (State::EscapeInQuotes, b'"' | b'\\' | b'`' | b'$') => self.extend_value(byte, State::DoubleQuotes),
            (State::EscapeInQuotes, byte) => {
                self.value.push(b'\\');
                self.extend_value(byte, State::DoubleQuotes)
            }
            (State::Comment, _) => State::Comment,
        };
        Ok(())
    }

    fn extend_name(&mut self, byte: u8) -> State {
        self.name.push(byte);
        State::Name
    }

    fn begin_value(&mut self, name: usize) -> State {
        self.name.truncate(name);
        self.value.clear();
        self.kept = 0;
        State::BeforeValue
    }

    fn extend_value(&mut self, byte: u8, then: State) -> State {
        self.value.push(byte);
        if then != State::Value || !is_blank(byte) {
            self.kept = self.value.len();
        }
        then
    }

    fn end(&mut self) -> Result<(), BadLine> {
        match self.state {
            State::SingleQuotes | State::DoubleQuotes | State::EscapeInQuotes => Err(self.bad(LineFault::Unclosed)),
            State::BeforeValue | State::Value | State::Escape => self.finish(),
            State::Name => {
                self.ignore();
                Ok(())
            }
            State::Before | State::Comment => Ok(()),
        }
    }

    /// Ignores a line without `=`.
    fn ignore(&mut self) -> State {
        self.all.ignored.get_or_insert(self.began);
        State::Before
    }

    /// Completes a variable at the end of its last line.
    fn finish(&mut self) -> Result<(), BadLine> {
        self.value.truncate(self.kept);
        self.state = State::Before;
        let name = String::from_utf8(std::mem::take(&mut self.name)).map_err(|_| self.bad(LineFault::Name))?;
        let name = name.trim_end_matches([' ', '\t']);
        if !is_variable_name(name) {
            let exported =
                name.strip_prefix("export").filter(|rest| rest.starts_with([' ', '\t'])).map(str::trim_start);
            let is_exported = exported.is_some_and(is_variable_name);
            return Err(self.bad(if is_exported { LineFault::Export } else { LineFault::Name }));
        }
        if self.value.contains(&0) {
            return Err(self.bad(LineFault::Nul));
        }
        if name.len() + self.value.len() + 1 >= LONGEST_STRING {
            return Err(self.bad(LineFault::TooLong));
        }
        self.all.variables.push(((name.to_owned(), std::mem::take(&mut self.value)), self.began));
        Ok(())
    }

    fn bad(&self, fault: LineFault) -> BadLine {
        BadLine { line: self.began, fault }
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::Fuzz;

    fn read(text: &str) -> Vec<(String, String)> {
        let all = parse(text.as_bytes()).unwrap_or_else(|bad| panic!("{bad}: {text}"));
        all.into_iter().map(|(name, value)| (name, String::from_utf8(value).unwrap())).collect()
    }

    #[track_caller]
    fn is_value(text: &str, value: &str) {
        assert_eq!(read(&format!("A={text}\nB=1\n")), [("A".into(), value.into()), ("B".into(), "1".into())], "{text}");
        assert_eq!(read(&format!("A={text}")), [("A".into(), value.into())], "{text}");
    }

    #[test]
    fn comments_blank_lines_and_lines_without_an_equals_sign_are_ignored() {
        let text = "# A=1\n; B=2\n\n   \n  # C=3\nexport\r\n D = 4 \r\n# ends in \\\nE=5\nF\n";
        assert_eq!(read(text), [("D".into(), "4".into()), ("E".into(), "5".into())]);
        assert_eq!(read(""), []);
        assert_eq!(read("\u{feff}A=1"), [("A".into(), "1".into())]);
    }

    #[test]
    fn unquoted_values_are_read_as_systemd_documents() {
        is_value("a b  c", "a b  c");
        is_value(" \t a \t ", "a");
        is_value("", "");
        is_value("$HOME `x` # y", "$HOME `x` # y");
        is_value(r"a\ b\\c\$d\x", r"a b\c$dx");
        is_value("one \\\ntwo", "one two");
        is_value("a\\ ", "a ");
        is_value("a=b=c", "a=b=c");
        // Quotes after the first character are preserved.
        is_value("a\"b\" 'c'", "a\"b\" 'c'");
    }

    #[test]
    fn quoted_values_are_read_as_systemd_documents() {
        is_value("'a $b \\n \"c\"'", "a $b \\n \"c\"");
        is_value("'two\nlines '", "two\nlines ");
        is_value("\"two\nlines \"  ", "two\nlines ");
        is_value(r#""a\"b\\c\`d\$e\f\'g""#, r#"a"b\c`d$e\f\'g"#);
        is_value("\"one \\\ntwo\"", "one two");
        is_value("'a' \"b\"c ", "abc");
        is_value("''", "");
        is_value("'#;'", "#;");
    }

    #[test]
    fn values_may_be_any_bytes() {
        assert_eq!(parse(b"A=\xff\xfe\n").unwrap(), [("A".to_owned(), vec![0xff, 0xfe])]);
    }

    #[test]
    fn the_line_of_a_fault_is_named() {
        for (text, line, fault) in [
            ("A=1\nB C=2\n", 2, LineFault::Name),
            ("A=1\nexport B=2\n", 2, LineFault::Export),
            ("  export \t A = 1", 1, LineFault::Export),
            ("export A B=1", 1, LineFault::Name),
            ("exported A=1", 1, LineFault::Name),
            ("=1\n", 1, LineFault::Name),
            ("A='1\n2'\n\n =1", 4, LineFault::Name),
            ("\n\nA='\n\n", 3, LineFault::Unclosed),
            ("A=\"\\", 1, LineFault::Unclosed),
            ("A=1\nA=\0\n", 2, LineFault::Nul),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(BadLine { line, fault }), "{text:?}");
        }
        assert_eq!(parse(b"A\xff=1"), Err(BadLine { line: 1, fault: LineFault::Name }));
        let long = format!("A={}", "x".repeat(LONGEST_STRING));
        assert_eq!(parse(long.as_bytes()), Err(BadLine { line: 1, fault: LineFault::TooLong }));
    }

    fn single_quoted(value: &str) -> String {
        format!("'{}'", value.replace('\'', "'\"'\"'"))
    }

    fn double_quoted(value: &str) -> String {
        let escape = |c: char| if "\"\\`$".contains(c) { vec!['\\', c] } else { vec![c] };
        format!("\"{}\"", value.chars().flat_map(escape).collect::<String>())
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]

        #[test]
        fn any_quoted_value_is_read_back(value in "[^\\x00]{0,40}|([ab'\"\\\\$`#;= \\n\\r\\t]){0,20}") {
            for quoted in [single_quoted(&value), double_quoted(&value)] {
                prop_assert_eq!(read(&format!("A={quoted}\nB=2")), [("A".into(), value.clone()), ("B".into(), "2".into())]);
            }
        }

        #[test]
        fn no_bytes_panic_and_what_is_read_can_be_passed(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for (name, value) in parse(&bytes).unwrap_or_default() {
                prop_assert!(is_variable_name(&name) && !value.contains(&0));
            }
        }
    }

    #[test]
    fn fuzz_environment_files() {
        Fuzz::of("environment-file", &["A=", "'", "\"", "\\\n", "\\", "#", ";", "\r\n", " = ", "=", "\0"])
            .run(|input| parse(input).is_ok_and(|all| !all.is_empty()));
    }
}
