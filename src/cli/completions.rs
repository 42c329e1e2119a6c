//! `cronkeeper completions`: completion scripts for bash, zsh, fish and others.
//!
//! The scripts call the program with CRONKEEPER_COMPLETE set, and [`answered`] then writes what fits. It knows the jobs,
//! nodes and runs in flight from the node on this host; without a node, the jobs from the jobs file. Nothing of this may
//! take longer than a person notices, and nothing is said about what fails.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::Command;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{Bash, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Zsh};

use super::ask::{ClientArgs, HostArgs};
use super::{DEFAULT_JOBS, Error, Exit, Io, guide};
use crate::config;
use crate::status::Status;
use cronkeeper_core::term::NodeName;

/// Set by the scripts; its value is the shell.
const VARIABLE: &str = "CRONKEEPER_COMPLETE";
/// How long the node, and then the jobs file, may take to name what there is.
const WITHIN: Duration = Duration::from_millis(40);

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

impl Shell {
    /// Writes the script that asks this program.
    fn writer(self) -> &'static dyn EnvCompleter {
        match self {
            Self::Bash => &Bash,
            Self::Elvish => &Elvish,
            Self::Fish => &Fish,
            Self::Powershell => &Powershell,
            Self::Zsh => &Zsh,
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell to print the script for
    #[arg(value_enum)]
    shell: Shell,
}

impl Args {
    /// Writes the script.
    ///
    /// # Errors
    /// When the result cannot be written.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        self.shell.writer().write_registration(VARIABLE, "cronkeeper", "cronkeeper", "cronkeeper", io.out)?;
        Ok(())
    }
}

/// Answers the script of a shell, if that has started this process.
pub(super) fn answered() -> Option<Exit> {
    let directory = std::env::current_dir().ok();
    let done = CompleteEnv::with_factory(command).var(VARIABLE).try_complete(std::env::args_os(), directory.as_deref());
    match done {
        Ok(false) => None,
        Ok(true) => Some(Exit::Fine),
        Err(_) => Some(Exit::Failed),
    }
}

/// What an argument names.
#[derive(Clone, Copy)]
enum Kind {
    Job,
    Node,
    RunOrJob,
}

/// The arguments that name something which only the cluster knows.
const NAMES: &[(&str, &str, Kind)] = &[
    ("next", "names", Kind::Job),
    ("status", "patterns", Kind::Job),
    ("history", "job", Kind::Job),
    ("history", "jobs", Kind::Job),
    ("history", "node", Kind::Node),
    ("logs", "target", Kind::RunOrJob),
    ("trigger", "job", Kind::Job),
    ("trigger", "on", Kind::Node),
    ("pause", "jobs", Kind::Job),
    ("resume", "jobs", Kind::Job),
    ("recount", "job", Kind::Job),
    ("handover", "to", Kind::Node),
    ("drain", "node", Kind::Node),
    ("undrain", "node", Kind::Node),
    ("forget", "node", Kind::Node),
    ("kill", "whom", Kind::RunOrJob),
    ("exec", "name", Kind::Job),
];

/// The command line, whose arguments know the names.
fn command() -> Command {
    guide::command().mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        command.mut_args(|argument| {
            let found = NAMES.iter().find(|(command, id, _)| *command == name && argument.get_id() == id);
            match found {
                Some((_, _, kind)) => argument.add(ArgValueCandidates::new(|| candidates(*kind))),
                None => argument,
            }
        })
    })
}

fn candidates(kind: Kind) -> Vec<CompletionCandidate> {
    let line: Vec<OsString> = std::env::args_os().collect();
    let client = ClientArgs {
        runtime_dir: given(&line, "--runtime-dir", "CRONKEEPER_RUNTIME_DIR"),
        state_dir: given(&line, "--state-dir", "CRONKEEPER_STATE_DIR"),
        // Only the node here is asked: another would take too long.
        host: HostArgs::default(),
    };
    let jobs = given(&line, "--jobs", "CRONKEEPER_JOBS").unwrap_or_else(|| DEFAULT_JOBS.into());
    let status = within(move || client.client().ok()?.get::<Status>("/v1/status").ok());
    let names = match status {
        Some(status) => of_node(&status, kind),
        None => match kind {
            Kind::Job | Kind::RunOrJob => of_file(jobs),
            Kind::Node => Vec::new(),
        },
    };
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The value of an option in the line that is being typed, else of its variable.
fn given(line: &[OsString], option: &str, variable: &str) -> Option<PathBuf> {
    let typed = line.windows(2).find(|words| words[0] == option).map(|words| words[1].clone());
    typed.or_else(|| std::env::var_os(variable)).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn of_node(status: &Status, kind: Kind) -> Vec<String> {
    let jobs = || status.jobs.iter().map(|job| job.name.to_string());
    let runs = || status.runs.iter().map(|run| run.run.to_string());
    match kind {
        Kind::Job => jobs().collect(),
        Kind::RunOrJob => runs().chain(jobs()).collect(),
        Kind::Node => {
            let nodes: BTreeSet<&NodeName> =
                status.members.iter().map(|member| &member.node).chain(status.places.keys()).collect();
            nodes.into_iter().map(ToString::to_string).collect()
        }
    }
}

fn of_file(path: PathBuf) -> Vec<String> {
    let loaded = within(move || config::load_for_any_host(&path).ok());
    loaded.map(|loaded| loaded.set.jobs.keys().map(ToString::to_string).collect()).unwrap_or_default()
}

/// What `find` finds in time. A thread that takes longer ends with this process, which ends at once.
fn within<T: Send + 'static>(find: impl FnOnce() -> Option<T> + Send + 'static) -> Option<T> {
    let (sender, found) = mpsc::sync_channel(1);
    // No thread, no names: completion is a convenience.
    std::thread::Builder::new().spawn(move || sender.send(find())).ok()?;
    found.recv_timeout(WITHIN).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::typed;

    #[test]
    fn every_shell_has_a_script_that_asks_the_program() {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let (exit, out, err) = typed(&["completions", shell], &[]);
            assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
            assert!(out.contains(VARIABLE) && out.contains("cronkeeper"), "{shell}: {out}");
        }
        assert_eq!(typed(&["completions", "cmd.exe"], &[]).0, Exit::Usage);
    }

    #[test]
    fn the_arguments_that_name_something_exist() {
        let command = guide::command();
        for (name, id, _) in NAMES {
            let command = command.find_subcommand(name).unwrap_or_else(|| panic!("{name}"));
            assert!(command.get_arguments().any(|argument| argument.get_id() == id), "{name}: {id}");
        }
    }

    #[test]
    fn a_node_that_is_away_is_named_too() {
        let mut status = crate::status::sample::leader();
        status.places = crate::status::sample::places();
        assert_eq!(of_node(&status, Kind::Node), ["host-a", "host-b", "host-c"]);
    }

    #[test]
    fn an_option_that_was_typed_counts_more_than_its_variable() {
        let line = ["cronkeeper", "--", "cronkeeper", "next", "--jobs", "here.yaml", ""].map(OsString::from);
        assert_eq!(given(&line, "--jobs", "NOT_SET"), Some("here.yaml".into()));
        assert_eq!(given(&line, "--runtime-dir", "NOT_SET"), None);
    }
}
