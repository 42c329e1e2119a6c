//! A simulated host with a real systemd as process 1, in namespaces.
//!
//! It has this machine's files below a layer in memory, the program and the unit files installed as in the README, and
//! this machine's network, so that it can reach servers here. It needs root, a cgroup2 file system, overlayfs, and
//! Debian's `systemd` and `util-linux`; if one is missing, [`Host::or_skip`] prints which. A shell that ends when its
//! stdin closes owns everything: see `outer.sh`.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use crate::support::command::CRONKEEPER;
use crate::support::node::{Event, Events};
use crate::support::process::Process;
use crate::support::scratch::Scratch;
use crate::support::{Facility, LONG, poll, skipped};

const SYSTEMD: &str = "/lib/systemd/systemd";

/// Time limit of a command.
const WITHIN: &str = "60";

/// A running host.
pub struct Host {
    name: &'static str,
    /// The pid of its process 1 outside.
    pid: u32,
    journal: Arc<Events>,
    _follower: Process,
    owner: Owner,
}

/// Dropped before the other parts of a host: waits until the host is gone.
struct Owner {
    shell: Child,
    dir: Scratch,
}

impl Host {
    /// Starts a host of this name; `None`, with the reason on stderr, if this machine cannot run one.
    pub fn or_skip(name: &'static str) -> Option<Self> {
        Self::with_or_skip(name, CRONKEEPER)
    }

    /// As [`Host::or_skip`], but without cronkeeper, its units and its settings.
    pub fn bare_or_skip(name: &'static str) -> Option<Self> {
        Self::with_or_skip(name, "")
    }

    fn with_or_skip(name: &'static str, program: &str) -> Option<Self> {
        match Owner::start(name, program).and_then(|owner| Ok((owner.await_systemd()?, owner))) {
            Ok((pid, owner)) => Some(Self::up(name, pid, owner)),
            Err(why) => {
                skipped(Facility::Systemd, &format!("no systemd can be started here: {why}"));
                None
            }
        }
    }

    fn up(name: &'static str, pid: u32, owner: Owner) -> Self {
        let is_up =
            || inside(pid, &["systemctl", "is-active", "multi-user.target"]).is_ok_and(|is| is.status.success());
        assert!(poll(LONG, || is_up().then_some(())).is_some(), "systemd does not come up:\n{}", owner.log());
        let follow = ["journalctl", "--directory=/run/log/journal", "--follow", "--lines=all", "--output=cat"];
        let follower = Process::spawn("nsenter", |command| {
            command.args(entry(pid)).args(follow).arg("--identifier=cronkeeper");
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        });
        let mut follower = follower.expect("nsenter can be started");
        let journal = Events::read(follower.take(|child| child.stdout.take()));
        Self { name, pid, journal, _follower: follower, owner }
    }

    /// Runs a command on it as root.
    pub fn run(&self, line: &[&str]) -> Output {
        inside(self.pid, line).expect("nsenter can be started")
    }

