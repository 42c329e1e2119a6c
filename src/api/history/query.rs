//! A question to the history as path and parameters, as this program itself asks it.

use std::fmt::Write as _;

use cronkeeper_core::ledger::Filter;

/// Path and parameters. A job's name needs no escaping in a path.
pub fn path(filter: &Filter, limit: usize, local: bool) -> String {
    let mut path = match &filter.job {
        Some(job) => format!("/v1/jobs/{job}/history?limit={limit}"),
        None => format!("/v1/history?limit={limit}"),
    };
    let mut add = |name: &str, value: &str| {
        path.push_str(&format!("&{name}={}", encoded(value)));
    };
    filter.jobs.iter().for_each(|pattern| add("job", pattern.as_str()));
    filter.endings.iter().for_each(|ending| add("outcome", ending.as_str()));
    filter.node.iter().for_each(|node| add("node", node.as_str()));
    filter.since.iter().for_each(|since| add("since", &since.to_string()));
    filter.until.iter().for_each(|until| add("until", &until.to_string()));
    filter.before.iter().for_each(|before| add("before", &before.to_string()));
    if local {
        add("local", "true");
    }
    path
}

/// Encodes a value: all but letters, digits and `-._~`.
pub(super) fn encoded(value: &str) -> String {
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
    use super::*;
    use cronkeeper_core::job::JobName;
    use cronkeeper_core::ledger::filter::{Ending, JobPattern, Kind, Position};
    use cronkeeper_core::term::NodeName;

    #[test]
    fn every_condition_is_in_the_request_and_encoded() {
        let of_job = Filter::of_job(JobName::parse("load").unwrap());
        assert_eq!(path(&of_job, 7, true), "/v1/jobs/load/history?limit=7&local=true");
        let filter = Filter {
            jobs: ["l*", "b"].map(|pattern| JobPattern::parse(pattern).unwrap()).to_vec(),
            endings: vec![Ending::Skipped],
            node: Some(NodeName::new("a")),
            since: Some("2026-11-20T00:00:00Z".parse().unwrap()),
            until: Some("2026-11-20T01:00:00+01:00".parse().unwrap()),
            before: Some(Position { at: 5, run: "ä".to_owned(), kind: Kind::Run }),
            ..Filter::default()
        };
        let expected = "/v1/history?limit=20&job=l%2A&job=b&outcome=skipped&node=a&since=2026-11-20T00%3A00%3A00Z\
                        &until=2026-11-20T00%3A00%3A00Z&before=5.run.%C3%A4";
        assert_eq!(path(&filter, 20, false), expected);
    }
}
