//! Tests of what each role may do, and of who is named for it.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::daemon::{Behaviour, Daemon};
use super::page::{FORM, TOKEN, ask_on, code, get, post, value};
use crate::api::history::History;
use crate::api::index;
use crate::api::network::Files;
use crate::api::network::proof::{Asked, ProofKey};
use crate::api::network::tokens::{TokenDigest, TokenName, Tokens, line};
use crate::api::peers::Peers;
use crate::api::roles::{Need, Role, need_of};
use crate::api::serve::Serving;
use crate::status::sample;
use cronkeeper_core::clock::system;
use cronkeeper_core::election::ApiAddress;
use cronkeeper_core::term::NodeName;

/// The token of a role, in these tests.
fn token(role: Role) -> String {
    format!("{TOKEN}-{role}")
}

/// The file of a token for each role; each is called after it, as `the-admin`.
fn file() -> String {
    let line = |role: Role| {
        let name = TokenName::parse(&format!("the-{role}")).unwrap();
        line(&name, role, &TokenDigest::of(token(role).as_bytes())) + "\n"
    };
    Role::ALL.map(line).concat()
}

struct Node {
    daemon: Daemon,
    address: SocketAddr,
    _tcp: Serving,
}

impl Node {
    async fn start() -> Self {
        let daemon = Daemon::start(Behaviour::Well).await;
        let files = Files { token: Some(daemon.file_with(&file())), tls: None };
        let (address, tcp) = daemon.listen_with(files).await;
        Self { daemon, address, _tcp: tcp }
    }

    /// The code and the body of the answer.
    async fn ask(&self, request: String) -> (u16, String) {
        let address = self.address;
        let (head, body) = ask_on(move || TcpStream::connect(address), request).await;
        (code(&head), body)
    }

    /// Signs in on the page. Returns the head line with the cookie.
    async fn signed_in(&self, role: Role) -> String {
        let address = self.address;
        let request = post("/session", FORM, &format!("token={}", token(role)));
        let (head, _) = ask_on(move || TcpStream::connect(address), request).await;
        format!("Cookie: {}\r\n", value(&head, "set-cookie").split(';').next().unwrap())
    }
}

fn bearer(role: Role) -> String {
    format!("Authorization: Bearer {}\r\n", token(role))
}

/// The requests of the page that change something.
const FORMS: [&str; 5] = [
    "POST /jobs/{job}/trigger",
    "POST /jobs/{job}/pause",
    "POST /jobs/{job}/resume",
    "POST /runs/{run}/kill",
    "POST /handover",
];

