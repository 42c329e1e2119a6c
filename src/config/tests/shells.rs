//! Tests of a job's `shell`.

use super::*;

/// The program and arguments of a job with these defaults and keys.
fn argv(defaults: &str, own: &str) -> Vec<String> {
    job(&format!("defaults: {{{defaults}}}\njobs: {{a: {{schedule: '@daily', {own}}}}}")).command.argv()
}

#[test]
fn a_text_is_run_by_the_shell_of_the_job_or_of_the_defaults() {
    for (defaults, own, expected) in [
        ("", "command: a | b", &["/bin/sh", "-c", "a | b"][..]),
        ("", "command: x, shell: /bin/bash", &["/bin/bash", "-c", "x"]),
        ("", "command: x, shell: [/bin/bash, -euo, pipefail, -c]", &["/bin/bash", "-euo", "pipefail", "-c", "x"]),
        ("shell: zsh", "command: x", &["zsh", "-c", "x"]),
        ("shell: [zsh, -c]", "command: x, shell: [sh, -ec]", &["sh", "-ec", "x"]),
        ("shell: zsh", "command: x, shell: ~", &["/bin/sh", "-c", "x"]),
        ("shell: zsh", "command: [x, y]", &["x", "y"]),
    ] {
        assert_eq!(argv(defaults, own), expected, "{defaults}; {own}");
    }
}

#[test]
fn the_default_shell_written_out_is_the_same_command() {
    let of = |keys: &str| job(&format!("jobs: {{a: {{schedule: '@daily', command: x{keys}}}}}")).command;
    assert_eq!(of(", shell: /bin/sh"), of(""));
    assert_eq!(of(", shell: [/bin/sh, -c]"), of(""));
    assert_ne!(of(", shell: /bin/bash"), of(""));
}

#[test]
fn hooks_are_run_by_the_default_shell() {
    let job = job("jobs: {a: {schedule: '@daily', command: x, shell: bash, on_failure: y}}");
    assert_eq!(job.hooks.into_values().next().unwrap().argv(), ["/bin/sh", "-c", "y"]);
}

#[test]
fn a_shell_without_a_program_is_an_error() {
    same(&reported_for_keys("shell: ' '"), "j:5:12: job `a`: `shell`: must name a program");
    same(&reported_for_keys("shell: []"), "j:5:12: job `a`: `shell`: the first item must name a program");
}

#[test]
fn a_shell_for_a_list_is_a_warning_unless_it_is_a_default() {
    let warning = "j:5:12: job `a`: `shell` has no effect with a `command` that is a list";
    same(&reported_for_keys("shell: bash"), warning);
    same(&reported_for_keys("shell: ~"), "");
    same(&reported("defaults: {shell: bash}\njobs: {a: {schedule: '@daily', command: [x]}}"), "");
}
