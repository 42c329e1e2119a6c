//! Tests of accepted values and of the messages for others.

use std::time::Duration;

use super::*;
use cronkeeper_core::job::{
    CommandLine, Group, Interrupted, Limits, Misfire, OnLeaseEnd, Overlap, Retries, RunAs, RunOn, Splay,
};

#[test]
fn parameters_are_names_of_variables_that_a_trigger_may_set() {
    let of = |keys: &str| job(&format!("jobs: {{a: {{schedule: '@daily', command: x, {keys}}}}}")).parameters;
    assert_eq!(of("parameters: [DAY, HOST, DAY]"), ["DAY".to_owned(), "HOST".to_owned()].into());
    assert_eq!((of("parameters: DAY"), of("parameters: null")), (["DAY".to_owned()].into(), Default::default()));
    let many = (0..17).map(|number| format!("V{number}")).collect::<Vec<_>>().join(", ");
    for (value, why) in [
        (
            "[LD_PRELOAD]".to_owned(),
            "`LD_PRELOAD` cannot be a parameter: anyone who sets it decides what the job runs; use another name, and set \
             `LD_PRELOAD` in the job's command",
        ),
        (
            "CRONKEEPER_JOB".to_owned(),
            "`CRONKEEPER_JOB` cannot be a parameter: anyone who sets it decides what the job runs; use another name, and \
             set `CRONKEEPER_JOB` in the job's command",
        ),
        (
            "[DAY, BASH_ENV]".to_owned(),
            "`BASH_ENV` cannot be a parameter: anyone who sets it decides what the job runs; use another name, and set \
             `BASH_ENV` in the job's command",
        ),
        ("[A=hunter2]".to_owned(), "`A=` is not a variable name"),
        (format!("[{many}]"), "a job has at most 16 parameters"),
    ] {
        let said = reported_for_keys(&format!("parameters: {value}"));
        assert!(said.ends_with(&format!("`parameters`: {why}")), "{said}");
    }
}

#[test]
fn the_smallest_job_has_the_documented_defaults() {
    let job = job("jobs:\n  a:\n    schedule: \"0 0 * * *\"\n    command: echo hi\n");
    assert_eq!(job.command, CommandLine::Shell("echo hi".into()));
    assert!(job.enabled && job.environment.is_empty() && job.description.is_none());
    assert_eq!((job.umask, job.timeout, job.kill_grace), (0o022, None, Duration::from_secs(10)));
    assert_eq!(
        (job.overlap, job.misfire, job.misfire_window, job.misfire_limit),
        (Overlap::Skip, Misfire::RunOnce, None, 100)
    );
    assert_eq!((job.interrupted, job.on_lease_end), (Interrupted::Skip, OnLeaseEnd::Keep));
    assert_eq!((job.success_exit_codes.into_iter().collect::<Vec<_>>(), job.max_output), (vec![0], 1 << 20));
    assert_eq!(job.history_limit, 20);
}

