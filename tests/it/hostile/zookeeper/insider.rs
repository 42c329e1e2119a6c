//! A client that may write wherever the cluster does.
//!
//! Its records are reported and skipped; they stop neither the leader nor the next leader nor a starting node. Records
//! with a foreign owner, impossible owners, attempts and times of runs are planted in `records` of `failover`. No
//! process finds a variable that only a record sets.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::failover::cluster::{Place, in_line, job, jobs, once, run_id, soon, usual};
use crate::failover::records::{AT, SELDOM, assert_answers, await_ticks, lose_each_leader, names, stranger};
use crate::support::node::Node;
use crate::support::scratch::Scratch;
use crate::support::witness::Witness;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, poll, until};

/// Jobs with planted records.
const MARKED: [&str; 5] = ["deep", "large", "larger", "largest", "version"];
const FAR: &str = "9999-12-30T21:59:59Z";
const CANDIDATES: usize = 3_000;

fn deep() -> Vec<u8> {
    format!("{}{}", "[".repeat(300), "]".repeat(300)).into_bytes()
}

/// Nearly the maximum size of a znode; several of them exceed the maximum size of a reply.
fn large() -> Vec<u8> {
    format!(r#"{{"v":1,"reason":"{}"}}"#, "x".repeat(900_000)).into_bytes()
}

/// The planted paths and data. They replace existing records. `mark` is the mark of a job.
fn planted(mut mark: Value) -> Vec<(String, Vec<u8>)> {
    let mut planted = Vec::new();
    let version = || br#"{"v":99,"what":"a later version says so"}"#.to_vec();
    let each =
        [("deep", deep()), ("large", large()), ("larger", large()), ("largest", large()), ("version", version())];
    for (job, data) in each {
        let run = format!("running/{job}.{AT}");
        for path in [format!("jobs/{job}"), run, format!("control/{job}"), format!("nodes/{job}")] {
            planted.push((format!("/cronkeeper/{path}"), data.clone()));
        }
    }
    for (number, data) in [deep(), large(), large(), large(), version()].into_iter().enumerate() {
        planted.push((format!("/cronkeeper/triggers/000000090{number}"), data));
    }
    let trigger = json!({"v": 1, "uuid": Uuid::new_v4(), "job": "far", "by": "somebody", "at": FAR});
    planted.push(("/cronkeeper/triggers/0000000910".into(), trigger.to_string().into_bytes()));
    for time in ["last_scheduled", "counted"] {
        mark[time] = FAR.into();
    }
    planted.push(("/cronkeeper/jobs/far".into(), mark.to_string().into_bytes()));
    planted
}

#[test]
fn what_a_client_with_all_rights_plants_is_named_and_stops_nobody() {
    let ensemble = Ensemble::start(1);
    let (place, witness, stranger) = (Place::on(&ensemble), Witness::new(), stranger(&ensemble));
    let mut each: Vec<String> = MARKED.iter().map(|name| job(name, SELDOM, "['true']", "")).collect();
    each.push(job("far", SELDOM, "['true']", "interrupted: rerun"));
    each.push(job("tick", "* * * * * *", &witness.command(&[]), ""));
    let file = jobs(&each);
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));
    await_ticks(&witness, &[&a]);

    let mark = place.path("/cronkeeper/jobs/far");
    until("the job is counted", || place.zk.is_there(&mark));
    let planted = planted(place.zk.json(&mark).expect("it was there"));
    planted.iter().for_each(|(path, data)| stranger.put(&place.path(path), data));
    let queue: Vec<String> =
        (0..CANDIDATES).map(|number| place.path(&format!("/leader/planted-2{number:09}"))).collect();
    stranger.make_all(&queue);
    await_ticks(&witness, &[&a, &b]);
    let mut logs: Vec<_> = [&a, &b].map(Node::log).into();
    until("the members are looked at", || names(&logs, "/cronkeeper/nodes/deep"));

    let [a, b] = lose_each_leader(&witness, [a, b]);
    await_ticks(&witness, &[&a, &b]);
    logs.extend([&a, &b].map(Node::log));
    let unnamed: Vec<&str> = planted.iter().map(|(path, _)| path.as_str()).filter(|path| !names(&logs, path)).collect();
    assert!(unnamed.is_empty(), "no log names {unnamed:#?}");
    let strange = logs.iter().flat_map(|log| log.all()).filter(|event| !event.plain().is_empty()).collect::<Vec<_>>();
    assert!(strange.is_empty(), "a panic, or what else is no event: {strange:#?}");
    [&a, &b].iter().for_each(|node| assert_answers(node.spec()));
    witness.assert_fine(&[]);
}

