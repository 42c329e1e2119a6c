//! Tests of the page's requests: who may see and change what, and that no page from elsewhere can.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use super::daemon::{Behaviour, Daemon};
use super::*;
use crate::api::network::Files;
use crate::status::NodeState;
use cronkeeper_core::ledger::Last;
use cronkeeper_core::term::NodeName;

pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";
pub const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";

/// The answer's head and body.
pub async fn ask_on<S: std::io::Read + std::io::Write>(
    connect: impl FnOnce() -> std::io::Result<S> + Send + 'static,
    request: String,
) -> (String, String) {
    let asked = spawn_blocking(move || {
        let mut stream = connect().unwrap();
        // Both may fail at the end: the daemon may refuse the request before all of it is sent.
        drop(stream.write_all(request.as_bytes()));
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    });
    asked.await.unwrap()
}

pub fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n")
}

pub fn post(path: &str, more: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {}\r\n\r\n{body}", body.len())
}

pub fn code(head: &str) -> u16 {
    head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// The value of a header.
pub fn value<'a>(head: &'a str, name: &str) -> &'a str {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).unwrap_or_default()
}

fn form_key(page: &str) -> String {
    let (_, rest) = page.split_once("name=\"form_key\" value=\"").expect("the page has a form");
    rest.split('"').next().unwrap_or_default().to_owned()
}

impl Daemon {
    async fn page(&self, request: String) -> (String, String) {
        let socket = self.directory.path().join(NAME);
        ask_on(move || UnixStream::connect(socket), request).await
    }
}

#[tokio::test]
async fn the_pages_are_html_with_a_strict_policy_and_are_not_kept_by_browsers() {
    let daemon = Daemon::start(Behaviour::Well).await;
    for path in ["/", "/?job=load&only=failing&page=7", "/jobs/load", "/runs/load.20261120T024000Z", "/history"] {
        let (head, body) = daemon.page(get(path, "")).await;
        assert_eq!((code(&head), value(&head, "content-type")), (200, "text/html; charset=utf-8"), "{path}: {body}");
        assert!(value(&head, "content-security-policy").starts_with("default-src 'none';"), "{head}");
        assert_eq!((value(&head, "cache-control"), value(&head, "x-content-type-options")), ("no-store", "nosniff"));
        assert!(body.starts_with("<!DOCTYPE html>") && body.ends_with("</html>"), "{path}: {body}");
    }
    for (path, expected) in [("/jobs/nothing", 404), ("/runs/x", 404), ("/?page=x", 400), ("/static/x", 404)] {
        assert_eq!(code(&daemon.page(get(path, "")).await.0), expected, "{path}");
    }
    let (_, page) = daemon.page(get("/", "")).await;
    let style = page.split('"').find(|text| text.ends_with(".css")).expect("a style sheet").to_owned();
    let (head, body) = daemon.page(get(&style, "")).await;
    assert!(code(&head) == 200 && value(&head, "cache-control").contains("immutable") && body.contains("--ground"));
}

#[tokio::test]
async fn what_a_node_has_not_read_is_not_shown_as_nothing() {
    let daemon = Daemon::start(Behaviour::Away).await;
    let mut follower = super::daemon::follower();
    // The daemon has seen them, and the queue was not read.
    follower.members = sample::queue().members;
    follower.jobs[0].last = None;
    daemon.status.send_replace(Arc::new(follower));
    let (_, page) = daemon.page(get("/", "")).await;
    for wrong in ["Nothing runs", "none fails", "in the queue.", "not alive", ">none<", "no runs yet", "leads\""] {
        assert!(!page.contains(wrong), "{wrong}: {page}");
    }
    for right in [
        "Nobody can lead as far as host-b knows",
        "The ledger was not read: nobody answers. Not known: who is in the queue;",
        "What runs on other nodes is not known.",
        "<title>No leader known since ",
        " · 3 jobs, not known which fail · not known what runs – cronkeeper on host-b</title>",
    ] {
        assert!(page.contains(right), "{right}: {page}");
    }
    // Neither ledger nor archive has anything to show.
    let (_, page) = daemon.page(get("/jobs/nightly-backup", "")).await;
    assert!(page.contains("the ledger cannot be read: nobody answers"), "{page}");

    let (address, _tcp) = daemon.listen_with(Files { token: Some(daemon.file_with(TOKEN)), tls: None }).await;
    let (_, page) = ask_on(move || TcpStream::connect(address), get("/", "")).await;
    let whole = "The ledger was not read; the cause is shown on the Unix socket, or after signing in. Not known: ";
    assert!(page.contains(whole) && !page.contains("shown only on"), "{page}");
}

