//! A comparison as text.

use std::io;

use jiff::Timestamp;

use super::compare::{Comparison, JobChange, KeyChange};
use crate::cli::Io;
use cronkeeper_core::escape;

/// Most characters of a value in a line.
const LONGEST_VALUE: usize = 200;

/// Writes the changes, and whose jobs they were compared with.
pub(super) fn write(comparison: &Comparison, now: Timestamp, io: &mut Io<'_>) -> io::Result<()> {
    let Comparison { node, leader, is_leaders, digest, added, removed, altered } = comparison;
    for (sign, changes) in [('+', added), ('-', removed), ('~', altered)] {
        for change in changes {
            write_job(sign, change, now, io)?;
        }
    }
    let whose = match leader {
        Some(leader) if leader == node => format!("of {node}, which leads"),
        Some(leader) => format!("of {node}, which follows {leader}"),
        None => format!("of {node}; nobody leads"),
    };
    let counts = format!("{} added, {} removed, {} altered", added.len(), removed.len(), altered.len());
    writeln!(io.out, "{counts}, compared with the jobs {whose} (digest {digest})")?;
    match leader {
        Some(leader) if !is_leaders => {
            writeln!(io.err, "warning: {leader} has loaded other jobs than {node}: ask the daemon there")
        }
        _ => Ok(()),
    }
}

fn write_job(sign: char, change: &JobChange, now: Timestamp, io: &mut Io<'_>) -> io::Result<()> {
    writeln!(io.out, "{sign} {}", change.job)?;
    for key in &change.keys {
        writeln!(io.out, "    {}", line(sign, key))?;
    }
    if change.next_before == change.next_after {
        return Ok(());
    }
    for (when, occurrences) in [("before", &change.next_before), ("after", &change.next_after)] {
        let is_needed = !matches!((sign, when), ('+', "before") | ('-', "after"));
        if is_needed {
            writeln!(io.out, "    next {when}: {}", listed(occurrences.as_deref(), now))?;
        }
    }
    Ok(())
}

fn line(sign: char, KeyChange { key, before, after, hidden }: &KeyChange) -> String {
    let shown = |value: &Option<String>| {
        let value = value.as_ref().map(|value| escape::short(value, LONGEST_VALUE));
        value.unwrap_or_else(|| "(default)".to_owned())
    };
    match (sign, hidden) {
        ('~', true) => format!("{key}: differs"),
        (_, true) => format!("{key}: (not shown)"),
        ('+', false) => format!("{key}: {}", shown(after)),
        ('-', false) => format!("{key}: {}", shown(before)),
        (_, false) => format!("{key}: {} -> {}", shown(before), shown(after)),
    }
}

fn listed(occurrences: Option<&[Timestamp]>, now: Timestamp) -> String {
    let Some(occurrences) = occurrences else { return "as its calendar allows".to_owned() };
    match occurrences {
        [] => "none by itself".to_owned(),
        [first, ..] => {
            let all = occurrences.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("{all} (in {})", crate::cli::ask::span(now, *first))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::compare::tests::compared;
    use super::*;
    use cronkeeper_core::term::NodeName;

    const A: &str = "a: {schedule: '0 2 * * *', command: x, environment: {TOKEN: hunter2}}";

    fn shown(comparison: &Comparison) -> (String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let now = "2026-11-20T12:00:00Z".parse().unwrap();
        write(comparison, now, &mut Io { out: &mut out, err: &mut err, is_watched: false }).unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn each_job_is_followed_by_what_changes_and_its_next_occurrences() {
        let new = "a: {schedule: '@at 2026-12-01T00:00:00Z', command: x, environment: {TOKEN: hunter3}}, \
                   b: {after: {a: success}, command: \"y\\nz\"}";
        let comparison = compared(A, new);
        let expected = format!(
            "+ b\n    after.a: success\n    command: y\\nz\n\
             ~ a\n    schedule: 0 2 * * * -> @at 2026-12-01T00:00:00Z\n    environment.TOKEN: differs\n    \
             next before: 2026-11-21T02:00:00Z, 2026-11-22T02:00:00Z, 2026-11-23T02:00:00Z (in 14h)\n    \
             next after: 2026-12-01T00:00:00Z (in 10d 12h)\n\
             1 added, 0 removed, 1 altered, compared with the jobs of host-a, which leads (digest {})\n",
            comparison.digest
        );
        assert_eq!(shown(&comparison), (expected, String::new()));
    }

    #[test]
    fn jobs_that_are_not_the_leaders_are_named() {
        let mut comparison = compared(A, A);
        (comparison.leader, comparison.is_leaders) = (Some(NodeName::new("host-b")), false);
        let (out, err) = shown(&comparison);
        assert!(out.contains("the jobs of host-a, which follows host-b ("), "{out}");
        assert_eq!(err, "warning: host-b has loaded other jobs than host-a: ask the daemon there\n");
    }
}
