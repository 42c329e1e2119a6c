//! Tests of the files that a job is given.

use super::*;
use crate::environment_file::EnvironmentFile;

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
        ("[/a, '']", "`` is not an absolute path"),
    ] {
        let expected = format!("j:5:23: job `a`: `environment_file`: {why}");
        same(&reported_for_keys(&format!("environment_file: {value}")), &expected);
    }
    let many = vec!["/a"; 33].join(", ");
    assert!(reported_for_keys(&format!("environment_file: [{many}]")).ends_with("at most 32 environment files"));
}
