//! What jobs do with their processes.

use crate::support::until;

use super::{Trial, sh};

/// How many it left behind.
fn leftovers(trial: &Trial) -> Option<i64> {
    trial.end.number("leftovers")
}

#[test]
fn a_daemon_that_a_job_leaves_behind_is_killed_and_counted() {
    let trial = Trial::of(&format!(
        "{}\noverlap: skip",
        sh("(setsid sh -c 'sleep 1000 & sleep 1000' </dev/null >/dev/null 2>&1 &); sleep 0.2; echo done")
    ));
    assert_eq!(trial.outcome(), ("success", Some(0)));
    assert_eq!(leftovers(&trial), Some(3), "the shell and its two");
    let of_run = format!("CRONKEEPER_RUN_ID={}", trial.run());
    let is_of_run = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|env| env.split(|&b| b == 0).any(|v| v == of_run.as_bytes()))
    };
    assert_eq!(trial.node.job_processes().iter().filter(|pid| is_of_run(pid)).count(), 0);
}

#[test]
fn a_job_that_closes_its_output_goes_on() {
    let trial = Trial::of(&sh("exec >&- 2>&-; sleep 0.5; exit 5"));
    assert_eq!(trial.outcome(), ("failure", Some(5)));
    assert!(trial.end.number("duration_ms").unwrap() >= 500);
}

#[test]
fn a_run_ends_with_its_main_process_whoever_still_writes() {
    let trial = Trial::of(&sh("(while :; do echo x; done) & sleep 0.2; exit 0"));
    assert_eq!(trial.outcome(), ("success", Some(0)));
    assert_eq!(leftovers(&trial), Some(1));
    assert!(trial.lines().iter().any(|line| line == "x"));
}

#[test]
fn a_run_ends_with_its_main_process_whoever_holds_the_pipe() {
    let trial = Trial::of(&sh("sleep 1000 & echo done"));
    assert_eq!((trial.outcome(), leftovers(&trial)), (("success", Some(0)), Some(1)));
    assert_eq!(trial.lines(), ["done"]);
}

#[test]
fn a_job_that_breeds_is_ended_whole() {
    // Each generation starts two of the next; its end is the end of all of them.
    let breed = r#"breed() { [ $1 = 0 ] && exec sleep 1000; breed $(($1 - 1)) & breed $(($1 - 1)) & wait; }; breed 4 & sleep 0.5"#;
    let trial = Trial::of(&sh(breed));
    assert_eq!(trial.outcome(), ("success", Some(0)));
    assert!(leftovers(&trial).unwrap() >= 16, "{:?}", leftovers(&trial));
}

#[test]
fn zombies_of_jobs_are_reaped() {
    let trial = Trial::of(&sh("for i in 1 2 3 4 5; do (sleep 0.01 & exec sleep 0.1) & done; exec sleep 0.3"));
    let warden = crate::solo::rig::warden_of(&trial.node);
    let is_zombie_below = |stat: &str| {
        let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        fields.first() == Some(&"Z") && fields.get(1) == Some(&warden.to_string().as_str())
    };
    until("no zombie of the warden's is left", || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        !stats.into_iter().any(|stat| is_zombie_below(&stat))
    });
}
