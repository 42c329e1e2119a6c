//! Hooks with real processes: their environment, and that no hook can harm runs or other hooks.

use rustix::process::{Pid, Signal, kill_process};

use crate::support::node::{Event, Node};
use crate::support::scratch::Scratch;
use crate::support::{LONG, until};

use super::fixture::{Gate, PROGRAM, await_end, await_start, await_starts, following, leading, node, of, warden_of};

/// A job that is due every second.
fn job(name: &str, command: &str, more: &str) -> String {
    format!("jobs: {{{name}: {{schedule: '* * * * * *', command: {command:?}, {more}}}}}")
}

/// Waits for the end of a hook of a run.
fn await_hook(node: &Node, hook: &str, run: &str) -> Event {
    node.await_where("hook.finished", 2 * LONG, |event| event.text("hook") == hook && event.text("run") == run)
}

/// The lines that a hook of a run wrote until it ended, in order.
fn written(node: &Node, hook: &str, run: &str) -> Vec<String> {
    let lines = node.events().named("run.output");
    let own = lines.iter().filter(|event| event.text("stream") == hook && event.text("run") == run);
    own.map(|event| event.text("line").to_owned()).collect()
}

#[test]
fn a_hook_finds_the_facts_of_the_run_and_the_end_of_its_output() {
    // When a hook calls cronkeeper, these variables must not be rejected as unknown settings.
    let known = format!("{PROGRAM} next --schedule @daily -n1 > /dev/null && echo known");
    let hook = format!(r#"env | grep ^CRONKEEPER_ | sort; echo "in $PWD for $TARGET"; {known}; cat"#);
    let more = format!("environment: {{TARGET: ops}}, working_directory: /tmp, on_failure: {hook:?}");
    let a = leading(&node("only").jobs(&job("facts", "echo one; echo two >&2; exit 3", &more)));
    let run = await_start(&a, 0, "facts");
    let started = a.await_where("run.started", LONG, |event| event.text("run") == run);
    let ended = await_end(&a, &run);
    let finished = await_hook(&a, "on_failure", &run);
    assert_eq!((finished.text("job"), finished.text("outcome")), ("facts", "success"));
    let number = |name: &str, event: &Event, field: &str| format!("CRONKEEPER_{name}={}", event.number(field).unwrap());
    let expected = [
        "CRONKEEPER_ATTEMPT=1".to_owned(),
        number("DURATION_MS", &ended, "duration_ms"),
        "CRONKEEPER_EXIT_CODE=3".to_owned(),
        number("FENCING_TOKEN", &started, "token"),
        "CRONKEEPER_HOOK=on_failure".to_owned(),
        "CRONKEEPER_JOB=facts".to_owned(),
        format!("CRONKEEPER_NODE={}", a.name()),
        "CRONKEEPER_OUTCOME=failure".to_owned(),
        "CRONKEEPER_REASON=".to_owned(),
        format!("CRONKEEPER_RUN_ID={run}"),
        format!("CRONKEEPER_RUN_NODE={}", a.name()),
        format!("CRONKEEPER_SCHEDULED_AT={}", started.text("scheduled_at")),
        "CRONKEEPER_UNUSABLE_FILES=".to_owned(),
        "in /tmp for ops".to_owned(),
        "known".to_owned(),
    ];
    let lines = written(&a, "on_failure", &run);
    assert_eq!(lines[..expected.len()], expected);
    let mut tail = lines[expected.len()..].to_vec();
    tail.sort();
    assert_eq!(tail, ["one", "two"]);
}

#[test]
fn the_hook_of_the_start_runs_once_over_all_attempts_and_before_those_of_the_end() {
    let start = r#"sleep 0.3; env | grep ^CRONKEEPER_ | sort"#;
    let more = format!(
        "retries: {{limit: 2, delay: 100ms, backoff: 1}}, on_start: {start:?}, on_success: 'echo ended', overlap: allow"
    );
    let command = "echo attempt; [ $CRONKEEPER_ATTEMPT = 3 ]";
    let a = leading(&node("only").jobs(&job("slow", command, &more)));
    let run = await_start(&a, 0, "slow");
    let started = a.await_where("run.started", LONG, |event| event.text("run") == run);
    assert_eq!(await_hook(&a, "on_success", &run).text("outcome"), "success");
    let expected = [
        "CRONKEEPER_ATTEMPT=1".to_owned(),
        "CRONKEEPER_DURATION_MS=".to_owned(),
        "CRONKEEPER_EXIT_CODE=".to_owned(),
        format!("CRONKEEPER_FENCING_TOKEN={}", started.number("token").unwrap()),
        "CRONKEEPER_HOOK=on_start".to_owned(),
        "CRONKEEPER_JOB=slow".to_owned(),
        format!("CRONKEEPER_NODE={}", a.name()),
        "CRONKEEPER_OUTCOME=".to_owned(),
        "CRONKEEPER_REASON=".to_owned(),
        format!("CRONKEEPER_RUN_ID={run}"),
        format!("CRONKEEPER_RUN_NODE={}", a.name()),
        format!("CRONKEEPER_SCHEDULED_AT={}", started.text("scheduled_at")),
        "CRONKEEPER_UNUSABLE_FILES=".to_owned(),
    ];
    assert_eq!(written(&a, "on_start", &run), expected);
    let finished = a.events().named("hook.finished");
    let own = finished.iter().filter(|event| event.text("run") == run).map(|event| event.text("hook"));
    assert_eq!(own.collect::<Vec<_>>(), ["on_start", "on_success"]);
}

/// A job that fails until the file exists.
fn until_there(file: &std::path::Path, more: &str) -> String {
    job("flaky", &format!("[ -e {} ]", file.display()), more)
}

#[test]
fn recovery_is_the_first_success_after_a_failure_and_no_other() {
    let folder = Scratch::new("flag");
    let flag = folder.path().join("flag");
    let hooks = "on_failure: 'true', on_success: 'true', on_recovery: 'true'";
    let a = leading(&node("only").jobs(&until_there(&flag, hooks)));
    a.await_where("hook.finished", LONG, |event| event.text("hook") == "on_failure");
    std::fs::write(&flag, "").unwrap();
    let recovered = a.await_where("hook.finished", LONG, |event| event.text("hook") == "on_recovery");
    let first = a.await_where("run.finished", LONG, |event| event.text("outcome") == "success");
    assert_eq!(recovered.text("run"), first.text("run"));
    for _ in 0..2 {
        let run = await_start(&a, a.events().len(), "flaky");
        await_hook(&a, "on_success", &run);
    }
    let hooks = a.events().named("hook.finished");
    assert_eq!(hooks.iter().filter(|event| event.text("hook") == "on_recovery").count(), 1, "{hooks:?}");
}

#[test]
fn a_new_leader_knows_of_the_failure_before_it() {
    let folder = Scratch::new("flag");
    let flag = folder.path().join("flag");
    let first = node("first").jobs(&until_there(&flag, "on_recovery: 'true'"));
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    await_end(&a, &await_start(&a, 0, "flaky"));
    std::fs::write(&flag, "").unwrap();
    a.kill9();
    b.await_where("hook.finished", LONG, |event| event.text("hook") == "on_recovery");
}

#[test]
fn a_leader_that_settles_what_its_predecessor_left_runs_the_hook_once() {
    let gate = Gate::new();
    let hook = r#"echo "$CRONKEEPER_OUTCOME $CRONKEEPER_REASON on $CRONKEEPER_RUN_NODE""#;
    let first = node("first").jobs(&job("long", &gate.command(), &format!("on_failure: {hook:?}")));
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let run = await_start(&a, 0, "long");
    a.kill9();
    assert_eq!(await_hook(&b, "on_failure", &run).text("outcome"), "success");
    assert_eq!(written(&b, "on_failure", &run), [format!("interrupted node-died on {}", a.name())]);
    await_start(&b, 0, "long");
    let own = b.events().named("hook.finished");
    assert_eq!(own.iter().filter(|event| event.text("run") == run).count(), 1);
    gate.open();
}

#[test]
fn a_hook_that_hangs_is_ended_in_its_time_and_delays_no_run() {
    let folder = Scratch::new("once");
    // Fails once.
    let command = format!("if mkdir {}; then exit 1; fi", folder.path().join("done").display());
    let hook = "echo hanging; sleep 1000 & wait";
    let a = leading(&node("only").jobs(&job("once", &command, &format!("on_failure: {hook:?}, kill_grace: 1s"))));
    let run = await_start(&a, 0, "once");
    let hanging = |event: &Event| event.text("stream") == "on_failure" && event.text("line") == "hanging";
    a.await_where("run.output", LONG, hanging);
    await_starts(&a, "once", 3);
    assert!(a.events().named("hook.finished").is_empty());
    let finished = await_hook(&a, "on_failure", &run);
    assert_eq!((finished.text("outcome"), finished.text("level")), ("timeout", "WARN"));
    let (skipped, ended) = (a.events().named("run.skipped"), a.events().named("run.finished"));
    // On a loaded machine a run itself takes longer than the second until the next.
    let begun = a.events().named("run.started");
    let overlaps = |skip: &Event| {
        let due = skip.text("scheduled_at").trim_end_matches('Z').to_owned();
        let had_ended = |run: &str| ended.iter().any(|end| end.text("run") == run && end.text("timestamp") < &*due);
        begun.iter().any(|start| start.text("run") < skip.text("run") && !had_ended(start.text("run")))
    };
    let mut by_overlap = skipped.iter().filter(|event| event.text("reason") == "overlap");
    assert!(by_overlap.all(overlaps), "{skipped:?}");
}

#[test]
fn a_hook_that_fails_or_does_not_exist_is_reported_and_harms_nothing() {
    let hooks = "on_success: 'exit 7', on_missed: 'true', on_failure: [/no/such/program]";
    let a = leading(&node("only").jobs(&job("fine", "true", hooks)));
    let run = await_start(&a, 0, "fine");
    let finished = await_hook(&a, "on_success", &run);
    assert_eq!(finished.text("outcome"), "failure");
    assert!(finished.text("message").contains("exit code 7"), "{finished:?}");

    a.spec().write_jobs(&job("broken", "exit 1", "on_failure: [/no/such/program]"));
    a.signal(Signal::HUP);
    let run = await_start(&a, 0, "broken");
    let finished = await_hook(&a, "on_failure", &run);
    assert_eq!(finished.text("outcome"), "failure");
    assert_eq!(finished.text("detail"), "/no/such/program: No such file or directory");
    assert!(finished.text("message").ends_with(finished.text("detail")), "{finished:?}");
    await_starts(&a, "broken", 2);
    assert_eq!(await_end(&a, &run).number("exit_code"), Some(1));
}

#[test]
fn what_was_missed_is_reported_once_with_its_count() {
    let known = format!("{PROGRAM} next --schedule @daily -n1 > /dev/null");
    let said = "$CRONKEEPER_COUNT $CRONKEEPER_REASON from $CRONKEEPER_FIRST to $CRONKEEPER_LAST";
    let hook = format!(r#"{known} && echo "{said}""#);
    let spec = node("only").jobs(&job("tick", "true", &format!("misfire: skip, on_missed: {hook:?}")));
    let a = leading(&spec);
    await_start(&a, 0, "tick");
    a.kill9();
    drop(a);
    // Lets time pass: a job of another node counts the seconds.
    let other = leading(&node("clock").jobs(&job("tick", "true", "")));
    await_starts(&other, "tick", 4);
    let again = leading(&spec);
    let skipped = again.await_where("run.skipped", LONG, of("tick"));
    let run = skipped.text("run").to_owned();
    await_hook(&again, "on_missed", &run);
    let expected = format!(
        "{} missed from {} to {}",
        skipped.number("count").unwrap(),
        skipped.text("first"),
        skipped.text("last")
    );
    assert_eq!(written(&again, "on_missed", &run), [expected]);
}

#[test]
fn a_node_that_drains_waits_for_its_hooks_and_a_second_signal_does_not() {
    let gate = Gate::new();
    let jobs = job("brief", "exit 1", &format!("on_failure: {:?}", gate.command()));
    for is_ended_at_once in [false, true] {
        let a = leading(&node("only").jobs(&jobs).option("--drain-timeout", "10m"));
        let run = await_start(&a, 0, "brief");
        await_end(&a, &run);
        until("a hook runs", || !a.job_processes().is_empty());
        a.signal(Signal::TERM);
        a.await_event("leader.resigned", LONG);
        assert!(a.events().named("node.stopped").is_empty());
        if is_ended_at_once {
            a.signal(Signal::TERM);
        } else {
            gate.open();
        }
        let outcome = if is_ended_at_once { "killed" } else { "success" };
        assert_eq!(await_hook(&a, "on_failure", &run).text("outcome"), outcome);
        assert_eq!(a.wait_exit(LONG).code(), Some(0));
        assert_eq!(a.job_processes(), Vec::<u32>::new());
        gate.close();
    }
}

#[test]
fn hooks_die_with_the_daemon_and_with_the_warden() {
    for of_warden in [false, true] {
        assert_hooks_die(of_warden);
    }
}

fn assert_hooks_die(of_warden: bool) {
    let a = leading(&node("only").jobs(&job("brief", "exit 1", "on_failure: 'setsid sleep 1000 & sleep 1000'")));
    let is_hook = |event: &Event| event.text("outcome") == "failure";
    a.await_where("run.finished", LONG, is_hook);
    until("its tree stands", || a.job_processes().len() >= 3);
    if of_warden {
        kill_process(Pid::from_raw(warden_of(&a).cast_signed()).unwrap(), Signal::KILL).unwrap();
        assert_eq!(a.wait_exit(LONG).code(), Some(1));
    } else {
        a.kill9();
    }
    assert_eq!(a.await_no_job_processes(LONG), Vec::<u32>::new());
}

#[test]
fn a_hook_that_writes_without_end_is_logged_only_so_far() {
    // The lines are long, because the log may drop short ones if it is read slowly.
    let hook = format!("yes {} | head -c 300000; echo done >&2", "y".repeat(99));
    let a = leading(&node("only").jobs(&job("loud", "true", &format!("on_success: {hook:?}"))));
    let run = await_start(&a, 0, "loud");
    assert_eq!(await_hook(&a, "on_success", &run).text("outcome"), "success");
    let bytes: usize = written(&a, "on_success", &run).iter().map(|line| line.len() + 1).sum();
    assert!((60_000..70_000).contains(&bytes), "{bytes}");
}
