//! The program and the working directory of a job, as they are on this host.

use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::super::raw::merged;
use super::super::schema::shown;
use super::{LocatedSettings, Objection, objection};
use crate::warden::interpreter;
use cronkeeper_core::job::CommandLine;
use cronkeeper_core::run::Reason;
use cronkeeper_core::start_problem::about_interpreter;

/// What of them is missing, or cannot be executed. Only what has an absolute path is looked at.
pub(super) fn unfit(own: &LocatedSettings, defaults: &LocatedSettings) -> Vec<Objection> {
    let directory = merged(&own.settings.working_directory, &defaults.settings.working_directory);
    let no_directory = directory.and_then(|path| {
        let why = fault(&path, |path| path.metadata().map(|found| (!found.is_dir()).then_some(NO_DIRECTORY)))?;
        let reason = Reason::NoDirectory.as_str();
        let path = shown(&path.to_string_lossy());
        let message = format!("working directory `{path}`: {why}: its runs would fail with `{reason}`");
        objection(own, defaults, &["working_directory"], message, false)
    });
    no_directory.into_iter().chain(unfit_program(own, defaults)).collect()
}

const NO_DIRECTORY: &str = "it is not a directory";
const NOT_EXECUTABLE: &str = "it is not executable";
const ENDS_WITH_CARRIAGE_RETURN: &str = "its first line ends with a carriage return, as on Windows, which is passed to \
                                         its interpreter: its runs may fail; remove those with `sed -i 's/\\r$//'`";

fn unfit_program(own: &LocatedSettings, defaults: &LocatedSettings) -> Option<Objection> {
    let command = own.settings.command.as_ref()?.as_ref()?;
    let program = match command {
        CommandLine::Argv(argv) => argv.first()?,
        CommandLine::Shell(script) | CommandLine::OtherShell { script, .. } => first_word(script)?,
    };
    let path = Path::new(program);
    let why = fault(path, |path| {
        let found = path.metadata()?;
        let is_fit = found.is_file() && found.permissions().mode() & 0o111 != 0;
        Ok((!is_fit).then_some(NOT_EXECUTABLE))
    });
    let why = why.or_else(|| interpreter::missing(path).map(|fault| about_interpreter(fault).to_owned()));
    let what = match why {
        Some(why) => format!("{why}: its runs would fail"),
        // Some interpreters, such as perl, take it.
        None if path.is_absolute() && interpreter::has_carriage_return(path) => ENDS_WITH_CARRIAGE_RETURN.to_owned(),
        None => return None,
    };
    let message = format!("program `{}`: {what}", shown(program));
    objection(own, defaults, &["command"], message, false)
}

/// The first word of a script, if it is a path that no shell would change.
fn first_word(script: &str) -> Option<&str> {
    let word = script.split_whitespace().next()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
    word.chars().all(is_plain).then_some(word)
}

/// Why an absolute path is unfit: it is missing, or `look` says why. Another error may concern this user alone.
fn fault(path: &Path, look: impl FnOnce(&Path) -> io::Result<Option<&'static str>>) -> Option<String> {
    if !path.is_absolute() {
        return None;
    }
    match look(path) {
        Ok(why) => why.map(str::to_owned),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Some(error.to_string()),
        Err(_) => None,
    }
}
