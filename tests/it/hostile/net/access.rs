//! Access over TCP: who is allowed in, and what each client may see.

use rustix::process::Signal;
use serde_json::json;

use super::{Answer, caller, dial, exchange, get, get_with, listening, opened, request, secret, text, unused};
use crate::solo::fixture::{self, await_end, await_start, cli_text, leading, node};
use crate::support::node::Node;
use crate::support::scratch::Scratch;
use crate::support::{LONG, until};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Strings printed by a job, given by an operator, and written in the jobs file.
const SECRETS: [&str; 3] = ["printed-hunter2", "said-hunter2", "written-hunter2"];
const JOBS: &str = "jobs:
  fail:
    schedule: '* * * * * *'
    description: written-hunter2
    command: 'echo printed-hunter2; exit 1'
    environment: {TOKEN: given-hunter2}
  idle: {schedule: '@at 2099-01-01T00:00:00Z', command: 'true'}
";
const DOCUMENTS: [&str; 4] = ["/v1/status", "/v1/jobs", "/v1/history", "/v1/jobs/fail/history"];

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn secrets_in(text: &str) -> Vec<&'static str> {
    SECRETS.into_iter().filter(|secret| text.contains(secret)).collect()
}

#[test]
fn a_stranger_sees_names_and_outcomes_and_who_has_the_token_sees_all() {
    let (dir, at) = (Scratch::new("token"), unused());
    let token = secret(&dir, "token", TOKEN);
    let spec = listening(node("a"), at).option("--api-token-file", text(&token)).jobs(JOBS);
    let a = leading(&spec);
    let run = await_start(&a, 0, "fail");
    await_end(&a, &run);
    fixture::await_run(&spec, &run);
    cli_text(&spec, &["pause", "idle", "--reason", "said-hunter2"]);
    spec.write_jobs(&JOBS.replace("command: 'true'", "overlap: written-hunter2, command: 'true'"));
    a.await_event("jobs.rejected", LONG);
    let fate = format!("/v1/runs/{run}");
    until("all of it is shown", || {
        let seen = DOCUMENTS.map(|path| get_with(at, path, &bearer(TOKEN)).body).concat();
        let errors = get_with(at, "/v1/status", &bearer(TOKEN)).body.contains("is not one of");
        errors && secrets_in(&seen) == SECRETS && seen.contains("uid 0")
    });
    assert_eq!(secrets_in(&get_with(at, &fate, &bearer(TOKEN)).body), ["printed-hunter2"]);

    for path in DOCUMENTS.into_iter().chain([fate.as_str()]) {
        let Answer { code, head, body } = get(at, path);
        assert_eq!(code, 200, "{path}: {body}");
        assert_eq!(secrets_in(&(head + &body)), [""; 0], "{path}: {body}");
        assert!(!body.contains("is not one of") && !body.contains("uid 0") && body.contains("fail"), "{path}: {body}");
    }
    assert!(get(at, &fate).body.contains("failure"));
    let output = format!("{fate}/output");
    assert_eq!(secrets_in(&get_with(at, &output, &bearer(TOKEN)).body), ["printed-hunter2"]);
    for path in [output.clone(), format!("{output}?local=true"), format!("{output}?local=true&attempt=1")] {
        let Answer { code, body, .. } = get(at, &path);
        assert!(
            code == 403 && body.contains("needs a token with the role `read`") && secrets_in(&body).is_empty(),
            "{path}: {code} {body}"
        );
    }
    let definitions = "/v1/definitions";
    assert_eq!(get(at, definitions).code, 403);
    let shown = get_with(at, definitions, &bearer(TOKEN));
    assert_eq!((shown.code, secrets_in(&shown.body)), (200, vec!["printed-hunter2", "written-hunter2"]));
    assert!(shown.body.contains("environment.TOKEN") && !shown.body.contains("given-hunter2"), "{}", shown.body);
    for wrong in ["from=1", "since=yesterday", "attempt=-1", "wait=x"] {
        assert_eq!(get_with(at, &format!("{output}?{wrong}"), &bearer(TOKEN)).code, 400, "{wrong}");
    }
    let members = |more: &str| get_with(at, "/v1/status", more).body.contains(&format!(r#""address":"{at}""#));
    assert!(members(&bearer(TOKEN)) && !members(""), "where a node listens is not shown to strangers");
    let forms = [
        TOKEN.to_owned(),
        format!("Bearer  {TOKEN}x"),
        "Bearer".to_owned(),
        format!("Basic {TOKEN}"),
        "Bearer ".to_owned(),
    ];
    for shown in forms.into_iter().chain([format!("Bearer {}", &TOKEN[1..])]) {
        let answer = get_with(at, "/v1/history", &format!("Authorization: {shown}\r\n"));
        assert_eq!(answer.code, 401, "{shown}: {}", answer.body);
        assert!(answer.head.to_lowercase().contains("www-authenticate: bearer"), "{}", answer.head);
    }
}

#[test]
fn wrong_tokens_are_logged_once_a_minute_and_who_signs_in_is_logged() {
    let (dir, at) = (Scratch::new("token"), unused());
    let token = secret(&dir, "token", TOKEN);
    let a = leading(&listening(node("a"), at).option("--api-token-file", text(&token)).jobs(JOBS));
    for _ in 0..5 {
        assert_eq!(get_with(at, "/v1/jobs", &bearer("0123456789abcdeF")).code, 401);
    }
    let refused = a.await_event("api.refused", LONG);
    assert_eq!((refused.text("caller"), refused.number("count")), ("127.0.0.1", Some(1)));
    let body = format!("token={TOKEN}");
    let form = format!(
        "POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(exchange(dial(caller(1), at).unwrap(), &form).expect("there is an answer").code, 303);
    assert_eq!(a.await_event("api.signed_in", LONG).text("caller"), "127.0.0.1");
    // The others are counted for the line at the end of the minute.
    assert!(a.events().named("api.refused").len() < 3, "{}", a.events().tail());
    let count = get(at, "/metrics").body;
    assert!(count.contains("\ncronkeeper_api_wrong_tokens_total 5\n"), "{count}");
    assert!(!a.events().tail().contains("0123456789abcde"), "no token is logged");
}

#[test]
fn another_token_counts_after_a_reload_and_a_bad_one_changes_nothing() {
    let (dir, at) = (Scratch::new("token"), unused());
    let path = secret(&dir, "token", TOKEN);
    let a = leading(&listening(node("a"), at).option("--api-token-file", text(&path)).jobs(JOBS));
    assert_eq!(get_with(at, "/v1/jobs", &bearer(TOKEN)).code, 200);
    let other = "fedcba9876543210";
    secret(&dir, "token", other);
    a.signal(Signal::HUP);
    until("the other one counts", || get_with(at, "/v1/jobs", &bearer(other)).code == 200);
    assert_eq!(get_with(at, "/v1/jobs", &bearer(TOKEN)).code, 401);
    secret(&dir, "token", "short");
    a.signal(Signal::HUP);
    let is_reported = || a.events().tail().contains("keeping the old tokens and certificates");
    until("it is reported", is_reported);
    assert_eq!(get_with(at, "/v1/jobs", &bearer(other)).code, 200);
}

/// A web page can make its own host name resolve to this address (DNS rebinding).
#[test]
fn only_own_names_are_answered_to() {
    let at = unused();
    let spec = listening(node("a"), at).option("--listen-host", "cron.example.org,cron").jobs(JOBS);
    let _a = leading(&spec);
    let asked = |line: &str, hosts: &[&str]| {
        let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
        let stream = dial(caller(1), at).expect("it listens");
        exchange(stream, &format!("GET {line} HTTP/1.1\r\n{hosts}\r\n")).expect("there is an answer").code
    };
    let (own, plain) = (at.to_string(), at.ip().to_string());
    for host in [own.as_str(), &plain, "localhost", "localhost:7475", "CRON.example.org:7475", "cron"] {
        assert_eq!(asked("/healthz", &[host]), 200, "{host}");
    }
    for hosts in
        [&["evil.example"][..], &["127.0.0.1"], &["localhost", "evil.example"], &[""], &["localhost@evil.example"]]
    {
        for path in ["/healthz", "/v1/status", "/nothing"] {
            assert!(matches!(asked(path, hosts), 400 | 421), "{hosts:?}");
        }
    }
    assert_eq!(asked("http://evil.example/healthz", &["localhost"]), 421);
    assert_eq!(asked("/healthz", &["evil.example"]), 421);
}

#[test]
fn nothing_can_be_changed_and_what_would_be_sent_for_that_is_not_waited_for() {
    let at = unused();
    let _a = leading(&listening(node("a"), at).jobs(JOBS));
    for path in ["/v1/jobs/idle/trigger", "/v1/jobs/idle/pause", "/v1/handover", "/v1/status", "/nothing"] {
        let half = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{");
        let answer = exchange(dial(caller(1), at).expect("it listens"), &half).expect("there is an answer");
        assert_eq!(answer.code, 403, "{path}: {}", answer.body);
    }
}

#[test]
fn a_file_that_cannot_be_used_ends_the_start_with_78_and_what_to_do() {
    let dir = Scratch::new("token");
    let at = unused().to_string();
    let open = dir.write("open", TOKEN);
    opened(&open);
    let short = secret(&dir, "short", "hunter2");
    let gone = dir.path().join("gone");
    for (path, remedy) in [(&open, "chmod 600"), (&short, "openssl rand"), (&gone, "must be able to read it")] {
        let spec = node("a").option("--listen", &at).option("--api-token-file", text(path));
        refused(&spec.start(), &[text(path), remedy]);
    }
    let spec = node("a").option("--api-token-file", text(&short));
    assert_eq!(spec.start().wait_exit(LONG).code(), Some(2), "it means nothing without an address");
}

/// Asserts that the node ends with exit code 78 and a log that contains all of `words`.
pub fn refused(node: &Node, words: &[&str]) {
    assert_eq!(node.wait_exit(LONG).code(), Some(78), "{}", node.events().tail());
    until("the last lines are logged", || words.iter().all(|word| node.events().tail().contains(word)));
    assert!(!node.events().tail().contains("hunter2"), "{}", node.events().tail());
}

/// Log and socket report errors in a jobs file, but not the values under `environment`.
#[test]
fn what_is_wrong_with_a_secret_is_reported_without_it() {
    let (spec, at) = (node("a").jobs(JOBS), unused());
    let a = leading(&listening(spec.clone(), at));
    let wrong = "environment: {DB_PASSWORD: @env-hunter2}, command: 'true'";
    spec.write_jobs(&JOBS.replace("command: 'true'", wrong));
    let said = a.await_event("jobs.rejected", LONG);
    assert!(said.text("first").contains("in quotes"), "{said:?}");
    until("the socket reports it", || !fixture::status(&spec)["jobs_file"]["errors"].as_array().unwrap().is_empty());
    let shown = fixture::status(&spec)["jobs_file"]["errors"].to_string();
    assert!(shown.contains("in quotes") && !shown.contains("env-hunter2"), "{shown}");
    assert!(!a.events().tail().contains("env-hunter2"), "{}", a.events().tail());
    let status: serde_json::Value = serde_json::from_str(&get(at, "/v1/status").body).unwrap();
    assert_eq!(
        (&status["jobs_file"]["valid"], status["jobs_file"]["errors"].to_string().contains("jobs.yaml")),
        (&json!(false), false)
    );
    let asked = exchange(dial(caller(1), at).unwrap(), &request("/v1/status", "")).unwrap();
    assert_eq!(asked.code, 200);
}
