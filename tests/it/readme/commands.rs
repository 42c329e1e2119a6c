//! Runs the command lines of README and docs, in their order, as an operator would: in a shell, on a node of a cluster.
//!
//! What installs and starts the service (`dpkg`, `systemctl`, `install`) is run by `systemd::package`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::failover::cluster::{Place, in_line, usual};
use crate::support::command::CRONKEEPER;
use crate::support::node::Node;
use crate::support::scratch::Scratch;
use crate::support::until;

const TEXTS: [&str; 7] = [
    super::README,
    include_str!("../../../docs/jobs.md"),
    include_str!("../../../docs/operations.md"),
    include_str!("../../../docs/api.md"),
    include_str!("../../../docs/locks.md"),
    include_str!("../../../docs/SECURITY.md"),
    include_str!("../../../docs/monitoring/README.md"),
];

/// The jobs that the texts name.
const JOBS: &str = "
jobs:
  nightly-backup:
    schedule: '@at 2099-01-01T00:00:00Z'
    command: if test -e LONG; then exec sleep 600; fi
    concurrency_group: {name: database, limit: 1}
  load: {schedule: '@at 2099-01-01T00:00:00Z', command: 'true', parameters: [REGION]}
  thumbnails: {schedule: '@at 2099-01-01T00:00:00Z', command: 'true', run_on: any}
  payments: {schedule: '0 9 * * Mon-Fri', command: 'true'}
";

/// What the texts say for a name that the reader knows.
const PLACEHOLDERS: [(&str, &str); 5] =
    [("FILE", "jobs.yaml"), ("JOB", "load"), (" PATH", " /locks/any"), (" N ", " 1 "), ("COMMAND", "true")];

/// What ends with another code than 0 here, because the run is not in flight, nobody holds the lock, the archive of the
/// other node cannot be asked, which listens at no address, or the job is counted as it should be.
const FAILING: [(&str, i32); 7] = [
    ("load.20261120T025900Z", 2),
    ("--revoke", 1),
    ("--since 2h --failed", 1),
    ("cronkeeper recount", 1),
    // It is alive.
    ("cronkeeper forget NODE", 1),
    ("cronkeeper forget host-b", 2),
    // These jobs have no channels.
    ("cronkeeper notify test", 2),
];

/// Two nodes, and a directory in which the commands find what they name.
struct Host {
    place: Place,
    dir: Scratch,
    nodes: [Node; 2],
}

impl Host {
    fn new() -> Self {
        let (place, dir) = (Place::shared(), Scratch::new("documented"));
        let jobs = JOBS.replace("LONG", dir.path().join("long").to_str().expect("a path is UTF-8"));
        let nodes = in_line(["host-a", "host-c"].map(|name| usual(place.node(name)).jobs(&jobs)));
        dir.write("crontab", "30 2 * * * root /usr/local/bin/backup\n");
        dir.write("token", "0123456789abcdef0123456789abcdef\n");
        let program = |name: &str, script: &str| drop(dir.program(name, script));
        program("ship-orders", "#!/bin/sh\n");
        program("bin/crontab", "#!/bin/sh\necho '30 2 * * * /usr/local/bin/backup'\n");
        program("bin/cronkeeper", &format!("#!/bin/sh\nexec {CRONKEEPER} \"$@\"\n"));
        Self { place, dir, nodes }
    }

    fn run(&self, line: &str) -> Output {
        let spec = self.nodes[0].spec();
        let bin = format!("{}/bin:{}", self.dir.path().display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("CRONKEEPER_")) {
            command.env_remove(key);
        }
        command.args(["-c", line]).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("PATH", bin).env("CRONKEEPER_JOBS", self.dir.path().join("jobs.yaml"));
        command.env("CRONKEEPER_ZOOKEEPER", self.place.connect()).env("CRONKEEPER_NODE", spec.name());
        command.env("CRONKEEPER_RUNTIME_DIR", spec.runtime_dir()).env("CRONKEEPER_STATE_DIR", spec.state_dir());
        command.output().expect("a shell can be started")
    }

