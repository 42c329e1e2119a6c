//! The page in a real browser: a failover seen live, a failing job that is run again, attack texts, no script.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde_json::json;
use uuid::Uuid;

use crate::solo::fixture::{self, Gate, following, leading, node};
use crate::support::browser::Browser;
use crate::support::node::Spec;
use crate::support::scratch::Scratch;
use crate::support::{LONG, until};

mod screenshots;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// What a job prints, and what is in the jobs file. Where it became part of the page, it would set a mark.
const ATTACK: &str = "<img src=x onerror=window.attacked=1><script>window.attacked=1</script>";

/// An unused address of this host: all addresses in 127.0.0.0/8 belong to it.
fn unused() -> SocketAddrV4 {
    let [a, b, c, ..] = *Uuid::new_v4().as_bytes();
    SocketAddrV4::new(Ipv4Addr::new(127, a.clamp(16, 200), b, c.clamp(1, 254)), 7475)
}

fn listening(spec: Spec, at: SocketAddrV4) -> Spec {
    spec.option("--listen", &at.to_string())
}

/// A browser that shows the overview of a node to who has its token.
fn signed_in(at: SocketAddrV4) -> Browser {
    let browser = Browser::start(1000, 800);
    browser.open(&format!("http://{at}/session"));
    browser.type_into("#token", TOKEN);
    browser.click("main button");
    browser.await_text("header", |text| text.contains("Sign out"));
    browser
}

#[test]
fn a_failover_is_seen_on_an_open_page() {
    let at = unused();
    let first = node("a");
    let a = leading(&first);
    let second = listening(node("b").beside(&first), at);
    let _b = following(&second);
    let browser = Browser::start(1000, 800);
    browser.open(&format!("http://{at}/"));
    browser.await_text("#leader", |text| text.contains(first.name()) && text.contains("leads"));
    browser.await_text("#queue ol", |text| text.contains(&format!("waits for {}", first.name())));
    // The mark is gone if the browser loads the page again.
    browser.run("window.isSamePage = true");
    a.kill9();
    browser.await_text("#leader", |text| text.contains(second.name()) && text.contains("leads"));
    browser.await_text("#queue ol", |text| !text.contains(first.name()));
    assert_eq!(browser.run("return window.isSamePage"), json!(true));
}

#[test]
fn an_open_page_says_so_when_its_node_does_not_answer_any_more() {
    let at = unused();
    let spec = listening(node("a"), at);
    let a = leading(&spec);
    let browser = Browser::start(1000, 800);
    browser.open(&format!("http://{at}/"));
    let is_well = || {
        browser.await_text("#live", |text| text.contains("up to date") && !text.contains("not up to date"));
        assert_eq!(browser.text("#stale"), "");
    };
    let is_grey = || browser.run("return document.getElementById('main').classList.contains('old')");
    is_well();
    assert_eq!(is_grey(), json!(false));
    // Its connections stay open, and nothing comes over them.
    a.stop();
    let says_so =
        |text: &str| text.starts_with(&format!("{} does not answer. This page shows how things were at ", spec.name()));
    browser.await_text("#stale", says_so);
    assert_eq!(is_grey(), json!(true));
    a.cont();
    is_well();
    a.kill9();
    browser.await_text("#stale", says_so);
}

#[test]
fn a_run_opens_at_the_end_of_its_output_and_follows_it_with_its_colours() {
    let (dir, at, gate) = (Scratch::new("token"), unused(), Gate::new());
    let token = dir.write("token", TOKEN);
    let script =
        format!("seq 1 500; printf '\\033[31mred\\033[0m\\n'; {}; seq 501 520; echo next; sleep 600", gate.command());
    let jobs = json!({ "jobs": { "long": { "schedule": "@at 2099-01-01T00:00:00Z", "command": script } } });
    let spec = listening(node("a"), at).option("--api-token-file", token.to_str().unwrap()).jobs(&jobs.to_string());
    let _a = leading(&spec);
    let browser = signed_in(at);
    browser.open(&format!("http://{at}/jobs/long"));
    browser.click("#trigger");
    browser.await_text("#output pre", |text| text.trim().ends_with("red"));
    let place = "const box = document.querySelector('.scroller'); \
                 return [box.scrollHeight > 2 * box.clientHeight, Math.abs(box.scrollTop) < 4]";
    assert_eq!(browser.run(place), json!([true, true]), "it is at its end");
    let colours = "const colour = (query) => getComputedStyle(document.querySelector(query)).color; \
                   return colour('.scroller .c1') !== colour('.scroller pre')";
    assert_eq!(browser.run(colours), json!(true));
    // Who has scrolled up goes on reading the same lines.
    let from_top = "const box = document.querySelector('.scroller'); \
                    return Math.round(box.scrollHeight - box.clientHeight + box.scrollTop)";
    browser.run("document.querySelector('.scroller').scrollTop = -300");
    let before = browser.run(from_top);
    gate.open();
    browser.await_text("#output pre", |text| text.trim().ends_with("next"));
    assert_eq!(browser.run(from_top), before);
}

