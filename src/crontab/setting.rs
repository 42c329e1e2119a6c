//! Settings of a crontab, `NAME = VALUE`, as in crontab(5).
//!
//! "The value string may be placed in quotes (single or double, but matching) to preserve leading or trailing blanks";
//! the same applies to the name. Nothing is expanded, and `#` has no special meaning. For Debian's cron an empty value must
//! be quoted; cronie has also taken `NAME=` since 2017.

/// An environment variable for the entries that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub name: String,
    pub value: String,
}

/// Parses a line as cron's `load_env` does; `None` if it is not a setting.
pub(super) fn read(line: &str) -> Option<Setting> {
    let (name, behind) = name(line.trim_start_matches(is_space))?;
    let value = behind.trim_start_matches(is_space).strip_prefix('=')?.trim_start_matches(is_space);
    let value = if value.is_empty() { "" } else { value_of(value)? };
    Some(Setting { name: name.to_owned(), value: value.to_owned() })
}

/// True for the line of a setting with nothing behind its `=`, not even quotes. Not every cron takes it.
pub(super) fn is_bare(line: &str) -> bool {
    line.trim_end_matches(is_space).ends_with('=') && read(line).is_some_and(|setting| setting.value.is_empty())
}

/// Same as isspace(3) in the C locale, without the newline.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\u{b}' | '\u{c}')
}

fn name(text: &str) -> Option<(&str, &str)> {
    match quoted(text) {
        Some((name, _)) if name.contains('=') => None,
        Some(parts) => Some(parts),
        None if text.starts_with(['"', '\'']) => None,
        None => Some(text.split_at(text.find(|c| is_space(c) || c == '=')?)),
    }
}

fn value_of(text: &str) -> Option<&str> {
    match quoted(text) {
        Some((value, behind)) => behind.trim_start_matches(is_space).is_empty().then_some(value),
        None if text.starts_with(['"', '\'']) => None,
        None => Some(text.trim_end_matches(is_space)),
    }
}

/// Splits a text into the part in matching quotes and the part behind them.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    text[1..].split_once(quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_parsed_as_in_crontab_5() {
        for (line, name, value) in [
            ("MAILTO=root", "MAILTO", "root"),
            ("  PATH = /usr/bin:/bin  ", "PATH", "/usr/bin:/bin"),
            ("A=\"  b  \"  ", "A", "  b  "),
            ("A='b\"c'", "A", "b\"c"),
            ("\"A B\" = c", "A B", "c"),
            ("A=b # no comment", "A", "b # no comment"),
            ("A=$HOME/bin", "A", "$HOME/bin"),
            ("A=b=c", "A", "b=c"),
            ("A=\"\"", "A", ""),
            ("A=b\"c", "A", "b\"c"),
            ("A=", "A", ""),
            (" \"A B\" = \t", "A B", ""),
            ("A==", "A", "="),
        ] {
            assert_eq!(read(line), Some(Setting { name: name.into(), value: value.into() }), "{line}");
        }
    }

    #[test]
    fn other_lines_are_not_settings() {
        for line in [
            "A=\"",
            "A=\"b",
            "A=\"b\" c",
            "\"A=\"=b",
            "A b=c",
            "* * * * * A=b c",
            "@daily A=b",
            "*/5 * * * * x=1",
            "",
            "'A",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn a_setting_without_value_and_quotes_is_bare() {
        for line in ["A=", "A =  ", "'A'=\t"] {
            assert!(is_bare(line), "{line}");
        }
        for line in ["A=b", "A=\"\"", "A=''", "A==", "0 0 * * * x=", "x y=", ""] {
            assert!(!is_bare(line), "{line}");
        }
    }
}
