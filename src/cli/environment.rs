//! Check for `CRONKEEPER_*` variables that are unknown or empty, so that neither a misspelt setting nor one without a
//! value goes unnoticed.

use crate::cli::Error;
use crate::config::GIVEN_TO_JOBS;
use cronkeeper_core::process::UNUSABLE_FILES;
use cronkeeper_core::suggest::nearest;

const PREFIX: &str = "CRONKEEPER_";

/// Variables that hooks get besides [`GIVEN_TO_JOBS`].
///
/// They are allowed because a job or hook that calls cronkeeper passes them on.
const GIVEN_TO_HOOKS: [&str; 16] = [
    "CRONKEEPER_OUTCOME",
    "CRONKEEPER_REASON",
    "CRONKEEPER_EXIT_CODE",
    "CRONKEEPER_DURATION_MS",
    "CRONKEEPER_HOOK",
    "CRONKEEPER_RUN_NODE",
    "CRONKEEPER_ALARM",
    "CRONKEEPER_SINCE",
    "CRONKEEPER_LIMIT_MS",
    "CRONKEEPER_OTHER_NODE",
    "CRONKEEPER_FOR_MS",
    "CRONKEEPER_ERROR",
    "CRONKEEPER_COUNT",
    "CRONKEEPER_FIRST",
    "CRONKEEPER_LAST",
    UNUSABLE_FILES,
];

/// Rejects the first of these variables that is [`bad`].
///
/// # Errors
/// [`Error::UnknownVariable`] or [`Error::EmptyVariable`].
pub fn check(command: &clap::Command, variables: impl Iterator<Item = (String, String)>) -> Result<(), Error> {
    match bad(command, variables) {
        None => Ok(()),
        Some(BadVariable::Unknown { name, nearest }) => Err(Error::UnknownVariable { name, nearest }),
        Some(BadVariable::Empty { name }) => Err(Error::EmptyVariable { name }),
    }
}

/// A variable that cannot be meant as it is.
pub(super) enum BadVariable {
    /// Nothing reads it.
    Unknown {
        name: String,
        /// The one that is probably meant.
        nearest: Option<String>,
    },
    /// It sets an option to nothing. Every option with a variable needs a value: without the servers, a lock would be
    /// one of this host.
    Empty { name: String },
}

/// The first of these variables that starts with `CRONKEEPER_` and is unknown, or else is empty and that of an option.
///
/// Known are the options of `command` and of all its subcommands, and the variables of jobs and hooks.
pub(super) fn bad(command: &clap::Command, variables: impl Iterator<Item = (String, String)>) -> Option<BadVariable> {
    let own: Vec<(String, String)> = variables.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    let mut options = Vec::new();
    options_of(command, &mut options);
    let is_given = |name: &str| GIVEN_TO_JOBS.iter().chain(&GIVEN_TO_HOOKS).any(|given| *given == name);
    let is_option = |name: &String| options.contains(name);
    // The smallest, because the environment has no order: the error must not depend on chance.
    let unknown = own.iter().map(|(name, _)| name).filter(|name| !is_option(name) && !is_given(name)).min();
    if let Some(name) = unknown {
        let word = name.strip_prefix(PREFIX).unwrap_or_default();
        let words = options.iter().filter_map(|option| option.strip_prefix(PREFIX));
        let nearest = nearest(word, words).map(|word| format!("{PREFIX}{word}"));
        return Some(BadVariable::Unknown { name: name.clone(), nearest });
    }
    let empty = own.iter().filter(|(name, value)| is_option(name) && value.trim().is_empty()).map(|(name, _)| name);
    empty.min().map(|name| BadVariable::Empty { name: name.clone() })
}

fn options_of(command: &clap::Command, names: &mut Vec<String>) {
    names.extend(command.get_arguments().filter_map(|argument| argument.get_env()?.to_str().map(str::to_owned)));
    for command in command.get_subcommands() {
        options_of(command, names);
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Exit;
    use crate::cli::tests::typed;

    #[test]
    fn an_unknown_variable_is_wrong_usage() {
        let line = ["next", "--schedule", "@daily", "-n1"];
        let (exit, out, err) = typed(&line, &[("PATH", "x"), ("CRONKEEPER_JOBBS", "x"), ("CRONKEEPER_X", "")]);
        assert_eq!((exit, out.as_str()), (Exit::Usage, ""));
        assert_eq!(
            err,
            "cronkeeper: unknown environment variable `CRONKEEPER_JOBBS`\n\
             hint: did you mean `CRONKEEPER_JOBS`?\n"
        );
        let given = ["JOB", "RUN_ID", "SCHEDULED_AT", "ATTEMPT", "NODE", "FENCING_TOKEN", "OUTCOME", "REASON"];
        let given = given.into_iter().chain(["EXIT_CODE", "DURATION_MS"]).map(|name| format!("CRONKEEPER_{name}"));
        let given: Vec<String> = given.collect();
        let given: Vec<(&str, &str)> = given.iter().map(|name| (name.as_str(), "x")).collect();
        assert_eq!(typed(&line, &given).0, Exit::Fine);
    }

    #[test]
    fn an_empty_variable_of_an_option_is_wrong_usage_in_every_command() {
        let mut options = Vec::new();
        super::options_of(&crate::cli::guide::command(), &mut options);
        assert!(options.len() > 30, "{options:?}");
        for name in &options {
            for value in ["", " "] {
                let (exit, out, err) = typed(&["next", "--schedule", "@daily", "-n1"], &[(name, value), ("PATH", "")]);
                assert_eq!((exit, out.as_str()), (Exit::Usage, ""), "{name}");
                assert!(
                    err.starts_with(&format!("cronkeeper: environment variable `{name}` is empty\nhint: ")),
                    "{err}"
                );
            }
        }
        // Also where the value is the reason for another error, but not for help.
        let (exit, _, err) = typed(&["next", "--schedule"], &[("CRONKEEPER_JOBS", "")]);
        assert!(exit == Exit::Usage && err.contains("`CRONKEEPER_JOBS` is empty"), "{err}");
        assert_eq!(typed(&["next", "--help"], &[("CRONKEEPER_JOBS", "")]).0, Exit::Fine);
        // What jobs and hooks are given may be empty.
        let given = [("CRONKEEPER_REASON", ""), ("CRONKEEPER_LOCK_KEYS", "")];
        assert_eq!(typed(&["next", "--schedule", "@daily", "-n1"], &given).0, Exit::Fine);
    }
}
