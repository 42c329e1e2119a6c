//! A local user, with and without a job: nothing that he does to his own processes harms other users' runs, a restart
//! or `release`.

mod apart;
mod crash;
mod forging;
mod huge;

use std::process::{Command, Stdio};

use crate::solo::fixture::{await_start, cli_text, status};
use crate::support::cgroup::OwnCgroup;
use crate::support::command::CRONKEEPER;
use crate::support::host::WITHOUT_AUDIT;
use crate::support::node::{Node, Spec};
use crate::support::process::Process;
use crate::support::scratch::Scratch;
use crate::support::{Facility, skipped};

/// The attacker: a user without any rights.
const NOBODY: u32 = 65_534;

/// The method by which the processes of runs are recognized on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Cgroup,
    /// No cgroup v2 is visible.
    AuditSession,
    /// Neither cgroups nor audit sessions are available.
    Environment,
}

const WAYS: [Known; 3] = [Known::Cgroup, Known::AuditSession, Known::Environment];

/// Prefix of a command that hides cgroups from it.
const WITHOUT_CGROUPS: &str =
    r#"unshare --mount --propagation private sh -c 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"' sh"#;

impl Known {
    /// Prefix of a command, for a shell, that creates such a host.
    fn words(self) -> String {
        match self {
            Self::Cgroup => String::new(),
            Self::AuditSession => WITHOUT_CGROUPS.to_owned(),
            Self::Environment => format!("{WITHOUT_CGROUPS} {WITHOUT_AUDIT}"),
        }
    }

    /// The entry in the journal that shows the method.
    fn noted(self) -> &'static str {
        match self {
            Self::Cgroup => r#""known_by":{"cgroup":"#,
            Self::AuditSession => r#""known_by":{"audit_session":"#,
            Self::Environment => r#""known_by":"environment""#,
        }
    }
}

/// A simulated host: the program starts as if it were on it.
struct Host {
    known: Known,
    program: String,
    _scripts: Scratch,
    /// Daemons of other tests kill what dead ones have left in the cgroups beside their own.
    _apart: Option<OwnCgroup>,
}

impl Host {
    /// The host; `None`, with a message, if this machine cannot simulate it. `before` is run first.
    fn new(known: Known, before: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped(Facility::Root, "only root runs jobs as other users");
            return None;
        }
        let scripts = Scratch::new("host");
        let words = known.words();
        let apart = if known == Known::Cgroup { OwnCgroup::if_possible() } else { None };
        let enter = apart.as_ref().map(OwnCgroup::enter).unwrap_or_default();
        let text = format!("#!/bin/sh\n{enter}{before}\nexec {words} {CRONKEEPER} \"$@\"\n");
        let program = script(&scripts, "cronkeeper", &text);
        let trial = Command::new("sh").args(["-c", &format!("exec {words} true")]).output().unwrap();
        if !trial.status.success() {
            skipped(Facility::Namespaces, &format!("no host where runs are known {known:?}: {trial:?}"));
            return None;
        }
        Some(Self { known, program, _scripts: scripts, _apart: apart })
    }

    fn node(&self) -> Spec {
        Spec::new(&self.program, "local")
    }

    /// True if the runs that have started are recognized by the intended method; prints a message if not.
    fn is_as_wanted(&self, spec: &Spec) -> bool {
        let journals = std::fs::read_dir(spec.state_dir()).unwrap().flatten().flat_map(|entry| files(&entry.path()));
        let texts: Vec<String> = journals.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        let is_noted = texts.iter().any(|text| {
            // The last entry counts: entries before the start are only intentions.
            text.lines().rfind(|line| line.contains("known_by")).is_some_and(|line| line.contains(self.known.noted()))
        });
        if !is_noted {
            let lacks = if self.known == Known::Cgroup { Facility::Cgroups } else { Facility::Kernel };
            skipped(lacks, &format!("the kernel has nothing by which runs could be known {:?}", self.known));
        }
        is_noted
    }
}

fn files(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().flat_map(|entry| files(&entry.path())).collect(),
        Err(_) => vec![path.to_owned()],
    }
}

fn script(scripts: &Scratch, name: &str, text: &str) -> String {
    scripts.program(name, text).to_str().unwrap().to_owned()
}

/// Triggers a job; returns the run once it has started.
pub fn run_now(node: &Node, job: &str) -> String {
    // Wait until the socket is available, which is shortly after the election.
    status(node.spec());
    let seen = node.events().len();
    cli_text(node.spec(), &["trigger", job]);
    await_start(node, seen, job)
}

/// A program of user nobody that is not a job. The test's end kills it and all processes in its group.
fn stranger(program: &[&str]) -> Process {
    Process::spawn("setpriv", |command| {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig=KILL", "--"]).args(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).current_dir("/");
    })
    .unwrap()
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A string as a YAML value.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}