/// A run's record with parameters that nobody may set.
fn with_parameters(mut record: Value, more: &Value) -> Vec<u8> {
    record["v"] = 2.into();
    record["parameters"] = json!({"DAY": "1", "LD_PRELOAD": "/nowhere/own.so", "PERL5OPT": "-Mown"});
    for (key, value) in more.as_object().into_iter().flatten() {
        record[key] = value.clone();
    }
    record.to_string().into_bytes()
}

#[test]
fn what_a_client_with_all_rights_puts_into_the_environment_of_a_run_reaches_no_process() {
    let (ensemble, scratch) = (Ensemble::start(1), Scratch::new("found"));
    let (place, stranger) = (Place::on(&ensemble), stranger(&ensemble));
    let found = |name: &str| scratch.path().join(name);
    let command = |name: &str| format!("'printf \"%s|\" \"$LD_PRELOAD\" >> {}; exit 1'", found(name).display());
    let hook = r#"on_failure: 'echo "got [$DAY] [$LD_PRELOAD$PERL5OPT]"'"#;
    let at = soon();
    let [a, b] = in_line(["a", "b"].map(|name| {
        let file = jobs(&[
            once(
                "retried",
                at,
                &command("retried"),
                &format!("retries: {{limit: 3, delay: 1h, max_delay: 1h}}\n{hook}"),
            ),
            job("planted", SELDOM, &command("planted"), &format!("interrupted: rerun\nparameters: DAY\n{hook}")),
            job("settled", SELDOM, &command("settled"), &format!("on_lease_end: kill\nparameters: DAY\n{hook}")),
        ]);
        usual(place.node(name)).jobs(&file)
    }));
    let got = |node: &Node, job: &str, line: &str| {
        node.await_where("run.output", LONG, |event| event.text("job") == job && event.text("line") == line);
    };

    // Rewritten while it waits for its second attempt.
    let run = run_id("retried", at);
    let retrying = || place.running(&run).filter(|record| record["state"] == "retrying");
    let record = poll(LONG, retrying).expect("its first attempt fails");
    let path = |run: &str| place.path(&format!("/cronkeeper/running/{run}"));
    stranger.set(&path(&run), &with_parameters(record.clone(), &json!({"retry_at": null}))).expect("it is open to all");
    let end = place.await_end(&run);
    assert_eq!((&end["outcome"], &end["reason"]), (&json!("failure"), &json!("parameters")));
    assert!(
        end["detail"].as_str().unwrap().contains("`LD_PRELOAD`") && end["run"].get("parameters").is_none(),
        "{end}"
    );
    a.await_where("run.finished", LONG, |event| event.text("run") == run && event.text("reason") == "parameters");
    got(&a, "retried", "got [] []");

    // Found by the next leader: a run that it must begin again, and one that it must end.
    for (job, on_loss) in [("planted", "rerun"), ("settled", "interrupt")] {
        let more = json!({
            "job": job, "scheduled_at": "2026-01-01T00:00:00Z", "node": "gone", "state": "running", "on_loss": on_loss,
            "retry_at": null,
        });
        stranger.put(&path(&format!("{job}.{AT}")), &with_parameters(record.clone(), &more));
    }
    a.kill9();
    for (job, outcome, reason) in [("planted", "failure", "parameters"), ("settled", "interrupted", "node-died")] {
        let end = place.await_end(&format!("{job}.{AT}"));
        assert_eq!((&end["outcome"], &end["reason"]), (&json!(outcome), &json!(reason)), "{end}");
        got(&b, job, "got [1] []");
    }
    assert_eq!(std::fs::read_to_string(found("retried")).unwrap(), "|", "one attempt, before the record was rewritten");
    assert!(!found("planted").exists() && !found("settled").exists());
}
