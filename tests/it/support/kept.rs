//! A server that ends with this process, even if that is killed: a shell runs it until a pipe is closed that this process
//! holds.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::process::children_of;

/// Arguments: the signal that ends the server, and its command line.
const SCRIPT: &str =
    r#"cd /; signal=$1; shift; "$@" & server=$!; cat >/dev/null; kill -"$signal" $server; kill -CONT $server; wait"#;

/// A running server. It is ended when this value is dropped.
#[derive(Debug)]
pub struct Kept(Child);

impl Kept {
    /// Runs `line` after `before`, which may change the user, and `signal` ends it. What it prints is in `log`.
    pub fn start(before: &[&str], line: &[&str], signal: &str, log: &Path) -> Self {
        let log = File::options().create(true).append(true).open(log).expect("a log can be opened");
        let also = log.try_clone().expect("a descriptor can be doubled");
        let shell = ["/bin/sh", "-c", SCRIPT, "keeper", signal];
        let mut words = before.iter().chain(&shell).chain(line);
        let mut command = Command::new(words.next().expect("there is a shell"));
        // A group of its own: Ctrl-C on the terminal must not reach it.
        command.args(words).stdin(Stdio::piped()).stdout(also).stderr(log).process_group(0);
        Self(command.spawn().expect("a shell can be started"))
    }

    /// The server's first process; `None` if it has ended.
    pub fn pid(&self) -> Option<Pid> {
        let children = children_of(self.0.id());
        let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let server = children.into_iter().find(|pid| name(*pid).trim() != "cat")?;
        Pid::from_raw(server.cast_signed())
    }

    /// Sends a signal to the server's first process.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // It may have ended meanwhile.
            let _ended = kill_process(pid, signal);
        }
    }

    /// Ends the server, and waits until it has.
    pub fn end(&mut self) {
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.end();
    }
}
