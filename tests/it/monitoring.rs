//! What operators watch: `/metrics` of real nodes, and the rules and the dashboard of docs/monitoring.

mod documents;
mod scrapes;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write as _};
use std::process::{Command, Output, Stdio};

use crate::solo::fixture::get;
use crate::support::node::Spec;
use crate::support::{Facility, LONG, poll, skipped, until};

/// One scrape in Prometheus' text format: the type of each family, and the value of each series.
pub struct Scraped {
    text: String,
    types: BTreeMap<String, String>,
    series: BTreeMap<String, f64>,
}

impl Scraped {
    fn parsed(text: String) -> Self {
        let described = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let types = described.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let series = lines.map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            (series.to_owned(), value.parse().expect("a value is a number"))
        });
        Self { types, series: series.collect(), text }
    }

    /// The value of a series, named without the prefix.
    pub fn value(&self, series: &str) -> Option<f64> {
        self.series.get(&format!("cronkeeper_{series}")).copied()
    }

    /// The names of all series that a query may use, whether they have values yet or not.
    fn names(&self) -> BTreeSet<String> {
        let names = self.types.iter().flat_map(|(name, kind)| match kind.as_str() {
            "histogram" => ["bucket", "sum", "count"].map(|suffix| format!("{name}_{suffix}")).to_vec(),
            _ => vec![name.clone()],
        });
        names.collect()
    }
}

/// Scrapes a node on its socket.
pub fn scrape(spec: &Spec) -> Scraped {
    let (code, text) = poll(LONG, || get(spec, "/metrics")).expect("somebody answers");
    assert_eq!(code, 200, "{text}");
    Scraped::parsed(text)
}

/// Waits until a series of a node has a value that is `wanted`.
pub fn await_value(spec: &Spec, series: &str, wanted: impl Fn(f64) -> bool) -> f64 {
    until(&format!("{series} is as wanted"), || scrape(spec).value(series).is_some_and(&wanted));
    scrape(spec).value(series).expect("it was there")
}

/// Runs `promtool` with this input; `None`, and a message, if it is not installed.
fn promtool(arguments: &[&str], input: &str) -> Option<Output> {
    let command = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match command {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skipped(Facility::Installed, "promtool is not installed (Debian's package prometheus)");
            return None;
        }
        command => command.expect("promtool starts"),
    };
    // Dropped at once, which ends the input. What promtool does not read is its own decision.
    drop(child.stdin.take().expect("it is a pipe").write_all(input.as_bytes()));
    Some(child.wait_with_output().expect("it ends"))
}

/// The check of the format and of naming that Prometheus offers.
fn assert_clean(scraped: &Scraped) {
    if let Some(output) = promtool(&["check", "metrics"], &scraped.text) {
        assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}
