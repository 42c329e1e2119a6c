//! Imported commands, run: they get the same arguments, input and variables as from cron.

use std::process::Command;

use super::*;

/// Runs the only job of a crontab and returns its output.
fn output(crontab: &str) -> String {
    let (imported, jobs) = imported(crontab);
    let job = jobs.jobs.values().next().unwrap_or_else(|| panic!("{}", imported.yaml));
    let argv = job.command.argv();
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).env_clear().env("PATH", "/usr/bin:/bin");
    command.env("SHELL", job.command.shell()).envs(&job.environment);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn a_command_finds_its_input_byte_for_byte() {
    assert_eq!(output("@daily cat%a  b%%$HOME `x` \\\\ 'y'%\t50\\%"), "a  b\n\n$HOME `x` \\\\ 'y'\n\t50%\n");
    assert_eq!(output("@daily cat%INPUT%INPUT_%x"), "INPUT\nINPUT_\nx\n");
    assert_eq!(output("@daily cat% leading%  %"), " leading\n  \n");
    assert_eq!(output("@daily read a; cat; echo \"$a's\" '%20'%one%two"), "");
    assert_eq!(output("@daily read a; cat; echo \"$a's\"%one%two"), "two\none's\n");
    assert_eq!(output("@daily cat # comment%x"), "x\n");
    assert_eq!(output("@daily echo é%"), "é\n");
}

#[test]
fn the_shell_of_the_crontab_runs_the_command() {
    assert_eq!(output("SHELL=/bin/bash\n@daily echo ${BASH_VERSION:+bash} $SHELL"), "bash /bin/bash\n");
    assert_eq!(output("SHELL=/bin/bash\n@daily cat <(echo ${BASH_VERSION:+bash} $SHELL) -%x"), "bash /bin/bash\nx\n");
    assert_eq!(output("SHELL=/bin/sh\n@daily echo $SHELL%x"), "/bin/sh\n");
}

#[test]
fn a_command_finds_the_variables_set_before_it() {
    let crontab = "A = ' x \"y\" '\nB=1\n@daily echo \"$A$B\"\n";
    assert_eq!(output(crontab), " x \"y\" 1\n");
    let (_, jobs) = imported("A=1\n@daily first\nA=2\nB=3\n@daily second\n");
    let of = |index: usize| jobs.jobs.values().nth(index).unwrap().environment.clone();
    assert_eq!((of(0).get("A"), of(0).get("B")), (Some(&"1".to_owned()), None));
    assert_eq!((of(1).get("A"), of(1).get("B")), (Some(&"2".to_owned()), Some(&"3".to_owned())));
}