    /// Runs a command that must succeed; returns its output.
    #[track_caller]
    pub fn done(&self, line: &[&str]) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line:?}: {output:?}\n{}", self.journal.tail());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub fn property(&self, unit: &str, property: &str) -> String {
        self.done(&["systemctl", "show", "--value", "--property", property, unit])
    }

    /// Waits until a property of a unit has the wanted value.
    #[track_caller]
    pub fn await_property(&self, unit: &str, property: &str, wanted: &str) {
        let is_so = || (self.property(unit, property) == wanted).then_some(());
        let why = || format!("{unit}: {property} is {}\n{}", self.property(unit, property), self.journal.tail());
        assert!(poll(LONG, is_so).is_some(), "{}", why());
    }

    /// Writes a file on it atomically.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.outside(path);
        let new = path.with_extension("new");
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path)).expect("a file can be written");
    }

    /// Copies a file of this machine to it.
    pub fn copy(&self, from: &Path, path: &str) {
        std::fs::copy(from, self.outside(path)).expect("a file can be copied");
    }

    /// Reads one of its files; empty if it does not exist.
    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.outside(path)).unwrap_or_default()
    }

    /// All journal lines of cronkeeper's units so far.
    pub fn events(&self) -> Vec<Event> {
        self.journal.all()
    }

    /// Number of journal lines of cronkeeper's units.
    pub fn seen(&self) -> usize {
        self.journal.len()
    }

    /// Waits for the first line that satisfies `wanted`, after the first `seen` lines.
    #[track_caller]
    pub fn await_line(&self, seen: usize, what: &str, wanted: impl Fn(&Event) -> bool) -> Event {
        let found = self.journal.wait(seen, LONG, wanted);
        found.unwrap_or_else(|| panic!("not in time: {what}\n{}", self.journal.tail()))
    }

    /// Waits for an event of a node on this host.
    #[track_caller]
    pub fn await_event(&self, seen: usize, node: &str, name: &str) -> Event {
        let wanted = |event: &Event| event.name() == name && event.text("node") == node;
        self.await_line(seen, &format!("{name} of {node}"), wanted)
    }

    /// The name of the node of the unit `cronkeeper`, or of its instance `instance`.
    pub fn node(&self, instance: Option<&str>) -> String {
        instance.map_or(self.name.to_owned(), |instance| format!("{}.{instance}", self.name))
    }

    /// Entry of its process 1 in /proc outside.
    pub fn process(&self) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string())
    }

    /// The cgroup that contains all its processes.
    pub fn cgroup(&self) -> PathBuf {
        let own = std::fs::read_to_string(self.owner.dir.path().join("cgroup"));
        own.expect("the owner wrote it down").trim().into()
    }

    /// The path outside of one of its files.
    fn outside(&self, path: &str) -> PathBuf {
        format!("/proc/{}/root{path}", self.pid).into()
    }
}

impl Owner {
    fn start(name: &str, program: &str) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("this is not root".into());
        }
        if !Path::new(SYSTEMD).exists() {
            return Err(format!("{SYSTEMD} is not installed"));
        }
        let dir = Scratch::new("host");
        std::fs::create_dir(dir.path().join("root")).map_err(|error| error.to_string())?;
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        let scripts = repository.join("tests/it/systemd");
        // In a process group of its own: Ctrl-C in the terminal must not kill it before it has cleaned up.
        let mut shell = Command::new("sh");
        shell.arg(scripts.join("outer.sh")).arg(dir.path()).arg(scripts.join("inner.sh")).arg(dir.path());
        shell.arg(name).arg(program).arg(repository.join("systemd"));
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/").process_group(0);
        let shell = shell.spawn().map_err(|error| format!("sh does not start: {error}"))?;
        Ok(Self { shell, dir })
    }

    /// The pid of process 1, once that is systemd: before that, its namespaces still show this machine's files.
    fn await_systemd(&self) -> Result<u32, String> {
        let outcome = || match std::fs::read_to_string(self.dir.path().join("failed")) {
            Ok(why) => Some(Err(why)),
            Err(_) => self.systemd().map(Ok),
        };
        poll(LONG / 2, outcome).unwrap_or_else(|| Err("it did not come in time".into())).map_err(|why| {
            let log = self.log();
            format!("{}\n{log}", why.trim())
        })
    }

    fn systemd(&self) -> Option<u32> {
        let pid: u32 = std::fs::read_to_string(self.dir.path().join("pid")).ok()?.trim().parse().ok()?;
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (name.trim() == "systemd").then_some(pid)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let ended = poll(LONG, || self.shell.try_wait().ok().flatten());
        if ended.is_none() && !std::thread::panicking() {
            panic!("the owner of a host does not end");
        }
    }
}

fn entry(pid: u32) -> Vec<String> {
    let mut entry = vec!["--target".to_owned(), pid.to_string()];
    entry.extend(["--mount", "--uts", "--ipc", "--pid", "--cgroup", "--", "env", "-i"].map(str::to_owned));
    entry.extend(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"].map(str::to_owned));
    entry
}

fn inside(pid: u32, line: &[&str]) -> io::Result<Output> {
    Command::new("timeout").args([WITHIN, "nsenter"]).args(entry(pid)).args(line).stdin(Stdio::null()).output()
}
