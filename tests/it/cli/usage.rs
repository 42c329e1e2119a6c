//! Wrong usage, invalid files, and the commands that need no daemon.

use super::{WorkingDirectory, assert_printed, transcript};

const GOOD: &str = "\
jobs:
  backup: {schedule: '30 2 * * *', timezone: Europe/Berlin, command: [backup, --full]}
  report: {schedule: '0 6 * * 1-5', command: report}
  old: {schedule: '@daily', command: old, enabled: false}
";

const BAD: &str = "\
jobs:
  backup:
    schedul: '30 2 * * *'
    command: [backup]
  report:
    schedule: 0 6 * * 8
    timeout: soon
    command: report
";

#[test]
fn no_command_or_an_unknown_one_is_wrong_usage() {
    let context = WorkingDirectory::new();
    assert_printed(
        &context.enter(&["chekc"]),
        "
        | error: unrecognized subcommand 'chekc'
        |
        |   tip: some similar subcommands exist: 'schema', 'check'
        |
        | Usage: cronkeeper <COMMAND>
        |
        | For more information, try '--help'.
        exit 2",
    );
    assert!(context.enter(&[]).contains("| Usage: cronkeeper <COMMAND>"));
    assert!(context.enter(&[]).ends_with("exit 2\n"));
}

#[test]
fn help_lists_the_commands() {
    assert_printed(
        &WorkingDirectory::new().enter(&["--help"]),
        "
        Cron that survives the loss of a host

        Usage: cronkeeper <COMMAND>

        Commands:
        run          Run the daemon: take part in the election and, as leader, run the jobs
        check        Validate a jobs file or directory
        next         Show upcoming occurrences
        status       Show the leader, the queue, and the jobs with their last and next runs
        nodes        Show the nodes, with their labels and what the leader has placed on them
        history      Show runs and skips, newest first
        logs         Show the output of a run, whichever node it is on
        trigger      Run a job now, where its `run_on` says
        pause        Skip the occurrences of jobs until they are resumed, or for some time
        resume       Resume paused jobs; the occurrences that they skipped are not made up for
        recount      Make a job count from now on again, after a clock that was ahead has silenced it
        handover     Make the leader resign, whichever node is asked
        drain        Keep a node from leading and from new runs; its runs in flight finish
        undrain      Let a drained node lead again
        notify       Send a test message to the channels of the jobs file
        forget       Forget a node that is gone for good: jobs on every node stop waiting for it
        kill         End a run, on whichever node it is
        exec         Run a job here and now, without a cluster
        lock         Run a command while holding a lock
        locks        Show who holds which lock and who waits
        latch        Wait until a number of counts have arrived
        barrier      Wait until a number of processes have arrived
        release      Release what a dead daemon on this host still holds
        import       Convert a crontab to jobs.yaml, on stdout
        schema       Print the JSON Schema of jobs.yaml, for editors
        token        Make a token for the API, with its line for --api-token-file
        completions  Print a completion script for a shell
        man          Print the manual, or write its pages into a directory
        help         Print this message or the help of the given subcommand(s)

        Options:
        -h, --help     Print help
        -V, --version  Print version
        exit 0",
    );
}

#[test]
fn every_command_has_help() {
    let context = WorkingDirectory::new();
    let commands = [
        "run", "check", "next", "status", "nodes", "history", "trigger", "pause", "resume", "recount", "handover",
        "drain", "undrain", "notify", "forget", "kill", "exec", "lock", "locks", "latch", "barrier", "release",
    ];
    for command in commands.into_iter().chain(["import", "token", "completions", "man"]) {
        let printed = context.enter(&[command, "--help"]);
        assert!(
            printed.contains(&format!("Usage: cronkeeper {command}")) && printed.ends_with("exit 0\n"),
            "{printed}"
        );
    }
}

