//! Processes that jobs leave behind, fork without end, or hide.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use crate::solo::fixture::{PROGRAM, leading, node, warden_of};
use crate::support::process::Process;
use crate::support::scratch::Scratch;
use crate::support::{Facility, LONG, skipped, until};

use super::{Trial, is_root, job, sh};

/// The number of processes that the run left behind.
fn leftovers(trial: &Trial) -> Option<i64> {
    trial.end.number("leftovers")
}

#[test]
fn a_daemon_that_a_job_leaves_behind_is_killed_and_counted() {
    let trial = Trial::of(&format!(
        "{}\noverlap: skip",
        sh("(setsid sh -c 'sleep 1000 & sleep 1000 & echo up; wait' </dev/null 2>&1 &) | read up; echo done")
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
fn a_run_ends_with_its_main_process_even_if_another_one_still_writes() {
    let writes = "exec 4>&1; (echo x >&4; echo up; exec >&4; while :; do echo x; done &) | read up; exit 0";
    let trial = Trial::of(&sh(writes));
    assert_eq!(trial.outcome(), ("success", Some(0)));
    assert_eq!(leftovers(&trial), Some(1));
    assert!(trial.lines().iter().any(|line| line == "x"));
}

#[test]
fn a_run_ends_with_its_main_process_even_if_another_one_holds_the_pipe() {
    let trial = Trial::of(&sh("sleep 1000 & echo done"));
    assert_eq!((trial.outcome(), leftovers(&trial)), (("success", Some(0)), Some(1)));
    assert_eq!(trial.lines(), ["done"]);
}

#[test]
fn all_generations_of_a_jobs_processes_are_killed() {
    // Each generation starts two of the next; when the job ends, all of them must be killed.
    let breed = r#"breed() { [ $1 = 0 ] && { echo up; exec sleep 1000; }; breed $(($1 - 1)) & breed $(($1 - 1)) & wait; }
        (breed 4 &) | head -n 16 >/dev/null"#;
    let trial = Trial::of(&sh(breed));
    assert_eq!(trial.outcome(), ("success", Some(0)));
    assert!(leftovers(&trial).unwrap() >= 16, "{:?}", leftovers(&trial));
}

#[test]
fn zombies_of_jobs_are_reaped() {
    let trial = Trial::of(&sh("for i in 1 2 3 4 5; do (sleep 0.01 & exec sleep 0.1) & done; exec sleep 0.3"));
    let warden = crate::solo::fixture::warden_of(&trial.node);
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

#[test]
fn a_job_that_forks_past_its_limit_fails_and_leaves_nothing() {
    if !is_root() {
        return;
    }
    // Without a controller, the limit counts all processes of the user: use one that no other test uses.
    let trial = Trial::of(&format!(
        "{}\nuser: games\nlimits: {{processes: 8}}",
        sh("for i in $(seq 20); do sleep 1000 & done")
    ));
    assert_eq!(trial.outcome(), ("failure", Some(2)));
    assert!(trial.lines().iter().any(|line| line.contains("fork")), "{:?}", trial.lines());
    assert!((5..8).contains(&leftovers(&trial).unwrap()), "{:?}", leftovers(&trial));
}

#[test]
fn a_tree_that_ignores_sigterm_is_killed_whole() {
    let tree = r#"trap "" TERM; for i in 1 2 3; do setsid sh -c 'trap "" TERM; sleep 1000 & wait; sleep 1000' & done; wait; wait; sleep 1000"#;
    let trial = Trial::of(&format!("{}\ntimeout: 500ms\nkill_grace: 300ms", sh(tree)));
    assert_eq!((trial.end.text("outcome"), trial.end.number("signal")), ("timeout", Some(9)));
}

#[test]
fn processes_without_a_mark_of_their_run_die_too_when_the_warden_is_killed() {
    let dir = Scratch::new("forgets");
    let pid = dir.path().join("pid");
    let forgets = format!(
        "(setsid env -i sleep 1000 >/dev/null 2>&1 & echo $! >{0}.new; mv {0}.new {0}); sleep 1000",
        pid.display()
    );
    let node = leading(&node("torture").jobs(&job(&sh(&forgets))));
    until("it runs", || pid.exists());
    let pid: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let alive = || std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep"));
    until("it is itself", alive);
    kill_process(Pid::from_raw(warden_of(&node).cast_signed()).unwrap(), Signal::KILL).unwrap();
    node.wait_exit(LONG);
    until("it is dead", || !alive());
}

/// As pid 1 of a container, cronkeeper is the parent of all orphans.
#[test]
fn as_pid_1_it_reaps_orphans_but_not_its_own_children() {
    let namespace = ["--pid", "--fork", "--kill-child", "--mount-proc", "true"];
    if !Command::new("unshare").args(namespace).status().is_ok_and(|status| status.success()) {
        return skipped(Facility::Namespaces, "no pid namespace can be had");
    }
    let init = Init::start();
    for _ in 0..20 {
        assert!(init.enter("(sleep 0.05 &); exit 0").success());
    }
    until("the orphans are reaped", || init.children().len() == 1);
    // It can still wait for its own child: it ends in an orderly way.
    assert!(init.enter("kill -TERM 1").success());
    assert_eq!(init.end(), Some(0));
}

struct Init {
    unshare: Process,
    _dir: Scratch,
}

impl Init {
    fn start() -> Self {
        let dir = Scratch::new("init");
        let jobs = dir.write("jobs.yaml", &job(&sh("(setsid sleep 0.1 &); exit 0")));
        let mut unshare = Process::spawn("unshare", |command| {
            command.args(["--pid", "--fork", "--kill-child", "--mount-proc", PROGRAM, "run", "--jobs"]).arg(jobs);
            // The environment of the tests must not affect it.
            for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("CRONKEEPER_")) {
                command.env_remove(key);
            }
            command.args(["--log-format", "json"]);
            command.arg("--state-dir").arg(dir.path().join("state")).stderr(Stdio::piped());
        })
        .unwrap();
        let log = BufReader::new(unshare.take(|child| child.stderr.take())).lines();
        let (sender, finished) = mpsc::channel();
        // To its end, so that the daemon can always write.
        std::thread::spawn(move || {
            let ends = log.map_while(Result::ok).filter(|line| line.contains(r#""event":"run.finished""#));
            ends.for_each(|end| drop(sender.send(end)));
        });
        finished.recv_timeout(LONG).expect("a job ends");
        Self { unshare, _dir: dir }
    }

    /// The pid of the daemon in this namespace.
    fn pid(&self) -> u32 {
        self.children_of(self.unshare.pid())[0]
    }

    /// The children of the daemon, zombies included.
    fn children(&self) -> Vec<u32> {
        self.children_of(self.pid())
    }

    fn children_of(&self, pid: u32) -> Vec<u32> {
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    fn enter(&self, script: &str) -> ExitStatus {
        let pid = self.pid().to_string();
        Command::new("nsenter").args(["--target", &pid, "--pid", "--mount", "sh", "-c", script]).status().unwrap()
    }

    fn end(&self) -> Option<i32> {
        self.unshare.wait_exit(LONG).expect("it ends").code()
    }
}
