//! The status is true on every node: whoever asks, and whichever node ran the job.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cluster::{Place, again, in_line, job, jobs, usual};
use super::control::{ask, asked};
use crate::solo::fixture::get_json;
use crate::support::node::{Node, Spec};
use crate::support::scratch::Scratch;
use crate::support::witness::Witness;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

/// A job that is never due.
const SELDOM: &str = "@at 2099-01-01T00:00:00Z";

fn status(spec: &Spec) -> Value {
    serde_json::from_str(&asked(spec, &["status", "--json"])).expect("it is JSON")
}

/// The status as soon as the node can read the ledger for it, which a busy machine may delay.
fn read_status(spec: &Spec) -> Value {
    let mut shown = Value::Null;
    until("the ledger is read", || {
        shown = status(spec);
        shown["unread"].is_null()
    });
    shown
}

/// The last run of the job: node, outcome and exit code.
fn last(spec: &Spec) -> Value {
    let last = &status(spec)["jobs"][0]["last"];
    json!([last["node"], last["outcome"], last["exit_code"]])
}

/// A command that succeeds until the file exists.
fn unless(file: &Path) -> String {
    format!("[ ! -e {} ] || exit 3", file.display())
}

#[test]
fn every_node_shows_how_a_job_ended_last_whichever_node_ran_it() {
    let (place, witness, folder) = (Place::shared(), Witness::new(), Scratch::new("status"));
    let broken = folder.path().join("broken");
    let command = witness.command(&["sh", "-c", &unless(&broken)]);
    let file = jobs(&[job("seldom", SELDOM, &command, "")]);
    let [a, b, c] = in_line(["a", "b", "c"].map(|name| usual(place.node(name)).jobs(&file)));
    let all = [&a, &b, &c];
    assert!(ask(a.spec(), &["trigger", "seldom", "--wait"]).status.success());
    all.iter().for_each(|node| until("the success is shown", || last(node.spec()) == json!([a.name(), "success", 0])));
    asked(a.spec(), &["handover"]);
    b.await_event("takeover.done", LONG);
    std::fs::write(&broken, "").expect("it can be written");
    let failed = ask(c.spec(), &["trigger", "seldom", "--wait"]);
    assert_eq!(failed.status.code(), Some(3), "{failed:?}");
    let expected = json!([b.name(), "failure", 3]);
    assert_eq!(last(c.spec()), expected, "what it has just reported is shown at once");
    // `a` ran the job itself before, with success.
    all.iter().for_each(|node| until("the failure is shown", || last(node.spec()) == expected));
    asked(b.spec(), &["handover"]);
    let leads = |node: &Node| status(node.spec())["state"] == "leading";
    until("another node leads", || leads(&a) || leads(&c));
    all.iter().for_each(|node| until("the failure is still shown", || last(node.spec()) == expected));
    let text = asked(c.spec(), &["status", "--failing"]);
    assert!(text.contains(&format!("! seldom  failure, exit 3  {} ", b.name())), "{text}");
    witness.assert_fine(&[]);
}

#[test]
fn a_node_shows_at_once_what_was_requested_of_it() {
    let (place, witness) = (Place::shared(), Witness::new());
    let file = jobs(&[job("seldom", SELDOM, &witness.command(&["true"]), "")]);
    let [leader, follower] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));
    for node in [&leader, &follower] {
        for _ in 0..3 {
            asked(node.spec(), &["pause", "seldom", "--reason", "disks"]);
            assert_eq!(read_status(node.spec())["jobs"][0]["paused"]["reason"], "disks", "{}", node.name());
            asked(node.spec(), &["resume", "seldom"]);
            assert_eq!(read_status(node.spec())["jobs"][0]["paused"], Value::Null, "{}", node.name());
            let run = ask(node.spec(), &["trigger", "seldom", "--wait"]);
            let run = String::from_utf8(run.stdout).expect("a run's id");
            let shown = read_status(node.spec());
            let shown = (&shown["runs"], &shown["jobs"][0]["last"]["run"]);
            assert_eq!(shown, (&json!([]), &json!(run.trim())), "{}", node.name());
        }
    }
    witness.assert_fine(&[]);
}

/// Else whoever happens to ask another node than the leader would learn nothing of a job that does not run.
#[test]
fn every_node_shows_that_a_mark_is_in_the_future() {
    let place = Place::shared();
    let file = jobs(&[job("minutely", "* * * * *", "'true'", "")]);
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));
    let path = place.path("/cronkeeper/jobs/minutely");
    until("the leader has written the job's mark", || place.zk.is_there(&path));
    let mut record = place.zk.json(&path).expect("it is a record");
    let minute = Timestamp::from_second(Timestamp::now().as_second() / 60 * 60).expect("it is a time");
    let [mark, next] = [0, 1].map(|minutes| (minute + Duration::from_secs(24 * 3_600 + minutes * 60)).to_string());
    (record["last_scheduled"], record["counted"]) = (json!(mark), json!(mark));
    place.zk.put(&path, record.to_string().as_bytes());
    asked(a.spec(), &["handover"]);
    b.await_event("job.mark_ahead", LONG);
    a.await_event("election.following", LONG);
    for node in [&a, &b] {
        until("it is shown", || status(node.spec())["jobs"][0]["error"].is_string());
        let job = &status(node.spec())["jobs"][0];
        assert_eq!(job["next"], json!(next), "{}", node.name());
        let coming = &get_json(node.spec(), "/v1/jobs/minutely")["coming"];
        assert_eq!(coming[0], json!(next), "{}", node.name());
        let check = ask(node.spec(), &["status", "--check"]);
        let problems = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(check.status.code() == Some(1) && problems.contains("minutely"), "{}: {problems}", node.name());
    }
}

