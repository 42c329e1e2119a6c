//! The guides name every event, outcome and reason that operators meet, and every link in the documentation leads
//! somewhere.

use std::fs;
use std::path::Path;

use cronkeeper_core::log_event::EVENTS;

use super::{CONTRACT, GUIDES, files};

const INDEX: &str = include_str!("../../../docs/guides/README.md");
const EVENTS_GUIDE: &str = include_str!("../../../docs/guides/events.md");
const DID_NOT_RUN: &str = include_str!("../../../docs/guides/did-not-run.md");
const ALERTS: &str = include_str!("../../../docs/monitoring/alerts.yaml");

/// The text between backticks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_index_names_every_guide_and_the_tests_read_each_of_them() {
    let guides = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides"));
    assert_eq!(guides.len(), GUIDES.len());
    for guide in guides {
        let name = guide.file_name().and_then(|name| name.to_str()).expect("a name is UTF-8");
        assert!(name == "README.md" || INDEX.contains(&format!("({name})")), "{name}");
    }
}

#[test]
fn the_guide_explains_every_event_and_no_other() {
    for event in EVENTS {
        assert!(EVENTS_GUIDE.contains(&format!("`{}`", event.name)), "{}", event.name);
    }
    let families: Vec<&str> = EVENTS.iter().filter_map(|event| event.name.split('.').next()).collect();
    let is_event = |span: &&str| {
        let is_name = span.chars().all(|c| c.is_ascii_lowercase() || c == '.' || c == '_');
        is_name && span.split_once('.').is_some_and(|(family, _)| families.contains(&family))
    };
    for named in spans(EVENTS_GUIDE).filter(is_event) {
        assert!(EVENTS.iter().any(|event| event.name == named), "{named}");
    }
}

#[test]
fn the_guide_says_where_to_look_at_every_alert() {
    let alerts = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let missing: Vec<&str> = alerts.filter(|alert| !EVENTS_GUIDE.contains(&format!("`{alert}`"))).collect();
    assert!(ALERTS.contains("- alert: ") && missing.is_empty(), "{missing:?}");
}

#[test]
fn the_guide_explains_every_outcome_and_reason_of_a_run() {
    let mut explained = 0;
    for list in ["\n- Outcomes of runs:", "\n- Reasons:", "\n- Reasons for skips:"] {
        let listed =
            CONTRACT.split(list).nth(1).and_then(|rest| rest.split("\n- ").next()).expect("the contract has it");
        for word in spans(listed).filter(|span| span.chars().all(|c| c.is_ascii_lowercase() || c == '-')) {
            assert!(DID_NOT_RUN.contains(&format!("`{word}`")), "{word}");
            explained += 1;
        }
    }
    assert!(explained >= 30, "{explained}");
}

/// How a link names a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
}

fn has_heading(text: &str, wanted: &str) -> bool {
    let mut is_code = false;
    text.lines().any(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#') && anchor(line) == wanted
    })
}

#[test]
fn the_links_lead_to_files_and_headings_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_docs = files(&root.join("docs")).into_iter().filter(|path| path.extension().is_some_and(|it| it == "md"));
    let mut followed = 0;
    for path in of_docs.chain([root.join("README.md"), root.join("CHANGELOG.md")]) {
        let text = fs::read_to_string(&path).expect("a document can be read");
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ', '\n']).next());
        for link in links.filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let folder = path.parent().expect("a file is in a folder");
            let target = if file.is_empty() { path.clone() } else { folder.join(file) };
            assert!(target.exists(), "{}: {link}", path.display());
            if !heading.is_empty() {
                let text = fs::read_to_string(&target).expect("a document can be read");
                assert!(has_heading(&text, heading), "{}: {link}", path.display());
            }
            followed += 1;
        }
    }
    assert!(followed > 150, "{followed}");
}
