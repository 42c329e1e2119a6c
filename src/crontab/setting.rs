//! Settings of a crontab, `NAME = VALUE`, as in crontab(5).
//!
//! "The value string may be placed in quotes (single or double, but matching) to preserve leading or trailing blanks";
//! the same applies to the name. Nothing is expanded, and `#` has no special meaning. An empty value must be quoted.

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
    let value = value_of(value)?;
    Some(Setting { name: name.to_owned(), value: value.to_owned() })
}

/// True for `NAME=` without a value, which cron treats as an invalid entry.
pub(super) fn is_empty(line: &str) -> bool {
    let named = line.trim().strip_suffix('=').is_some_and(|name| {
        let name = name.trim_end();
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    });
    named && read(line).is_none()
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
        None if text.starts_with(['"', '\'']) || text.is_empty() => None,
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
        ] {
            assert_eq!(read(line), Some(Setting { name: name.into(), value: value.into() }), "{line}");
        }
    }

    #[test]
    fn other_lines_are_not_settings() {
        for line in [
            "A=",
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
        assert!(is_empty("A =  ") && !is_empty("A=b") && !is_empty("0 0 * * * x="));
    }
}