#[tokio::test]
async fn what_a_slow_service_has_is_shown_later_and_holds_up_no_page() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let end = success(record("load", 60, "0x1"));
    daemon.ledger.lasts.lock().unwrap().insert(sample::job("load"), Last::after(None, &end, end.ended_at));
    *daemon.ledger.slowness.lock().unwrap() = Duration::from_millis(200);
    let unread = async || daemon.page(get("/", "")).await.1.contains("not read yet");
    assert!(unread().await, "it has not waited");
    let read = async {
        while unread().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(60), read).await.unwrap();
}

#[tokio::test]
async fn a_page_that_has_not_changed_is_not_sent_again() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (head, _) = daemon.page(get("/", "")).await;
    let known = format!("If-None-Match: {}\r\n", value(&head, "etag"));
    let (head, body) = daemon.page(get("/", &known)).await;
    assert_eq!((code(&head), body.as_str()), (304, ""));
}

#[tokio::test]
async fn a_form_needs_the_key_of_its_page() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (_, page) = daemon.page(get("/jobs/load", "")).await;
    let (key, right) = (form_key(&page), format!("form_key={}&reason=new+disks", form_key(&page)));
    for wrong in ["", "form_key=", "form_key=0123"] {
        let (head, _) = daemon.page(post("/jobs/load/trigger", FORM, wrong)).await;
        assert!(matches!(code(&head), 403 | 422), "{wrong}: {head}");
    }
    assert!(daemon.requests().is_empty());
    let (head, _) = daemon.page(post("/jobs/load/pause", FORM, &right)).await;
    assert_eq!((code(&head), value(&head, "location")), (303, "/jobs/load?done=paused"));
    let (head, _) = daemon.page(post("/jobs/load/trigger", FORM, &right)).await;
    assert!(value(&head, "location").starts_with("/runs/load."), "{head}");
    let requests = daemon.requests();
    assert!(
        requests[0].ends_with("for Some(\"new disks\")") && requests[1].starts_with("trigger load"),
        "{requests:?}"
    );
    let from_elsewhere = format!("{FORM}Origin: http://evil.example\r\n");
    let (head, _) = daemon.page(post("/jobs/load/trigger", &from_elsewhere, &format!("form_key={key}"))).await;
    assert_eq!(code(&head), 403);
    assert!(daemon.requests().is_empty());
}

#[tokio::test]
async fn a_run_gets_the_parameters_that_its_form_sets_and_no_others() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let mut status = Status::clone(&daemon.status.borrow());
    let load = status.jobs.iter_mut().find(|job| job.name.as_str() == "load").expect("a job of that name");
    load.parameters = ["DAY", "REGION"].map(str::to_owned).to_vec();
    daemon.status.send_replace(Arc::new(status));
    let (_, page) = daemon.page(get("/jobs/load", "")).await;
    assert!(page.contains("name=\"parameter.REGION\""), "{page}");
    let form = |fields: &str| format!("form_key={}&{fields}", form_key(&page));
    let fields = form("parameter.REGION=eu%20west&parameter.DAY=&reason=");
    let (head, _) = daemon.page(post("/jobs/load/trigger", FORM, &fields)).await;
    assert!(value(&head, "location").starts_with("/runs/load."), "{head}");
    assert_eq!(*daemon.ledger.parameters.lock().unwrap(), [("REGION".to_owned(), "eu west".to_owned())].into());
    let (head, page) = daemon.page(post("/jobs/load/trigger", FORM, &form("parameter.COLOUR=red"))).await;
    assert!(code(&head) == 400 && page.contains("COLOUR"), "{page}");
}

