//! Why a process could not be started, with the name of what is missing: the program, the directory or the user.
//!
//! The system reports only a step and an error number. The job's definition has the name that belongs to the step.

use std::fmt;

use nix::errno::Errno;

use crate::job::{CommandLine, Job, RunAs};
use crate::process::{Exit, FileFault, FileProblem, InterpreterFault, StartStep};

/// Maximum number of characters of the text kept in a run's record.
const LONGEST: usize = 300;
/// Maximum number of characters of a path in it, so that the error after it is kept too.
const LONGEST_PATH: usize = 200;

/// The step that failed, and what it failed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartProblem {
    pub step: StartStep,
    /// The program or directory; absent where the step is about neither.
    pub path: Option<String>,
    /// What is wrong.
    pub error: String,
}

impl StartProblem {
    /// `command` is the one that was to be started: the job's own, or a hook's. `job`: absent for a hook of the node.
    pub fn of(job: Option<&Job>, command: &CommandLine, step: StartStep, errno: i32) -> Self {
        let path = match step {
            StartStep::Exec | StartStep::Interpreter(_) => Some(command.program().to_owned()),
            StartStep::Directory => {
                let path = job.and_then(|job| job.working_directory.as_ref());
                path.map(|path| path.to_string_lossy().into_owned())
            }
            StartStep::Environment(FileProblem { index, .. }) => {
                let file = job.and_then(|job| job.environment_file.get(usize::from(index)));
                file.map(|file| file.path.to_string_lossy().into_owned())
            }
            StartStep::Secret(FileProblem { index, .. }) => {
                let path = job.and_then(|job| job.secrets.values().nth(usize::from(index)));
                path.map(|path| path.to_string_lossy().into_owned())
            }
            _ => None,
        };
        let error = match step {
            // The user was looked up before there was a process, so there is no system error to report.
            StartStep::User if errno == 0 => unknown_user(job.map(|job| &job.run_as)),
            StartStep::Exec if errno == Errno::ENOENT as i32 && !command.program().contains('/') => {
                format!("{} in its PATH", Errno::ENOENT.desc())
            }
            StartStep::Environment(FileProblem { fault, .. }) | StartStep::Secret(FileProblem { fault, .. }) => {
                about_file(fault, errno)
            }
            StartStep::Interpreter(fault) => about_interpreter(fault).to_owned(),
            _ => format!("{}{}", prefix(step, errno), Errno::from_raw(errno).desc()),
        };
        Self { step, path, error }
    }

    /// Of a process that ended before its program began.
    pub fn died(exit: Exit) -> Self {
        let what = match exit {
            Exit::Signal { signal, .. } => format!("signal {signal} ended its process"),
            Exit::Code(code) => format!("its process ended with exit code {code}"),
        };
        Self { step: StartStep::Prepare, path: None, error: format!("{what} before its program began") }
    }

    /// What the step failed over; `None` if it is about neither a program nor a path.
    pub fn subject(&self) -> Option<String> {
        self.path.as_ref().map(|path| format!("{}{path}", kind(self.step)))
    }

    /// The text for the run's record, of limited length.
    pub fn for_record(&self) -> String {
        let path = self.path.as_deref().map(|path| cut(path, LONGEST_PATH));
        cut(&Self { path, ..self.clone() }.to_string(), LONGEST)
    }
}

impl fmt::Display for StartProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject() {
            Some(subject) => write!(f, "{subject}: {}", self.error),
            None => f.write_str(&self.error),
        }
    }
}

/// What a path is, unless it is the program.
fn kind(step: StartStep) -> &'static str {
    match step {
        StartStep::Directory => "working directory ",
        StartStep::Environment(_) => "environment file ",
        StartStep::Secret(_) => "secret ",
        _ => "",
    }
}

/// What is wrong with a program that the system reports as missing although it is there.
pub fn about_interpreter(fault: InterpreterFault) -> &'static str {
    match fault {
        InterpreterFault::CarriageReturn => {
            "its first line ends with a carriage return, as on Windows, so its interpreter is not found; \
             remove those with `sed -i 's/\\r$//'`"
        }
        InterpreterFault::Missing => "the interpreter that its first line names does not exist",
        InterpreterFault::Loader => "it was built for another system: the loader that it names does not exist",
    }
}

fn about_file(fault: FileFault, errno: i32) -> String {
    match fault {
        FileFault::System => Errno::from_raw(errno).desc().to_owned(),
        FileFault::Unsafe => "other users can change or replace it; `cronkeeper check` says where".to_owned(),
        FileFault::Open => "users other than its owner can read or write it".to_owned(),
        FileFault::NoFile => "it is not a regular file".to_owned(),
        FileFault::TooLarge(most) => format!("it has more than {most} bytes"),
        FileFault::Line(bad) => bad.to_string(),
    }
}