#[test]
fn the_error_for_a_bad_duration_shows_the_format() {
    assert_printed(
        &WorkingDirectory::new().enter(&["run", "--session-timeout", "10"]),
        "
        | error: invalid value '10' for '--session-timeout <DURATION>': `10` has no unit: write `10s` for seconds, `10m` for minutes
        |
        | For more information, try '--help'.
        exit 2",
    );
    assert_printed(
        &WorkingDirectory::new().enter(&["run", "--drain-timeout", "1.5h"]),
        "
        | error: invalid value '1.5h' for '--drain-timeout <DURATION>': `1.5h` is not a duration: expected integers with units, such as `500ms`, `90s`, `1h30m` or `2d`
        |
        | For more information, try '--help'.
        exit 2",
    );
}

#[test]
fn with_cluster_a_missing_service_is_wrong_usage_and_not_the_solo_backend() {
    let expected = "
        | cronkeeper: no service is named
        | hint: set CRONKEEPER_ZOOKEEPER, CRONKEEPER_POSTGRES, CRONKEEPER_ETCD or CRONKEEPER_REDIS in the environment file, by default /etc/cronkeeper/cronkeeper.env
        exit 2";
    assert_printed(&WorkingDirectory::new().enter(&["run", "--cluster"]), expected);
}

#[test]
fn the_only_node_that_can_lead_is_not_started_as_one_that_never_does() {
    let expected = "
        | cronkeeper: `--lead false` needs a coordination service: without one, only this host can lead
        | hint: name the service, or remove `--lead` (CRONKEEPER_LEAD)
        exit 2";
    assert_printed(&WorkingDirectory::new().enter(&["run", "--lead", "false"]), expected);
}

#[test]
fn an_empty_connect_string_is_wrong_usage_and_not_the_solo_backend() {
    let context = WorkingDirectory::new();
    let expected = "
        | error: invalid value '' for '--zookeeper <CONNECT>': no servers are named; set CRONKEEPER_ZOOKEEPER in the environment file, by default /etc/cronkeeper/cronkeeper.env
        |
        | For more information, try '--help'.
        exit 2";
    assert_printed(&context.enter(&["run", "--zookeeper", ""]), expected);
    assert_printed(&context.enter(&["release", "--zookeeper", ""]), expected);
    let empty = "
        | cronkeeper: environment variable `CRONKEEPER_ZOOKEEPER` is empty
        | hint: give it a value, or remove it; systemd reads it from the environment file, by default /etc/cronkeeper/cronkeeper.env
        exit 2";
    for line in [&["run"][..], &["run", "--zookeeper", ""], &["release"], &["lock", "/a", "--", "true"], &["check"]] {
        assert_printed(&transcript(context.line(line).env("CRONKEEPER_ZOOKEEPER", "")), empty);
    }
}

#[test]
fn an_invalid_node_name_is_wrong_usage() {
    let rule = "1 to 253 letters, digits, `.`, `_` and `-`, not starting with a dot";
    let expected = format!(
        "
        | error: invalid value '../../x' for '--to <NODE>': `../../x` is not a node name: expected {rule}
        |
        | For more information, try '--help'.
        exit 2"
    );
    assert_printed(&WorkingDirectory::new().enter(&["handover", "--to", "../../x"]), &expected);
    let refused = WorkingDirectory::new().enter(&["handover", "--to", ""]);
    assert!(refused.contains("'--to <NODE>'") && refused.contains("exit 2"), "{refused}");
}

#[test]
fn credentials_without_zookeeper_are_wrong_usage() {
    assert_printed(
        &WorkingDirectory::new().enter(&["release", "--zookeeper-auth-file", "auth"]),
        "
        | error: the following required arguments were not provided:
        |   --zookeeper <CONNECT>
        |
        | Usage: cronkeeper release --zookeeper <CONNECT> --zookeeper-auth-file <FILE>
        |
        | For more information, try '--help'.
        exit 2",
    );
}

