//! `cronkeeper check`: validates the jobs file as the daemon does, and compares it with what runs.

mod compare;
mod document;
mod show;

use std::io;
use std::path::PathBuf;

use self::compare::Comparison;
use self::document::Document;
use super::ask::{AskFailure, ClientArgs};
use super::explain::problems;
use super::jobs::located;
use super::lock::on_service::runtime;
use super::service::{ServiceArgs, on_service};
use super::{DEFAULT_JOBS, Error, Exit, Io, json};
use crate::api::definitions::Served;
use crate::config::definition::Definitions;
use crate::config::{Content, LoadError, Loaded};
use cronkeeper_core::clock::system::{self, SystemClock};
use cronkeeper_core::suggest::counted;

/// Means the standard input.
const STDIN: &str = "-";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jobs file, or directory whose *.yaml and *.yml files are joined; `-` reads one file from standard input
    #[arg(env = "CRONKEEPER_JOBS", default_value = DEFAULT_JOBS)]
    path: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Check only the file, for CI: not the users, groups, owners and paths of this host
    #[arg(long)]
    portable: bool,
    /// Show what the file would change in the jobs that the daemon on this host has loaded. Exits with 1 if anything
    /// would change, with 0 if nothing would
    #[arg(long)]
    diff: bool,
    /// Check the coordination service instead of the jobs: whether a node of this host could use it. Changes nothing
    #[arg(long, conflicts_with_all = ["json", "portable", "diff"])]
    service: bool,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    coordination: ServiceArgs,
}

impl Args {
    /// Prints a summary. Warnings go to stderr and do not make the jobs invalid.
    ///
    /// # Errors
    /// When the jobs are invalid, or with `--diff` when no daemon answers.
    pub fn run(self, io: &mut Io<'_>) -> Result<Exit, Error> {
        if self.service {
            let found = self.look()?;
            writeln!(io.out, "{found}")?;
            return Ok(Exit::Fine);
        }
        let content = self.read();
        let files = content.as_ref().ok().map(|content| content.files().len());
        let loaded = content.and_then(|content| self.load(&content));
        let comparison = match &loaded {
            Ok(loaded) if self.diff => Some(self.compare(loaded)?),
            _ => None,
        };
        if self.json {
            let document = Document::of(&self.path, files, &loaded, comparison.as_ref());
            json::pretty(&document, io.out)?;
            return Ok(if loaded.is_err() { Exit::Config } else { exit(comparison.as_ref()) });
        }
        let loaded = loaded?;
        problems::print_each(&[], &loaded.warnings, io)?;
        if let Some(comparison) = &comparison {
            show::write(comparison, system::now().wall, io)?;
        } else {
            writeln!(io.out, "{}", self.summary(&loaded))?;
        }
        Ok(exit(comparison.as_ref()))
    }

    fn look(&self) -> Result<String, Error> {
        let clock = SystemClock::default();
        let service = self.coordination.required_service("check --service")?;
        runtime()?.block_on(async { on_service!(&service, service => service.look(&clock).await) })
    }

    fn read(&self) -> Result<Content, LoadError> {
        let unreadable = |source| LoadError::Unreadable { path: self.path.clone(), source };
        match (self.is_stdin(), self.portable) {
            (true, is_portable) => {
                let content = Content::of_stream(STDIN, io::stdin().lock()).map_err(unreadable)?;
                Ok(if is_portable { content.reading_untrusted_calendars() } else { content.reading_calendars() })
            }
            (false, true) => Content::read_untrusted(&self.path),
            (false, false) => Content::read(&self.path),
        }
    }

    fn load(&self, content: &Content) -> Result<Loaded, LoadError> {
        let loaded = if self.portable { content.load_for_any_host() } else { content.check() };
        let mut loaded = located(content, loaded)?;
        content.locate(&mut loaded.warnings);
        Ok(loaded)
    }

    fn is_stdin(&self) -> bool {
        self.path.as_os_str() == STDIN
    }

    fn compare(&self, loaded: &Loaded) -> Result<Comparison, Error> {
        let client = self.client.client().map_err(AskFailure::from)?;
        let served: Served = client.get("/v1/definitions").map_err(AskFailure::from)?;
        let new = Definitions::of(&loaded.set, &served.definitions.salt);
        Ok(Comparison::of(served, &new, system::now().wall))
    }

    fn summary(&self, loaded: &Loaded) -> String {
        let jobs = loaded.set.jobs.len();
        let disabled = loaded.set.jobs.values().filter(|job| !job.enabled).count();
        let mut summary = format!("{}: valid, {}", loaded.path.display(), counted(jobs, "job"));
        if disabled > 0 {
            summary.push_str(&format!(" ({disabled} disabled)"));
        }
        if !loaded.warnings.is_empty() {
            summary.push_str(&format!(", {}", counted(loaded.warnings.len(), "warning")));
        }
        // The digest depends on the name of the file.
        if !self.is_stdin() {
            summary.push_str(&format!(", digest {}", loaded.set.digest));
        }
        summary
    }
}

