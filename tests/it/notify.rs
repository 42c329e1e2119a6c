//! Notifications: real services get them, across the death of a leader, once or with a word that it may be twice.

mod mail;
mod webhook;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::hmac;

use self::mail::{MailServer, PASSWORD, USER};
use self::webhook::{Got, Mode, Webhook};
use crate::failover::cluster::{Place, again, in_line, soon, usual};
use crate::solo::fixture::{leading, node};
use crate::support::command::{run, texts};
use crate::support::node::Node;
use crate::support::scratch::Scratch;
use crate::support::tls::Certificates;
use crate::support::{LONG, until};

const KEY: &str = "k3y";

/// A file that only its owner may read.
fn secret(folder: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = folder.write(name, text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A job that is due once and does this.
fn once(name: &str, at: jiff::Timestamp, command: &str, notify: &str) -> String {
    format!("jobs:\n  {name}:\n    schedule: '@at {at}'\n    command: {command:?}\n    notify: {notify}\n")
}

fn mail_channel(server: &MailServer, certificates: &Certificates, password: &Path) -> String {
    format!(
        "{{mail: ops@example.com, from: cron@example.com, smtp: '{}', user: {USER}, password_file: {}, ca_file: {}}}",
        server.url(),
        password.display(),
        certificates.ca.display(),
    )
}

/// That the signature is one of the key, for exactly this body.
fn assert_signed(got: &Got) {
    let signature = &got.headers["x-cronkeeper-signature"];
    let (time, tag) = signature.strip_prefix("t=").and_then(|rest| rest.split_once(",v1=")).expect("it has both parts");
    let signed = [format!("{time}.").as_bytes(), &got.body].concat();
    let expected = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, KEY.as_bytes()), &signed);
    let hex: String = expected.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(tag, hex);
}

fn give(nodes: &[&Node], jobs: &str) {
    crate::failover::cluster::give(nodes, jobs);
}

#[test]
fn a_webhook_and_a_mail_arrive_once_though_the_leader_is_killed_before_they_are_taken() {
    let (place, folder, certificates) = (Place::shared(), Scratch::new("notify"), Certificates::new());
    let hook = Webhook::start(Mode::Answers(503));
    let mail = MailServer::start(&certificates.server_store, false);
    let (key, password) = (secret(&folder, "key", KEY), secret(&folder, "password", PASSWORD));
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let at = soon();
    let channels = format!(
        "notify:\n  hook: {{webhook: '{}', secret_file: {}}}\n  post: {}\n",
        hook.url(),
        key.display(),
        mail_channel(&mail, &certificates, &password),
    );
    let job = once("broken", at, "echo no space left; exit 3", "[hook, post]");
    give(&[&a, &b], &format!("{channels}{job}"));

    hook.await_got(1, |mode| mode == Mode::Answers(503));
    mail.await_refused();
    // It knows the answers: else the next leader could not tell, and would leave the messages alone for a while.
    let is_unmarked = |channel: &str| {
        let record = place.zk.json(&place.path(&format!("/cronkeeper/channels/{channel}")));
        record.is_some_and(|record| record.get("sending").is_none())
    };
    until("both are refused", || is_unmarked("hook") && is_unmarked("post"));
    a.kill9();
    b.await_event("takeover.done", LONG);
    hook.set(Mode::Takes);
    mail.take();

    let got = hook.await_got(1, |mode| mode == Mode::Takes).remove(0);
    let json = got.json();
    assert_eq!((&json["v"], &json["count"], &json["sent_by"]), (&1.into(), &1.into(), &b.name().into()));
    let notice = &json["notices"][0];
    assert_eq!(
        (&notice["kind"], &notice["job"], &notice["exit_code"]),
        (&"failure".into(), &"broken".into(), &3.into())
    );
    assert_eq!((&notice["tail"], &notice["node"]), (&"no space left\n".into(), &a.name().into()));
    assert_eq!(got.headers["idempotency-key"], json["id"].as_str().unwrap());
    assert_signed(&got);
    let taken = mail.await_taken();
    assert!(taken.head.contains("Subject: cronkeeper: broken failed on "), "{}", taken.head);
    assert!(taken.text.contains("exit code 3") && taken.text.contains("no space left"), "{}", taken.text);

    let outbox = place.path("/cronkeeper/outbox");
    until("what is delivered is removed", || place.zk.children(&outbox).is_empty());
    assert_eq!((hook.taken().len(), mail.taken().len()), (1, 1));
    let a = again(a);
    a.await_event("election.following", LONG);
    assert_eq!((hook.taken().len(), mail.taken().len()), (1, 1));
}