#[test]
fn an_unknown_variable_is_wrong_usage_with_the_nearest_name() {
    let context = WorkingDirectory::with("jobs.yaml", GOOD);
    assert_printed(
        &transcript(context.line(&["check", "jobs.yaml"]).env("CRONKEEPER_ZOKEEPER", "zk:2181")),
        "
        | cronkeeper: unknown environment variable `CRONKEEPER_ZOKEEPER`
        | hint: did you mean `CRONKEEPER_ZOOKEEPER`?
        exit 2",
    );
}

#[test]
fn the_error_for_a_missing_jobs_file_names_the_options() {
    let context = WorkingDirectory::new();
    for line in [&["check", "jobs.yaml"][..], &["next", "--jobs", "jobs.yaml"], &["run", "--jobs", "jobs.yaml"]] {
        assert_printed(
            &context.enter(line),
            "
        | cronkeeper: cannot read jobs.yaml: No such file or directory (os error 2)
        | hint: name the jobs file with `--jobs PATH` or CRONKEEPER_JOBS; `check` takes it as an argument
        exit 78",
        );
    }
}

#[test]
fn all_errors_of_an_invalid_file_are_reported() {
    let context = WorkingDirectory::with("jobs.yaml", BAD);
    let expected = "
        | jobs.yaml:3:5: job `backup`: `schedul` is not a key of a job, did you mean `schedule`?
        | jobs.yaml:6:23: job `report`: `schedule`: day of week: 8 is out of range; allowed: 0 to 7 (0 and 7 are Sunday), sun to sat, mon#2, friL
        | jobs.yaml:7:14: job `report`: `timeout`: `soon` is not a duration: expected integers with units, such as `500ms`, `90s`, `1h30m` or `2d`
        | 3 errors in 1 file
        exit 78";
    for line in [&["check", "jobs.yaml"][..], &["next", "--jobs", "jobs.yaml"], &["run", "--jobs", "jobs.yaml"]] {
        assert_printed(&context.enter(line), expected);
    }
}

#[test]
fn a_valid_file_is_summed_up() {
    let printed = WorkingDirectory::with("jobs.yaml", GOOD).enter(&["check", "jobs.yaml"]);
    let (digest, rest) = printed.split_once("digest ").unwrap().1.split_once('\n').unwrap();
    assert_eq!((digest.len(), rest), (16, "exit 0\n"));
    assert_printed(
        &printed.replace(digest, "<digest>"),
        "jobs.yaml: valid, 3 jobs (1 disabled), digest <digest>\nexit 0",
    );
}

const WITH_CALENDAR: &str = "\
defaults: {calendar: {exclude: [holidays.txt]}}
jobs:
  backup: {schedule: '30 2 * * *', timezone: Europe/Berlin, command: backup}
  report: {schedule: '0 6 L * *', command: report, calendar: {exclude: null, only: open.txt}}
";