#[test]
fn an_open_page_counts_on_and_keeps_what_is_typed_and_opened() {
    let (dir, at) = (Scratch::new("token"), unused());
    let token = dir.write("token", TOKEN);
    let jobs = "jobs:\n  tick: {schedule: '* * * * * *', command: 'true'}\n  tock: {schedule: '* * * * * *', \
                command: 'exit 3'}\n";
    let first = listening(node("a"), at).option("--api-token-file", token.to_str().unwrap()).jobs(jobs);
    let a = leading(&first);
    let _b = following(&node("b").beside(&first));
    let browser = signed_in(at);
    browser.await_text("#headline", |text| text.starts_with("1 of 2 jobs fails"));
    until("the title says so too", || {
        browser.run("return document.title").as_str().is_some_and(|title| title.starts_with("1 of 2 jobs fails"))
    });
    browser.run("window.isSamePage = true");
    browser.click("#handover summary");
    browser.type_into("#filter-job", "ti");
    browser.run("document.activeElement.blur()");
    for event in ["run.finished", "run.finished", "run.finished"] {
        a.await_event(event, LONG);
    }
    let seen = browser.run("return document.querySelector('#jobs time').dateTime");
    until("the jobs are shown anew", || browser.run("return document.querySelector('#jobs time').dateTime") != seen);
    let kept = "return [document.querySelector('#filter-job').value, document.querySelector('#handover').open, \
                window.isSamePage]";
    assert_eq!(browser.run(kept), json!(["ti", true, true]));
}

#[test]
fn a_node_is_drained_with_a_reason_and_undrained_again() {
    let (dir, at) = (Scratch::new("token"), unused());
    let token = dir.write("token", TOKEN);
    let first = listening(node("a"), at).option("--api-token-file", token.to_str().unwrap());
    let _a = leading(&first);
    let b = following(&node("b").beside(&first));
    let browser = signed_in(at);
    browser.click("#drain summary");
    browser.run(&format!("document.querySelector('#drain-node').value = '{}'", b.name()));
    browser.type_into("#drain-reason", "new disk");
    browser.click("#drain-now");
    browser.await_text("main > .done", |text| text.contains("drained"));
    browser.await_text("#queue .drained", |text| text.contains(b.name()) && text.contains("new disk"));
    browser.click("#queue .drained button");
    browser.await_text("main > .done", |text| text.contains("no longer drained"));
    b.await_event("node.undrained", LONG);
}

#[test]
fn a_job_that_fails_is_run_again_by_who_has_the_token_and_what_it_prints_stays_text() {
    let (dir, at) = (Scratch::new("token"), unused());
    let token = dir.write("token", TOKEN);
    let gate = Gate::new();
    let jobs = json!({ "jobs": { "fail": {
        "schedule": "@at 2099-01-01T00:00:00Z",
        "description": ATTACK,
        "command": ["sh", "-c", format!("printf '%s\\n' \"$0\"; {}; echo end; exit 3", gate.command()), ATTACK],
    } } });
    let spec = listening(node("a"), at).option("--api-token-file", token.to_str().unwrap()).jobs(&jobs.to_string());
    let _a = leading(&spec);
    let browser = Browser::start(360, 740);
    browser.open(&format!("http://{at}/jobs/fail"));
    assert!(!browser.text("body").contains("Run now"), "nobody has signed in");
    browser.open(&format!("http://{at}/session"));
    browser.type_into("#token", "wrong");
    browser.click("main button");
    browser.await_text("#wrong", |text| text.contains("not a token of this node"));
    browser.type_into("#token", TOKEN);
    browser.click("main button");
    browser.await_text("#jobs", |text| text.contains("fail"));
    browser.open(&format!("http://{at}/jobs/fail"));
    assert!(browser.text("main").contains(ATTACK), "{}", browser.text("main"));
    browser.click("#trigger");
    until("the page of the run is shown", || browser.url().contains("/runs/fail."));
    browser.await_text("#output pre", |text| text.trim() == ATTACK);
    browser.await_text("#output", |text| text.contains("live"));
    gate.open();
    browser.await_text("#output pre", |text| text.trim() == format!("{ATTACK}\nend"));
    browser.await_text("#facts", |text| text.contains("failure exit 3"));
    // Pausing with such a reason, and reading it on the overview.
    browser.open(&format!("http://{at}/jobs/fail"));
    browser.type_into("#reason", ATTACK);
    browser.click("#pause");
    browser.await_text("#facts", |text| text.contains("Paused") && text.contains(ATTACK));
    browser.open(&format!("http://{at}/"));
    let overview = browser.await_text("#jobs", |text| text.contains("paused") && text.contains("failure"));
    assert!(overview.contains(ATTACK), "{overview}");
    assert_eq!(
        browser.run("return [window.attacked ?? null, document.querySelectorAll('img').length]"),
        json!([null, 0])
    );
    let record = fixture::await_record(&spec, "fail", |record| record["outcome"] == "failure");
    assert!(record["triggered_by"].as_str().unwrap().starts_with("token from 127.0.0.1 on a-"), "{record}");
    browser.click("#sign-out");
    browser.await_text("header", |text| text.contains("Sign in"));
}

#[test]
fn the_page_is_whole_without_script() {
    let at = unused();
    let jobs =
        "jobs:\n  tick: {schedule: '* * * * * *', command: 'true'}\n  tock: {schedule: '0 3 * * *', command: x}\n";
    let spec = listening(node("a"), at).jobs(jobs);
    let a = leading(&spec);
    fixture::await_start(&a, 0, "tick");
    a.await_event("run.finished", LONG);
    let browser = Browser::without_script();
    let open = |path: &str| browser.open(&format!("http://{at}{path}"));
    until("the end is shown", || {
        open("/");
        browser.text("#jobs").contains("success")
    });
    assert!(browser.text("#live").contains("the moment at which it was loaded"), "no script has run");
    assert!(browser.text("#timeline").contains("tock"), "{}", browser.text("body"));
    browser.click("#jobs a[href='/jobs/tick']");
    browser.await_text("h1", |text| text.starts_with("tick"));
    open("/history?outcome=skipped");
    assert!(!browser.text("#records").contains("success"));
    open("/history?job=tick&outcome=success");
    assert!(browser.text("#records").contains("success"), "{}", browser.text("body"));
}
