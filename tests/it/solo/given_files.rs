//! Environment files and secrets of a job, end to end: what is in them is nowhere afterwards.

use std::fs;
use std::path::{Path, PathBuf};

use super::fixture::{await_record, cli_text, get, leading, node};
use crate::support::LONG;
use crate::support::node::Event;
use crate::support::scratch::Scratch;

const TOKEN: &str = "token-of-4711";
const PASSWORD: &str = "password-of-4712";

/// The files below a directory that contain a text.
fn files_with(folder: &Path, text: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let found = entries.flat_map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => files_with(&entry.path(), text),
        kind if kind.is_file() => {
            let bytes = fs::read(entry.path()).unwrap_or_default();
            let is_in = bytes.windows(text.len()).any(|window| window == text.as_bytes());
            Vec::from_iter(is_in.then(|| entry.path()))
        }
        _ => Vec::new(),
    });
    found.collect()
}

#[test]
fn what_a_job_is_given_is_in_no_log_record_file_or_answer() {
    let folder = Scratch::new("given-files");
    let environment = folder.write("env", &format!("TOKEN='{TOKEN}'\n"));
    let secret = folder.write("secret", PASSWORD);
    let broken = folder.write("broken", &format!("A=1\nTOKEN='{TOKEN}\n"));
    let [environment, secret, broken] = [environment, secret, broken].map(|path| path.display().to_string());
    let is_given = format!("test ${{#TOKEN}} = {} && test $(wc -c < \"$DB_FILE\") = {}", TOKEN.len(), PASSWORD.len());
    let jobs = format!(
        "jobs:
  given: {{schedule: '* * * * * *', command: '{is_given}', on_success: '{is_given}', environment_file: {environment},
          secrets: {{DB: {{file: {secret}}}}}, retries: {{limit: 1}}}}
  broken: {{schedule: '* * * * * *', command: 'true', environment_file: {broken}}}
  open: {{schedule: '* * * * * *', command: 'true', secrets: {{DB: {{file: {secret}-missing}}}}}}
"
    );
    let spec = node("given-files").jobs(&jobs);
    let node = leading(&spec);
    await_record(&spec, "given", |record| record["outcome"] == "success");
    let hook = node.await_event("hook.finished", LONG);
    assert_eq!((hook.text("job"), hook.text("outcome")), ("given", "success"));
    let record = await_record(&spec, "broken", |record| record["kind"] == "run");
    assert_eq!(record["reason"], "no-environment");
    assert_eq!(record["detail"], format!("environment file {broken}: line 2: the quote is not closed"));
    let record = await_record(&spec, "open", |record| record["kind"] == "run");
    assert_eq!(record["reason"], "no-secret");
    assert_eq!(record["detail"], format!("secret {secret}-missing: No such file or directory"));
    let of_broken = |event: &Event| event.text("job") == "broken";
    let failed = node.await_where("run.not_started", LONG, of_broken);
    assert_eq!((failed.text("step"), failed.text("path")), ("environment", broken.as_str()));

    let mut texts = vec![node.events().tail()];
    texts.extend(node.events().all().iter().map(|event| event.json().to_string()));
    texts.push(cli_text(&spec, &["status", "--json"]));
    texts.push(cli_text(&spec, &["history", "--json", "--output"]));
    texts.extend(["/v1/definitions", "/v1/jobs", "/v1/status"].map(|path| get(&spec, path).unwrap().1));
    assert!(texts.iter().any(|text| text.contains(&secret)), "paths may be shown");
    for value in [TOKEN, PASSWORD] {
        assert_eq!(files_with(&spec.state_dir(), value), [] as [PathBuf; 0]);
        for text in &texts {
            assert!(!text.contains(value), "{text}");
        }
    }
}

#[test]
fn a_run_that_fails_over_its_files_is_told_by_its_hook_which_does_without_them() {
    let folder = Scratch::new("given-files");
    let good = folder.write("good", "TO=ops\n").display().to_string();
    let gone = folder.path().join("gone").display().to_string();
    let hook = r#"echo "$TO: $CRONKEEPER_REASON over $CRONKEEPER_UNUSABLE_FILES""#;
    let jobs = format!(
        "jobs: {{a: {{schedule: '* * * * * *', command: 'true', environment_file: [{good}, {gone}], on_failure: {hook:?},
                 secrets: {{DB: {{file: {gone}}}}}}}}}"
    );
    let node = leading(&node("given-files").jobs(&jobs));
    let finished = node.await_event("hook.finished", LONG);
    assert_eq!((finished.text("hook"), finished.text("outcome")), ("on_failure", "success"));
    let run = finished.text("run").to_owned();
    let of_run = |name: &str| {
        let all = node.events().named(name);
        all.into_iter().filter(|event| event.text("run") == run).collect::<Vec<_>>()
    };
    let lines: Vec<String> = of_run("run.output").iter().map(|event| event.text("line").to_owned()).collect();
    assert_eq!(lines, [format!("ops: no-environment over {gone}"), gone.clone()]);
    let texts = of_run("hook.without_file");
    let texts: Vec<_> = texts
        .iter()
        .map(|event| ["level", "job", "hook", "step", "path", "error"].map(|field| event.text(field)))
        .collect();
    let error = "No such file or directory";
    assert_eq!(texts, ["environment", "secret"].map(|step| ["WARN", "a", "on_failure", step, &gone, error]));
}
