//! Tests of the page as a whole: what it shows, and that no text becomes part of its code.

use proptest::prelude::*;

use super::bar_cache::{Recent, Recents};
use super::headline::Headline;
use super::layout::{SignedIn, Standing};
use super::times::Zone;
use super::*;
use crate::api::history::{History, MissingNode};
use crate::api::roles::Role;
use crate::status::sample;
use crate::test_records::{record, success};
use cronkeeper_core::run::{HistoryRecord, Outcome, Pause, Reason};
use cronkeeper_core::term::NodeName;

fn clock() -> Clock {
    Clock::new(sample::at("2026-11-20T03:00:00Z"), Zone::utc())
}

fn overview_of(status: &Status, line: &str) -> String {
    let last = status.jobs[0].last.as_ref().expect("it has run").run.clone();
    let recent = Recent { bars: Vec::new(), last_lines: vec![(last, line.to_owned())] };
    page_of(status, &[(status.jobs[0].name.clone(), recent)].into())
}

fn page_of(status: &Status, recents: &Recents) -> String {
    let (selection, clock) = (Selection::default(), clock());
    let headline = Headline::of(status, &clock);
    let main = html! {
        (headline.markup())
        (cluster::problems(status, &clock))
        (attention::section(status, recents, &clock))
        (cluster::queue(status, true, &clock))
        (running::section(status, &clock))
        (jobs::table(status, &selection, &selection.of(status), recents, &clock))
    };
    let signed_in = SignedIn::Session("alice".into());
    let standing = Standing::Known { form_key: "k".into(), role: Role::Operate, signed_in };
    let frame = Frame { title: &headline.title(), node: &status.node, standing: &standing, clock: &clock, done: None };
    harmless(frame.markup(&main))
}

/// Every text of the status that somebody else can write.
fn written(text: &str) -> Status {
    let mut status = sample::leader();
    status.awaiting = Some(text.into());
    status.ready = false;
    status.jobs_file.valid = false;
    status.jobs_file.errors = vec![text.into()];
    status.unread = Some(text.into());
    status.damaged = vec![text.into()];
    status.version = text.into();
    status.node = NodeName::new(text);
    status.queue[0].node = Some(status.node.clone());
    status.queue[0].candidate.0 = text.into();
    status.runs[0].node = status.node.clone();
    status.drained = sample::drained("host-b");
    status.drained.values_mut().for_each(|drain| (drain.by, drain.reason) = (text.into(), Some(text.into())));
    status.queue.retain(|queued| queued.node.as_ref().is_none_or(|node| node.as_str() != "host-b"));
    status.jobs[0].error = Some(text.into());
    status.jobs[0].last.as_mut().expect("it has run").outcome = Outcome::Failure;
    let pause = Pause { by: text.into(), at: status.at, reason: Some(text.into()), until: None };
    status.jobs[0].paused = Some(Box::new(pause));
    status
}

/// The tags and attributes of a page, without texts and values.
fn skeleton(page: &str) -> String {
    let mut out = String::new();
    let (mut is_tag, mut is_value) = (false, false);
    for c in page.chars() {
        match (c, is_tag, is_value) {
            ('<', false, _) => (is_tag, is_value) = (true, false),
            ('>', true, false) => is_tag = false,
            ('"', true, _) => is_value = !is_value,
            _ => {}
        }
        if is_tag && !is_value {
            out.push(c);
        }
    }
    out
}

const ATTACKS: [&str; 6] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "</title></style></script><svg onload=alert(1)>",
    "javascript:alert(1)",
    "<!--",
];

#[test]
fn an_attack_text_stays_text_wherever_it_is_shown() {
    let plain = skeleton(&overview_of(&written("x"), "x"));
    for attack in ATTACKS {
        let page = overview_of(&written(attack), attack);
        assert_eq!(skeleton(&page), plain, "{attack}");
        assert!(!page.contains("<script>alert") && !page.contains("<img"), "{attack}");
    }
}