#[test]
fn a_message_that_may_have_arrived_comes_again_with_the_same_id_and_says_so() {
    let place = Place::shared();
    let hook = Webhook::start(Mode::Hangs);
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let channel = format!("notify: {{hook: {{webhook: '{}'}}}}\n", hook.url());
    give(&[&a, &b], &format!("{channel}{}", once("broken", soon(), "exit 3", "hook")));

    let first = hook.await_got(1, |mode| mode == Mode::Hangs).remove(0);
    a.kill9();
    hook.set(Mode::Takes);
    let second = hook.await_got(1, |mode| mode == Mode::Takes).remove(0);
    assert_eq!(
        (&first.json()["id"], first.json()["may_be_second_copy"].as_bool()),
        (&second.json()["id"], Some(false))
    );
    assert_eq!(second.json()["may_be_second_copy"], true);
    assert!(second.json()["text"].as_str().unwrap().starts_with("This may be the second copy"));
    until("it is removed", || place.zk.children(&place.path("/cronkeeper/outbox")).is_empty());
    assert_eq!(hook.taken().len(), 1);
    drop(b);
}

#[test]
fn many_failures_at_once_are_a_handful_of_messages() {
    const JOBS: usize = 200;
    let hook = Webhook::start(Mode::Takes);
    let a = leading(&node("only"));
    let at = soon();
    let mut file = format!("notify: {{hook: {{webhook: '{}', every: 2s}}}}\njobs:\n", hook.url());
    for number in 0..JOBS {
        file += &format!("  broken-{number}: {{schedule: '@at {at}', command: ['false'], notify: hook}}\n");
    }
    give(&[&a], &file);
    let told = || hook.taken().iter().map(|got| got.json()["count"].as_u64().unwrap()).sum::<u64>();
    until("all are told", || told() == JOBS as u64);
    let messages = hook.taken().len();
    assert!(messages <= JOBS / 10, "{messages} messages");
}

#[test]
fn a_service_that_never_answers_delays_no_job_and_no_other_channel() {
    let (deaf, hook) = (Webhook::start(Mode::Hangs), Webhook::start(Mode::Takes));
    let file = format!(
        "notify:\n  deaf: {{webhook: '{}'}}\n  hook: {{slack: '{}', every: 1s, on: [failure, recovery]}}\njobs:\n  \
         broken: {{schedule: '* * * * * *', command: ['false'], notify: [deaf, hook]}}\n",
        deaf.url(),
        hook.url(),
    );
    let a = leading(&node("only").jobs(&file));
    deaf.await_got(1, |mode| mode == Mode::Hangs);
    for _ in 0..3 {
        let seen = a.events().len();
        a.await_after(seen, "run.finished", LONG, |event| event.text("job") == "broken");
    }
    let got = hook.await_got(2, |mode| mode == Mode::Takes);
    assert!(got[0].json()["text"].as_str().unwrap().contains("broken failed"), "{got:?}");
    assert_eq!(deaf.got(|_| true).len(), 1, "it is still waited for");
}

#[test]
fn a_test_says_what_each_service_answered_and_no_secret() {
    let (folder, certificates) = (Scratch::new("notify"), Certificates::new());
    let (hook, angry) = (Webhook::start(Mode::Takes), Webhook::start(Mode::Answers(410)));
    let mail = MailServer::start(&certificates.server_store, true);
    let right = secret(&folder, "right", PASSWORD);
    let wrong = secret(&folder, "wrong", "wr0ng");
    let open = folder.write("open", PASSWORD);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let url = secret(&folder, "url", &hook.url());
    let channel = |password: &Path| mail_channel(&mail, &certificates, password);
    let file = folder.write(
        "jobs.yaml",
        &format!(
            "notify:\n  angry: {{webhook: '{}'}}\n  good: {{webhook_file: {}}}\n  post: {}\n  wrong: {}\n  open: {}\n\
             jobs: {{}}\n",
            angry.url(),
            url.display(),
            channel(&right),
            channel(&wrong),
            channel(&open),
        ),
    );
    let test = |channels: &[&str]| {
        let line = [&["notify", "test"], channels, &["--jobs", file.to_str().unwrap()]].concat();
        let (code, out, err) = texts(&run(&line));
        for secret in [PASSWORD, "wr0ng", &hook.url()] {
            assert!(!out.contains(secret) && !err.contains(secret), "{out}{err}");
        }
        (code, out, err)
    };
    let (code, out, _) = test(&["good", "post"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("good (webhook): delivered: 200 OK: ok\n") && out.contains("post (mail): delivered: 250"),
        "{out}"
    );
    assert_eq!(hook.taken()[0].json()["notices"][0]["kind"], "test");
    assert!(mail.await_taken().text.contains("a test, sent by"));
    for (channel, said) in [("angry", "410"), ("wrong", "535"), ("open", "others than its owner")] {
        let (code, out, err) = test(&[channel]);
        assert_eq!(code, Some(1), "{channel}: {out}{err}");
        assert!(out.contains("NOT DELIVERED") && (channel == "open" || out.contains(said)), "{channel}: {out}{err}");
    }
    let (code, _, err) = test(&["goood"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("did you mean `good`?"), "{err}");
}
