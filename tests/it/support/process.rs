//! A child process that cannot outlive the test process.
//!
//! `setpriv --pdeathsig KILL` asks the kernel to kill it with its parent. The kernel means the *thread* that forked, so
//! one thread, which lives as long as the process, does all the forking. Each child leads a process group of its own.
//! Grandchildren are not covered by the kernel's promise, only by [`Process::kill_group`].

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

/// A child. Dropping it kills its group.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    // Reaped under the lock only, so that no signal reaches a stranger who was given the same number.
    child: Mutex<Child>,
    ended: Arc<Ended>,
}

#[derive(Debug, Default)]
struct Ended {
    yes: Mutex<bool>,
    told: Condvar,
}

impl Process {
    /// Starts `program` with what `prepare` adds: arguments, environment, files.
    pub fn spawn(program: &str, prepare: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", program]).process_group(0);
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
        Ok(Self { pid, child: Mutex::new(child), ended })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// What the child was given as pipes, once.
    pub fn take<T>(&self, pipe: impl FnOnce(&mut Child) -> Option<T>) -> T {
        pipe(&mut self.lock()).expect("the pipe was asked for at the start, and not taken yet")
    }

    /// How it ended; `None` while it lives.
    pub fn status(&self) -> Option<ExitStatus> {
        self.lock().try_wait().expect("an own child can be waited for")
    }

    /// Waits for its end.
    pub fn wait_exit(&self, timeout: Duration) -> Option<ExitStatus> {
        let yes = self.ended.yes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        drop(self.ended.told.wait_timeout_while(yes, timeout, |yes| !*yes));
        self.status()
    }

    /// Sends it a signal, unless it has ended.
    pub fn signal(&self, signal: Signal) {
        let mut child = self.lock();
        if matches!(child.try_wait(), Ok(None)) {
            kill_process(self.pid, signal).expect("an own child takes a signal");
        }
    }

    /// Kills it alone, and waits until it is gone.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.reap();
    }

    /// Kills its whole group, and waits until it is gone itself.
    pub fn kill_group(&self) {
        match kill_process_group(self.pid, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => self.reap(),
            Err(error) => panic!("the process group of {:?} takes no signal: {error}", self.pid),
        }
    }

    fn reap(&self) {
        self.lock().wait().expect("an own child can be waited for");
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Once reaped, the group's number is only ours while a member of it lives.
        if self.status().is_none() {
            self.kill_group();
        }
    }
}

impl Ended {
    /// Waits for the end without reaping.
    fn watch(&self, pid: Pid) {
        // Interrupted: again. Any other error: reaped already.
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
        *self.yes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        self.told.notify_all();
    }
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
