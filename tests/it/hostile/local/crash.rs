//! A restart and `release` after a crash of daemon and warden, while other users interfere.
//!
//! Both kill what is left of the daemon's run and nothing else, and both finish.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::huge::huge;
use super::{Host, Known, WAYS, is_alive, quoted, stranger};
use crate::solo::fixture::{leading, warden_of, watcher_of};
use crate::support::command;
use crate::support::node::{Node, Spec};
use crate::support::process::{Process, stop_all};
use crate::support::{Facility, LONG, skipped, until};

/// More than any process of cronkeeper needs, but less than the attacker's environment.
const MEMORY: &str = "ulimit -v 2097152";
const ENVIRONMENT: u64 = 3 << 30;

/// A node that is dead like its watcher and its warden, while one process of its run is left.
struct Crashed {
    node: Node,
    run: String,
    left: u32,
}

impl Crashed {
    fn on(host: &Host) -> Option<Self> {
        let forgets = match host.known {
            Known::Cgroup | Known::AuditSession => "env -i",
            Known::Environment => "",
        };
        let command = quoted(&format!("setsid {forgets} sleep 1000 & echo $!; sleep 1000"));
        let jobs = format!("jobs: {{parent: {{schedule: '@every 1s', user: nobody, command: {command}}}}}");
        let spec = host.node().jobs(&jobs);
        let node = leading(&spec);
        let run = node.await_event("run.started", LONG).text("run").to_owned();
        let left: u32 = node.await_event("run.output", LONG).text("line").parse().unwrap();
        if !host.is_as_wanted(&spec) {
            return None;
        }
        let line = || std::fs::read(format!("/proc/{left}/cmdline")).unwrap_or_default();
        until("it is itself", || line().starts_with(b"sleep"));
        let (watcher, warden) = (watcher_of(&node), warden_of(&node));
        // Stopped first: otherwise each of the three would notice the end of another and kill the processes itself.
        stop_all(&[node.pid(), watcher, warden]);
        for pid in [watcher, warden] {
            kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
        }
        node.kill9();
        until("the warden is gone", || !is_alive(warden));
        assert!(is_alive(left), "it outlives all three");
        Some(Self { node, run, left })
    }

    fn spec(&self) -> &Spec {
        self.node.spec()
    }
}

/// The way in which the node's remains are cleaned up.
#[derive(Clone, Copy, Debug)]
enum After {
    Release,
    Restart,
}

/// On every host and in both ways: the remaining process dies, the command succeeds, and the attacker's process
/// survives.
fn assert_put_in_order(hostile: impl Fn(&Crashed) -> Option<Process>) {
    for known in WAYS {
        for after in [After::Release, After::Restart] {
            let Some(host) = Host::new(known, MEMORY) else { continue };
            let Some(crashed) = Crashed::on(&host) else { continue };
            let Some(stranger) = hostile(&crashed) else { return };
            let (left, run) = (crashed.left, crashed.run.clone());
            let again = match after {
                After::Release => {
                    release(&host, crashed.spec());
                    None
                }
                After::Restart => Some(crashed.node.again()),
            };
            if let Some(again) = &again {
                let end = again.await_event("run.finished", LONG);
                assert_eq!((end.text("run"), end.text("reason")), (run.as_str(), "node-died"), "{known:?}");
            }
            assert!(!is_alive(left), "{known:?}, {after:?}");
            assert!(is_alive(stranger.pid()), "{known:?}, {after:?}");
            // Dropped before the nodes, because their end searches for processes with their marks.
            drop(stranger);
        }
    }
}

/// Releases what the node holds. What cannot be checked in time on a busy machine is left, and is tried again.
fn release(host: &Host, spec: &Spec) {
    until("everything is released", || {
        let output = Command::new(&host.program)
            .args(["release", "--node", spec.name(), "--state-dir"])
            .arg(spec.state_dir())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let (code, out, err) = command::texts(&output);
        let is_late = code == Some(1) && err.contains("could not be checked in time");
        assert!(
            is_late || (code, out.as_str(), err.as_str()) == (Some(0), "", ""),
            "{:?}: {code:?} {out} {err}",
            host.known
        );
        !is_late
    });
}

/// The first line of its output.
fn said(stranger: &mut Process) -> String {
    let mut line = String::new();
    BufReader::new(stranger.take(|child| child.stdout.take())).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

#[test]
fn a_strangers_environment_of_gigabytes_is_not_read_by_who_looks_for_what_is_left() {
    let perl = format!(r#"{} $| = 1; print huge() ? "ready\n" : "refused\n"; sleep 1000;"#, huge(ENVIRONMENT));
    assert_put_in_order(|_| {
        let mut huge = stranger(&["perl", "-e", &perl]);
        if said(&mut huge) == "ready" {
            return Some(huge);
        }
        skipped(Facility::Kernel, "the kernel lets no process say where its environment is");
        None
    });
}

/// A process without a run that endlessly starts processes with the mark of a run.
const FORGER: &str = r#"
    my ($run, $node) = @ARGV;
    $SIG{CHLD} = "IGNORE";
    $| = 1;
    for (my $count = 0; ; $count++) {
        print "forged\n" if $count == 100;
        if (fork == 0) { %ENV = (CRONKEEPER_RUN_ID => $run, CRONKEEPER_NODE => $node); exec "/bin/sleep", "1" }
        select undef, undef, undef, 0.001;
    }
"#;

#[test]
fn who_goes_on_starting_what_says_that_it_is_of_the_run_loses_that_and_delays_nobody() {
    assert_put_in_order(|crashed| {
        let mut forger = stranger(&["perl", "-e", FORGER, &crashed.run, crashed.spec().name()]);
        assert_eq!(said(&mut forger), "forged");
        Some(forger)
    });
}