#[test]
fn while_the_ledger_cannot_be_read_a_node_shows_what_it_read_last_and_says_so() {
    let ensemble = Ensemble::start(1);
    let (place, witness) = (Place::on(&ensemble), Witness::new());
    let command = witness.command(&["sh", "-c", "exit 3"]);
    let file = jobs(&[job("seldom", SELDOM, &command, ""), job("stopped", "@daily", &command, "")]);
    let nodes = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));
    asked(nodes[0].spec(), &["pause", "stopped", "--reason", "disks"]);
    ask(nodes[1].spec(), &["trigger", "seldom", "--wait"]);
    let shown = |node: &Node| {
        let status = status(node.spec());
        let facts = json!([status["jobs"][0]["last"]["exit_code"], status["jobs"][1]["paused"]["reason"]]);
        (status["unread"].is_string(), facts)
    };
    let expected = json!([3, "disks"]);
    nodes.iter().for_each(|node| until("both are shown", || shown(node) == (false, expected.clone())));
    ensemble.kill(0);
    nodes.iter().for_each(|node| until("both are still shown", || shown(node) == (true, expected.clone())));
    nodes.iter().for_each(|node| drop(node.await_event("coordination.expired", LONG)));
    nodes.iter().for_each(|node| assert_eq!(shown(node), (true, expected.clone()), "{}", node.name()));
    let text = asked(nodes[1].spec(), &["status"]);
    let is_dated = |what: &str| text.contains(&format!("NOT READ, showing {what} 2"));
    assert!(is_dated("what it held at") || is_dated("the queue and nodes as of"), "{text}");
    witness.assert_fine(&[]);
}

#[test]
fn without_a_quorum_every_node_says_that_it_does_not_know_who_leads() {
    let ensemble = Ensemble::start(3);
    let place = Place::on(&ensemble);
    let file = jobs(&[job("seldom", SELDOM, "'true'", "")]);
    let [a, b, c] = in_line(["a", "b", "c"].map(|name| usual(place.node(name)).jobs(&file)));
    let leader = |node: &Node| status(node.spec())["role"]["leader_node"].clone();
    [&a, &b, &c].iter().for_each(|node| until("it shows who leads", || leader(node) == a.name()));
    (0..2).for_each(|server| ensemble.pause(server));
    // Until it has noticed, the server that is left takes connections and answers reads.
    ensemble.await_alone(2);
    for node in [&b, &c, &a] {
        until("who leads is not known, and who led is", || {
            let role = &status(node.spec())["role"];
            role["leader_node"] == Value::Null && role["last_leader"]["node"] == a.name()
        });
        // What was read a moment before is not old yet.
        let unread = format!("({} until then)\nLEDGER   NOT READ, showing ", a.name());
        until("the ledger is not read", || asked(node.spec(), &["status"]).contains(&unread));
        let text = asked(node.spec(), &["status"]);
        assert!(text.starts_with("LEADER   unknown since 2"), "{text}");
        assert!(!text.contains("(leads)") && text.contains("  no leader"), "{text}");
        let others = |text: &str| -> Vec<String> {
            let members = text.lines().skip_while(|line| !line.starts_with("MEMBER ")).skip(1);
            let members = members.take_while(|line| !line.is_empty());
            members.filter(|line| !line.starts_with(node.name())).map(str::to_owned).collect()
        };
        assert_eq!(others(&asked(node.spec(), &["status"])), others(&text), "nobody knows whether a member is alive");
        assert!(others(&text).len() == 2 && others(&text).iter().all(|line| line.contains("not known")), "{text}");
        let check = ask(node.spec(), &["status", "--check"]);
        let said = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(said.contains(&format!("nobody can lead as far as {} knows: ", node.name())), "{said}");
        assert_eq!(check.status.code(), Some(1), "{said}");
    }
    let c = again(c);
    until("it cannot read either", || {
        let answer = ask(c.spec(), &["status", "--json"]);
        serde_json::from_slice::<Value>(&answer.stdout).is_ok_and(|status| status["unread"].is_string())
    });
    assert_eq!(status(c.spec())["unknown"], json!(["queue", "runs", "ends"]));
    let text = asked(c.spec(), &["status"]);
    assert!(text.contains("\nUNKNOWN  who is in the queue\n") && text.contains("\nseldom  not known "), "{text}");
    (0..2).for_each(|server| ensemble.cont(server));
    [&a, &b, &c].iter().for_each(|node| {
        until("all is well again", || ask(node.spec(), &["status", "--check"]).status.success());
    });
    let is_read = |status: &Value| status["unread"].is_null() && status.get("unknown").is_none();
    until("all is known", || is_read(&status(c.spec())));
}