    /// The line with the names that this host has for what the texts name.
    fn here(&self, line: &str) -> String {
        let [a, c] = &self.nodes;
        let spec = a.spec();
        let paths = [
            ("/run/cronkeeper/reports", spec.runtime_dir()),
            ("/run/cronkeeper", spec.runtime_dir()),
            ("/tmp/cronkeeper-demo", spec.state_dir()),
            ("/etc/crontab", "crontab".into()),
            ("/etc/cronkeeper/token", "token".into()),
        ];
        let names = [("host-a", a.name()), ("host-c", c.name()), ("NODE", a.name())];
        let line = names.into_iter().fold(line.to_owned(), |line, (text, name)| line.replace(text, name));
        let path = |path: &Path| path.to_str().expect("a path is UTF-8").to_owned();
        let line = paths.iter().fold(line, |line, (text, here)| line.replace(text, &path(here)));
        PLACEHOLDERS.iter().fold(line, |line, (text, word)| line.replace(text, word))
    }

    /// Brings the cluster into the state that the texts assume: both nodes take part, and a run is there to be killed.
    fn prepare(&self, line: &str) {
        // Of an earlier line. Not removed as soon as the run has started: its program may not have looked yet.
        let long = self.dir.path().join("long");
        let _never_there = fs::remove_file(&long);
        // `import` writes another one.
        fs::copy(self.nodes[0].spec().jobs_file(), self.dir.path().join("jobs.yaml")).expect("a file can be copied");
        for node in &self.nodes {
            assert!(self.run(&format!("cronkeeper undrain {}", node.name())).status.success());
        }
        self.run(&format!("cronkeeper handover --to {}", self.nodes[0].name()));
        until("the first node leads and the other waits behind it", || {
            let status = self.run("cronkeeper status --json").stdout;
            let shown: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
            let queue: Vec<_> =
                shown["queue"].as_array().into_iter().flatten().map(|entry| entry["node"].as_str()).collect();
            let wanted = self.nodes.each_ref().map(|node| Some(node.name()));
            queue == wanted && self.run("cronkeeper status --check").status.success()
        });
        if line.contains("kill nightly-backup") {
            fs::write(&long, "").expect("a file can be written");
            let started = || self.nodes.iter().map(|node| node.events().named("run.started").len()).sum::<usize>();
            let before = started();
            assert!(self.run("cronkeeper trigger nightly-backup").status.success());
            until("the run has started", || started() > before);
        }
    }
}

/// The command lines of a text: the indented lines and the text between backticks, without comments.
fn lines(text: &'static str) -> Vec<&'static str> {
    let indented = text.lines().filter(|line| line.starts_with("    ")).map(str::trim);
    // The name of a command alone is a word of a sentence.
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let quoted = quoted.filter(|line| line.split_whitespace().count() > 2);
    let all = indented.chain(quoted).map(|line| line.split(" #").next().unwrap_or_default().trim());
    all.filter(|line| {
        line.starts_with("cronkeeper ") || line.contains("| cronkeeper ") || line.starts_with("curl --unix")
    })
    .collect()
}

#[test]
fn the_commands_in_the_texts_do_what_they_say() {
    let host = Host::new();
    let has_curl = Command::new("curl").arg("--version").output().is_ok_and(|output| output.status.success());
    let (mut ran, mut wrong) = (0, Vec::new());
    for line in TEXTS.into_iter().chain(super::GUIDES).flat_map(lines) {
        if line.starts_with("curl") && !has_curl {
            continue;
        }
        host.prepare(line);
        let typed = host.here(line);
        let output = host.run(&typed);
        let expected = FAILING.iter().find(|(text, _)| line.contains(text)).map_or(0, |(_, code)| *code);
        if output.status.code() != Some(expected) {
            wrong.push(format!("`{line}`, run as `{typed}`: {output:?}"));
        }
        ran += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(ran > 30, "{ran}");
}
