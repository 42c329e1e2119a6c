//! The environment of a job, and the errors when it cannot be started.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use crate::solo::fixture::node;
use crate::support::scratch::Scratch;
use crate::support::{Facility, LONG, skipped};

use super::{Trial, is_root, sh};

#[test]
fn a_job_sees_its_own_environment_and_nothing_of_the_daemons() {
    let spec = node("torture").env("SECRET", "of the daemon").env("LD_LIBRARY_PATH", "/nowhere");
    let trial =
        Trial::on(spec, "command: [env]\nenvironment: {TARGET: 's3://bucket', LANG: de_DE.UTF-8, EMPTY: '', N: 1}");
    let lines = trial.lines();
    let mut found: BTreeMap<&str, &str> = lines.iter().map(|line| line.split_once('=').unwrap()).collect();
    assert_eq!(found.len(), lines.len());
    let at = trial.node.events().named("run.started")[0].text("scheduled_at").to_owned();
    let token = trial.node.events().named("leader.elected")[0].number("token").unwrap().to_string();
    for name in ["HOME", "USER", "LOGNAME"] {
        assert!(!found.remove(name).unwrap().is_empty());
    }
    let expected = BTreeMap::from([
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("SHELL", "/bin/sh"),
        ("LANG", "de_DE.UTF-8"),
        ("TARGET", "s3://bucket"),
        ("EMPTY", ""),
        ("N", "1"),
        ("CRONKEEPER_JOB", "trial"),
        ("CRONKEEPER_RUN_ID", trial.run()),
        ("CRONKEEPER_SCHEDULED_AT", at.as_str()),
        ("CRONKEEPER_ATTEMPT", "1"),
        ("CRONKEEPER_NODE", trial.node.name()),
        ("CRONKEEPER_FENCING_TOKEN", token.as_str()),
    ]);
    assert_eq!(found, expected);
}

#[test]
fn a_job_has_no_input_no_terminal_and_no_foreign_descriptors() {
    let lines = Trial::of(&sh("readlink /proc/$$/fd/0; cat; cut -d' ' -f6,7 /proc/$$/stat; echo $$")).lines();
    assert_eq!(lines[0], "/dev/null");
    assert_eq!(lines[1], format!("{} 0", lines[2]), "leader of its own session, without a terminal");
    // The fourth descriptor belongs to the listing itself.
    assert_eq!(Trial::of("command: [ls, /proc/self/fd]").lines(), ["0", "1", "2", "3"]);
}

