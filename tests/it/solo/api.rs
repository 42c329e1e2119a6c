//! The API socket: the leader serves it, and a new leader takes it over.

use crate::support::{LONG, until};

use super::fixture::{
    await_end, await_run, await_start, await_starts, cli, cli_text, following, get, history, leading, node, status,
};

#[test]
fn the_leaders_socket_answers_for_all_and_the_next_leader_takes_it_over() {
    let first = node("first").jobs("jobs: {tick: {schedule: '* * * * * *', command: 'echo said'}}");
    let a = leading(&first);
    let second = node("second").beside(&first);
    let b = following(&second);
    let run = await_start(&a, 0, "tick");
    await_end(&a, &run);

    assert_eq!(await_run(&second, &run)["node"], a.name());
    until("the queue is shown", || status(&second)["queue"].as_array().unwrap().len() == 2);
    let shown = status(&second);
    assert_eq!((&shown["node"], &shown["state"]), (&a.name().into(), &"leading".into()));
    assert_eq!((&shown["queue"][0]["node"], &shown["queue"][1]["node"]), (&a.name().into(), &b.name().into()));
    assert_eq!(get(&first, "/healthz").unwrap().0, 200);
    assert_eq!(get(&first, "/readyz").unwrap().0, 200);
    assert!(cli_text(&first, &["status"]).contains(a.name()));
    assert!(cli_text(&first, &["history", "tick", "--output"]).contains("said"));

    a.kill9();
    b.await_event("leader.elected", LONG);
    until("the new leader answers", || get(&second, "/healthz").is_some());
    let shown = status(&second);
    assert_eq!((&shown["node"], &shown["role"]["leader_node"]), (&b.name().into(), &b.name().into()));
    assert!(history(&second, "tick").iter().any(|record| record["run"] == run.as_str()), "the history goes on");
    assert_eq!(get(&second, "/readyz").unwrap().0, 200);
}

#[test]
fn nobody_to_ask_is_said_with_69() {
    let spec = node("only");
    let output = cli(&spec, &["status"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let a = leading(&spec);
    until("it answers", || cli(&spec, &["status"]).status.success());
    a.kill9();
    let output = cli(&spec, &["status"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
}

#[test]
fn a_socket_that_cannot_be_created_is_reported_once_and_served_as_soon_as_it_can() {
    let spec = node("only").jobs("jobs: {tick: {schedule: '* * * * * *', command: 'true'}}");
    std::fs::remove_dir(spec.runtime_dir()).unwrap();
    let a = spec.start();
    // Each run changes the status, and each change is another try.
    await_starts(&a, "tick", 3);
    let failures = a.events().count_where(|event| event.json()["message"].to_string().contains("cannot serve the API"));
    assert_eq!(failures, 1, "{}", a.events().tail());
    std::fs::create_dir(spec.runtime_dir()).unwrap();
    until("it answers", || get(&spec, "/healthz").is_some());
}

#[test]
fn nodes_of_different_state_directories_do_not_know_each_other() {
    let (one, two) = (node("one"), node("two"));
    let (a, b) = (leading(&one), leading(&two));
    for (spec, own) in [(&one, &a), (&two, &b)] {
        until("the queue is shown", || status(spec)["queue"].as_array().unwrap().len() == 1);
        let shown = status(spec);
        assert_eq!((&shown["state"], &shown["node"]), (&"leading".into(), &own.name().into()));
        assert_eq!(shown["members"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn a_living_nodes_name_is_not_given_twice() {
    let spec = node("only");
    let _a = leading(&spec);
    let twin = spec.start();
    assert_eq!(twin.wait_exit(LONG).code(), Some(78));
    let log = twin.events().tail();
    assert!(log.contains("is already in use"), "{log}");
}
