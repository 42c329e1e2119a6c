//! A child process that cannot outlive the test process.
//!
//! `setpriv --pdeathsig KILL` asks the kernel to kill the child with its parent. For the kernel the parent is the
//! *thread* that forked, so one thread, which lives as long as the process, forks all children. Each child leads a
//! process group of its own. The kernel does not kill grandchildren: only the killing of the group on drop ends them.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use super::host::Host;
use super::{LONG, until};

/// A child process. Dropping it kills its process group.
///
/// It is reaped only when dropped: until then no other process or group can get its number.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    child: Child,
    ended: Arc<Ended>,
}

#[derive(Debug, Default)]
struct Ended {
    how: Mutex<Option<ExitStatus>>,
    changed: Condvar,
}

impl Process {
    /// Starts `program`; `prepare` adds arguments, environment and files.
    pub fn spawn(program: &str, prepare: impl FnOnce(&mut Command)) -> io::Result<Self> {
        Self::spawn_on(None, program, prepare)
    }

    /// Starts `program` on another host.
    pub fn spawn_on(host: Option<&Host>, program: &str, prepare: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).process_group(0);
        command.args(host.map(Host::enter).into_iter().flatten()).arg(program);
        prepare(&mut command);
        let (answer, answered) = channel();
        SPAWNER.send((command, answer)).map_err(io::Error::other)?;
        let child = answered.recv().map_err(io::Error::other)??;
        let pid = Pid::from_child(&child);
        let ended = Arc::new(Ended::default());
        thread::spawn({
            let ended = Arc::clone(&ended);
            move || ended.watch(pid)
        });
        Ok(Self { pid, child, ended })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child's pipes; only the first call returns them.
    pub fn take<T>(&mut self, pipe: impl FnOnce(&mut Child) -> Option<T>) -> T {
        pipe(&mut self.child).expect("the pipe was asked for at the start, and not taken yet")
    }

    /// The exit status; `None` while the child is running.
    pub fn status(&self) -> Option<ExitStatus> {
        *self.ended.lock()
    }

    pub fn wait_exit(&self, timeout: Duration) -> Option<ExitStatus> {
        let waited = self.ended.changed.wait_timeout_while(self.ended.lock(), timeout, |how| how.is_none());
        *waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }

    /// Sends a signal, which has no effect on a child that has ended.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("an own child takes a signal");
    }

    /// Stops the child, and waits until none of its threads runs any more.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        until("it stands still", || self.status().is_some() || is_stopped(self.pid()));
    }

    /// Kills the child, but not its group, and waits until it has ended.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.wait_exit(LONG).expect("a killed process ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The child is not reaped yet, so its group's number cannot belong to others. The wait reports any error.
        let _gone = kill_process_group(self.pid, Signal::KILL);
        drop(self.child.wait());
    }
}

impl Ended {
    /// Waits for the end of the child without reaping it.
    fn watch(&self, pid: Pid) {
        let status = loop {
            match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Ok(Some(status)) => break status,
                Err(Errno::INTR) | Ok(None) => {}
                // The child was dropped and reaped before this thread ran: nobody waits for the result.
                Err(_) => return,
            }
        };
        let code = status.exit_status().map(|code| code << 8);
        *self.lock() = code.or(status.terminating_signal()).map(ExitStatus::from_raw);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        self.how.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Stops processes, and waits until none of their threads runs any more.
///
/// The signal alone is not enough: a process that runs on another processor may still see what happens next.
pub fn stop_all(pids: &[u32]) {
    for &pid in pids {
        kill_process(Pid::from_raw(pid.cast_signed()).expect("it is no group"), Signal::STOP).expect("it lives");
    }
    until("they stand still", || pids.iter().all(|&pid| is_stopped(pid)));
}

/// True if all threads of a process are stopped, or if it is gone.
fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let state = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
    threads.flatten().map(state).all(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't'])))
}

/// Runs a program to its end, which must come within [`LONG`]. It reads nothing.
pub fn output(program: &str, prepare: impl FnOnce(&mut Command)) -> Output {
    let mut process = Process::spawn(program, |command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        prepare(command);
    })
    .expect("the program can be started");
    let (stdout, stderr) = (process.take(|child| child.stdout.take()), process.take(|child| child.stderr.take()));
    let (stdout, stderr) = (collected(stdout), collected(stderr));
    let status = process.wait_exit(LONG);
    // Kills what keeps the pipes open.
    drop(process);
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("pipes are read to their end"));
    match status {
        Some(status) => Output { status, stdout, stderr },
        None => panic!("`{program}` does not end: {}{}", stdout.escape_ascii(), stderr.escape_ascii()),
    }
}

/// Reads a pipe on a thread, so that its writer never waits.
fn collected(mut pipe: impl io::Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}

/// The child processes of a process.
pub fn children_of(pid: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&child| parent_of(child) == Some(pid)).collect()
}

/// The watcher and the warden of a process: its only child, and the only child of that. `None` before they have started.
pub fn watcher_and_warden_of(pid: u32) -> Option<[u32; 2]> {
    let [watcher] = children_of(pid)[..] else { return None };
    let [warden] = children_of(watcher)[..] else { return None };
    Some([watcher, warden])
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The environment of a process, truncated if it is long; empty for a zombie.
pub fn environment(pid: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    // After an error, what was read before must do.
    let environ = File::open(format!("/proc/{pid}/environ")).map(|file| file.take(1 << 20).read_to_end(&mut bytes));
    drop(environ);
    bytes
}

/// CPU time of a process, with a resolution of a hundredth of a second.
pub fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    let (_, fields) = stat.rsplit_once(')').expect("a name is in brackets");
    // User and system time are fields 14 and 15; `fields` begins with field 3.
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number"));
    Duration::from_millis(10 * ticks.sum::<u64>())
}

type Order = (Command, Sender<io::Result<Child>>);

static SPAWNER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (orders, taken) = channel::<Order>();
    let forks = move || {
        for (mut command, answer) in taken {
            // Nobody waits for the child any more: it is dropped, and ends with this process.
            drop(answer.send(command.spawn()));
        }
    };
    thread::Builder::new().name("spawner".into()).spawn(forks).expect("a thread can be had");
    orders
});
