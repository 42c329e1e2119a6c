//! From a run to what the warden starts: whom it runs as, its limits, the environment and the directory its process finds.

use tokio::sync::watch;

use crate::accounts::{Account, Accounts, Unknown};
use crate::engine::Start;
use crate::job::Job;
use crate::term::NodeName;
use crate::warden::cgroup::estate::Cgroups;
use crate::warden::wire::{Launch, Limits, User};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What every launch is made with.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The node they run on.
    pub node: NodeName,
    /// Who runs what names no user.
    pub own: Account,
    /// Who the users of the jobs are, as last looked up.
    pub accounts: watch::Receiver<Accounts>,
    /// Soft and hard limit of open files to give back, if the daemon raised its own.
    pub open_files: Option<(u64, u64)>,
    /// Where each run gets a cgroup, if anywhere.
    pub cgroups: Option<Cgroups>,
}

impl Launcher {
    /// For jobs that name no user, without cgroups.
    pub fn plain(node: NodeName, own: Account) -> Self {
        let (_, accounts) = watch::channel(Accounts::default());
        Self { node, own, accounts, open_files: None, cgroups: None }
    }

    /// What to start for an accepted attempt.
    ///
    /// # Errors
    /// When this host does not know the job's user or group.
    pub fn launch(&self, start: &Start) -> Result<Launch, Unknown> {
        let job = &start.job;
        let named = self.accounts.borrow().get(&job.run_as)?.cloned();
        let account = named.as_ref().unwrap_or(&self.own);
        let limits = self.limits(job);
        Ok(Launch {
            slot: start.slot,
            argv: job.command.argv(),
            environment: self.environment(start, account),
            input: String::new(),
            directory: directory(job, account),
            or_root: job.working_directory.is_none(),
            umask: job.umask,
            user: named.as_ref().and_then(|named| self.become_user(named)),
            nice: job.nice,
            limits,
            cgroup: self.cgroups.as_ref().map(|cgroups| cgroups.place(start.slot, &limits)),
            not_after: start.not_after,
            deadline: start.deadline,
            max_output: job.max_output,
        })
    }

    /// When the kernel started a process, to tell it from a later one with its number.
    pub fn start_time(&self, pid: i32) -> Option<u64> {
        crate::warden::recover::start_time(pid)
    }

    /// Root takes on the groups of whoever is named, itself included; who is not root is only ever itself.
    fn become_user(&self, named: &Account) -> Option<User> {
        let is_needed = self.own.uid == 0 || (named.uid, named.gid) != (self.own.uid, self.own.gid);
        is_needed.then(|| User { uid: named.uid, gid: named.gid, groups: named.groups.clone() })
    }

    fn limits(&self, job: &Job) -> Limits {
        let limits = &job.limits;
        Limits {
            memory: limits.memory,
            processes: limits.processes,
            open_files: limits.open_files.map(|count| (count, count)).or(self.open_files),
            cpu_time: limits.cpu_time.map(|time| time.as_secs()),
        }
    }

    fn environment(&self, start: &Start, account: &Account) -> Vec<(String, String)> {
        let run = &start.run;
        let id = run.id();
        let pair = |name: &str, value: String| (name.to_owned(), value);
        let mut environment = vec![
            pair("PATH", PATH.to_owned()),
            pair("HOME", account.home.clone()),
            pair("USER", account.name.clone()),
            pair("LOGNAME", account.name.clone()),
            pair("SHELL", "/bin/sh".to_owned()),
            pair("LANG", "C.UTF-8".to_owned()),
        ];
        environment.retain(|(name, _)| !start.job.environment.contains_key(name));
        environment.extend(start.job.environment.iter().map(|(name, value)| (name.clone(), value.clone())));
        environment.extend([
            pair("CRONKEEPER_JOB", run.job.to_string()),
            pair("CRONKEEPER_RUN_ID", id.to_string()),
            pair("CRONKEEPER_SCHEDULED_AT", run.scheduled_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            pair("CRONKEEPER_ATTEMPT", run.attempt.to_string()),
            pair("CRONKEEPER_NODE", self.node.to_string()),
            pair("CRONKEEPER_FENCING_TOKEN", run.token.to_string()),
        ]);
        environment
    }
}

/// Whether a home directory can be entered is found out there: it may be another user's, or on a file server that is away.
fn directory(job: &Job, account: &Account) -> String {
    let named = job.working_directory.as_ref().map(|directory| directory.to_string_lossy().into_owned());
    named.unwrap_or_else(|| account.home.clone())
}
