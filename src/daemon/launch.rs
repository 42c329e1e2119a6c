//! From a run to what the warden starts: the environment and the directory a job's process finds.

use std::path::Path;

use crate::engine::Start;
use crate::term::NodeName;
use crate::warden::wire::Launch;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Who the jobs run as, looked up once at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// The node they run on.
    pub node: NodeName,
    /// The user's name.
    pub user: String,
    /// The user's home directory.
    pub home: String,
    /// Soft and hard limit of open files to give back, if the daemon raised its own.
    pub open_files: Option<(u64, u64)>,
}

impl Launcher {
    /// For jobs that run as the user of this process. It may ask a directory service.
    pub fn of_this_user(node: NodeName, open_files: Option<(u64, u64)>) -> Self {
        let uid = nix::unistd::geteuid();
        // A user without an entry has a number for a name, and no home.
        let entry = nix::unistd::User::from_uid(uid).ok().flatten();
        let (user, home) = match entry {
            Some(entry) => (entry.name, entry.dir.to_string_lossy().into_owned()),
            None => (uid.to_string(), "/".to_owned()),
        };
        Self { node, user, home, open_files }
    }

    /// What to start for an accepted attempt.
    pub fn launch(&self, start: &Start) -> Launch {
        Launch {
            slot: start.slot,
            argv: start.job.command.argv(),
            environment: self.environment(start),
            directory: self.directory(start),
            umask: start.job.umask,
            open_files: self.open_files,
            not_after: start.not_after,
            deadline: start.deadline,
            max_output: start.job.max_output,
        }
    }

    /// When the kernel started a process, to tell it from a later one with its number.
    pub fn start_time(&self, pid: i32) -> Option<u64> {
        crate::warden::recover::start_time(pid)
    }

    fn environment(&self, start: &Start) -> Vec<(String, String)> {
        let run = &start.run;
        let id = run.id();
        let pair = |name: &str, value: String| (name.to_owned(), value);
        let mut environment = vec![
            pair("PATH", PATH.to_owned()),
            pair("HOME", self.home.clone()),
            pair("USER", self.user.clone()),
            pair("LOGNAME", self.user.clone()),
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

    fn directory(&self, start: &Start) -> String {
        match &start.job.working_directory {
            Some(directory) => directory.to_string_lossy().into_owned(),
            None if Path::new(&self.home).is_dir() => self.home.clone(),
            None => "/".to_owned(),
        }
    }
}