#[test]
fn what_a_calendar_leaves_out_is_shown_with_its_file() {
    let context = WorkingDirectory::with("jobs.yaml", WITH_CALENDAR);
    context.dir.write("holidays.txt", "# Christmas\n12-25\n2026-12-26 Boxing Day\n");
    context.dir.write("open.txt", "2098-01-31\n2098-03-31..2098-12-31\n");
    let from = ["--jobs", "jobs.yaml", "--from", "2026-12-24T00:00:00Z"];
    assert_printed(
        &context.enter(&[&["next", "backup", "-n", "2"], &from[..]].concat()),
        "
        LOCAL TIME               ZONE               TIME UNTIL  JOB
        Thu 2026-12-24 02:30:00  Europe/Berlin CET  in 1h30m    backup
        Sun 2026-12-27 02:30:00  Europe/Berlin CET  in 3d1h     backup

        LEFT OUT                 CALENDAR      JOB
        Fri 2026-12-25 02:30:00  holidays.txt  backup
        Sat 2026-12-26 02:30:00  holidays.txt  backup
        exit 0",
    );
    assert_printed(
        &context.enter(&[&["next", "backup", "-n", "2", "--json"], &from[..]].concat()),
        r#"
        {"job":"backup","at":"2026-12-24T02:30:00+01:00"}
        {"job":"backup","at":"2026-12-27T02:30:00+01:00","left_out":{"count":2,"first":[{"at":"2026-12-25T02:30:00+01:00","calendar":"holidays.txt"},{"at":"2026-12-26T02:30:00+01:00","calendar":"holidays.txt"}]}}
        exit 0"#,
    );
    let report = context.enter(&["next", "report", "-n1", "--jobs", "jobs.yaml", "--from", "2098-02-01T00:00:00Z"]);
    assert!(report.contains("Mon 2098-03-31 06:00:00") && report.contains("2098-02-28 06:00:00  open.txt"), "{report}");
    let over = context.enter(&["next", "report", "--jobs", "jobs.yaml", "--from", "2099-02-01T00:00:00Z"]);
    let left_out = "its calendar leaves out all that would follow, the first on Sat 2099-02-28 06:00:00 (open.txt)";
    assert_eq!(over, format!("| job `report` has no further occurrences: {left_out}\nexit 0\n"));
    let last = context.enter(&["next", "report", "-n2", "--jobs", "jobs.yaml", "--from", "2098-12-30T12:00:00Z"]);
    assert!(last.contains("Wed 2098-12-31 06:00:00"), "{last}");
    assert!(
        last.contains("| job `report` has no further occurrences: its calendar leaves out all that would follow, "),
        "{last}"
    );
}

#[test]
fn a_calendar_is_checked_with_the_jobs_that_name_it() {
    let context = WorkingDirectory::with("jobs.yaml", WITH_CALENDAR);
    context.dir.write("holidays.txt", "12-25\n24.12.2026\n");
    for line in [&["check", "jobs.yaml"][..], &["check", "--portable", "jobs.yaml"]] {
        let printed = context.enter(line);
        let missing = "jobs.yaml:4:84: job `report`: `calendar`: `open.txt`: cannot read open.txt: No such file or directory (os error 2)";
        assert!(printed.contains(&format!("| {missing}\n")), "{printed}");
        assert!(printed.contains("| holidays.txt:2:1: expected a date such as `2026-12-25`"), "{printed}");
        assert!(printed.ends_with("| 2 errors in 2 files\nexit 78\n"), "{printed}");
    }
    context.dir.write("holidays.txt", "2020-12-25\n");
    context.dir.write("open.txt", "12-31\n");
    let printed = context.enter(&["check", "jobs.yaml"]);
    let warning = "| holidays.txt:1:1: warning: the calendar's last date with a year, 2020-12-25, is past; add the dates that follow it";
    assert!(printed.contains(warning) && printed.ends_with("exit 0\n"), "{printed}");
    context.dir.write("open.txt", "12-30 12-31\n");
    let second =
        "| open.txt:1:7: warning: this date does not count, because it is read as the name of the date before it; ";
    assert!(context.enter(&["check", "jobs.yaml"]).contains(second));
    let mut piped = context.line(&["check", "-"]);
    piped.stdin(std::fs::File::open(context.path().join("jobs.yaml")).unwrap());
    assert!(transcript(&mut piped).contains(warning));
}