fn run_page(text: &str) -> String {
    let mut end = success(record("load", 0, "s"));
    end.tail = text.into();
    end.reason = Some(Reason::Operator);
    let HistoryEntry::Run(mut ended) = HistoryRecord::Run(end).into() else { unreachable!() };
    ended.triggered_by = Some(text.into());
    ended.detail = Some(text.into());
    ended.parameters = [(text.to_owned(), text.to_owned())].into();
    let (run, known, clock) = (&ended.run.clone(), Known::Ended(&ended), clock());
    let (defined, note) = (None, html! {});
    let page = RunPage { run, known, newest: None, defined, note, may_see: true, may_act: true, clock: &clock };
    harmless(page.markup())
}

fn history_page(text: &str) -> String {
    let mut skip = crate::test_records::skip("load", 0);
    skip.node = NodeName::new(text);
    let HistoryEntry::Skip(mut skipped) = HistoryRecord::Skip(skip).into() else { unreachable!() };
    skipped.triggered_by = Some(text.into());
    let filter = Filter { job: text.into(), node: text.into(), since: text.into(), ..Filter::default() };
    let found = History {
        records: vec![HistoryEntry::Skip(skipped)],
        nodes: vec![NodeName::new(text)],
        missing: vec![MissingNode { node: NodeName::new(text), why: text.into() }],
        incomplete_before: Some(sample::at("2026-11-20T03:00:00Z")),
        ledger_error: Some(text.into()),
        ..History::default()
    };
    harmless(history::page(&filter, &found, &sample::leader(), &clock()))
}

/// Characters that end lines, control a terminal, change the direction of text, or cannot be seen.
const HARMFUL: &str = "\r\u{1b}]0;x\u{7}\u{7f}\u{9b}2J\u{202e}\u{2066}\u{200b}\u{feff}\u{e0041}";

#[test]
fn no_page_has_a_character_that_hides_or_reorders_text() {
    for page in [overview_of(&written(HARMFUL), HARMFUL), run_page(HARMFUL), history_page(HARMFUL)] {
        let is_raw = |c: char| c != '\n' && escape::is_harmful(c);
        assert!(!page.contains(is_raw) && page.contains("\\u{202e}") && page.contains("\\u{9b}2J"), "{page}");
    }
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    #[test]
    fn no_text_changes_the_structure_of_a_page(text in "[<>\"'&a-z/= !-]{1,40}|\\PC{1,40}") {
        let text = format!("x{text}");
        prop_assert_eq!(skeleton(&overview_of(&written(&text), &text)), skeleton(&overview_of(&written("x"), "x")));
        prop_assert_eq!(skeleton(&run_page(&text)), skeleton(&run_page("x")));
    }
}

#[test]
fn the_page_has_no_inline_script_or_style() {
    let page = overview_of(&written("x"), "x");
    assert!(!page.contains("style=") && !skeleton(&page).contains(" on"), "{page}");
    assert!(page.matches("<script").count() == 1, "{page}");
}

/// As on a page of a hundred of them, with all that is read by then.
#[test]
fn a_page_of_a_thousand_jobs_of_which_a_tenth_fails_is_small_and_begins_with_them() {
    let mut status = sample::leader();
    let one = status.jobs[0].clone();
    status.jobs = (0..1_000)
        .map(|number| {
            let name = sample::job(&format!("a-job-with-a-usual-name-{number:04}"));
            let mut job = crate::status::JobStatus { name: name.clone(), ..one.clone() };
            let last = job.last.as_mut().expect("it has run");
            last.run = RunId::scheduled(name, last.run.scheduled_at());
            last.outcome = if number % 10 == 0 { Outcome::Failure } else { Outcome::Success };
            job
        })
        .collect();
    let bars = |outcome| vec![bars::Bar { outcome, ms: 7 }; bars::MOST];
    let recent = |job: &crate::status::JobStatus| {
        let last = job.last.as_ref().expect("it has run");
        let last_lines = vec![(last.run.clone(), "cannot open /srv/data: No such file".to_owned())];
        (job.name.clone(), Recent { bars: bars(last.outcome), last_lines })
    };
    let recents: Recents = status.jobs.iter().map(recent).collect();
    let page = page_of(&status, &recents);
    assert!(page.len() < 150_000, "{} bytes", page.len());
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
    assert!(place("100 of 1,000 jobs fail") < place("attention-a-job"), "{page}");
    assert!(place("attention-a-job") < place(">Nodes<") && place(">Nodes<") < place(">Jobs "), "{page}");
}
