//! Tests of messages that name what was probably meant.

use super::*;

#[test]
fn a_misspelt_key_is_reported_instead_of_the_one_that_is_missing() {
    for (job, expected) in [
        (
            "{shedule: '@daily', command: x}",
            "j:1:12: job `a`: `shedule` is not a key of a job, did you mean `schedule`?",
        ),
        ("{cron: '@daily', command: x}", "j:1:12: job `a`: `cron` is not a key of a job, did you mean `schedule`?"),
        ("{depends_on: b, command: x}", "j:1:12: job `a`: `depends_on` is not a key of a job, did you mean `after`?"),
        ("{schedule: '@daily', cmd: x}", "j:1:32: job `a`: `cmd` is not a key of a job, did you mean `command`?"),
        (
            "{schedule: '@daily', other: x}",
            "j:1:8: job `a`: `command` is missing\nj:1:32: job `a`: `other` is not a key of a job",
        ),
    ] {
        same(&reported(format!("jobs: {{a: {job}}}")), expected);
    }
}

#[test]
fn keys_of_other_schedulers_name_the_key_that_is_meant() {
    for (key, meant) in [
        ("cwd", "working_directory"),
        ("WorkDir", "working_directory"),
        ("tz", "timezone"),
        ("run_as", "user"),
        ("run-as", "user"),
        ("needs", "after"),
        ("env", "environment"),
        ("params", "parameters"),
        ("jitter", "splay"),
        ("catchup", "misfire"),
        ("executable", "shell"),
        ("env_file", "environment_file"),
        ("dotenv", "environment_file"),
        ("LoadCredential", "secrets"),
        ("EnvironmentFile", "environment_file"),
        ("concurrencyPolicy", "overlap"),
        ("runs-on", "run_on"),
        ("nodeSelector", "run_where"),
    ] {
        let expected = format!("j:5:5: job `a`: `{key}` is not a key of a job, did you mean `{meant}`?");
        same(&reported_for_keys(&format!("{key}: x")), &expected);
    }
    for (key, instead) in [
        (
            "mailto",
            "name the job's channels under `notify`, or a command under `on_failure`, `on_recovery` or `on_missed`",
        ),
        ("name", "the job's name is its key: write `NAME:` above its keys"),
        ("disabled", "to keep a job from running, write `enabled: false`"),
        (
            "nodes",
            "a job runs on the node that leads, with `run_on: any` on any node that has the labels in `run_where`, and \
             with `run_on: every` on every such node; each node has the label `node=NAME`",
        ),
    ] {
        same(
            &reported_for_keys(&format!("{key}: x")),
            &format!("j:5:5: job `a`: `{key}` is not a key of a job; {instead}"),
        );
    }
    same(
        &reported("defaults: {tz: UTC, cmd: x}\njobs: {}"),
        "j:1:12: defaults: `tz` is not a key of a job, did you mean `timezone`?
         j:1:21: defaults: `cmd` is not a key of a job",
    );
}

#[test]
fn every_name_that_hints_give_is_a_key() {
    for key in hints::keys() {
        assert!(keys::KEYS.of_jobs.iter().any(|known| known.name == key), "{key}");
    }
}

#[test]
fn a_value_of_the_wrong_form_shows_the_right_one() {
    for (keys, right) in [
        ("retries: 3", "`retries: {limit: 3}`"),
        ("retries: often", "`retries: {limit: ...}`"),
        ("limits: 1GiB", "`limits: {memory: ...}`"),
        ("concurrency_group: db", "`concurrency_group: {name: db, limit: 1}`"),
        ("environment: A=hunter2", "`environment: {NAME: value}`"),
        ("secrets: hunter2", "`secrets: {NAME: {file: ...}}`"),
        ("secrets: {DB: hunter2}", "`DB: {file: ...}`"),
    ] {
        let reported = reported_for_keys(keys);
        assert!(reported.ends_with(&format!("; write {right}")), "{reported}");
    }
    let after = |value: &str| reported(format!("jobs: {{a: {{after: {value}, command: x}}}}"));
    assert!(after("b").ends_with("`after` must be a map of texts, not a text; write `after: {b: success}`"));
    assert!(after("[b, c]").ends_with("; write `after: {b: success, c: success}`"));
    assert!(after("[[b]]").ends_with("not a list"), "{}", after("[[b]]"));
}

#[test]
fn a_list_of_jobs_is_shown_as_a_map() {
    same(
        &reported("jobs:\n  - name: nightly\n    schedule: '@daily'\n"),
        "j:2:3: `jobs` is a map from names to jobs, not a list; write `nightly:` in place of `- name: nightly`",
    );
}

#[test]
fn a_job_that_can_never_run_again_gives_a_warning() {
    let past = "schedule: '@at 2020-01-01T00:00:00Z', command: x";
    let never = "`schedule` has no occurrence from now on, so the job never runs by itself";
    same(&reported(format!("jobs: {{a: {{{past}}}}}")), &format!("j:1:22: job `a`: {never}"));
    same(&reported(format!("jobs: {{a: {{{past}, enabled: false}}}}")), "");
    same(&reported("jobs: {a: {schedule: ['@at 2020-01-01T00:00:00Z', '@daily'], command: x}}"), "");
    same(&reported("jobs: {a: {schedule: '0 0 0 1 1 * 2020', command: x}}"), &format!("j:1:22: job `a`: {never}"));
    same(
        &reported(format!("jobs:\n  a: {{{past}}}\n  b: {{after: {{a: always}}, command: x}}\n")),
        &format!(
            "j:2:17: job `a`: {never}
             j:3:15: job `b`: `after`: it never runs by itself, because `a` never does or is disabled"
        ),
    );
}

#[test]
fn a_variable_whose_name_has_spaces_or_is_empty_is_an_error() {
    same(
        &reported_for_keys("environment: {A B: x, \"\": y, \" \": z, A-B.c: fine}"),
        "j:5:19: job `a`: `environment`: `A B` is not a variable name
         j:5:27: job `a`: `environment`: `` is not a variable name
         j:5:34: job `a`: `environment`: ` ` is not a variable name",
    );
}
