//! Hosts within this machine: a network and mounts of their own, which no other process sees.
//!
//! A host is one process that holds its namespaces. It ends with the test process whatever ends that, and the kernel takes
//! down a namespace that nobody is in: there is no name that could clash with another test run's, no interface, rule or
//! mount to be swept up. Process numbers and files are those of the machine. Needs root, `unshare`, `nsenter` and, for
//! [`Host::configure`], `ip`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::process::Process;

/// Says that it is there by saying again what it is told, then waits.
const HOLDER: &str = "cat";

/// The words in front of a command that is to run where the kernel's audit takes no new session from anybody: one is set already, and the
/// right to change it is gone.
pub const WITHOUT_AUDIT: &str = "sh -c '(echo 0 >/proc/self/loginuid) 2>/dev/null && echo 0 >/proc/self/loginuid; exec \"$@\"' sh \
    setpriv --bounding-set=-audit_control --inh-caps=-audit_control --";

/// A host. It is gone when this is dropped and none of its processes is left.
#[derive(Debug)]
pub struct Host {
    address: Ipv4Addr,
    holder: Process,
    /// What the holder waits for the end of.
    _input: ChildStdin,
}

impl Host {
    /// With a loopback of its own and nothing else.
    ///
    /// # Errors
    /// Why there can be none here, for people.
    pub fn new(address: Ipv4Addr) -> Result<Self, String> {
        let mut holder = Process::spawn("unshare", |command| {
            command.args(["--net", "--mount", "--", HOLDER]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        })
        .map_err(|error| format!("setpriv cannot be run: {error}"))?;
        let mut stdin = holder.take(|child| child.stdin.take());
        let stdout = holder.take(|child| child.stdout.take());
        let mut echo = String::new();
        let told = stdin.write_all(b"there\n").and_then(|()| BufReader::new(stdout).read_line(&mut echo));
        if told.is_err() || echo.is_empty() {
            return Err(last_words(&mut holder));
        }
        let host = Self { address, holder, _input: stdin };
        host.configure(&["link set lo up".to_owned()])?;
        Ok(host)
    }

    /// Its address on the network it is to be joined to.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A process that is on this host.
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// The words in front of a command that is to be run on this host.
    pub fn enter(&self) -> Vec<String> {
        let pid = self.pid().to_string();
        ["nsenter", "--target", &pid, "--net", "--mount", "--"].map(str::to_owned).to_vec()
    }

    /// Moves the calling thread, and those that it starts from now on, onto this host's network.
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

    /// Runs a command there, with this on its standard input.
    ///
    /// # Errors
    /// What it complained of.
    pub fn run(&self, command: &[&str], input: &str) -> Result<(), String> {
        let line = command.join(" ");
        let enter = self.enter();
        let mut child = Command::new(&enter[0])
            .args(&enter[1..])
            .args(command)
            // Not in everybody's, where `su` was used.
            .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("nsenter cannot be run: {error}"))?;
        // One that reads nothing, or has failed, closes its end: its status tells.
        drop(child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes())));
        let output = child.wait_with_output().map_err(|error| format!("{line}: {error}"))?;
        match output.status.code() {
            Some(0) => Ok(()),
            // What the kernel refuses is one thing, what is not installed another.
            Some(127) => panic!("{} is not to be had; tests/run.sh installs it", command[0]),
            _ => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// Commands to `ip`, one a line, all in one go.
    ///
    /// # Errors
    /// What it complained of.
    pub fn configure(&self, lines: &[String]) -> Result<(), String> {
        self.run(&["ip", "-batch", "-"], &lines.join("\n"))
    }
}

fn last_words(holder: &mut Process) -> String {
    let mut words = String::new();
    let mut stderr = holder.take(|child| child.stderr.take());
    drop(stderr.read_to_string(&mut words));
    words.trim().to_owned()
}
