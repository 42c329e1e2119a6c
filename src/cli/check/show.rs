//! A comparison as text.

use std::io;

use jiff::Timestamp;

use super::compare::{Comparison, JobChange, KeyChange};
use crate::cli::Io;
use crate::escape;

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
            writeln!(io.out, "    next {when}: {}", listed(occurrences, now))?;
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

fn listed(occurrences: &[Timestamp], now: Timestamp) -> String {
    match occurrences {
        [] => "none by itself".to_owned(),
        [first, ..] => {
            let all = occurrences.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("{all} (in {})", crate::cli::ask::span(now, *first))
        }
    }
}
