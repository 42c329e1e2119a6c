//! One entry of a crontab: times, user, command and input.

use super::when::{self, EntryTimes, shown, word};
use super::{Remark, host_work, input, kind};

/// An entry as cron reads it.
#[derive(Debug)]
pub(super) struct CrontabEntry {
    pub when: EntryTimes,
    /// Present in a system crontab.
    pub user: Option<EntryUser>,
    /// The command line for the shell.
    pub command: String,
    /// The text for the command's standard input.
    pub input: Option<String>,
    /// The flag `-s` of OpenBSD and FreeBSD: not started while the last run is still running.
    pub single: bool,
    /// The flag `-n` of OpenBSD and FreeBSD: no mail about what went well.
    pub mails_failures_only: bool,
    /// It maintains the host on which it runs.
    pub is_of_each_host: bool,
    pub remarks: Vec<Remark>,
}

/// The user of an entry in a system crontab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryUser {
    pub name: String,
    /// From FreeBSD's `user:group`.
    pub group: Option<String>,
}

/// Parses a line that is not a setting. The error is a message for the operator.
pub(super) fn read(line: &str, system: bool) -> Result<CrontabEntry, String> {
    let mut remarks = Vec::new();
    let line = line.trim_start_matches([' ', '\t']);
    if host_work::is_of_an_anacrontab(line) {
        return Err("a line of an anacrontab, not of a crontab: anacron does this work on each host".to_owned());
    }
    let line = match line.strip_prefix('-') {
        Some(entry) => {
            remarks.push(Remark::loss("the leading `-` turns cron's logging off; cronkeeper logs every run"));
            entry
        }
        None => line,
    };
    let (when, rest) = when::take(line)?;
    let (user, rest) = if system { user(rest, &mut remarks)? } else { (None, rest) };
    let (flags, rest) = flags(rest);
    let (command, input) = input::split(rest);
    must_be_a_command(&command)?;
    remarks.extend(about_flags(&flags));
    remarks.extend(about_command(&command, system));
    let (about_host, program) = host_work::remarks(&command);
    remarks.extend(about_host);
    let is_of_each_host = program.is_some();
    let (single, mails_failures_only) = (flags.contains('s'), flags.contains('n'));
    Ok(CrontabEntry { when, user, command, input, single, mails_failures_only, is_of_each_host, remarks })
}

/// Takes the user: `name`, or FreeBSD's `name:group/class`.
fn user<'a>(rest: &'a str, remarks: &mut Vec<Remark>) -> Result<(Option<EntryUser>, &'a str), String> {
    let (whole, command) = word(rest);
    if whole.is_empty() {
        return Err("the user is missing".to_owned());
    }
    let (account, class) = split(whole, '/');
    let (name, group) = split(account, ':');
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.' | b'$'))
    };
    if !is_name(name) || !group.is_none_or(is_name) || !class.is_none_or(is_name) {
        return Err(format!("`{}` is not a user name, which must follow the times in a system crontab", shown(whole)));
    }
    remarks.extend(class.map(|class| {
        Remark::loss(format!("the login class `{class}` of FreeBSD is left out; set limits with `limits`"))
    }));
    let user = EntryUser { name: name.to_owned(), group: group.map(str::to_owned) };
    Ok((Some(user), command))
}

fn split(text: &str, separator: char) -> (&str, Option<&str>) {
    text.split_once(separator).map_or((text, None), |(text, behind)| (text, Some(behind)))
}

/// Splits the flags of OpenBSD and FreeBSD from a command. They are unambiguous, because no command begins with `-`.
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
    let known = [
        ('n', Remark::same("`-n`: no mail about what went well")),
        ('q', Remark::loss("`-q` turns cron's logging off; cronkeeper logs every run")),
        ('s', Remark::same("`-s`: not started while the last run is still running")),
    ];
    known.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, remark)| remark).collect()
}

fn about_command(command: &str, system: bool) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let text = command.trim_end();
    if text.ends_with('&') && !text.ends_with("&&") {
        remarks.push(Remark::loss(
            "the command leaves a process in the background, which is killed once the shell has exited",
        ));
    }
    let name = word(command).0.split([':', '/']).next().unwrap_or_default();
    if !system && kind::is_user(name) {
        remarks.push(Remark::loss(format!(
            "the command begins with the user `{name}`; if this is a system crontab, import it with --system"
        )));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_entry_names_its_user() {
        let entry = read("0 5 * * *  www-data\t cmd -x", true).unwrap();
        assert_eq!(entry.user, Some(EntryUser { name: "www-data".into(), group: None }));
        assert_eq!(entry.command, "cmd -x");
        let entry = read("0 5 * * * bob:staff cmd", true).unwrap();
        assert_eq!(entry.user, Some(EntryUser { name: "bob".into(), group: Some("staff".into()) }));
        let entry = read("0 5 * * * root:wheel/daemon cmd", true).unwrap();
        assert_eq!(entry.user, Some(EntryUser { name: "root".into(), group: Some("wheel".into()) }));
        assert!(entry.remarks.len() == 1 && entry.remarks[0].text.contains("login class `daemon`"));
        let entry = read("0 5 * * * bob/staff cmd", true).unwrap();
        assert_eq!(entry.user, Some(EntryUser { name: "bob".into(), group: None }));
        for user in ["bob:", "bob/", ":wheel", "/daemon", "bob:a:b", "bob/a/b", "bob:/x"] {
            let refused = read(&format!("0 5 * * * {user} cmd"), true).unwrap_err();
            assert!(refused.starts_with(&format!("`{user}` is not a user name")), "{refused}");
        }
        assert!(read("0 5 * * * /usr/bin/cmd x", true).unwrap_err().contains("is not a user name"));
        assert_eq!(read("0 5 * * * root", true).unwrap_err(), "the command is missing");
        assert_eq!(read("0 5 * * *", true).unwrap_err(), "the user is missing");
    }

    #[test]
    fn flags_are_not_part_of_the_command() {
        let entry = read("0 5 * * * -ns -q cmd -s", false).unwrap();
        assert_eq!((entry.command.as_str(), entry.single, entry.remarks.len()), ("cmd -s", true, 3));
        let entry = read("-0 5 * * * cmd", false).unwrap();
        assert_eq!((entry.when.expression.as_str(), entry.remarks.len()), ("0 5 * * *", 1));
        assert_eq!(read("0 5 * * * -x cmd", false).unwrap().command, "-x cmd");
    }

    #[test]
    fn a_command_that_behaves_differently_here_gets_a_remark() {
        let remarks = |line: &str| read(line, false).unwrap().remarks.len();
        assert_eq!(remarks("0 5 * * * cmd &"), 1);
        assert_eq!(remarks("0 5 * * * a && b > x 2>&1"), 0);
        for user in ["root", "root:wheel/daemon", "www-data"] {
            assert_eq!(remarks(&format!("0 5 * * * {user} cmd")), 1, "{user}");
        }
        assert!(read("0 5 * * * * cmd", false).unwrap_err().contains("too many fields"));
    }
}