#[tokio::test]
async fn a_visitor_sees_times_in_the_zone_that_the_browser_keeps() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (head, _) = daemon.page(get("/zone?name=europe/berlin", "")).await;
    let cookie = value(&head, "set-cookie");
    assert!(code(&head) == 303 && cookie.starts_with("cronkeeper-zone=Europe/Berlin; "), "{head}");
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    let (_, page) = daemon.page(get("/", &cookie)).await;
    assert!(page.contains("leads since Nov 20 00:12:00") && page.contains(">Europe/Berlin<"), "{page}");
    let (_, page) = daemon.page(get("/", "")).await;
    assert!(page.contains("leads since Nov 19 23:12:00"), "{page}");
    let (head, page) = daemon.page(get("/zone?name=%3Cb%3E", "")).await;
    assert!(code(&head) == 200 && value(&head, "set-cookie").is_empty() && page.contains("no time zone"), "{page}");
}

#[tokio::test]
async fn a_page_from_elsewhere_can_neither_change_nor_read_anything_through_the_socket() {
    let daemon = Daemon::start(Behaviour::Well).await;
    for sign in ["Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n", "Origin: http://localhost:81\r\n"] {
        assert_eq!(code(&daemon.page(post("/v1/jobs/load/trigger", sign, "")).await.0), 403, "{sign}");
    }
    let rebound = "GET /v1/status HTTP/1.1\r\nHost: evil.example:8080\r\n\r\n".to_owned();
    assert_eq!(code(&daemon.page(rebound).await.0), 421);
    let absolute = "GET http://evil.example:8080/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
    assert_eq!(code(&daemon.page(absolute).await.0), 421);
    assert!(daemon.requests().is_empty());
}

#[tokio::test]
async fn a_form_that_is_too_long_is_refused_in_the_words_of_the_api() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (head, page) = daemon.page(post("/session", FORM, &format!("token={}", "x".repeat(1 << 20)))).await;
    assert!(code(&head) == 413 && page.contains("the request is longer than 64 KiB"), "{page}");
}

#[tokio::test]
async fn over_tcp_the_token_opens_a_session_that_changes_something_through_the_page_only() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let files = Files { token: Some(daemon.file_with(TOKEN)), tls: None };
    let (address, _tcp) = daemon.listen_with(files).await;
    let ask = |request: String| ask_on(move || TcpStream::connect(address), request);

    let (_, page) = ask(get("/jobs/load", "")).await;
    assert!(page.contains("href=\"/session\"") && !page.contains("form_key"), "{page}");
    assert_eq!(code(&ask(post("/jobs/load/trigger", FORM, "form_key=")).await.0), 403);
    let (head, page) = ask(post("/session", FORM, "token=wrong")).await;
    assert!(code(&head) == 401 && page.contains("This is not a token of this node."), "{page}");
    assert!(
        page.contains("id=\"token\"") && page.contains("action=\"/session\"") && !page.contains("wrong\" name"),
        "{page}"
    );
    let (head, _) = ask(post("/session", FORM, &format!("token={TOKEN}"))).await;
    let cookie = value(&head, "set-cookie");
    assert!(code(&head) == 303 && cookie.contains("HttpOnly; SameSite=Strict") && !cookie.contains(TOKEN), "{head}");
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());

    let (_, page) = ask(get("/jobs/load", &cookie)).await;
    let form = format!("form_key={}", form_key(&page));
    assert_eq!(code(&ask(post("/v1/jobs/load/trigger", &cookie, "")).await.0), 403, "a cookie is not enough");
    assert_eq!(code(&ask(get("/v1/definitions", &cookie)).await.0), 200, "it shows what the token shows");
    assert_eq!(code(&ask(post("/jobs/load/trigger", &format!("{FORM}{cookie}"), "form_key=x")).await.0), 403);
    assert_eq!(code(&ask(post("/jobs/load/trigger", FORM, &form)).await.0), 403, "nor is a key");
    assert!(daemon.requests().is_empty());
    assert_eq!(code(&ask(post("/jobs/load/trigger", &format!("{FORM}{cookie}"), &form)).await.0), 303);
    assert_eq!(daemon.requests(), ["trigger load by token from 127.0.0.1 on host-a"]);
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(code(&ask(post("/v1/jobs/load/trigger", &bearer, "")).await.0), 200);
    assert_eq!(daemon.requests(), ["trigger load by token from 127.0.0.1 on host-a"]);

    assert_eq!(code(&ask(post("/session/end", &format!("{FORM}{cookie}"), &form)).await.0), 303);
    assert!(!ask(get("/jobs/load", &cookie)).await.1.contains("form_key"), "the session is over");
}

