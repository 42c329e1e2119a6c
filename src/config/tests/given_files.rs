//! Tests of the files that a job is given: environment files and secrets.

use super::*;
use cronkeeper_core::environment_file::EnvironmentFile;

const JOB: &str = "\njobs: {a: {schedule: '@daily', command: x";

#[test]
fn environment_files_are_a_text_or_a_list_that_replaces_the_default() {
    let files = |defaults: &str, own: &str| {
        let job = job(&format!("defaults: {{{defaults}}}{JOB}, {own}}}}}"));
        job.environment_file.iter().map(EnvironmentFile::to_string).collect::<Vec<_>>()
    };
    assert_eq!(files("", ""), [""; 0]);
    assert_eq!(files("", "environment_file: /etc/app.env"), ["/etc/app.env"]);
    assert_eq!(files("environment_file: /a", "environment_file: [-/b, /c]"), ["-/b", "/c"]);
    assert_eq!(files("environment_file: /a", "environment_file: ~"), [""; 0]);
    let job = job(&format!("{JOB}, environment_file: -/b}}}}"));
    assert_eq!(job.environment_file, [EnvironmentFile { path: "/b".into(), is_optional: true }]);
}

#[test]
fn an_environment_file_that_no_host_can_have_is_an_error() {
    for (value, why) in [
        ("app.env", "`app.env` is not an absolute path"),
        ("-app.env", "`app.env` is not an absolute path"),
        ("--/etc/x", "`-/etc/x` is not an absolute path"),
        ("A=hunter2", "`A=` is not an absolute path"),
        ("[/a, '']", "`` is not an absolute path"),
    ] {
        let expected = format!("j:5:23: job `a`: `environment_file`: {why}");
        same(&reported_for_keys(&format!("environment_file: {value}")), &expected);
    }
    let many = vec!["/a"; 33].join(", ");
    assert!(reported_for_keys(&format!("environment_file: [{many}]")).ends_with("at most 32 environment files"));
}

#[test]
fn secrets_are_files_by_their_names_and_merged_with_the_defaults() {
    let secrets = |defaults: &str, own: &str| {
        let job = job(&format!("defaults: {{{defaults}}}{JOB}, {own}}}}}"));
        job.secrets.iter().map(|(name, path)| format!("{name} {}", path.display())).collect::<Vec<_>>()
    };
    let defaults = "secrets: {A: {file: /a}, B: {file: /b}}";
    assert_eq!(secrets(defaults, "secrets: {B: {file: /own}, C: {file: /c}}"), ["A /a", "B /own", "C /c"]);
    assert_eq!(secrets(defaults, "secrets: ~"), [""; 0]);
    assert_eq!(secrets("", ""), [""; 0]);
}

#[test]
fn a_secret_without_a_usable_name_and_file_is_an_error() {
    same(
        &reported_for_keys("secrets: {A B: {file: /x}, C: {file: x}, D: {}, E: {file: ~}}"),
        "j:5:15: job `a`: `secrets`: `A B` is not a variable name
         j:5:42: job `a`: `secrets`: `C`: `file`: must be the absolute path of a file that has the secret
         j:5:46: job `a`: `secrets`: `D`: `file` is missing
         j:5:53: job `a`: `secrets`: `E`: `file` is missing",
    );
    same(
        &reported_for_keys("secrets: {A: hunter2, B: {value: hunter2}, C: ~, D: {file: [x]}}"),
        "j:5:18: job `a`: `secrets`: `A` must be a map, not a text; write `A: {file: ...}`
         j:5:31: job `a`: `secrets.B`: `value` is not one of its keys
         j:5:51: job `a`: `secrets`: `C` must be a map, not nothing; write `C: {file: ...}`
         j:5:64: job `a`: `secrets.D`: `file` must be a text or number, not a list",
    );
}

#[test]
fn the_variable_of_a_secret_must_not_be_set_otherwise() {
    let both = "job `a`: `secrets`: `A` sets the variable `A_FILE`, and so does `environment`";
    same(&reported_for_keys("environment: {LANG: C}\nsecrets: {A: {file: /x}}"), "");
    let at_the_variable = reported_for_keys("environment: {A_FILE: x}\nsecrets: {A: {file: /x}}");
    same(&at_the_variable, &format!("j:5:19: {both}"));
    let text =
        "defaults: {environment: {A_FILE: x}}\njobs: {a: {schedule: '@daily', command: x, secrets: {A: {file: /x}}}}";
    same(&reported(text), &format!("j:2:54: {both}"));
    let both = "job `a`: `secrets`: `A` sets the variable `A_FILE`, and `parameters` lists it too";
    same(&reported_for_keys("parameters: [A]\nsecrets: {A: {file: /x}}"), "");
    let at_the_list = reported_for_keys("parameters: [DAY, A_FILE]\nsecrets: {A: {file: /x}}");
    same(&at_the_list, &format!("j:5:17: {both}"));
    let text = "defaults: {parameters: A_FILE}\njobs: {a: {schedule: '@daily', command: x, secrets: {A: {file: /x}}}}";
    same(&reported(text), &format!("j:2:54: {both}"));
}

#[test]
fn a_job_has_at_most_32_secrets_with_those_of_the_defaults() {
    let secrets = |range: std::ops::Range<u32>| {
        let each: Vec<String> = range.map(|number| format!("S{number}: {{file: /x}}")).collect();
        format!("secrets: {{{}}}", each.join(", "))
    };
    let with = |own: &str| reported(format!("defaults: {{{}}}{JOB}, {own}}}}}", secrets(0..30)));
    same(&with(&secrets(28..32)), "");
    assert!(with(&secrets(28..33)).ends_with("`secrets`: a job has at most 32 secrets"));
}
