//! Tests of a job's hooks: commands, defaults and error messages.

use super::*;
use cronkeeper_core::job::{CommandLine, Hook, Hooks};

const JOB: &str = "\njobs: {a: {schedule: \"0 0 * * *\", command: x";

fn hooks(defaults: &str, own: &str) -> Hooks {
    job(&format!("defaults: {{{defaults}}}{JOB}, {own}}}}}")).hooks
}

fn shell(text: &str) -> CommandLine {
    CommandLine::Shell(text.into())
}

#[test]
fn a_hook_is_an_argv_or_a_text_for_the_shell() {
    let written = "on_start: ping, on_failure: [mail, ops], on_success: echo hi, on_recovery: \"a b\", on_missed: [x]";
    let all = hooks("", written);
    let argv = |items: &[&str]| CommandLine::Argv(items.iter().map(|item| (*item).to_owned()).collect());
    let expected = [
        (Hook::Start, shell("ping")),
        (Hook::Failure, argv(&["mail", "ops"])),
        (Hook::Success, shell("echo hi")),
        (Hook::Recovery, shell("a b")),
        (Hook::Missed, argv(&["x"])),
    ];
    assert_eq!(all, Hooks::from(expected));
    assert_eq!(hooks("", ""), Hooks::new());
}

#[test]
fn a_jobs_own_hook_replaces_the_default_and_null_removes_it() {
    let defaults = "on_failure: page, on_success: ping";
    assert_eq!(hooks(defaults, ""), Hooks::from([(Hook::Failure, shell("page")), (Hook::Success, shell("ping"))]));
    let own = hooks(defaults, "on_failure: mail, on_success: null, on_missed: ~");
    assert_eq!(own, Hooks::from([(Hook::Failure, shell("mail"))]));
}

#[test]
fn an_invalid_hook_is_reported_at_its_position() {
    for (key, message) in [
        ("on_failure: []", "j:5:17: job `a`: `on_failure`: the first item must name a program"),
        ("on_success: [\"\"]", "j:5:18: job `a`: `on_success`: the first item must name a program"),
        ("on_recovery: \" \"", "j:5:18: job `a`: `on_recovery`: must not be empty"),
        (
            "on_missed: {a: b}",
            "j:5:16: job `a`: `on_missed` must be a text or a list of texts, not a map; put it in quotes",
        ),
        ("on_missed: [a, \"b\\0\"]", "j:5:20: job `a`: `on_missed`: a NUL character cannot be passed to a process"),
        ("on_faliure: x", "j:5:5: job `a`: `on_faliure` is not a key of a job, did you mean `on_failure`?"),
    ] {
        same(&reported_for_keys(key), message);
    }
}

#[test]
fn probable_mistakes_in_a_hook_give_warnings_as_in_a_command() {
    same(
        &reported_for_keys("on_failure: echo a # b"),
        "j:5:24: job `a`: the comment after `on_failure` is not part of the command; quote the command to include it",
    );
    same(
        &reported_for_keys("on_success: [curl, $URL]"),
        "j:5:24: job `a`: `$URL` in a list is passed literally; to have a shell expand it, write `on_success` as a text",
    );
}
