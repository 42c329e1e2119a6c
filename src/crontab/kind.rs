//! Whether a crontab is of the kind that it is imported as: of the system, with a user in each entry, or of one user.
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
const COMMANDS: [&str; 24] = [
    "[", "[[", "bash", "cd", "curl", "docker", "echo", "env", "find", "flock", "if", "nice", "perl", "php", "psql",
    "python", "python3", "rm", "rsync", "sh", "sleep", "sudo", "test", "wget",
];

pub(super) fn is_user(name: &str) -> bool {
    USERS.contains(&name)
}

/// The other kind, if the lines look more like it.
pub(super) fn other(bytes: &[u8], lines: &[Line], origin: &Origin<'_>) -> Option<Kind> {
    if origin.system {
        of_a_user(bytes, lines).then_some(Kind::User)
    } else {
        of_the_system(lines, origin).then_some(Kind::System)
    }
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
    // Each is looked up once, because that may ask a server.
    let mut known = BTreeMap::new();
    let named = entries(lines).filter(|entry| names_user(entry, &mut known, origin)).count();
    named > 0 && 2 * named >= entries(lines).count()
}

fn names_user(entry: &CrontabEntry, known: &mut BTreeMap<String, bool>, origin: &Origin<'_>) -> bool {
    let (first, rest) = word(&entry.command);
    let name = first.split([':', '/']).next().unwrap_or_default();
    let (second, _) = word(rest);
    if second.is_empty() || name.is_empty() || COMMANDS.contains(&name) {
        return false;
    }
    if is_user(name) {
        return true;
    }
    // Some users have the name of a command, such as `mail` and `backup`.
    let has_command = second.starts_with('/') || COMMANDS.contains(&second);
    let is_known = |name: &String| (origin.missing)(&RunAs { user: Some(name.clone()), group: None }).is_none();
    has_command && *known.entry(name.to_owned()).or_insert_with_key(is_known)
}

fn of_a_user(bytes: &[u8], lines: &[Line]) -> bool {
    let is_command = |entry: &&CrontabEntry| {
        let user = entry.user.as_ref();
        user.is_some_and(|user| user.group.is_none() && COMMANDS.contains(&user.name.as_str()))
    };
    let commands = entries(lines).filter(is_command).count();
    let wrong = commands + refused_only_here(bytes, lines, true);
    wrong > 0 && wrong >= entries(lines).count() - commands
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
