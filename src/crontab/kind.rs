//! Checks whether a crontab is of the kind that it is imported as: a system crontab, with a user in each entry, or that
//! of one user.
//!
//! cron knows that from the place of the file, and the import from `--system`. The wrong kind mostly imports without an
//! error, and then the jobs run as the wrong user or with a wrong command. This only guesses, to warn.

use std::collections::BTreeMap;

use super::entry::CrontabEntry;
use super::line::{self, Line, LineKind};
use super::when::word;
use super::{Kind, Origin};
use cronkeeper_core::job::RunAs;

/// Users that many hosts have, and that are no commands.
const USERS: [&str; 8] = ["root", "www-data", "nobody", "postgres", "daemon", "operator", "apache", "munin"];

/// Commands that are no users.
const COMMANDS: [&str; 68] = [
    "[",
    "[[",
    "awk",
    "bash",
    "cat",
    "cd",
    "certbot",
    "chronic",
    "command",
    "cp",
    "curl",
    "dash",
    "date",
    "docker",
    "echo",
    "env",
    "eval",
    "exec",
    "find",
    "flock",
    "grep",
    "gzip",
    "if",
    "ionice",
    "java",
    "logger",
    "logrotate",
    "ls",
    "make",
    "mkdir",
    "mv",
    "mysqldump",
    "nice",
    "node",
    "nohup",
    "npm",
    "perl",
    "pg_dump",
    "php",
    "printf",
    "psql",
    "python",
    "python3",
    "rm",
    "rsync",
    "ruby",
    "run-parts",
    "scp",
    "sed",
    "service",
    "setsid",
    "sh",
    "sleep",
    "ssh",
    "stdbuf",
    "su",
    "sudo",
    "systemctl",
    "systemd-cat",
    "tar",
    "test",
    "time",
    "timeout",
    "touch",
    "true",
    "wget",
    "xargs",
    "zsh",
];

/// Commands that are hardly an argument of another.
const OF_A_SHELL: [&str; 8] = ["[", "[[", "bash", "cd", "flock", "if", "sh", "sleep"];

pub(super) fn is_user(name: &str) -> bool {
    USERS.contains(&name)
}

/// The other kind, if the lines look more like it.
pub(super) fn other(bytes: &[u8], lines: &[Line], origin: &Origin<'_>) -> Option<Kind> {
    if origin.system {
        of_a_user(bytes, lines, origin).then_some(Kind::User)
    } else {
        of_the_system(lines, origin).then_some(Kind::System)
    }
}

/// The users of this host. Each is looked up once, because that may ask a server.
struct HostUsers<'a> {
    missing: fn(&RunAs) -> Option<String>,
    known: BTreeMap<&'a str, bool>,
}

impl<'a> HostUsers<'a> {
    fn of(origin: &Origin<'_>) -> Self {
        Self { missing: origin.missing, known: BTreeMap::new() }
    }

    /// True if a word is a user, so that a command with this first word belongs to that user. Some users have the name
    /// of a command, such as `mail` and `backup`.
    fn has(&mut self, name: &'a str, first: &str) -> bool {
        let is_known = |name: &&str| (self.missing)(&RunAs { user: Some((*name).to_owned()), group: None }).is_none();
        is_user(name) || begins_command(first) && *self.known.entry(name).or_insert_with_key(is_known)
    }
}

/// True for a word that a command begins with, and that is hardly an argument of another.
fn begins_command(word: &str) -> bool {
    word.starts_with('/') || COMMANDS.contains(&word)
}

/// The other kind, if lines that are none of this kind are entries of it.
pub(super) fn other_of_refused(bytes: &[u8], lines: &[Line], system: bool) -> Option<Kind> {
    let is_entry = refused_only_here(bytes, lines, system) > 0;
    is_entry.then_some(if system { Kind::User } else { Kind::System })
}

fn entries(lines: &[Line]) -> impl Iterator<Item = &CrontabEntry> {
    lines.iter().filter_map(|line| match &line.kind {
        LineKind::Entry(entry) => Some(entry.as_ref()),
        _ => None,
    })
}

fn of_the_system(lines: &[Line], origin: &Origin<'_>) -> bool {
    let mut users = HostUsers::of(origin);
    let named = entries(lines).filter(|entry| names_user(entry, &mut users)).count();
    named > 0 && 2 * named >= entries(lines).count()
}

fn names_user<'a>(entry: &'a CrontabEntry, users: &mut HostUsers<'a>) -> bool {
    let (first, rest) = word(&entry.command);
    let name = first.split([':', '/']).next().unwrap_or_default();
    let (second, _) = word(rest);
    if second.is_empty() || name.is_empty() || COMMANDS.contains(&name) {
        return false;
    }
    // The crontab may be from a host with other users.
    let is_bare = |word: &str| word.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-'));
    users.has(name, second) || OF_A_SHELL.contains(&second) && is_bare(name)
}

fn of_a_user(bytes: &[u8], lines: &[Line], origin: &Origin<'_>) -> bool {
    let mut users = HostUsers::of(origin);
    let (mut right, mut wrong) = (0, refused_only_here(bytes, lines, true));
    for entry in entries(lines) {
        let Some(user) = &entry.user else { continue };
        let (first, _) = word(&entry.command);
        // No command begins with `-`: this is an option of the command that was taken for a user.
        let has_option = first.starts_with('-') || entry.single && !is_user(&user.name);
        if user.group.is_none() && (COMMANDS.contains(&user.name.as_str()) || has_option) {
            wrong += 1;
        } else if users.has(&user.name, first) {
            right += 1;
        }
    }
    wrong > 0 && wrong >= right
}

/// The number of lines that are only refused as this kind.
fn refused_only_here(bytes: &[u8], lines: &[Line], system: bool) -> usize {
    let is_refused = |line: &Line| matches!(line.kind, LineKind::Refused(_));
    if !lines.iter().any(is_refused) {
        return 0;
    }
    let others = line::read(bytes, !system);
    lines
        .iter()
        .zip(&others)
        .filter(|(line, other)| is_refused(line) && matches!(other.kind, LineKind::Entry(_)))
        .count()
}
