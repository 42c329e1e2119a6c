//! Tests of channels, and of what jobs say of them.

use super::*;
use cronkeeper_core::job::{ChannelName, NoticeKind, Target};

const JOB: &str = "\njobs: {a: {schedule: \"0 0 * * *\", command: x, notify: ops}}\n";

/// The problems of a channel `ops` with these keys, which begin in line 1, column 17.
fn channel(keys: &str) -> String {
    reported(format!("notify: {{ops: {{{keys}}}}}{JOB}"))
}

/// Those of a job whose `notify` is this, in line 2; there is a channel `ops`.
fn mentioned(notify: &str) -> String {
    let job = format!("jobs: {{a: {{schedule: \"0 0 * * *\", command: x, notify: {notify}}}}}");
    reported(format!("notify: {{ops: {{mail: ops}}, chat: {{webhook: 'https://h'}}}}\n{job}\n"))
}

#[test]
fn channels_of_each_kind_are_valid() {
    for keys in [
        "webhook: 'https://example.com/x', headers: {X-A: b}, secret_file: /s, headers_file: /h, ca_file: /c, every: 5m",
        "webhook: 'http://localhost:8080/x', secret_file: /s",
        "webhook: 'http://example.com/x'",
        "webhook_file: /u",
        "slack_file: /u, on: [failure, leader_changed]",
        "slack: 'https://hooks.slack.com/services/x'",
        "mail: ops",
        "mail: [a@b.example, c@d.example], from: x@y.example, smtp: 'smtps://m.example', user: u, password_file: /p",
        "mail: a@b.example, smtp: 'smtp://m.example:587', on: output",
    ] {
        same(&channel(keys), "");
    }
}

#[test]
fn what_is_wrong_with_a_channel_is_reported_at_its_place() {
    let kinds = "one of `webhook`, `webhook_file`, `slack`, `slack_file`, `mail`";
    for (keys, message) in [
        ("on: failure", format!("j:1:10: channel `ops`: nothing says where to send its messages: add {kinds}")),
        ("mail: x, slack_file: /s", format!("j:1:10: channel `ops`: `slack_file` and `mail`: a channel has exactly {kinds}")),
        ("mial: x", format!("j:1:10: channel `ops`: nothing says where to send its messages: add {kinds}\nj:1:16: channel `ops`: `mial` is not a key of a channel, did you mean `mail`?")),
        ("webhook: example.com", "j:1:25: channel `ops`: `webhook`: is not a URL such as `https://host/path`".into()),
        (
            "webhook: 'http://h.example/x', secret_file: /s",
            "j:1:25: channel `ops`: `webhook`: would send a secret without encryption; write `https://`".into(),
        ),
        (
            "webhook: 'https://u:p@h.example/x'",
            "j:1:25: channel `ops`: `webhook`: has a user or password in it, which everybody can read; put an \
             `Authorization` header into a `headers_file`".into(),
        ),
        (
            "webhook: 'https://h', headers: {Authorization: x}",
            "j:1:48: channel `ops`: `headers`: `Authorization`: is a secret, which everybody could read here; put it \
             into a `headers_file`".into(),
        ),
        ("webhook: 'https://h', secret_file: s3cret", "j:1:51: channel `ops`: `secret_file`: must be the absolute path of a file".into()),
        ("webhook: 'https://h', smtp: 'smtps://m'", "j:1:38: channel `ops`: `smtp` cannot be used with `webhook`; remove it".into()),
        ("mail: 'a b'", "j:1:22: channel `ops`: `mail`: `a b` is not an address such as `ops@example.com`".into()),
        ("mail: a, user: u", "j:1:31: channel `ops`: `user`: set `user` and `password_file` together, or neither".into()),
        ("mail: a, smtp: m.example", "j:1:31: channel `ops`: `smtp`: is not a URL such as `smtps://mail.example.com` or `smtp://mail.example.com:587`".into()),
        ("mail: a, every: 1ms", "j:1:32: channel `ops`: `every`: must be at least 1s".into()),
        (
            "mail: a, on: [failure, recover]",
            "j:1:39: channel `ops`: `on`: `recover` is not one of `failure`, `recovery`, `missed`, `late`, `long`, \
             `stale`, `output`, `leader_changed`, `node_missing`, `node_back`, did you mean `recovery`?".into(),
        ),
    ] {
        same(&channel(keys), &message);
    }
}

#[test]
fn a_job_names_channels_that_exist_and_events_of_jobs() {
    for notify in ["ops", "[ops, chat]", "{ops: [output], chat: failure}", "{ops: ~}", "none", "[]", "~"] {
        same(&mentioned(notify), "");
    }
    for (notify, message) in [
        ("[ops, caht]", "j:2:61: job `a`: `notify`: there is no channel `caht`, did you mean `chat`?"),
        (
            "{ops: [leader_changed]}",
            "j:2:62: job `a`: `notify`: `ops`: `leader_changed` is about the cluster, not about a job; add it to the channel's `on`",
        ),
        ("'a/b'", "j:2:55: job `a`: `notify`: `a/b` is not a channel name"),
    ] {
        same(&mentioned(notify), message);
    }
    let lost = "jobs: {a: {schedule: \"0 0 * * *\", command: x, notify: ops}}";
    let write = "no file defines channels: add them under `notify` at the top";
    same(&reported(lost), &format!("j:1:55: job `a`: `notify`: there is no channel `ops`; {write}"));
    let of_defaults = format!("defaults: {{notify: oops}}\nnotify: {{ops: {{mail: x}}}}{JOB}");
    same(&reported(of_defaults), "j:1:20: defaults: `notify`: there is no channel `oops`, did you mean `ops`?");
}

#[test]
fn a_job_hears_of_what_its_channels_get_by_default_unless_it_says_otherwise() {
    let text = "notify: {ops: {mail: ops, on: [missed, node_missing]}, chat: {mail: x}}\n\
                defaults: {notify: [ops]}\n\
                jobs: {a: {schedule: '@daily', command: x}, b: {schedule: '@daily', command: x, notify: {chat: [output]}}, \
                c: {schedule: '@daily', command: x, notify: none}}";
    let (set, _) = parse("j", text.as_bytes()).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    let names = |kind, job: &str| {
        let job = cronkeeper_core::job::JobName::parse(job).unwrap();
        let names = set.wanted_by(kind, Some(&job)).unwrap();
        names.iter().map(ChannelName::as_str).collect::<Vec<_>>().join(",")
    };
    assert_eq!([names(NoticeKind::Missed, "a"), names(NoticeKind::Failure, "a")], ["ops", ""]);
    assert_eq!([names(NoticeKind::Missed, "b"), names(NoticeKind::Output, "b")], ["", "chat"]);
    assert_eq!(names(NoticeKind::Missed, "c"), "");
    assert_eq!(set.wanted_by(NoticeKind::NodeMissing, None).unwrap().len(), 1);
    let unknown = cronkeeper_core::job::JobName::parse("elsewhere").unwrap();
    assert_eq!(set.wanted_by(NoticeKind::Failure, Some(&unknown)), None);
    let chat = &set.channels[&ChannelName::parse("chat").unwrap()];
    assert_eq!((chat.on.clone(), matches!(chat.target, Target::Mail { .. })), (NoticeKind::by_default(), true));
}