#[test]
fn all_keys_are_read() {
    let job = job(r#"
jobs:
  a:
    description: what it is
    schedule: ["0 0 * * *", "@daily"]
    timezone: Europe/Berlin
    dst: twice
    splay: 5m
    command: [/bin/echo, NO, 1.10, 0027, ~, true, "x y"]
    enabled: false
    environment: {COUNTRY: NO, VERSION: 1.10, MODE: 0027, EMPTY: ""}
    working_directory: /var/tmp
    umask: 0027
    timeout: 1h30m
    kill_grace: 500ms
    overlap: allow
    misfire: run-all
    misfire_window: 0s
    misfire_limit: 7
    interrupted: rerun
    success_exit_codes: [0, 3]
    max_output: 64KiB
    history_limit: 1000
"#);
    let argv = ["/bin/echo", "NO", "1.10", "0027", "~", "true", "x y"];
    assert_eq!(job.command, CommandLine::Argv(argv.map(String::from).to_vec()));
    let environment: Vec<_> = job.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(environment, ["COUNTRY=NO", "EMPTY=", "MODE=0027", "VERSION=1.10"]);
    assert_eq!((job.enabled, job.umask, job.timeout), (false, 0o027, Some(Duration::from_secs(5400))));
    assert_eq!(
        (job.kill_grace, job.overlap, job.misfire),
        (Duration::from_millis(500), Overlap::Allow, Misfire::RunAll)
    );
    assert_eq!((job.misfire_window, job.misfire_limit), (Some(Duration::ZERO), 7));
    assert_eq!(job.splay, Splay::new(Duration::from_secs(300), "a"));
    // A run that another node begins again must not continue at the same time.
    assert_eq!((job.interrupted, job.on_lease_end), (Interrupted::Rerun, OnLeaseEnd::Kill));
    assert_eq!((job.success_exit_codes.into_iter().collect::<Vec<_>>(), job.max_output), (vec![0, 3], 64 << 10));
    assert_eq!(job.history_limit, 1_000);
    assert_eq!(job.description.as_deref(), Some("what it is"));
    assert_eq!(job.working_directory.as_deref(), Some(Path::new("/var/tmp")));
}

#[test]
fn names_are_the_text_as_written() {
    let (set, _) =
        parse("j", b"jobs:\n  0027: &j {schedule: \"0 0 * * *\", command: x}\n  NO: *j\n  1.10: *j\n  null: *j\n")
            .unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    assert_eq!(set.jobs.keys().map(JobName::as_str).collect::<Vec<_>>(), ["0027", "1.10", "NO", "null"]);
}

#[test]
fn a_job_overrides_the_defaults() {
    let text = "
defaults: {timeout: 5m, environment: {A: a, B: b}, success_exit_codes: [0, 1], umask: \"077\", misfire: skip}
jobs:
  a:
    schedule: \"0 0 * * *\"
    command: x
    environment: {B: own, C: c}
    success_exit_codes: [2]
    umask: null
    misfire: ~
";
    let own = job(text);
    assert_eq!(own.timeout, Some(Duration::from_secs(300)));
    assert_eq!(own.environment.into_iter().map(|(k, v)| k + &v).collect::<Vec<_>>(), ["Aa", "Bown", "Cc"]);
    assert_eq!(own.success_exit_codes.into_iter().collect::<Vec<_>>(), [2]);
    assert_eq!((own.umask, own.misfire), (0o022, Misfire::RunOnce));
    let own = job(&text.replace("{B: own, C: c}", "").replace("timeout: 5m", "timeout: null"));
    assert!(own.environment.is_empty());
    assert_eq!(own.timeout, None);
}

#[test]
fn a_file_without_jobs_is_valid_but_an_empty_file_is_not() {
    same(&reported("jobs: {}"), "");
    same(&reported("defaults:\njobs: {}\n"), "");
    for empty in ["", "\n\n", "# nothing\n", "---\n", "~", "\u{feff}"] {
        same(&reported(empty), "j:1:1: the file is empty; write `jobs: {}` for no jobs");
    }
    same(&reported("jobs:"), "j:1:1: `jobs` is a map from names to jobs, not nothing; write `jobs: {}` for no jobs");
    same(&reported("defaults: {}"), "j:1:1: `jobs` is missing; write `jobs: {}` for no jobs");
    same(&reported("[a]"), "j:1:1: a jobs file is a map with `jobs` and `defaults`, not a list");
    same(&reported("hello"), "j:1:1: a jobs file is a map with `jobs` and `defaults`, not a text");
    same(
        &reported("jobs: [a]"),
        "j:1:7: `jobs` is a map from names to jobs, not a list; write `NAME:` in place of `- name: NAME`",
    );
}

#[test]
fn wrong_types_are_rejected() {
    for (keys, message) in [
        ("description: [x]", "j:5:18: job `a`: `description` must be a text, not a list"),
        ("timezone: {a: b}", "j:5:15: job `a`: `timezone` must be a text, not a map"),
        (
            "enabled: yes",
            "j:5:14: job `a`: `enabled` must be `true` or `false`, not a text; write `true`, without quotes (in YAML 1.2 only `true` and `false` are booleans)",
        ),
        ("enabled: maybe", "j:5:14: job `a`: `enabled` must be `true` or `false`, not a text"),
        (
            "enabled: \"true\"",
            "j:5:14: job `a`: `enabled` must be `true` or `false`, not a text; write `true`, without quotes (in YAML 1.2 only `true` and `false` are booleans)",
        ),
        (
            "enabled: Off",
            "j:5:14: job `a`: `enabled` must be `true` or `false`, not a text; write `false`, without quotes (in YAML 1.2 only `true` and `false` are booleans)",
        ),
        (
            "enabled: 1",
            "j:5:14: job `a`: `enabled` must be `true` or `false`, not a number; write `true`, without quotes (in YAML 1.2 only `true` and `false` are booleans)",
        ),
        (
            "environment: [A=b]",
            "j:5:18: job `a`: `environment` must be a map of texts, not a list; write `environment: {NAME: value}`",
        ),
        ("environment: {A: [x]}", "j:5:22: job `a`: `environment`: `A` must be a text, not a list"),
        (
            "environment:\n  A:\n  B: ~",
            "j:6:7: job `a`: `environment`: `A` has no value; for an empty one write `\"\"`\nj:7:10: job `a`: `environment`: `B` has no value; for an empty one write `\"\"`",
        ),
        (
            "environment: {=: x, \"\": y, \"a\\0\": z}",
            "j:5:19: job `a`: `environment`: `=` is not a variable name\nj:5:25: job `a`: `environment`: `` is not a variable name\nj:5:32: job `a`: `environment`: `a\\u{0}` is not a variable name",
        ),
        ("misfire_limit: \"5\"", "j:5:20: job `a`: `misfire_limit` must be a whole number, not a text"),
        ("misfire_limit: -5", "j:5:20: job `a`: `misfire_limit` must be a whole number, not a number"),
        (
            "misfire_limit: 0",
            "j:5:20: job `a`: `misfire_limit`: must be at least 1; to run no missed occurrences, write `misfire: skip`",
        ),
        (
            "success_exit_codes: 0",
            "j:5:25: job `a`: `success_exit_codes` must be a list of whole numbers, not a number; write `success_exit_codes: [0]`",
        ),
        ("success_exit_codes: [0, x]", "j:5:29: job `a`: `success_exit_codes` must hold whole numbers, not a text"),
        (
            "success_exit_codes: [0, 256]",
            "j:5:29: job `a`: `success_exit_codes`: 256 is not an exit code: expected 0 to 255",
        ),
        ("success_exit_codes: []", "j:5:25: job `a`: `success_exit_codes`: the list is empty, so no run could succeed"),
        ("timeout: 0s", "j:5:14: job `a`: `timeout`: must be longer than zero"),
        ("kill_grace: 0s", "j:5:17: job `a`: `kill_grace`: must be longer than zero"),
        ("timeout: 90", "j:5:14: job `a`: `timeout`: `90` has no unit: write `90s` for seconds, `90m` for minutes"),
        (
            "history_limit: 4",
            "j:5:20: job `a`: `history_limit`: must be 5 to 1000; older records are in each node's archive",
        ),
        (
            "history_limit: 1001",
            "j:5:20: job `a`: `history_limit`: must be 5 to 1000; older records are in each node's archive",
        ),
        (
            "max_output: 1MB",
            "j:5:17: job `a`: `max_output`: `1MB` has the unknown unit `MB`, did you mean `MiB`; the units are B, KiB, MiB, GiB and TiB",
        ),
        ("umask: 0o27", "j:5:12: job `a`: `umask`: `0o27` is not a umask: expected octal digits from `000` to `777`"),
        (
            "umask: \"1000\"",
            "j:5:12: job `a`: `umask`: `1000` is not a umask: expected octal digits from `000` to `777`",
        ),
        ("working_directory: var/tmp", "j:5:24: job `a`: `working_directory`: `var/tmp` is not an absolute path"),
        ("working_directory: ~/x", "j:5:24: job `a`: `working_directory`: `~/x` is not an absolute path"),
        ("timezone: Nowhere", "j:5:15: job `a`: `timezone`: `Nowhere` is not a time zone of the IANA database"),
        ("dst: never", "j:5:10: job `a`: `dst`: `never` is not one of `once`, `skip`, `twice`"),
        (
            "misfire: run_once",
            "j:5:14: job `a`: `misfire`: `run_once` is not one of `skip`, `run-once`, `run-all`, did you mean `run-once`?",
        ),
        ("interrupted: restart", "j:5:18: job `a`: `interrupted`: `restart` is not one of `skip`, `rerun`"),
        (
            "on_lease_end: Keep",
            "j:5:19: job `a`: `on_lease_end`: `Keep` is not one of `keep`, `kill`, did you mean `keep`?",
        ),
        (
            "overlap: queued",
            "j:5:14: job `a`: `overlap`: `queued` is not one of `skip`, `queue`, `allow`, `replace`, did you mean `queue`?",
        ),
        ("command: y", "j:5:5: job `a`: `command` is already given in line 4"),
        ("command : y", "j:5:5: job `a`: `command` is already given in line 4"),
    ] {
        let message = message.replace("job `a`: `command` is already", "`command` is already");
        same(&reported_for_keys(keys), &message);
    }
}

#[test]
fn invalid_commands_are_rejected() {
    let reported =
        |command: &str| reported(format!("jobs:\n  a:\n    schedule: \"0 0 * * *\"\n    command: {command}\n"));
    for (command, message) in [
        ("true", ""),
        ("[true]", ""),
        ("[\"\"]", "j:4:15: job `a`: `command`: the first item must name a program"),
        ("[]", "j:4:14: job `a`: `command`: the first item must name a program"),
        ("\"\"", "j:4:14: job `a`: `command`: must not be empty"),
        ("\"  \"", "j:4:14: job `a`: `command`: must not be empty"),
        ("", "j:2:3: job `a`: `command` is missing"),
        ("{a: b}", "j:4:14: job `a`: `command` must be a text or a list of texts, not a map; put it in quotes"),
        ("[a, [b]]", "j:4:18: job `a`: an item of `command` must be a text, not a list; put it in quotes"),
        ("\n      - a\n      -", "j:6:8: job `a`: an item of `command` is missing; for an empty one write `\"\"`"),
        (
            "1.10",
            "j:4:14: job `a`: `command` must be a text, but YAML reads this as a number or boolean; quote it: \"1.10\"",
        ),
        (
            "True",
            "j:4:14: job `a`: `command` must be a text, but YAML reads this as a number or boolean; quote it: \"True\"",
        ),
        (
            "340282366920938463463374607431768211455",
            "j:4:14: job `a`: `command` must be a text, but YAML reads this as a number or boolean; quote it: \"340282366920938463463374607431768211455\"",
        ),
        ("\"a\\0b\"", "j:4:14: job `a`: `command`: a NUL character cannot be passed to a process"),
        ("[a, \"b\\0\"]", "j:4:18: job `a`: `command`: a NUL character cannot be passed to a process"),
        ("!!str x", "j:4:14: tags (`!…`) are not supported; quote what is meant as text"),
    ] {
        same(&reported(command), message);
    }
    let long = "x".repeat(128 << 10);
    same(&reported(&long), "j:4:14: job `a`: `command`: it is longer than the 128 KiB that can be passed to a process");
}

#[test]
fn rerun_and_keep_contradict_each_other_in_a_job_and_in_defaults() {
    let reported = |defaults: &str, own: &str| {
        reported(format!("defaults: {{{defaults}}}\njobs: {{a: {{schedule: \"0 0 * * *\", command: x, {own}}}}}"))
            .split(": `on")
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(reported("interrupted: rerun", "on_lease_end: keep"), "j:2:61: job `a`");
    assert_eq!(reported("on_lease_end: keep", "interrupted: rerun"), "j:2:60: job `a`");
    assert_eq!(reported("", "on_lease_end: keep, interrupted: rerun"), "j:2:61: job `a`");
    assert_eq!(reported("on_lease_end: keep", "on_lease_end: null, interrupted: rerun"), "");
    assert_eq!(reported("lock: /locks/a", "on_lease_end: keep"), "j:2:61: job `a`");
    assert_eq!(reported("on_lease_end: keep", "lock: [/locks/a]"), "j:2:53: job `a`");
    assert_eq!(reported("on_lease_end: keep, lock: /locks/a", "lock: []"), "");
    assert_eq!(reported("on_lease_end: keep, interrupted: rerun", "interrupted: skip"), "");
}

#[test]
fn days_of_which_either_suffices_are_explained() {
    let reported = |schedule: &str| reported(format!("jobs:\n  a:\n    command: x\n    schedule: {schedule}\n"));
    let or = "as in crontab(5), either of two restricted day fields suffices";
    same(
        &reported("0 0 1-7 * 1"),
        &format!(
            "j:4:15: job `a`: `schedule`: `0 0 1-7 * 1` is due on days 1 to 7 of the month or on Monday: {or}; \
             to be due only on the first Monday of the month, write `0 0 * * mon#1`"
        ),
    );
    same(
        &reported("[\"@daily\", \"0 0 13 * fri\"]"),
        &format!(
            "j:4:26: job `a`: `schedule`: `0 0 13 * fri` is due on day 13 of the month or on Friday: {or}; \
             if both must match, let the command test one; if either is meant, write two expressions"
        ),
    );
    for meant in ["0 0 1-7 * *", "0 0 * * mon#1", "\"0 0 */2 * 1\"", "[\"0 0 1,15 * *\", \"0 0 * * 1\"]", "\"@weekly\""]
    {
        assert_eq!(reported(meant), "", "{meant}");
    }
}

#[test]
fn probable_mistakes_give_warnings() {
    let reported = |text: &str| {
        reported(format!("jobs:\n  a:\n    schedule: \"0 0 * * *\"\n    {}\n", text.replace('\n', "\n    ")))
    };
    for (keys, message) in [
        (
            "command: echo hi  # there",
            "j:4:23: job `a`: the comment after `command` is not part of the command; quote the command to include it",
        ),
        ("command: \"echo hi\"  # there", ""),
        ("command: echo hi#there", ""),
        ("command: echo hi\n# there", ""),
        (
            "command: [ls, ~/in, \"$HOME/x\", \"a$\", \"${X}\"]",
            "
            j:4:19: job `a`: `~` in a list is passed literally; to have a shell expand it, write `command` as a text
            j:4:25: job `a`: `$HOME` in a list is passed literally; to have a shell expand it, write `command` as a text
            j:4:42: job `a`: `${X}` in a list is passed literally; to have a shell expand it, write `command` as a text",
        ),
        ("command: [sh, -c, \"echo $HOME\"]", ""),
        (
            "command: [ -f x ]",
            "j:4:16: job `a`: put the command in quotes or under `command: |` (in YAML an unquoted `[` begins a list, and its first item is the program)",
        ),
        ("command: [/bin/bash, -euc, \"echo $HOME ~\"]", ""),
        ("command: [awk, \"{print $NF}\"]", ""),
        ("command: echo $HOME ~", ""),
        (
            "command: x\nmisfire: run-all",
            "j:5:14: job `a`: `misfire: run-all` without `misfire_window` makes up for only the newest missed \
             occurrence, because the window is then the time to the next one",
        ),
        ("command: x\nmisfire: run-all\nmisfire_window: 1d", ""),
        (
            "command: x\non_late: page\nlong_after: 2h\ntimeout: 1h",
            "
            j:5:14: job `a`: `on_late` never runs, because `late_after` is not set
            j:6:17: job `a`: `long_after` is never reached, because `timeout` ends the attempt before",
        ),
        ("command: x\non_late: page\nlate_after: 5m\nlong_after: 30m\ntimeout: 1h", ""),
        ("command: x\nsplay: 23h59m", ""),
        ("command: x\nsplay: 0s", ""),
        (
            "command: x\nsplay: 24h",
            "j:5:12: job `a`: `splay` of 1d is not shorter than the time between two occurrences, 1d: a run may start when the next is due",
        ),
        (
            "command: x\nenvironment: {CRONKEEPER_NODE: x}",
            "j:5:19: job `a`: `environment`: cronkeeper sets `CRONKEEPER_NODE` itself and ignores this value",
        ),
    ] {
        same(&reported(keys), message);
    }
}

#[test]
fn user_nice_value_and_limits_are_read() {
    let text = "
        defaults: {user: backup, nice: 10, limits: {memory: 2GiB, processes: 100}}
        jobs:
          a:
            schedule: \"0 0 * * *\"
            command: x
            group: 33
            limits: {memory: 512MiB, processes: null, open_files: 4096, cpu_time: 1h}";
    let job = job(text);
    assert_eq!(job.run_as, RunAs { user: Some("backup".into()), group: Some("33".into()) });
    let (memory, cpu_time) = (Some(512 << 20), Some(Duration::from_secs(3_600)));
    assert_eq!(
        (job.nice, job.limits),
        (Some(10), Limits { memory, processes: None, open_files: Some(4_096), cpu_time })
    );
}

#[test]
fn invalid_users_nice_values_and_limits_are_rejected() {
    let number = "is not the number of a user or group: expected 0 to 4294967294, without a sign and leading zeros";
    let of_number = |key: &str, at: u32, text: &str| format!("j:5:{at}: job `a`: `{key}`: `{text}` {number}");
    for (keys, message) in [
        ("user: \"\"", "j:5:11: job `a`: `user`: `` is not the name of a user or group"),
        ("group: a b", "j:5:12: job `a`: `group`: `a b` is not the name of a user or group"),
        ("user: \"+0\"", of_number("user", 11, "+0").as_str()),
        ("user: \"00\"", of_number("user", 11, "00").as_str()),
        ("user: \"-1\"", of_number("user", 11, "-1").as_str()),
        ("group: 4294967295", of_number("group", 12, "4294967295").as_str()),
        ("group: 99999999999", of_number("group", 12, "99999999999").as_str()),
        ("nice: 20", "j:5:11: job `a`: `nice`: `20` is not a nice value: expected -20 to 19"),
        (
            "limits: 1",
            "j:5:13: job `a`: `limits` must be a map of memory, processes, open_files, cpu_time, not a number; write `limits: {memory: ...}`",
        ),
        (
            "limits: {memry: 1GiB, memory: 1, cpu_time: 500ms, processes: 0}",
            "
            j:5:14: job `a`: `limits`: `memry` is not one of its keys, did you mean `memory`?",
        ),
        (
            "limits: {memory: 1, cpu_time: 500ms, processes: 0, open_files: -1}",
            "
            j:5:22: job `a`: `limits`: `memory`: `1` has no unit: write `1B` for bytes
            j:5:35: job `a`: `limits`: `cpu_time`: must be whole seconds, at least one
            j:5:53: job `a`: `limits`: `processes`: `0` is not a whole number of at least 1
            j:5:68: job `a`: `limits`: `open_files`: `-1` is not a whole number of at least 1",
        ),
    ] {
        same(&reported_for_keys(keys), message);
    }
}

#[test]
fn retries_are_taken_key_by_key_from_job_defaults_and_built_in() {
    let text = "defaults: {retries: {limit: 3, delay: 0s, backoff: 1.5}}\njobs: {a: {schedule: '@daily', command: x, retries: {delay: 5s, backoff: ~}}}";
    let (seconds, builtin) = (Duration::from_secs, Retries::default());
    let expected = Retries { limit: 3, delay: seconds(5), ..builtin.clone() };
    assert_eq!(job(text).retries, expected);
    assert_eq!(job("jobs: {a: {schedule: '@daily', command: x}}").retries, builtin);
    let none = "defaults: {retries: {limit: 3}}\njobs: {a: {schedule: '@daily', command: x, retries: ~}}";
    assert_eq!(job(none).retries, builtin);
}

#[test]
fn invalid_retries_are_reported_at_their_position() {
    for (value, expected) in [
        (
            "3",
            "j:5:14: job `a`: `retries` must be a map of limit, delay, backoff, max_delay, not a number; write `retries: {limit: 3}`",
        ),
        ("{limit: -1}", "j:5:22: job `a`: `retries`: `limit`: `-1` is not a number of retries: expected 0 to 1000"),
        ("{limit: 1001}", "j:5:22: job `a`: `retries`: `limit`: `1001` is not a number of retries: expected 0 to 1000"),
        ("{limit: [1]}", "j:5:22: job `a`: `retries`: `limit` must be a text or number, not a list"),
        ("{backoff: 0.5}", "j:5:24: job `a`: `retries`: `backoff`: `0.5` is not a backoff factor: expected 1 to 100"),
        ("{backoff: inf}", "j:5:24: job `a`: `retries`: `backoff`: `inf` is not a backoff factor: expected 1 to 100"),
        ("{max_delay: 0s}", "j:5:26: job `a`: `retries`: `max_delay`: must be longer than zero"),
        (
            "{delay: 5}",
            "j:5:22: job `a`: `retries`: `delay`: `5` has no unit: write `5s` for seconds, `5m` for minutes",
        ),
        ("{tries: 5}", "j:5:15: job `a`: `retries`: `tries` is not one of its keys"),
    ] {
        same(&reported_for_keys(&format!("retries: {value}")), expected);
    }
}

#[test]
fn a_group_has_a_name_and_the_same_limit_in_all_its_jobs() {
    let job = job("jobs: {a: {schedule: '@daily', command: x, concurrency_group: {name: database, limit: 2}}}");
    assert_eq!(job.concurrency_group, Some(Group { name: "database".into(), limit: 2 }));
    for (value, expected) in [
        ("{name: x}", "j:5:24: job `a`: `concurrency_group`: `limit` is missing"),
        (
            "{limit: 0, name: x}",
            "j:5:32: job `a`: `concurrency_group`: `limit`: `0` is not a whole number of at least 1",
        ),
        (
            "{name: a b, limit: 1}",
            "j:5:31: job `a`: `concurrency_group`: `name`: `a b` is not a group name: expected a letter or digit, then at most 99 letters, digits, `.`, `_` or `-`",
        ),
    ] {
        same(&reported_for_keys(&format!("concurrency_group: {value}")), expected);
    }
    let two = "jobs:\n  a: {schedule: '@daily', command: x, concurrency_group: {name: db, limit: 2}}\n  b: {schedule: '@daily', command: x, concurrency_group: {name: db, limit: 3}}\n";
    same(&reported(two), "j:3:3: job `b`: `concurrency_group`: `db` has the limit 3 here, but 2 in job `a`");
}

#[test]
fn where_a_job_runs_is_read_and_merged_with_the_defaults() {
    let job = |defaults: &str, keys: &str| {
        job(&format!("defaults: {{{defaults}}}\njobs: {{a: {{schedule: \"@daily\", command: x, {keys}}}}}"))
    };
    let of = |defaults: &str, keys: &str| {
        let job = job(defaults, keys);
        (job.run_on, job.run_where.to_string())
    };
    assert_eq!(of("", ""), (RunOn::Leader, String::new()));
    assert_eq!(of("", "run_on: any, run_where: gpu"), (RunOn::Any, "gpu".into()));
    let several = "run_on: any, run_where: [gpu, zone=eu, \"!old\", gpu]";
    assert_eq!(of("", several), (RunOn::Any, "gpu, zone=eu, !old".into()));
    assert_eq!(of(several, "run_where: db"), (RunOn::Any, "db".into()));
    assert_eq!(of(several, "run_where: null"), (RunOn::Any, String::new()));
    // That of the defaults is for the jobs that are placed.
    assert_eq!(of("run_where: gpu", ""), (RunOn::Leader, String::new()));
    assert_eq!(of("run_where: gpu", "run_on: any"), (RunOn::Any, "gpu".into()));
    assert_eq!(of("run_where: gpu", "run_on: every"), (RunOn::Every, "gpu".into()));
    assert_eq!(of(several, "run_on: leader"), (RunOn::Leader, String::new()));
}

#[test]
fn what_a_node_cannot_be_is_an_error_at_its_place() {
    let form = "is not a label: expected NAME or NAME=VALUE, each of 1 to 63 letters, digits, `.`, `_` and `-`, \
                beginning with a letter or digit";
    let list = "; several labels are a list, without spaces in them";
    let leader = "job `a`: `run_where` with `run_on: leader`: the job runs on the node that leads, whatever its labels; \
                  write `run_on: any` or `run_on: every` too";
    for (keys, message) in [
        ("run_on: leader\nrun_where: gpu", format!("j:6:16: {leader}")),
        ("run_where: [gpu]", format!("j:5:16: {leader}")),
        ("run_where: []", String::new()),
        ("run_on: all", "j:5:13: job `a`: `run_on`: `all` is not one of `leader`, `any`, `every`".to_owned()),
        ("run_on: any\nrun_where: \"GPU \"", format!("j:6:16: job `a`: `run_where`: `GPU ` {form}{list}")),
        ("run_on: any\nrun_where: \"gpu,db\"", format!("j:6:16: job `a`: `run_where`: `gpu,db` {form}{list}")),
        ("run_on: any\nrun_where: [gpu, zone=]", format!("j:6:22: job `a`: `run_where`: `zone=` {form}")),
        (
            "run_on: any\nrun_where: [gpu, zone=eu, \"!gpu\"]",
            "j:6:31: job `a`: `run_where`: no node can meet both `gpu` and `!gpu`; leave one of them out".to_owned(),
        ),
        ("run_on: any\nrun_where: [\"!!old\"]", format!("j:6:17: job `a`: `run_where`: `!old` {form}")),
    ] {
        same(&reported_for_keys(keys), &message);
    }
    let many: Vec<String> = (0..33).map(|n| format!("l{n}")).collect();
    let said = reported_for_keys(&format!("run_on: any\nrun_where: [{}]", many.join(", ")));
    assert!(said.ends_with("`run_where`: a job has at most 32 of them"), "{said}");
    let tag = reported_for_keys("run_on: any\nrun_where: [!old]");
    assert!(tag.contains("quote"), "{tag}");
}
