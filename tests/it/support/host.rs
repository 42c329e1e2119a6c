//! Simulated hosts on this machine: network and mount namespaces that no other process sees.
//!
//! A host is one process that holds its namespaces. It ends with the test process however that ends, and the kernel
//! removes namespaces without processes. So no names can clash with other test runs, and no interfaces, rules or mounts
//! have to be cleaned up. PIDs and files are those of the machine. Needs root, `unshare`, `nsenter` and, for
//! [`Host::configure`], `ip`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::process::Process;

/// The holder's program: echoes a line to show that it is ready, and ends when its input is closed.
const HOLDER: &str = "cat";

/// Prefix of a command that must run without a way to get a new audit session: one is already set, and the capability
/// to change it is dropped.
pub const WITHOUT_AUDIT: &str = "sh -c '(echo 0 >/proc/self/loginuid) 2>/dev/null && echo 0 >/proc/self/loginuid; exec \"$@\"' sh \
    setpriv --bounding-set=-audit_control --inh-caps=-audit_control --";

/// A host. It disappears once this is dropped and none of its processes is left.
#[derive(Debug)]
pub struct Host {
    address: Ipv4Addr,
    holder: Process,
    /// The holder ends when this is closed.
    _input: ChildStdin,
}

impl Host {
    /// A host with a loopback interface and nothing else.
    ///
    /// # Errors
    /// Why this machine cannot have one, as text.
    pub fn new(address: Ipv4Addr) -> Result<Self, String> {
        let mut holder = Process::spawn("unshare", |command| {
            command.args(["--net", "--mount", "--", HOLDER]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        })
        .map_err(|error| format!("setpriv cannot be run: {error}"))?;
        let mut stdin = holder.take(|child| child.stdin.take());
        let stdout = holder.take(|child| child.stdout.take());
        let mut echo = String::new();
        let echoed = stdin.write_all(b"there\n").and_then(|()| BufReader::new(stdout).read_line(&mut echo));
        if echoed.is_err() || echo.is_empty() {
            return Err(last_output(&mut holder));
        }
        let host = Self { address, holder, _input: stdin };
        host.configure(&["link set lo up".to_owned()])?;
        Ok(host)
    }

    /// The host's address on the network that it will join.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// PID of a process on this host.
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// Prefix of a command that must run on this host.
    pub fn enter(&self) -> Vec<String> {
        let pid = self.pid().to_string();
        ["nsenter", "--target", &pid, "--net", "--mount", "--"].map(str::to_owned).to_vec()
    }

    /// Moves the calling thread, and threads that it starts later, to this host's network.
    pub fn connect_thread(&self) {
        let network = std::fs::File::open(format!("/proc/{}/ns/net", self.pid())).expect("the holder lives");
        let moved = move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network));
        moved.expect("who could make a namespace can enter it");
    }

    /// A file as processes of this host see it.
    pub fn file(&self, path: &Path) -> PathBuf {
        let inside = path.strip_prefix("/").expect("paths here are absolute");
        Path::new("/proc").join(self.pid().to_string()).join("root").join(inside)
    }

    /// Runs a command on this host with the given standard input.
    ///
    /// # Errors
    /// The command's error output.
    pub fn run(&self, command: &[&str], input: &str) -> Result<(), String> {
        self.output(command, input).map(drop)
    }

    /// The same; returns what the command printed.
    ///
    /// # Errors
    /// The command's error output.
    pub fn output(&self, command: &[&str], input: &str) -> Result<String, String> {
        let line = command.join(" ");
        let enter = self.enter();
        let mut child = Command::new(&enter[0])
            .args(&enter[1..])
            .args(command)
            // After `su`, PATH may lack the directories of system programs.
            .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("nsenter cannot be run: {error}"))?;
        // A command that reads nothing, or has failed, closes its end. Its exit status is checked below.
        drop(child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes())));
        let output = child.wait_with_output().map_err(|error| format!("{line}: {error}"))?;
        match output.status.code() {
            Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            // Distinguishes a refusal of the kernel from a missing program.
            Some(127) => panic!("{} is not to be had; tests/run.sh installs it", command[0]),
            _ => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// Runs commands of `ip`, one per line, in one batch.
    ///
    /// # Errors
    /// The command's error output.
    pub fn configure(&self, lines: &[String]) -> Result<(), String> {
        self.run(&["ip", "-batch", "-"], &lines.join("\n"))
    }
}

fn last_output(holder: &mut Process) -> String {
    let mut words = String::new();
    let mut stderr = holder.take(|child| child.stderr.take());
    drop(stderr.read_to_string(&mut words));
    words.trim().to_owned()
}