#[tokio::test]
async fn a_stream_says_what_is_not_known_and_from_time_to_time_that_the_node_is_alive() {
    let daemon = Daemon::start(Behaviour::Away).await;
    daemon.status.send_replace(Arc::new(super::daemon::follower()));
    let socket = daemon.directory.path().join(NAME);
    let followed = spawn_blocking(move || {
        use std::io::{BufRead as _, BufReader};
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(get("/v1/events", "").as_bytes()).unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.take_while(|line| line != "event: alive").filter(|line| line.starts_with("data: ")).collect::<Vec<_>>()
    });
    let events = timeout(Duration::from_secs(60), followed).await.unwrap().unwrap();
    let first: Value = serde_json::from_str(events[0].trim_start_matches("data: ")).unwrap();
    let [leader, running, failing] = ["leader", "running", "failing"].map(|name| &first[name]);
    assert_eq!((leader, running, failing), (&Value::Null, &Value::Null, &Value::Null), "{first}");
    assert!(first["version"].is_string(), "{first}");
}

#[tokio::test]
async fn an_event_follows_each_change() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let socket = daemon.directory.path().join(NAME);
    let status = daemon.status.clone();
    let followed = spawn_blocking(move || {
        use std::io::{BufRead as _, BufReader};
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(get("/v1/events", "").as_bytes()).unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let mut events = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned));
        let first = events.next().unwrap();
        status.send_replace(Arc::new(sample::cut_off()));
        (first, events.next().unwrap())
    });
    let (first, second) = timeout(Duration::from_secs(60), followed).await.unwrap().unwrap();
    let [first, second] = [first, second].map(|text| serde_json::from_str::<Value>(&text).unwrap());
    assert_eq!(
        (&first["leader"], &first["state"], &second["state"]),
        (&"host-a".into(), &"leading".into(), &"joining".into())
    );
    assert_ne!(first["version"], second["version"]);
}

/// Its node may have ended it since, and only that node knows.
#[tokio::test]
async fn in_an_outage_the_page_of_another_nodes_run_says_what_it_was() {
    let daemon = Daemon::start(Behaviour::Away).await;
    let of_page = async || daemon.get_text("/runs/load.20261120T025900Z", "").await.1;
    let led = of_page().await;
    assert!(led.contains("running") && !led.contains("was running"), "{led}");
    let mut follower = Status::clone(&daemon.status.borrow());
    (follower.node, follower.state) = (NodeName::new("host-b"), NodeState::Following);
    daemon.status.send_replace(Arc::new(follower));
    let followed = of_page().await;
    assert!(followed.contains("was running"), "{followed}");
}

#[tokio::test]
async fn the_page_of_a_run_on_every_node_leads_to_its_shares() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (_, page) = daemon.get_text("/runs/shared.20261120T024000Z", "").await;
    let share = "shared.20261120T024000Z@host-a";
    assert!(page.contains(&format!("<a href=\"/runs/{share}\">{share}</a>")), "{page}");
    assert!(!page.contains("It is not in flight"), "{page}");
}
