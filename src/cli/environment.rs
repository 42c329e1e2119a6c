//! Check for unknown `CRONKEEPER_*` variables, so that a misspelt setting does not go unnoticed.

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

/// Rejects the first of `names` that is [`unknown`].
///
/// # Errors
/// [`Error::UnknownVariable`].
pub fn check(command: &clap::Command, names: impl Iterator<Item = String>) -> Result<(), Error> {
    unknown(command, names).map_or(Ok(()), |Unknown { name, nearest }| Err(Error::UnknownVariable { name, nearest }))
}

/// A variable that nothing reads.
pub(super) struct Unknown {
    pub name: String,
    /// The one that is probably meant.
    pub nearest: Option<String>,
}

/// The first of `names` that starts with `CRONKEEPER_` and is unknown.
///
/// Known are the options of `command` and of all its subcommands, and the variables of jobs and hooks.
pub(super) fn unknown(command: &clap::Command, names: impl Iterator<Item = String>) -> Option<Unknown> {
    let mut known: Vec<String> = GIVEN_TO_JOBS.iter().chain(&GIVEN_TO_HOOKS).map(|name| (*name).to_owned()).collect();
    let mut options = Vec::new();
    options_of(command, &mut options);
    known.extend(options.iter().cloned());
    // The smallest, because the environment has no order: the error must not depend on chance.
    let name = names.filter(|name| name.starts_with(PREFIX) && !known.contains(name)).min()?;
    let word = name.strip_prefix(PREFIX).unwrap_or_default();
    let words = options.iter().filter_map(|option| option.strip_prefix(PREFIX));
    let nearest = nearest(word, words).map(|word| format!("{PREFIX}{word}"));
    Some(Unknown { name, nearest })
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
}