#[test]
fn a_job_starts_with_no_signal_blocked_or_ignored() {
    // Not the mask of a shell: some shells block signals while they wait.
    let trial = Trial::of("command: [grep, -E, '^Sig(Blk|Ign)', /proc/self/status]");
    // 32 and 33 belong to the C library, and no program can change them.
    const OWN: u64 = 0b11 << 31;
    let masks =
        trial.lines().into_iter().map(|line| u64::from_str_radix(line.split_once('\t').unwrap().1, 16).unwrap());
    assert_eq!(masks.map(|mask| mask & !OWN).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn the_directory_is_the_one_named_else_home() {
    let dir = Scratch::new("directory");
    let path = dir.path().display().to_string();
    assert_eq!(Trial::of(&format!("command: [pwd]\nworking_directory: {path}")).lines(), [path]);
    let home = Trial::of(&sh("pwd -P; cd ~ && pwd -P")).lines();
    assert_eq!(home[0], home[1]);
}

#[test]
fn the_reason_names_a_missing_directory() {
    let trial = Trial::of("command: [pwd]\nworking_directory: /no/such/directory");
    assert_eq!(trial.failure(), ("failure", "no-directory"));
    assert_eq!(trial.record()["reason"], "no-directory");
    assert_eq!(trial.record()["detail"], "working directory /no/such/directory: No such file or directory");
    assert!(trial.node.events().named("run.started").is_empty());
}

#[test]
fn the_shell_is_the_one_named_and_a_missing_one_is_named_too() {
    let command = "command: 'echo ${BASH_VERSION:+bash} $SHELL; false | true; echo $?'";
    assert_eq!(Trial::of(&format!("{command}\nshell: /bin/bash")).lines(), ["bash /bin/bash", "0"]);
    let strict = Trial::of("command: 'false | true; echo never'\nshell: [/bin/bash, -euo, pipefail, -c]");
    assert_eq!((strict.failure().0, strict.lines()), ("failure", vec![]));
    let missing = Trial::of("command: 'true'\nshell: /no/such/shell");
    assert_eq!(missing.failure(), ("failure", "not-found"));
    assert_eq!(missing.record()["detail"], "/no/such/shell: No such file or directory");
}

#[test]
fn the_umask_is_the_one_named_else_022() {
    assert_eq!(Trial::of(&format!("{}\numask: '027'", sh("umask"))).lines(), ["0027"]);
    assert_eq!(Trial::of(&sh("umask")).lines(), ["0022"]);
}

#[test]
fn the_reason_names_a_program_that_is_missing_or_not_executable() {
    assert_eq!(Trial::of("command: [no-such-program]").failure(), ("failure", "not-found"));
    let trial = Trial::of("command: [/no/such/program]");
    assert_eq!(trial.failure(), ("failure", "not-found"));
    assert_eq!(trial.record()["detail"], "/no/such/program: No such file or directory");
    let not_started = trial.node.await_event("run.not_started", LONG);
    assert_eq!((not_started.text("step"), not_started.text("path")), ("exec", "/no/such/program"));
    let dir = Scratch::new("program");
    let text = dir.write("text", "no program");
    std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(Trial::of(&format!("command: ['{}']", text.display())).failure(), ("failure", "not-executable"));
    assert_eq!(Trial::of(&format!("command: ['{}']", dir.path().display())).failure(), ("failure", "not-executable"));
}

#[test]
fn exit_codes_126_and_127_of_a_shell_are_plain_failures() {
    assert_eq!(Trial::of(&sh("no-such-program")).outcome(), ("failure", Some(127)));
}

#[test]
fn an_argv_is_not_given_to_a_shell_and_a_string_is() {
    assert_eq!(Trial::of("command: [echo, '$HOME', 'a  b', '*']").lines(), ["$HOME a  b *"]);
    assert_eq!(Trial::of(&sh("X='a  b'; echo $X | tr a-z A-Z")).lines(), ["A B"]);
}

#[test]
fn a_program_is_searched_in_the_jobs_own_path() {
    let dir = Scratch::new("path");
    dir.program("greet", "#!/bin/sh\necho hello\n");
    let path = dir.path().display();
    assert_eq!(Trial::of(&format!("command: [greet]\nenvironment: {{PATH: '{path}'}}")).lines(), ["hello"]);
}

#[test]
fn the_job_defines_which_exit_codes_are_success() {
    let exits = |code: u8| format!("{}\nsuccess_exit_codes: [0, 3]", sh(&format!("exit {code}")));
    assert_eq!(Trial::of(&exits(3)).outcome(), ("success", Some(3)));
    assert_eq!(Trial::of(&exits(4)).outcome(), ("failure", Some(4)));
}

#[test]
fn a_job_killed_by_a_signal_fails_with_it() {
    let trial = Trial::of(&sh("kill -SEGV $$"));
    assert_eq!((trial.end.text("outcome"), trial.end.number("signal")), ("failure", Some(11)));
}

#[test]
fn a_script_without_a_shebang_is_run_by_the_shell_as_under_cron() {
    let dir = Scratch::new("script");
    let script = dir.program("script", "echo \"$0 $1\"; exit 6\n");
    let script = script.display();
    let trial = Trial::of(&format!("command: ['{script}', one]"));
    assert_eq!((trial.outcome(), trial.lines()), (("failure", Some(6)), vec![format!("{script} one")]));
}

#[test]
fn a_program_whose_interpreter_is_missing_is_not_found() {
    let dir = Scratch::new("interpreter");
    let script = dir.program("script", "#!/no/such/interpreter\n");
    assert_eq!(Trial::of(&format!("command: ['{}']", script.display())).failure(), ("failure", "not-found"));
}

#[test]
fn a_job_of_a_user_finds_that_users_groups_and_home() {
    if !is_root() {
        return;
    }
    let keys = "command: 'id -un; id -gn; echo $USER $LOGNAME $HOME; pwd'\nuser: nobody\ngroup: daemon";
    let trial = Trial::of(keys);
    // This user's home does not exist.
    assert_eq!(trial.lines(), ["nobody", "daemon", "nobody nobody /nonexistent", "/"]);
    assert_eq!(trial.outcome(), ("success", Some(0)));
}

#[test]
fn the_reason_names_a_missing_user() {
    if !is_root() {
        return;
    }
    for key in ["user: no-such-user", "group: no-such-group"] {
        let trial = Trial::of(&format!("command: id\n{key}"));
        assert_eq!(trial.failure(), ("failure", "no-user"));
        assert!(trial.record()["detail"].as_str().unwrap().contains("`no-such-"), "{}", trial.record());
        assert!(trial.node.events().named("run.started").is_empty());
    }
}

#[test]
fn the_reason_names_a_core_dump() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with(['|', '/', '\n']) {
        return skipped(Facility::Kernel, &format!("cores of this machine go to {pattern}"));
    }
    let dir = Scratch::new("core");
    let keys = format!("{}\nworking_directory: {}", sh("ulimit -c unlimited && kill -SEGV $$"), dir.path().display());
    let trial = Trial::of(&keys);
    assert_eq!((trial.failure(), trial.end.number("signal")), (("failure", "core-dump"), Some(11)));
}

#[test]
fn limits_are_those_of_the_job() {
    let keys = "limits: {open_files: 100, cpu_time: 1h}\nnice: 19";
    assert_eq!(Trial::of(&format!("{}\n{keys}", sh("ulimit -n; ulimit -t; nice"))).lines(), ["100", "3600", "19"]);
}
