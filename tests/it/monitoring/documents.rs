//! docs/monitoring agrees with what a node shows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::{promtool, scrape};
use crate::solo::fixture::{leading, node};

const README: &str = include_str!("../../../docs/monitoring/README.md");
const ALERTS: &str = include_str!("../../../docs/monitoring/alerts.yaml");
const ALERTS_TEST: &str = include_str!("../../../docs/monitoring/alerts_test.yaml");
const DASHBOARD: &str = include_str!("../../../docs/monitoring/grafana.json");
const CONTRACT: &str = include_str!("../../../docs/contract.md");

/// The rows of the table: name, type and labels of each metric.
fn documented() -> BTreeMap<&'static str, (&'static str, &'static str)> {
    let rows = README.lines().filter_map(|line| line.strip_prefix("| `cronkeeper_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        (cells[0], (cells[1], cells[2]))
    })
    .collect()
}

/// The words that begin as metrics do.
fn mentioned(text: &str) -> BTreeSet<String> {
    let names = text.split("cronkeeper_").skip(1);
    let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
    names.map(|rest| format!("cronkeeper_{}", name(rest))).collect()
}

#[test]
fn the_readme_and_the_contract_list_all_metrics_and_no_others() {
    let spec = node("only");
    let _a = leading(&spec);
    let shown = scrape(&spec);
    let documented = documented();
    let types = shown.types.iter().map(|(name, kind)| (name["cronkeeper_".len()..].to_owned(), kind.clone()));
    let listed = documented.iter().map(|(name, (kind, _))| (name.to_string(), kind.to_string()));
    assert_eq!(types.collect::<BTreeMap<_, _>>(), listed.collect::<BTreeMap<_, _>>());

    let section = CONTRACT.split("Metrics, all prefixed `cronkeeper_`:").nth(1).expect("the contract lists them");
    let paragraph = section.split("\n\n").next().unwrap_or_default();
    let contracted: BTreeSet<String> = paragraph.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let named = documented.iter().map(|(name, (_, labels))| match *labels {
        "" => name.to_string(),
        labels => format!("{name}{{{}}}", labels.replace("`, `", ",")),
    });
    assert_eq!(contracted, named.collect());

    for (file, text) in [("alerts.yaml", ALERTS), ("alerts_test.yaml", ALERTS_TEST), ("grafana.json", DASHBOARD)] {
        let names = mentioned(text);
        let unknown: Vec<_> = names.difference(&shown.names()).cloned().collect();
        assert!(!names.is_empty() && unknown.is_empty(), "{file} uses {unknown:?}");
    }
}

#[test]
fn the_alert_rules_fire_when_they_should_and_only_then() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring");
    let path = |name: &str| folder.join(name).display().to_string();
    for (arguments, file) in [(["check", "rules"], "alerts.yaml"), (["test", "rules"], "alerts_test.yaml")] {
        if let Some(output) = promtool(&[arguments[0], arguments[1], &path(file)], "") {
            assert!(output.status.success(), "{output:?}");
        }
    }
    let named = |text: &'static str, key: &'static str| -> BTreeSet<&'static str> {
        text.split(key).skip(1).filter_map(|rest| rest.split([',', '\n', '}']).next()).map(str::trim).collect()
    };
    assert_eq!(named(ALERTS, "alert: "), named(ALERTS_TEST, "alertname: "), "each rule has a test");
}

#[test]
fn the_dashboard_is_json_and_every_panel_has_queries() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
    for panel in panels {
        let targets = panel["targets"].as_array().expect("a panel has queries");
        let is_query = |target: &Value| target["expr"].as_str().is_some_and(|expr| expr.contains("cronkeeper_"));
        assert!(!targets.is_empty() && targets.iter().all(is_query), "{}", panel["title"]);
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
    }
}