fn exit(comparison: Option<&Comparison>) -> Exit {
    if comparison.is_some_and(|comparison| !comparison.is_empty()) { Exit::Failed } else { Exit::Fine }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use crate::cli::Exit;
    use crate::cli::tests::typed;

    fn checked(text: &str) -> (Exit, String, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.yaml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let (exit, out, err) = typed(&["check", path.to_str().unwrap()], &[]);
        let short = |text: String| text.replace(dir.path().to_str().unwrap(), "dir");
        (exit, short(out), short(err))
    }

    #[test]
    fn valid_jobs_are_summed_up_in_one_line() {
        let text = "jobs: {a: &j {schedule: \"0 0 * * *\", command: [ls, ~]}, b: *j, c: {schedule: \"0 0 * * *\", command: x, enabled: false}}";
        let (exit, out, err) = checked(text);
        let digest = crate::config::parse("jobs.yaml", text.as_bytes()).unwrap().0.digest;
        assert_eq!(out, format!("dir/jobs.yaml: valid, 3 jobs (1 disabled), 2 warnings, digest {digest}\n"));
        assert!(err.starts_with("dir/jobs.yaml:1:52: warning: job `a`: `~` in a list is passed literally"), "{err}");
        assert_eq!(exit, Exit::Fine);
    }

    #[test]
    fn all_errors_of_invalid_jobs_go_to_stderr() {
        let (exit, out, err) = checked("jobs: {a: {schedule: \"0 0 * * *\"}, b: {command: x}}");
        assert_eq!((exit, out.as_str()), (Exit::Config, ""));
        assert_eq!(
            err,
            "dir/jobs.yaml:1:8: job `a`: `command` is missing\ndir/jobs.yaml:1:36: job `b`: `schedule` is missing\n\
             2 errors in 1 file\n"
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_an_invalid_configuration() {
        let (exit, out, err) = typed(&["check", "/nowhere/jobs.yaml"], &[]);
        assert_eq!((exit, out.as_str()), (Exit::Config, ""));
        assert!(err.starts_with("cronkeeper: cannot read /nowhere/jobs.yaml: No such file or directory"), "{err}");
        assert!(err.contains("\nhint: name the jobs file"), "{err}");
    }

    #[test]
    fn errors_and_warnings_are_counted() {
        let text = "jobs: {a: {schedule: '@daily', command: [ls, ~]}, b: {schedule: x, command: x}}";
        let (exit, _, err) = checked(text);
        assert_eq!(exit, Exit::Config);
        assert!(err.ends_with("\n1 error, 1 warning in 1 file\n"), "{err}");
    }

    #[test]
    fn a_file_can_be_checked_for_any_host_whoever_may_write_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.yaml");
        fs::write(&path, "jobs: {a: {schedule: '@daily', command: x, user: nobody-here, group: no-group}}").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let path = path.to_str().unwrap();
        let (exit, out, err) = typed(&["check", "--portable", path], &[]);
        assert_eq!((exit, err.as_str()), (Exit::Fine, ""), "{out}");
        assert_eq!(typed(&["check", path], &[]).0, Exit::Config);
        let (exit, out, err) = typed(&["check", "--portable", dir.path().to_str().unwrap()], &[]);
        assert_eq!((exit, err.as_str()), (Exit::Fine, ""), "{out}");
    }

    #[test]
    fn files_that_jobs_would_not_be_given_are_warnings_about_this_host() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("jobs.yaml"), dir.path().join("env"));
        let jobs = |files: &str| format!("jobs: {{a: {{schedule: '@daily', command: x, environment_file: {files}}}}}");
        let file_name = file.to_str().unwrap();
        fs::write(&path, jobs(file_name)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let check = |option: &[&str]| typed(&[&["check", path.to_str().unwrap()], option].concat(), &[]);
        let (exit, out, err) = check(&[]);
        assert_eq!(exit, Exit::Fine, "{out}{err}");
        let missing = "No such file or directory (os error 2): its runs would fail with `no-environment`";
        assert!(err.contains(&format!("job `a`: environment file `{file_name}`: {missing}")), "{err}");
        assert_eq!(check(&["--portable"]).2, "");
        fs::write(&file, "TOKEN='hunter2\n").unwrap();
        let (_, _, err) = check(&[]);
        assert!(err.contains("line 1: the quote is not closed") && !err.contains("hunter2"), "{err}");
        fs::write(&file, "TOKEN=hunter2\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(check(&[]).2, "");
        fs::write(&path, jobs(&format!("{file_name}, secrets: {{DB: {{file: {file_name}}}}}"))).unwrap();
        assert_eq!(check(&[]).2, "");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let (_, _, err) = check(&[]);
        assert!(err.contains("job `a`: secret `") && err.contains("its runs would fail with `no-secret`"), "{err}");
        fs::remove_file(&file).unwrap();
        fs::write(&path, jobs(&format!("-{file_name}"))).unwrap();
        assert_eq!(check(&[]).2, "");
    }

    #[test]
    fn files_of_channels_that_cannot_be_used_are_warnings_about_this_host() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("jobs.yaml"), dir.path().join("key"));
        let file_name = file.to_str().unwrap();
        let text = format!("notify: {{ops: {{webhook: 'https://h.example/x', secret_file: {file_name}}}}}\njobs: {{}}");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let check = |option: &[&str]| typed(&[&["check", path.to_str().unwrap()], option].concat(), &[]);
        let (exit, out, err) = check(&[]);
        assert_eq!(exit, Exit::Fine, "{out}{err}");
        assert!(err.contains(&format!("warning: channel `ops`: `{file_name}`: No such file or directory")), "{err}");
        assert_eq!(check(&["--portable"]).2, "");
        fs::write(&file, "k3y").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(check(&[]).2, "");
    }

    #[test]
    fn a_program_or_directory_that_is_missing_here_is_a_warning_about_this_host() {
        let dir = tempfile::tempdir().unwrap();
        let (path, script) = (dir.path().join("jobs.yaml"), dir.path().join("run.sh"));
        let script_name = script.to_str().unwrap();
        let checked = |keys: &str, option: &[&str]| {
            fs::write(&path, format!("jobs: {{a: {{schedule: '@daily', {keys}}}}}")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            let (exit, out, err) = typed(&[&["check", path.to_str().unwrap()], option].concat(), &[]);
            assert_eq!(exit, Exit::Fine, "{out}{err}");
            err.replace(dir.path().to_str().unwrap(), "dir")
        };
        let command = format!("command: [{script_name}, -x]");
        let says = |keys: &str, why: &str| {
            let err = checked(keys, &[]);
            assert!(err.contains("warning: job `a`: ") && err.contains(why), "{keys}: {err}");
        };
        says(&command, "program `dir/run.sh`: No such file or directory");
        assert_eq!(checked(&command, &["--portable"]), "");
        fs::write(&script, "#!/bin/sh\r\nexit 0\r\n").unwrap();
        says(&command, "program `dir/run.sh`: it is not executable: its runs would fail");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        says(&command, "program `dir/run.sh`: its first line ends with a carriage return");
        says(&format!("command: '{script_name} -x | cat'"), "its first line ends with a carriage return");
        for first in ["#!/usr/bin/env sh\r\n", "#!/bin/sh -e\r\nexit 0\n", "#!/bin/sh -e\r"] {
            fs::write(&script, first).unwrap();
            says(&command, "program `dir/run.sh`: its first line ends with a carriage return, as on Windows, which is");
        }
        fs::write(&script, "#!/bin/bsh\nexit 0\n").unwrap();
        says(&command, "program `dir/run.sh`: the interpreter that its first line names does not exist");
        fs::write(&script, "#! /bin/sh -e\nexit 0\r\n").unwrap();
        for fit in [&command, "command: [run.sh]", "command: '$HOME/run.sh'", "command: 'cd /nowhere; ./run.sh'"] {
            assert_eq!(checked(fit, &[]), "", "{fit}");
        }
        says("command: x, working_directory: /no/such/folder", "working directory `/no/such/folder`: No such file");
        says(&format!("command: x, working_directory: {script_name}"), "`dir/run.sh`: it is not a directory");
    }

    #[test]
    fn problems_are_objects_in_json() {
        let (_, out, err) = {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("jobs.yaml");
            let text = "jobs:\n  a:\n    schedule: '@daily'\n    command: [ls, ~]\n    overlap: no\n";
            fs::write(&path, text).unwrap();
            typed(&["check", "--json", "--portable", path.to_str().unwrap()], &[])
        };
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(err, "");
        let counts = ["valid", "errors", "warnings", "files", "files_with_problems", "jobs", "digest"];
        let counts = counts.map(|name| document[name].to_string());
        assert_eq!(counts, ["false", "1", "1", "1", "1", "null", "null"]);
        let problem = &document["problems"][1];
        let fields = ["level", "line", "column", "job", "key"].map(|name| problem[name].to_string());
        assert_eq!(fields, ["\"error\"", "5", "14", "\"a\"", "\"overlap\""]);
        let (exit, out, _) = typed(&["check", "--json", "/nowhere/jobs.yaml"], &[]);
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((exit, &document["problems"][0]["line"]), (Exit::Config, &serde_json::Value::Null));
    }

    #[test]
    fn the_example_is_valid_and_free_of_warnings() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs/jobs.yaml");
        let text = fs::read(example).unwrap();
        let (set, warnings) = crate::config::parse(example, &text).unwrap();
        assert_eq!(warnings, []);
        assert!(set.jobs.len() >= 5);
    }
}
