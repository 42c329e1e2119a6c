//! `overlap: queue` and `replace`: runs that wait for the job's earlier run, and runs that replace it.

use crate::support::LONG;
use crate::support::witness::Witness;

use super::fixture::{Gate, await_end, await_run, await_start, following, leading, node, of};

#[test]
fn what_waits_when_the_leader_drains_is_begun_by_the_next_after_the_end_of_the_other() {
    let (gate, witness) = (Gate::new(), Witness::new());
    let command = witness.command(&["sh", "-c", &gate.command()]);
    let first = node("first")
        .option("--drain-timeout", "2m")
        .jobs(&format!("jobs: {{load: {{schedule: '* * * * * *', command: {command}, overlap: queue}}}}"));
    let a = leading(&first);
    let second = node("second").beside(&first);
    let b = following(&second);
    let older = await_start(&a, 0, "load");
    // From the next second on one run waits, and further ones are skipped.
    let skipped = a.await_where("run.skipped", LONG, of("load")).text("run").to_owned();
    a.signal(rustix::process::Signal::TERM);
    b.await_event("takeover.done", LONG);
    b.await_where("run.skipped", LONG, of("load"));
    assert!(b.events().named("run.started").is_empty(), "the other runs on the former leader");
    gate.open();
    let waited = await_start(&b, 0, "load");
    assert!(older < waited && waited < skipped, "{older} {waited} {skipped}");
    assert_eq!(await_end(&a, &older).text("outcome"), "success");
    assert_eq!(await_run(&second, &waited)["outcome"], "success");
    a.wait_exit(LONG);
    witness.assert_fine(&[]);
}

#[test]
fn a_newer_run_takes_the_place_of_the_older_one() {
    let witness = Witness::new();
    let command = witness.command(&["sleep", "600"]);
    let spec =
        node("only").jobs(&format!("jobs: {{load: {{schedule: '@every 2s', command: {command}, overlap: replace}}}}"));
    let a = leading(&spec);
    let older = await_start(&a, 0, "load");
    let ended = await_end(&a, &older);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("killed", "replaced"));
    let newer = a.await_where("run.started", LONG, |event| of("load")(event) && event.text("run") > older.as_str());
    assert_eq!(newer.number("attempt"), Some(1));
    witness.assert_fine(&[]);
}

#[test]
fn a_newer_run_takes_the_place_of_one_that_a_former_leader_still_has() {
    let witness = Witness::new();
    let command = witness.command(&["sleep", "600"]);
    let first = node("first")
        .option("--drain-timeout", "2m")
        .jobs(&format!("jobs: {{load: {{schedule: '@every 4s', command: {command}, overlap: replace}}}}"));
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let older = await_start(&a, 0, "load");
    a.signal(rustix::process::Signal::TERM);
    b.await_event("takeover.done", LONG);
    let ended = await_end(&a, &older);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("killed", "replaced"));
    assert!(ended.text("by").contains(b.name()), "{ended:?}");
    assert!(await_start(&b, 0, "load") > older);
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    witness.assert_fine(&[]);
}

#[test]
fn of_a_group_one_runs_at_a_time() {
    let gate = Gate::new();
    let job = |name: &str, command: &str| {
        let group = "concurrency_group: {name: disk, limit: 1}";
        format!("  {name}: {{schedule: '* * * * * *', command: {command:?}, {group}}}\n")
    };
    let spec = node("only").jobs(&format!("jobs:\n{}{}", job("first", &gate.command()), job("then", "true")));
    let a = leading(&spec);
    await_start(&a, 0, "first");
    // A run that waits counts as a run of its job for `overlap`.
    a.await_where("run.skipped", LONG, of("then"));
    let begun = a.events().named("run.started");
    let before = begun.iter().filter(|event| event.text("job") == "then").count();
    let seen = a.events().len();
    gate.open();
    let waited = await_start(&a, seen, "then");
    assert_eq!(await_end(&a, &waited).text("outcome"), "success");
    assert!(before <= 1, "at most one before the other began");
}