/// It neither led nor was before another node, so nobody waits for it.
#[test]
fn the_leader_says_at_once_who_goes_and_who_comes_back() {
    let place = Place::shared();
    let [leader, _b, last] = in_line(["a", "b", "c"].map(|name| usual(place.node(name))));
    let name = last.name().to_owned();
    // The leader has to have seen it.
    until("all are seen", || status(leader.spec())["members"].as_array().is_some_and(|members| members.len() == 3));
    last.kill9();
    let gone = leader.await_event("member.gone", LONG);
    assert_eq!(gone.text("other"), name);
    let missing = |status: &Value| status["missing"].as_array().map_or(0, Vec::len);
    until("it is missing", || missing(&status(leader.spec())) == 1);
    let last = again(last);
    let back = leader.await_event("member.back", LONG);
    assert_eq!(back.text("other"), name);
    until("nobody is missing", || missing(&status(leader.spec())) == 0);
    drop(last);
}

/// It has no run to finish, so it is gone before anybody sees that it is stopping.
#[test]
fn a_node_that_was_stopped_is_not_taken_for_dead() {
    let place = Place::shared();
    let none = || "jobs: {}\n".to_owned();
    // The leader has other jobs, so each follower and the leader say so once they have seen each other.
    let files = [("a", jobs(&[job("seldom", SELDOM, "[\"true\"]", "")])), ("b", none()), ("c", none())];
    let [leader, next, last] = in_line(files.map(|(name, file)| usual(place.node(name)).jobs(&file)));
    let sees = |by: &Node, other: &Node| {
        by.await_where("jobs.drift", LONG, |drift| drift.text("other") == other.name());
    };
    let stop = |node: &Node| {
        node.signal(rustix::process::Signal::TERM);
        assert_eq!(node.wait_exit(LONG).code(), Some(0));
    };
    let gone = |by: &Node, seen: usize, other: &Node| {
        let gone = by.await_after(seen, "member.gone", LONG, |gone| gone.text("other") == other.name());
        let (level, reason) = (gone.text("level").to_owned(), gone.text("reason").to_owned());
        let label = if reason == "stopped" { "STOPPED" } else { "MISSING" };
        let shown = format!("{label}  {}, ", other.name());
        until("it is shown as that", || asked(by.spec(), &["status"]).contains(&shown));
        (level, reason)
    };
    let (stopped, died) = (("INFO".into(), "stopped".into()), ("WARN".into(), "session-ended".into()));
    sees(&leader, &last);
    stop(&last);
    assert_eq!(gone(&leader, 0, &last), stopped);

    // What a process says as it leaves is not about the next one of its node.
    let last = again(last);
    leader.await_where("member.back", LONG, |back| back.text("other") == last.name());
    let seen = leader.events().len();
    last.kill9();
    assert_eq!(gone(&leader, seen, &last), died);

    sees(&next, &leader);
    stop(&leader);
    assert_eq!(gone(&next, 0, &leader), stopped);
}

#[test]
fn a_node_that_died_is_missing_and_a_check_fails_where_nobody_leads() {
    let (place, witness) = (Place::shared(), Witness::new());
    let file = jobs(&[job("seldom", SELDOM, &witness.command(&["true"]), "")]);
    let [leader, follower] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));
    until("it is ready", || ask(follower.spec(), &["status", "--check"]).status.success());
    leader.kill9();
    let elected = follower.await_event("leader.elected", LONG);
    assert_eq!(elected.text("after"), leader.name());
    follower.await_event("takeover.done", LONG);
    let gone = follower.await_event("member.gone", LONG);
    assert_eq!((gone.text("other"), gone.text("reason")), (leader.name(), "session-ended"));
    until("the dead node is missing", || {
        status(follower.spec())["missing"]
            .as_array()
            .is_some_and(|all| all.iter().any(|gone| gone["node"] == leader.name()))
    });
    assert!(asked(follower.spec(), &["status"]).contains(&format!("MISSING  {}, its session ended ", leader.name())));
    follower.spec().write_jobs("jobs: nonsense");
    follower.signal(rustix::process::Signal::HUP);
    follower.await_event("jobs.rejected", LONG);
    until("the check fails", || ask(follower.spec(), &["status", "--check"]).status.code() == Some(1));
    let failed = ask(follower.spec(), &["status", "--check"]);
    assert!(String::from_utf8_lossy(&failed.stdout).contains("was rejected: "), "{failed:?}");
    witness.assert_fine(&[]);
}
