//! Tokens with names and roles: what each may do, who is named for it, and what a reload changes.

use std::io::Write as _;
use std::net::SocketAddrV4;

use rustix::process::Signal;
use serde_json::Value;

use super::access::refused;
use super::{Answer, caller, dial, exchange, get_with, listening, secret, text, unused};
use crate::solo::fixture::{self, Gate, await_start, cli_text, leading, node};
use crate::support::command::{run, texts};
use crate::support::node::Event;
use crate::support::scratch::Scratch;
use crate::support::{LONG, until};

const ROLES: [&str; 3] = ["read", "operate", "admin"];

/// A token that the program has made, with its line. It is called after its role, as `an-admin`.
struct Made {
    token: String,
    line: String,
}

fn made(role: &str) -> Made {
    let (code, out, err) = texts(&run(&["token", &format!("an-{role}"), "--role", role, "--json"]));
    assert_eq!(code, Some(0), "{err}");
    let made: Value = serde_json::from_str(&out).expect("it is JSON");
    let field = |name: &str| made[name].as_str().expect("a text").to_owned();
    Made { token: field("token"), line: field("line") }
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn post(at: SocketAddrV4, path: &str, more: &str, body: &str) -> Answer {
    let length = body.len();
    let request = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {length}\r\n\r\n{body}");
    exchange(dial(caller(1), at).expect("it listens"), &request).expect("there is an answer")
}

/// Signs in on the page. Returns the head line with the cookie.
fn signed_in(at: SocketAddrV4, token: &str) -> String {
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let answer = post(at, "/session", form, &format!("token={token}"));
    assert_eq!(answer.code, 303, "{}", answer.body);
    let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    format!("Cookie: {}\r\n", cookie.split(';').next().unwrap_or_default())
}

#[test]
fn each_role_does_what_it_may_and_is_named_for_it() {
    let (dir, at, gate) = (Scratch::new("roles"), unused(), Gate::new());
    let [reader, operator, admin] = ROLES.map(made);
    let lines = format!("# who may what\n{}\n{}\n\n{}\n", reader.line, operator.line, admin.line);
    let file = secret(&dir, "tokens", &lines);
    let jobs = format!("jobs: {{seldom: {{schedule: '@at 2099-01-01T00:00:00Z', command: {:?}}}}}\n", gate.command());
    let spec = listening(node("a"), at).option("--api-token-file", text(&file)).jobs(&jobs);
    let a = leading(&spec);
    let by = |role: &str| format!("an-{role} from 127.0.0.1 on {}", a.name());

    let refused = post(at, "/v1/jobs/seldom/trigger", &bearer(&reader.token), "");
    let why = format!("this needs the role `operate`, and {} has the role `read`", by("read"));
    assert!(refused.code == 403 && refused.body.contains(&why), "{}", refused.body);
    let logged = a.await_event("operator.refused", LONG);
    assert_eq!(
        ["request", "job", "by", "role", "peer", "reason"].map(|field| logged.text(field).to_owned()),
        ["trigger".to_owned(), "seldom".to_owned(), by("read"), "read".to_owned(), "127.0.0.1".to_owned(), why]
    );
    assert_eq!((logged.number("code"), logged.json()["level"].as_str()), (Some(403), Some("WARN")));

    let done = post(at, "/v1/jobs/seldom/trigger", &bearer(&operator.token), "");
    assert_eq!(done.code, 200, "{}", done.body);
    let triggered = await_start(&a, 0, "seldom");
    let logged = a.await_event("operator.requested", LONG);
    assert_eq!(
        ["request", "run", "by", "role", "peer"].map(|field| logged.text(field).to_owned()),
        ["trigger".to_owned(), triggered.clone(), by("operate"), "operate".to_owned(), "127.0.0.1".to_owned()]
    );
    let kill = format!("/v1/runs/{triggered}/kill");
    assert_eq!(post(at, &kill, &bearer(&operator.token), "{\"force\":true}").code, 403);
    assert_eq!(post(at, &kill, &bearer(&admin.token), "").code, 200);
    let record = fixture::await_run(&spec, &triggered);
    assert_eq!(
        [&record["triggered_by"], &record["killed_by"]],
        [&Value::from(by("operate")), &Value::from(by("admin"))]
    );
    let history = cli_text(&spec, &["history", "seldom"]);
    assert!(history.contains("an-operate") && history.contains("an-admin"), "{history}");
    let page = fixture::get(&spec, &format!("/runs/{triggered}")).expect("it is served").1;
    assert!(page.contains(&by("operate")) && page.contains(&by("admin")), "{page}");

    assert_eq!(post(at, "/v1/jobs/seldom/pause", &bearer(&operator.token), "").code, 200);
    until("the pause is shown", || fixture::status(&spec)["jobs"][0]["paused"]["by"] == by("operate"));
    let page = get_with(at, "/jobs/seldom", &bearer(&reader.token)).body;
    assert!(page.contains(&by("operate")) && page.contains(">an-read, read</span>"), "{page}");
    let drained = post(at, &format!("/v1/nodes/{}/drain", a.name()), &bearer(&operator.token), "");
    assert_eq!(drained.code, 200, "{}", drained.body);
    until("the drain is shown", || fixture::status(&spec)["drained"][a.name()]["by"] == by("operate"));
    for (path, token, code) in [
        ("/v1/nodes/gone/forget", &operator.token, 403),
        ("/v1/jobs/seldom/recount", &operator.token, 403),
        ("/v1/nodes/gone/forget", &admin.token, 404),
    ] {
        assert_eq!(post(at, path, &bearer(token), "").code, code, "{path}");
    }
    let of_stranger = post(at, "/v1/jobs/seldom/resume", "", "");
    assert!(of_stranger.code == 403 && of_stranger.body.contains("a token with the role `operate`"));
    let anonymous = |event: &Event| event.text("request") == "resume";
    let logged = a.await_where("operator.refused", LONG, anonymous);
    assert!(logged.json().get("by").is_none() && logged.text("peer") == "127.0.0.1", "{}", logged.json());
    let tail = a.events().text();
    assert!([&reader, &operator, &admin].iter().all(|made| !tail.contains(&made.token)), "a token is logged");
}

#[test]
fn who_does_not_wait_for_the_answer_is_named_all_the_same() {
    let (dir, at) = (Scratch::new("roles"), unused());
    let operator = made("operate");
    let file = secret(&dir, "tokens", &operator.line);
    let jobs = "jobs: {seldom: {schedule: '@at 2099-01-01T00:00:00Z', command: 'true'}}\n";
    let a = leading(&listening(node("a"), at).option("--api-token-file", text(&file)).jobs(jobs));
    let own = bearer(&operator.token);
    let request = format!("POST /v1/jobs/seldom/pause HTTP/1.1\r\nHost: localhost\r\n{own}Content-Length: 0\r\n\r\n");
    let is_named = |event: &Event| event.text("request") == "pause" && event.text("by").starts_with("an-operate from ");
    for count in 1..=15 {
        dial(caller(1), at).expect("it listens").write_all(request.as_bytes()).expect("it is sent");
        until("it is named", || a.events().count_where(is_named) >= count);
    }
}

#[test]
fn a_reload_takes_roles_and_tokens_away_at_once_and_a_broken_file_changes_nothing() {
    let (dir, at) = (Scratch::new("roles"), unused());
    let [reader, operator, admin] = ROLES.map(made);
    let unnamed = "0123456789abcdef0123456789abcdef";
    let jobs = "jobs: {seldom: {schedule: '@at 2099-01-01T00:00:00Z', command: 'true'}}\n";
    // A file of before, with a name below it.
    let file = secret(&dir, "tokens", &format!("{unnamed}\n{}\n", operator.line));
    let a = leading(&listening(node("a"), at).option("--api-token-file", text(&file)).jobs(jobs));
    let pause = |token: &str| post(at, "/v1/jobs/seldom/pause", &bearer(token), "").code;
    assert_eq!([pause(unnamed), pause(&operator.token), pause(&reader.token)], [200, 200, 401]);
    let cookie = signed_in(at, &operator.token);
    let logged = a.await_event("api.signed_in", LONG);
    assert_eq!((logged.text("by"), logged.text("role")), ("an-operate", "operate"));
    let page = || get_with(at, "/jobs/seldom", &cookie).body;
    assert!(page().contains("an-operate, operate") && page().contains("id=\"trigger\""), "{}", page());

    let broken = format!("{}\n{}\nsomebody operate {unnamed}\n", admin.line, reader.line);
    secret(&dir, "tokens", &broken);
    let seen = a.events().len();
    a.signal(Signal::HUP);
    let rejected = a.await_after(seen, "api.rejected", LONG, |_| true);
    let why = format!("{}:3: the third word is `sha256:` and 64 hex digits", file.display());
    assert!(rejected.text("error").contains(&why) && !rejected.text("error").contains(unnamed), "{}", rejected.json());
    assert_eq!([pause(unnamed), pause(&operator.token), pause(&reader.token)], [200, 200, 401]);

    let lower = operator.line.replace(" operate ", " read ");
    secret(&dir, "tokens", &format!("{}\n{lower}\n", admin.line));
    let seen = a.events().len();
    a.signal(Signal::HUP);
    a.await_after(seen, "api.reloaded", LONG, |_| true);
    assert_eq!([pause(unnamed), pause(&operator.token), pause(&admin.token)], [401, 403, 200]);
    assert!(page().contains("an-operate, read") && !page().contains("id=\"trigger\""), "{}", page());

    secret(&dir, "tokens", &admin.line);
    let seen = a.events().len();
    a.signal(Signal::HUP);
    a.await_after(seen, "api.reloaded", LONG, |_| true);
    assert_eq!(pause(&operator.token), 401);
    assert!(page().contains("Sign in") && !page().contains("an-operate,"), "the session has ended: {}", page());
}

#[test]
fn a_file_of_tokens_that_cannot_be_read_ends_the_start_with_its_line() {
    let (dir, at) = (Scratch::new("roles"), unused());
    let [reader, operator, _] = ROLES.map(made);
    for (lines, line, why) in [
        (format!("{}\n{}\n", reader.line, reader.line.replace("an-read", "b")), 2, "the token is that of line 1"),
        (format!("#\n{}\n{}\n", reader.line, operator.line.replace("an-operate", "an-read")), 3, "the name is that of"),
        ("<b>hunter2</b> read x\n".to_owned(), 1, "a name has 1 to 64 letters"),
        (format!("{}\n\nhunter2 root x\n", reader.line), 3, "the second word is the role"),
    ] {
        let file = secret(&dir, "tokens", &lines);
        let spec = listening(node("a"), at).option("--api-token-file", text(&file));
        refused(&spec.start(), &[&format!("{}:{line}: {why}", file.display())]);
    }
}

#[test]
fn after_ten_wrong_tokens_the_answer_is_to_wait_and_a_right_one_does_not() {
    let (dir, at) = (Scratch::new("roles"), unused());
    let reader = made("read");
    let file = secret(&dir, "tokens", &reader.line);
    let _a = leading(&listening(node("a"), at).option("--api-token-file", text(&file)));
    let wrong = bearer("fedcba9876543210fedcba9876543210");
    for _ in 0..10 {
        assert_eq!(get_with(at, "/v1/status", &wrong).code, 401);
    }
    let limited = get_with(at, "/v1/status", &wrong);
    assert!(limited.code == 429 && limited.head.contains("retry-after: "), "{}", limited.head);
    assert_eq!(get_with(at, "/v1/definitions", &bearer(&reader.token)).code, 200);
    signed_in(at, &reader.token);
}