#[test]
fn upcoming_occurrences_are_shown_by_time_and_in_each_jobs_zone() {
    let context = WorkingDirectory::with("jobs.yaml", GOOD);
    let from = ["--jobs", "jobs.yaml", "--from", "2026-11-20T00:00:00Z"];
    assert_printed(
        &context.enter(&[&["next"], &from[..]].concat()),
        "
        LOCAL TIME               ZONE               TIME UNTIL  JOB
        Fri 2026-11-20 02:30:00  Europe/Berlin CET  in 1h30m    backup
        Fri 2026-11-20 06:00:00  UTC                in 6h       report
        | job `old` is disabled, so it has no occurrences
        exit 0",
    );
    assert_printed(
        &context.enter(&[&["next", "report", "-n", "2", "--json"], &from[..]].concat()),
        r#"
        {"job":"report","at":"2026-11-20T06:00:00+00:00"}
        {"job":"report","at":"2026-11-23T06:00:00+00:00"}
        exit 0"#,
    );
    assert_printed(
        &context.enter(&[&["next", "repotr"], &from[..]].concat()),
        "
        | cronkeeper: there is no job `repotr`
        | hint: did you mean `report`?
        exit 2",
    );
    assert_printed(
        &context.enter(&[&["next", "old"], &from[..]].concat()),
        "
        | job `old` is disabled, so it has no occurrences
        exit 0",
    );
    assert_printed(
        &context.enter(&["next", "--schedule", "0 0 30 2 *"]),
        "
        | cronkeeper: `0 0 30 2 *` is not a valid schedule: never comes: February has no day 30
        |   0 0 30 2 *
        |   ^^^^^^^^^^
        exit 2",
    );
}

#[test]
fn a_wrong_expression_is_marked_at_the_fault() {
    let context = WorkingDirectory::new();
    assert_printed(
        &context.enter(&["next", "--schedule", "0 2 * * mno-fri"]),
        "
        | cronkeeper: `0 2 * * mno-fri` is not a valid schedule: day of week: `mno` is neither a number nor a name, did you mean `mon`?; allowed: 0 to 7 (0 and 7 are Sunday), sun to sat, mon#2, friL
        |   0 2 * * mno-fri
        |           ^^^
        exit 2",
    );
}

#[test]
fn an_expression_is_described_in_words() {
    assert_printed(
        &WorkingDirectory::new().enter(&[
            "next",
            "--schedule",
            "30 2 * * *",
            "--timezone",
            "Europe/Berlin",
            "-n",
            "2",
            "--from",
            "2026-03-28T12:00:00Z",
        ]),
        "
        at 02:30 every day, Europe/Berlin

        LOCAL TIME               ZONE                TIME UNTIL  CLOCK SHIFT
        Sun 2026-03-29 03:00:00  Europe/Berlin CEST  in 13h      for 02:30, which is skipped
        Mon 2026-03-30 02:30:00  Europe/Berlin CEST  in 1d12h
        exit 0",
    );
}

#[test]
fn an_imported_crontab_is_valid_and_due_when_it_was() {
    let context =
        WorkingDirectory::with("crontab", "MAILTO=ops\n# Full backup\n30 2 * * * /usr/local/bin/backup\n@reboot x\n");
    let printed = transcript(context.line(&["import", "crontab"]).env("TZ", "Europe/Berlin"));
    let (yaml, rest) = printed.split_once("\n| ").unwrap();
    assert_printed(
        &format!("| {rest}"),
        "
        | crontab:1: MAILTO=ops: a channel mails the end of the output (4 KiB, or 512 bytes after a success) through port 25 of the leader's host; try `cronkeeper notify test`
        | crontab:4: not carried over: `@reboot`: a cluster has no single boot; use a systemd unit on each host
        exit 0",
    );
    let path = context.dir.write("jobs.yaml", yaml);
    assert!(context.enter(&["check", path.to_str().unwrap()]).contains("valid, 1 job,"));
    assert_printed(
        &context.enter(&["next", "--jobs", path.to_str().unwrap(), "--json", "--from", "2026-11-20T00:00:00Z"]),
        r#"
        {"job":"backup","at":"2026-11-20T02:30:00+01:00"}
        exit 0"#,
    );
    let piped =
        context.line(&["import", "-"]).stdin(std::fs::File::open(context.path().join("crontab")).unwrap()).output();
    assert!(String::from_utf8_lossy(&piped.unwrap().stderr).contains("stdin:4: not carried over"));
}