/// What was attempted, where neither a path nor the error says it.
fn prefix(step: StartStep, errno: i32) -> &'static str {
    match step {
        StartStep::Fork if errno == Errno::EAGAIN as i32 => {
            "cannot create a process: the unit (`TasksMax=`) or the host has reached its limit of processes: "
        }
        StartStep::Fork => "cannot create a process: ",
        StartStep::Prepare => "cannot prepare its process: ",
        StartStep::Limits => "cannot set its limits or nice value: ",
        StartStep::User => "cannot switch to its user: ",
        StartStep::Directory
        | StartStep::Exec
        | StartStep::Interpreter(_)
        | StartStep::Environment(_)
        | StartStep::Secret(_) => "",
    }
}

fn unknown_user(run_as: Option<&RunAs>) -> String {
    match run_as.map(|run_as| (&run_as.user, &run_as.group)).unwrap_or((&None, &None)) {
        (Some(user), None) => format!("no user `{user}` on this host"),
        (None, Some(group)) => format!("no group `{group}` on this host"),
        (Some(user), Some(group)) => format!("no user `{user}` or no group `{group}` on this host"),
        (None, None) => "its user or group is unknown on this host".to_owned(),
    }
}

fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment_file::{BadLine, EnvironmentFile, LineFault};
    use crate::job::{CommandLine, Job};
    use crate::test_records::job;

    fn problem(command: CommandLine, step: StartStep, errno: Errno) -> StartProblem {
        let job = Job {
            command,
            working_directory: Some("/var/gone".into()),
            environment_file: ["/a", "-/b"].map(EnvironmentFile::of).into(),
            secrets: [("Z", "/z"), ("A", "/a")].map(|(name, path)| (name.to_owned(), path.into())).into(),
            ..job("a", "0 0 * * *")
        };
        StartProblem::of(Some(&job), &job.command, step, errno as i32)
    }

    fn argv(words: &[&str]) -> CommandLine {
        CommandLine::Argv(words.iter().map(|&word| word.to_owned()).collect())
    }

    #[test]
    fn what_is_missing_is_named() {
        for (command, step, errno, text) in [
            (argv(&["/opt/backup", "-v"]), StartStep::Exec, Errno::ENOENT, "/opt/backup: No such file or directory"),
            (argv(&["backup"]), StartStep::Exec, Errno::ENOENT, "backup: No such file or directory in its PATH"),
            (argv(&["backup"]), StartStep::Exec, Errno::EACCES, "backup: Permission denied"),
            (CommandLine::Shell("a | b".into()), StartStep::Exec, Errno::ENOENT, "/bin/sh: No such file or directory"),
            (
                argv(&["x"]),
                StartStep::Directory,
                Errno::ENOENT,
                "working directory /var/gone: No such file or directory",
            ),
            (argv(&["x"]), StartStep::User, Errno::EPERM, "cannot switch to its user: Operation not permitted"),
            (
                argv(&["x"]),
                StartStep::Limits,
                Errno::EPERM,
                "cannot set its limits or nice value: Operation not permitted",
            ),
        ] {
            assert_eq!(problem(command, step, errno).to_string(), text);
        }
        let bad = |fault| FileFault::Line(BadLine { line: 3, fault });
        for (fault, errno, text) in [
            (FileFault::System, Errno::ENOENT, "No such file or directory"),
            (FileFault::NoFile, Errno::UnknownErrno, "it is not a regular file"),
            (bad(LineFault::Name), Errno::UnknownErrno, "line 3: what is before `=` is not a variable name"),
            (
                bad(LineFault::Export),
                Errno::UnknownErrno,
                "line 3: `export` belongs to a shell; leave it out: `NAME=value`",
            ),
        ] {
            let step = StartStep::Environment(FileProblem { index: 1, fault });
            assert_eq!(problem(argv(&["x"]), step, errno).to_string(), format!("environment file /b: {text}"));
        }
        let step = StartStep::Secret(FileProblem { index: 1, fault: FileFault::Open });
        let open = "secret /z: users other than its owner can read or write it";
        assert_eq!(problem(argv(&["x"]), step, Errno::UnknownErrno).to_string(), open);
        let script = StartStep::Interpreter(InterpreterFault::CarriageReturn);
        let problem_of_script = problem(argv(&["/opt/x.sh"]), script, Errno::ENOENT);
        assert!(problem_of_script.to_string().starts_with("/opt/x.sh: its first line ends with a carriage return"));
        assert!(problem_of_script.for_record().ends_with("`sed -i 's/\\r$//'`"), "{problem_of_script}");
        let refused = problem(argv(&["x"]), StartStep::Fork, Errno::EAGAIN).to_string();
        assert!(refused.contains("`TasksMax=`"), "{refused}");
    }

    #[test]
    fn a_record_gets_a_limited_text_with_the_error_in_it() {
        let long = problem(argv(&[&format!("/{}", "ä".repeat(4_000))]), StartStep::Exec, Errno::ENOENT).for_record();
        assert!(long.chars().count() <= LONGEST + 1 && long.ends_with("…: No such file or directory"), "{long}");
    }
}
