//! Completion in a real bash: the script of `cronkeeper completions bash`, and the names that it asks for.

use std::path::Path;
use std::process::Command;

use super::WorkingDirectory;
use crate::support::LONG;
use crate::support::command::{CRONKEEPER, command, texts};
use crate::support::node::Spec;
use crate::support::{Facility, skipped, until};

const JOBS: &str = "jobs: {backup: {schedule: '@daily', command: b}, report: {schedule: '@daily', command: r}}";

/// What bash offers for a line that is being typed, whose last word may be empty. `None` without a bash.
fn offered(context: &WorkingDirectory, line: &str) -> Option<Vec<String>> {
    let (code, script, _) = texts(&command(&["completions", "bash"]).output().expect("the program can be started"));
    assert_eq!(code, Some(0));
    let words: Vec<&str> = line.split(' ').collect();
    let ask = r#"
        eval "$SCRIPT"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_TYPE=9
        _clap_complete_cronkeeper cronkeeper "${!#}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", ask, "bash"]).args(words).env("SCRIPT", script).current_dir(context.path());
    // The script calls the program by its name.
    let folder = Path::new(CRONKEEPER).parent().expect("the program is in a folder").display();
    bash.env("PATH", format!("{folder}:/usr/bin:/bin"));
    // Unless the line names another directory, no node is asked.
    bash.env("CRONKEEPER_RUNTIME_DIR", "none");
    let Ok(output) = bash.output() else {
        skipped(Facility::Installed, "there is no bash here");
        return None;
    };
    let (code, out, err) = texts(&output);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{line}");
    Some(out.lines().map(|word| word.trim_end().to_owned()).filter(|word| !word.is_empty()).collect())
}

/// The offers without options.
fn names(offered: &[String]) -> Vec<&str> {
    offered.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect()
}

#[test]
fn bash_completes_commands_options_and_the_jobs_of_the_file() {
    let context = WorkingDirectory::with("jobs.yaml", JOBS);
    let Some(commands) = offered(&context, "cronkeeper hi") else { return };
    assert_eq!(commands, ["history"]);
    assert_eq!(offered(&context, "cronkeeper history --fai").unwrap(), ["--failed"]);
    // The answer of a loaded machine may come too late, and is then left out.
    let completes = |line: &str, wanted: &[&str]| {
        let offered = || offered(&context, &format!("cronkeeper exec --jobs jobs.yaml {line}"));
        until(&format!("{line} is completed to {wanted:?}"), || names(&offered().unwrap()) == wanted);
    };
    completes("", &["backup", "report"]);
    completes("re", &["report"]);
}

#[test]
fn without_a_node_and_a_jobs_file_bash_offers_no_names_and_says_nothing() {
    let context = WorkingDirectory::new();
    let Some(names) = offered(&context, "cronkeeper kill x") else { return };
    assert_eq!(names, [] as [&str; 0]);
    assert_eq!(offered(&context, "cronkeeper next --jobs none.yaml x").unwrap(), [] as [&str; 0]);
}

#[test]
fn bash_completes_the_jobs_nodes_and_runs_of_the_running_node() {
    let jobs =
        "jobs: {sleeper: {schedule: '@every 1s', command: [sleep, '1000']}, other: {schedule: '@daily', command: o}}";
    let spec = Spec::new(CRONKEEPER, "known").jobs(jobs);
    let node = spec.start();
    let run = node.await_event("run.started", LONG).text("run").to_owned();
    let runtime = spec.runtime_dir().display().to_string();
    let context = WorkingDirectory::new();
    if offered(&context, "cronkeeper ").is_none() {
        return;
    }
    // The answer of a loaded machine may come too late, and is then left out.
    let completes = |line: &str, wanted: &str| {
        let line = format!("cronkeeper {line}");
        until(&format!("{line} is completed to {wanted}"), || offered(&context, &line).unwrap() == [wanted]);
    };
    completes(&format!("trigger --runtime-dir {runtime} ot"), "other");
    completes(&format!("kill --runtime-dir {runtime} sleeper."), &run);
    let name = node.await_event("node.started", LONG).text("node").to_owned();
    completes(&format!("handover --runtime-dir {runtime} --to {}", &name[..3]), &name);
}
