//! `cronkeeper check`: validates the jobs file as the daemon does.

use std::path::PathBuf;

use super::{DEFAULT_JOBS, Error, Io};
use crate::config::{Content, Loaded};
use crate::suggest::counted;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jobs file, or directory whose *.yaml and *.yml files are joined
    #[arg(env = "CRONKEEPER_JOBS", default_value = DEFAULT_JOBS)]
    path: PathBuf,
}

impl Args {
    /// Prints a summary. Warnings go to stderr and do not make the jobs invalid.
    ///
    /// # Errors
    /// When the jobs are invalid.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let loaded = Content::read(&self.path)?.load()?;
        for warning in &loaded.warnings {
            writeln!(
                io.err,
                "{}:{}:{}: warning: {}",
                warning.file.display(),
                warning.line,
                warning.column,
                warning.message
            )?;
        }
        writeln!(io.out, "{}", summary(&loaded))?;
        Ok(())
    }
}

fn summary(loaded: &Loaded) -> String {
    let jobs = loaded.set.jobs.len();
    let disabled = loaded.set.jobs.values().filter(|job| !job.enabled).count();
    let mut summary = format!("{}: valid, {}", loaded.path.display(), counted(jobs, "job"));
    if disabled > 0 {
        summary.push_str(&format!(" ({disabled} disabled)"));
    }
    if !loaded.warnings.is_empty() {
        summary.push_str(&format!(", {}", counted(loaded.warnings.len(), "warning")));
    }
    summary.push_str(&format!(", digest {}", loaded.set.digest));
    summary
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
            "dir/jobs.yaml:1:8: job `a`: `command` is missing\ndir/jobs.yaml:1:36: job `b`: `schedule` is missing\n"
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
    fn the_example_is_valid_and_free_of_warnings() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs/jobs.yaml");
        let text = fs::read(example).unwrap();
        let (set, warnings) = crate::config::parse(example, &text).unwrap();
        assert_eq!(warnings, []);
        assert!(set.jobs.len() >= 5);
    }
}
