//! The request that the options ask for.

use std::fmt::Write as _;

use super::HistoryArgs;

/// Path and parameters. A job's name needs no escaping in a path.
pub(super) fn path(args: &HistoryArgs, limit: usize, before: Option<&str>) -> String {
    let mut path = match &args.job {
        Some(job) => format!("/v1/jobs/{job}/history?limit={limit}"),
        None => format!("/v1/history?limit={limit}"),
    };
    let mut add = |name: &str, value: &str| {
        path.push_str(&format!("&{name}={}", encoded(value)));
    };
    args.jobs.iter().for_each(|pattern| add("job", pattern.as_str()));
    args.outcomes.iter().for_each(|outcome| add("outcome", outcome.as_str()));
    if args.failed {
        add("failed", "true");
    }
    args.node.iter().for_each(|node| add("node", node.as_str()));
    args.since.iter().for_each(|since| add("since", &since.to_string()));
    args.until.iter().for_each(|until| add("until", &until.to_string()));
    before.iter().for_each(|before| add("before", before));
    path
}

/// Encodes a value: all but letters, digits and `-._~`.
fn encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => encoded.push(byte.into()),
            // Writing to a String cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn asked(line: &str) -> String {
        let line = format!("cronkeeper history {line}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::History(args) => path(&args, 7, Some("5.run.ä")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_options_are_in_the_request() {
        assert_eq!(asked("load"), "/v1/jobs/load/history?limit=7&before=5.run.%C3%A4");
        assert_eq!(
            asked(
                "--job l* --job b --failed --outcome skipped --node a --since 2026-11-20 --until 2026-11-20T01:00:00+01:00"
            ),
            "/v1/history?limit=7&job=l%2A&job=b&outcome=skipped&failed=true&node=a\
             &since=2026-11-20T00%3A00%3A00Z&until=2026-11-20T00%3A00%3A00Z&before=5.run.%C3%A4"
        );
    }

    #[test]
    fn a_wrong_value_is_refused_before_anybody_is_asked() {
        for line in ["--outcome bad", "--since x", "--job ä", "-n 0", "-n 100001", "--json --csv", "--csv --output"] {
            let line = format!("cronkeeper history {line}");
            assert!(Cli::try_parse_from(line.split_whitespace()).is_err(), "{line}");
        }
    }
}
