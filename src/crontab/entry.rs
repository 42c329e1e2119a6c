//! One entry: when, as whom, what.

use super::when::{self, When, shown, word};
use super::{Remark, input};

/// An entry as cron reads it.
#[derive(Debug)]
pub(super) struct Entry {
    pub when: When,
    /// In a system crontab.
    pub user: Option<User>,
    /// For the shell.
    pub command: String,
    /// What the command reads from its standard input.
    pub input: Option<String>,
    /// OpenBSD's and FreeBSD's `-s`: not beside a run that still goes on.
    pub single: bool,
    pub remarks: Vec<Remark>,
}

/// As whom an entry runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub name: String,
    /// FreeBSD's `user:group`.
    pub group: Option<String>,
}

/// Reads a line that is no setting.
pub(super) fn read(line: &str, system: bool) -> Result<Entry, String> {
    let mut remarks = Vec::new();
    let line = line.trim_start_matches([' ', '\t']);
    let line = match line.strip_prefix('-') {
        Some(entry) => {
            remarks.push(Remark::loss("the `-` in front keeps cron from logging; every run is logged here"));
            entry
        }
        None => line,
    };
    let (when, rest) = when::take(line)?;
    let (user, rest) = if system { user(rest)? } else { (None, rest) };
    let (flags, rest) = flags(rest);
    let (command, input) = input::split(rest);
    must_be_a_command(&command)?;
    remarks.extend(about_flags(&flags));
    remarks.extend(about_command(&command, system));
    Ok(Entry { when, user, command, input, single: flags.contains('s'), remarks })
}

fn user(rest: &str) -> Result<(Option<User>, &str), String> {
    let (name, command) = word(rest);
    if name.is_empty() {
        return Err("the user is missing".to_owned());
    }
    let (name, group) = match name.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (name, None),
    };
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.' | b'$'))
    };
    if !is_name(name) || !group.is_none_or(is_name) {
        return Err(format!("`{}` is no user, as it must be in a system crontab", shown(name)));
    }
    let user = User { name: name.to_owned(), group: group.map(str::to_owned) };
    Ok((Some(user), command))
}

/// OpenBSD's and FreeBSD's flags before a command: no command begins with `-`.
fn flags(mut rest: &str) -> (String, &str) {
    let mut flags = String::new();
    loop {
        let (first, behind) = word(rest);
        match first.strip_prefix('-') {
            Some(found) if !found.is_empty() && found.chars().all(|flag| "nqs".contains(flag)) => {
                flags.push_str(found);
                rest = behind;
            }
            _ => return (flags, rest),
        }
    }
}

fn must_be_a_command(command: &str) -> Result<(), String> {
    if command.trim().is_empty() {
        return Err("the command is missing".to_owned());
    }
    if command.starts_with('*') {
        return Err("the command begins with `*`, which cron refuses: are there too many fields?".to_owned());
    }
    Ok(())
}

fn about_flags(flags: &str) -> Vec<Remark> {
    let said = [
        ('n', Remark::loss("`-n`: cron sends mail only of a failure; no mail is sent here")),
        ('q', Remark::loss("`-q` keeps cron from logging; every run is logged here")),
        ('s', Remark::same("`-s`: not beside a run that still goes on")),
    ];
    said.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, remark)| remark).collect()
}

fn about_command(command: &str, system: bool) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let text = command.trim_end();
    if text.ends_with('&') && !text.ends_with("&&") {
        remarks.push(Remark::loss(
            "the command leaves a process in the background: it is ended when the run ends, as soon as the shell has",
        ));
    }
    if !system && word(command).0 == "root" {
        remarks
            .push(Remark::loss("the command begins with `root`: is this a system crontab? Then import with --system"));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_entry_names_its_user() {
        let entry = read("0 5 * * *  www-data\t cmd -x", true).unwrap();
        assert_eq!(entry.user, Some(User { name: "www-data".into(), group: None }));
        assert_eq!(entry.command, "cmd -x");
        let entry = read("0 5 * * * bob:staff cmd", true).unwrap();
        assert_eq!(entry.user, Some(User { name: "bob".into(), group: Some("staff".into()) }));
        assert!(read("0 5 * * * /usr/bin/cmd x", true).unwrap_err().contains("is no user"));
        assert_eq!(read("0 5 * * * root", true).unwrap_err(), "the command is missing");
        assert_eq!(read("0 5 * * *", true).unwrap_err(), "the user is missing");
    }

    #[test]
    fn flags_are_no_part_of_the_command() {
        let entry = read("0 5 * * * -ns -q cmd -s", false).unwrap();
        assert_eq!((entry.command.as_str(), entry.single, entry.remarks.len()), ("cmd -s", true, 3));
        let entry = read("-0 5 * * * cmd", false).unwrap();
        assert_eq!((entry.when.expression.as_str(), entry.remarks.len()), ("0 5 * * *", 1));
        assert_eq!(read("0 5 * * * -x cmd", false).unwrap().command, "-x cmd");
    }

    #[test]
    fn what_would_behave_otherwise_is_remarked_on() {
        let remarks = |line: &str| read(line, false).unwrap().remarks.len();
        assert_eq!(remarks("0 5 * * * cmd &"), 1);
        assert_eq!(remarks("0 5 * * * a && b > x 2>&1"), 0);
        assert_eq!(remarks("0 5 * * * root cmd"), 1);
        assert!(read("0 5 * * * * cmd", false).unwrap_err().contains("too many fields"));
    }
}