/// A request that is refused for its body, if for nothing else.
fn sent(request: &str, more: &str) -> String {
    let (method, route) = request.split_once(' ').unwrap();
    let run = "load.20261120T024000Z.m7";
    let path = route.replace("{job}", "load").replace("{node}", "host-a").replace("{run}", run);
    let body = if method == "POST" { "x" } else { "" };
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn each_request_needs_its_role_and_says_which() {
    let node = Node::start().await;
    for request in index::requests().chain(FORMS) {
        let Need::Role(least) = need_of(request) else { continue };
        let (code, body) = node.ask(sent(request, "")).await;
        let expected = format!("over TCP this needs a token with the role `{least}`");
        assert!(code == 403 && body.contains(&expected), "{request}: {code} {body}");
        for role in Role::ALL {
            let (code, body) = node.ask(sent(request, &bearer(role))).await;
            if role < least {
                let expected = format!(
                    "this needs the role `{least}`, and the-{role} from 127.0.0.1 on host-a has the role `{role}`"
                );
                assert!(code == 403 && body.contains(&expected), "{request} by {role}: {code} {body}");
            } else {
                assert!(!body.contains("needs the role"), "{request} by {role}: {code} {body}");
                assert!(code != 403 || FORMS.contains(&request), "{request} by {role}: {code} {body}");
            }
        }
    }
    assert!(node.daemon.requests().is_empty(), "none had a valid body");
}

#[tokio::test]
async fn a_request_without_a_line_in_the_table_needs_the_highest_role() {
    let node = Node::start().await;
    assert_eq!(need_of("POST /v1/everything"), Need::Role(Role::Admin));
    assert_eq!(need_of("GET /v1/everything"), Need::Role(Role::Read));
    let misplaced = |more: &str| get("/v1/jobs/load/trigger", more);
    assert_eq!(node.ask(misplaced("")).await.0, 403);
    assert_eq!(node.ask(misplaced(&bearer(Role::Read))).await.0, 405);
    let known: Vec<&str> = index::requests().collect();
    let mut changes = known.iter().filter(|request| request.starts_with("POST "));
    assert!(changes.all(|request| matches!(need_of(request), Need::Role(role) if role >= Role::Operate)));
    for method in ["DELETE", "PUT", "PATCH", "get"] {
        let request = |more: &str| format!("{method} /v1/jobs/load HTTP/1.1\r\nHost: localhost\r\n{more}\r\n");
        assert_eq!(node.ask(request("")).await.0, 403, "{method}");
        assert_eq!(node.ask(request(&bearer(Role::Operate))).await.0, 403, "{method}");
        assert_eq!(node.ask(request(&bearer(Role::Admin))).await.0, 405, "{method}");
    }
}

#[tokio::test]
async fn a_run_that_is_cut_off_is_abandoned_by_an_admin_only() {
    let node = Node::start().await;
    let kill = |role: Role, body: &str| post("/v1/runs/load.20261120T024000Z/kill", &bearer(role), body);
    let (code, body) = node.ask(kill(Role::Operate, "{\"force\":true}")).await;
    assert!(code == 403 && body.contains("needs the role `admin`"), "{body}");
    assert!(node.daemon.requests().is_empty());
    assert_eq!(node.ask(kill(Role::Operate, "")).await.0, 200);
    assert_eq!(node.ask(kill(Role::Admin, "{\"force\":true}")).await.0, 200);
    let by = |who: &str| format!("kill load.20261120T024000Z by {who} from 127.0.0.1 on host-a");
    assert_eq!(node.daemon.requests(), [by("the-operate"), by("the-admin") + " by force"]);
}

#[tokio::test]
async fn requests_are_of_the_token_that_was_sent() {
    let node = Node::start().await;
    for (role, path) in [
        (Role::Operate, "/v1/jobs/load/trigger"),
        (Role::Operate, "/v1/jobs/load/pause"),
        (Role::Operate, "/v1/nodes/host-b/drain"),
        (Role::Admin, "/v1/jobs/load/recount"),
        (Role::Operate, "/v1/jobs/load/resume"),
    ] {
        let (code, body) = node.ask(post(path, &bearer(role), "")).await;
        assert!(code == 200 || path.ends_with("recount"), "{path}: {code} {body}");
        let requests = node.daemon.requests();
        let by = format!("by the-{role} from 127.0.0.1 on host-a");
        assert!(requests.iter().any(|request| request.contains(&by)) || code == 409, "{path}: {requests:?} {body}");
    }
}

#[tokio::test]
async fn a_token_counts_in_its_header_only_and_as_it_is() {
    let node = Node::start().await;
    let admin = token(Role::Admin);
    for more in [
        format!("Authorization: Basic {admin}\r\n"),
        format!("Authorization: {admin}\r\n"),
        format!("Authorization: Bearer {}\r\n", admin.to_uppercase()),
        format!("Authorization: Bearer {admin}x\r\n"),
        format!("Authorization: Bearer {}\r\n", TokenDigest::of(admin.as_bytes())),
        "Authorization: Bearer the-admin\r\n".to_owned(),
        "Authorization: Bearer \r\n".to_owned(),
    ] {
        assert!(matches!(node.ask(get("/v1/definitions", &more)).await.0, 401 | 429), "{more}");
    }
    for (path, more) in [
        (format!("/v1/definitions?token={admin}"), String::new()),
        (format!("/v1/definitions?access_token={admin}"), String::new()),
        ("/v1/definitions".to_owned(), format!("Cookie: token={admin}; cronkeeper-session={admin}\r\n")),
        ("/v1/definitions".to_owned(), format!("X-Api-Token: {admin}\r\n")),
    ] {
        assert_eq!(node.ask(get(&path, &more)).await.0, 403, "{path} {more}");
    }
    let two = format!("{}{}", bearer(Role::Read), bearer(Role::Admin));
    assert_eq!(node.ask(post("/v1/nodes/host-z/forget", &two, "")).await.0, 403, "the first of two counts");
}

#[tokio::test]
async fn the_page_says_who_is_signed_in_and_has_the_buttons_of_the_role() {
    let node = Node::start().await;
    let pages = ["/", "/jobs/load", "/runs/load.20261120T025900Z"];
    let buttons = ["formaction=\"/handover\"", "formaction=\"/jobs/load/trigger\"", "/kill\""];
    for (role, may_act) in [(Role::Read, false), (Role::Operate, true), (Role::Admin, true)] {
        let cookie = node.signed_in(role).await;
        for (path, button) in pages.iter().zip(buttons) {
            let (_, page) = node.ask(get(path, &cookie)).await;
            assert!(page.contains(&format!(">the-{role}, {role}</span>")), "{path}: {page}");
            assert!(page.contains("formaction=\"/session/end\""), "{path}: {page}");
            assert_eq!(page.contains(button), may_act, "{path} as {role}: {page}");
        }
        let (_, page) = node.ask(get("/session", &cookie)).await;
        assert!(page.contains(&format!("<strong>{role}</strong>")), "{page}");
    }
    let cookie = node.signed_in(Role::Read).await;
    let (_, page) = node.ask(get("/jobs/load", &cookie)).await;
    let (_, rest) = page.split_once("name=\"form_key\" value=\"").unwrap();
    let form = format!("form_key={}", rest.split('"').next().unwrap());
    for request in FORMS {
        let path =
            request.split_once(' ').unwrap().1.replace("{job}", "load").replace("{run}", "load.20261120T024000Z");
        let (code, body) = node.ask(post(&path, &format!("{FORM}{cookie}"), &form)).await;
        assert!(code == 403 && body.contains("this needs the role `operate`"), "{path}: {code} {body}");
    }
    assert!(node.daemon.requests().is_empty());
    let (code, _) = node.ask(post("/session/end", &format!("{FORM}{cookie}"), &form)).await;
    assert_eq!(code, 303, "a reader can sign out");
}

#[tokio::test]
async fn nodes_with_the_same_first_line_show_each_other_what_they_have() {
    let node = Node::start().await;
    let path = "/v1/history?local=true";
    let host = node.address.to_string();
    let asked = Asked { method: "GET", path, host: &host };
    let now = || system::now().wall;
    let name = NodeName::new("host-a");
    let shown = async |key: &ProofKey| {
        let proof = key.prove(asked, &name, now());
        node.ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {proof}\r\n\r\n")).await.0
    };
    let files = Files { token: Some(node.daemon.file_with(&file())), tls: None };
    let mut member = sample::queue().members.remove(0);
    member.published.listen = Some(ApiAddress { address: node.address, name: None, tls: false });
    let history = Peers::new(files, None).unwrap().get::<History>(&member, path, Duration::ZERO).await;
    assert_eq!(history.map(|history| history.records.len()), Ok(0));
    let own = Tokens::parse(file().as_bytes()).unwrap();
    for key in own.proof_keys() {
        assert_eq!(shown(key).await, 200, "each token of the file is accepted");
    }
    assert_eq!(shown(&ProofKey::of(token(Role::Admin).as_bytes())).await, 401, "the file has its digest only");
}
