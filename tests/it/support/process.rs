//! A child process that cannot outlive the test process.
//!
//! `setpriv --pdeathsig KILL` asks the kernel to kill it with its parent. The kernel means the *thread* that forked, so
//! one thread, which lives as long as the process, does all the forking. Each child leads a process group of its own.
//! Grandchildren are not covered by the kernel's promise, only by the killing of the group at drop.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use super::LONG;
use super::host::Host;

/// A child. Dropping it kills its group.
///
/// It is reaped when dropped and not before: until then its number, and its group's, is no one else's.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    child: Child,
    ended: Arc<Ended>,
}

#[derive(Debug, Default)]
struct Ended {
    how: Mutex<Option<ExitStatus>>,
    told: Condvar,
}

impl Process {
    /// Starts `program` with what `prepare` adds: arguments, environment, files.
    pub fn spawn(program: &str, prepare: impl FnOnce(&mut Command)) -> io::Result<Self> {
        Self::spawn_on(None, program, prepare)
    }

    /// The same on a host of its own.
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

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the child was given as pipes, once.
    pub fn take<T>(&mut self, pipe: impl FnOnce(&mut Child) -> Option<T>) -> T {
        pipe(&mut self.child).expect("the pipe was asked for at the start, and not taken yet")
    }

    /// How it ended; `None` while it lives.
    pub fn status(&self) -> Option<ExitStatus> {
        *self.ended.lock()
    }

    /// Waits for its end.
    pub fn wait_exit(&self, timeout: Duration) -> Option<ExitStatus> {
        let waited = self.ended.told.wait_timeout_while(self.ended.lock(), timeout, |how| how.is_none());
        *waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }

    /// Sends it a signal. One that has ended takes it, and nothing happens.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("an own child takes a signal");
    }

    /// Kills it alone, and waits until it has ended.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.wait_exit(LONG).expect("a killed process ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its own number still stands, so the group's cannot be a stranger's; an error is left to the wait to tell.
        let _gone = kill_process_group(self.pid, Signal::KILL);
        drop(self.child.wait());
    }
}

impl Ended {
    /// Waits for the end without reaping.
    fn watch(&self, pid: Pid) {
        let status = loop {
            match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Ok(Some(status)) => break status,
                Err(Errno::INTR) | Ok(None) => {}
                // Dropped, and reaped, while this thread had not run: nobody is there to be told.
                Err(_) => return,
            }
        };
        let code = status.exit_status().map(|code| code << 8);
        *self.lock() = code.or(status.terminating_signal()).map(ExitStatus::from_raw);
        self.told.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        self.how.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The processes whose parent it is.
pub fn children_of(pid: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&child| parent_of(child) == Some(pid)).collect()
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The environment of a process, the beginning of it where it is long: a zombie has none any more.
pub fn environment(pid: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What was read before an error is what there is.
    let environ = File::open(format!("/proc/{pid}/environ")).map(|file| file.take(1 << 20).read_to_end(&mut bytes));
    drop(environ);
    bytes
}

/// The processor time that a process has used, to the hundredth of a second.
pub fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    let (_, fields) = stat.rsplit_once(')').expect("a name is in brackets");
    // Of itself, and of the kernel for it: the 14th and the 15th field, of which two stand before these.
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number"));
    Duration::from_millis(10 * ticks.sum::<u64>())
}

type Order = (Command, Sender<io::Result<Child>>);

static SPAWNER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (orders, taken) = channel::<Order>();
    let forks = move || {
        for (mut command, answer) in taken {
            // Nobody waits for the answer any more: the child is dropped, and dies with this process.
            drop(answer.send(command.spawn()));
        }
    };
    thread::Builder::new().name("spawner".into()).spawn(forks).expect("a thread can be had");
    orders
});
