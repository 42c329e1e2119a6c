//! The meaning of `%` in a command, as in crontab(5) and cronie's do_command.c.
//!
//! "Percent-signs (%) in the command, unless escaped with backslash (\), will be changed into newline characters, and
//! all data after the first % will be sent to the command as standard input."

/// Splits an entry's text into the command for the shell and its standard input; `None` if there is no input.
pub(super) fn split(text: &str) -> (String, Option<String>) {
    let mut command = String::new();
    let mut is_escaped = false;
    for (index, c) in text.char_indices() {
        match c {
            '%' if is_escaped => {
                command.pop();
                command.push('%');
            }
            '%' => return (command, Some(input(&text[index + 1..])).filter(|input| !input.is_empty())),
            _ => command.push(c),
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    (command, None)
}

/// Decodes the input: `\%` is `%`, `%` ends a line, and the last line always gets an end.
fn input(text: &str) -> String {
    let mut input = String::new();
    let mut is_escaped = false;
    for c in text.chars() {
        if is_escaped && c != '%' {
            input.push('\\');
        }
        let read = if c == '%' && !is_escaped { '\n' } else { c };
        is_escaped = read == '\\';
        if !is_escaped {
            input.push(read);
        }
    }
    if is_escaped {
        input.push('\\');
    }
    if !input.is_empty() && !input.ends_with('\n') {
        input.push('\n');
    }
    input
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn percent_signs_are_read_as_cron_reads_them() {
        for (text, command, input) in [
            ("date", "date", None),
            ("date +\\%F", "date +%F", None),
            ("mail root%hello", "mail root", Some("hello\n")),
            ("cat%a%b%", "cat", Some("a\nb\n")),
            ("cat%%", "cat", Some("\n")),
            ("cat%", "cat", None),
            ("cat%50\\% of \\n%x", "cat", Some("50% of \\n\nx\n")),
            ("echo \\\\%x", "echo \\\\", Some("x\n")),
            ("cat%\\\\%", "cat", Some("\\%\n")),
            ("cat%end\\", "cat", Some("end\\\n")),
            ("%", "", None),
        ] {
            assert_eq!(split(text), (command.to_owned(), input.map(str::to_owned)), "{text}");
        }
    }
}
