//! Builds the [`Launch`] of a run or hook: command, user, limits, environment and working directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokio::sync::watch;

use crate::accounts::{Account, Accounts, Unknown};
use crate::warden::cgroup::hierarchy::Cgroups;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::engine::Start;
use cronkeeper_core::engine::hooks::HookStart;
use cronkeeper_core::environment_file::EnvironmentFile;
use cronkeeper_core::event_loop;
use cronkeeper_core::event_loop::variables::{self, Variables};
use cronkeeper_core::job::{CommandLine, Job, RunAs};
use cronkeeper_core::process::{Deadline, ExecStrings, Launch, LaunchFiles, Limits, SecretFile, TreeId, User};
use cronkeeper_core::run::Parameters;
use cronkeeper_core::term::NodeName;

/// The umask of hooks of the node.
const UMASK: u32 = 0o022;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Maximum number of bytes of a hook's output that are logged.
const HOOK_OUTPUT: u64 = 64 << 10;

/// The user that a process runs as, and where: a job's own, or as the daemon does.
#[derive(Clone, Copy)]
struct Setting<'a> {
    run_as: Option<&'a RunAs>,
    environment: Option<&'a BTreeMap<String, String>>,
    environment_file: &'a [EnvironmentFile],
    secrets: Option<&'a BTreeMap<String, PathBuf>>,
    /// The value of SHELL.
    shell: &'a str,
    parameters: Option<&'a Parameters>,
    working_directory: Option<&'a Path>,
    umask: u32,
}

impl Default for Setting<'_> {
    fn default() -> Self {
        Self {
            run_as: None,
            environment: None,
            environment_file: &[],
            secrets: None,
            shell: CommandLine::SHELL,
            parameters: None,
            working_directory: None,
            umask: UMASK,
        }
    }
}

impl<'a> Setting<'a> {
    fn of(job: &'a Job, parameters: Option<&'a Parameters>) -> Self {
        Self {
            run_as: Some(&job.run_as),
            environment: Some(&job.environment),
            environment_file: &job.environment_file,
            secrets: Some(&job.secrets),
            shell: CommandLine::SHELL,
            parameters,
            working_directory: job.working_directory.as_deref(),
            umask: job.umask,
        }
    }
}

/// Settings of this node that apply to every launch.
#[derive(Clone, Debug)]
pub struct Launcher {
    pub node: NodeName,
    /// The daemon's own account; it runs jobs that name no user.
    pub own: Account,
    /// The accounts of the jobs' users, as last looked up.
    pub accounts: watch::Receiver<Accounts>,
    /// Soft and hard limit of open files to restore in a new process; absent if the daemon did not raise its own.
    pub open_files: Option<(u64, u64)>,
    /// The cgroups in which each run gets one of its own; absent where there are none.
    pub cgroups: Option<Cgroups>,
}

impl Launcher {
    /// A launcher for jobs that name no user, without cgroups.
    pub fn plain(node: NodeName, own: Account) -> Self {
        let (_, accounts) = watch::channel(Accounts::default());
        Self { node, own, accounts, open_files: None, cgroups: None }
    }

    /// The launch of an attempt whose begin was accepted.
    ///
    /// # Errors
    /// When this host does not know the job's user or group.
    pub fn launch(&self, start: &Start) -> Result<Launch, Unknown> {
        let job = &start.job;
        let mut own = variables::of_run(&start.run, &self.node);
        own.extend(start.lock.iter().flat_map(variables::of_lock));
        let setting = Setting { shell: job.command.shell(), ..Setting::of(job, Some(&start.run.parameters)) };
        let launch = self.process(start.tree_id, setting, job.command.argv(), self.limits(job), &own)?;
        let Start { not_before, not_after, deadline, .. } = *start;
        let (time_limit, max_output) = (job.timeout.map(|timeout| timeout + job.kill_grace), job.max_output);
        Ok(Launch { nice: job.nice, not_before, not_after, deadline, time_limit, max_output, ..launch })
    }

    /// The launch of a hook: as the job's user, in the job's environment and directory, without the job's limits. A hook
    /// of the node runs as the daemon does.
    ///
    /// The limits do not apply because the hook must be able to report a run that was killed by them. It starts without
    /// files that cannot be used, because a run that failed over them must be reported too.
    ///
    /// # Errors
    /// When this host does not know the job's user or group.
    pub fn hook(&self, start: &HookStart) -> Result<Launch, Unknown> {
        let HookStart { tree_id, call, until } = start;
        let argv = call.command().map(CommandLine::argv).unwrap_or_default();
        let limits = Limits { open_files: self.open_files, ..Limits::default() };
        let parameters = call.parameters();
        let setting = call.job().map_or_else(Setting::default, |job| Setting::of(job, Some(&parameters)));
        let launch = self.process(*tree_id, setting, argv, limits, &variables::of_hook(call, &self.node))?;
        let (input, deadline) = (call.input().to_owned(), Deadline::At(*until));
        let files = LaunchFiles { are_dispensable: true, ..launch.files };
        Ok(Launch { input, deadline, files, max_output: HOOK_OUTPUT, ..launch })
    }

    /// The part of a launch that runs and hooks have in common.
    fn process(
        &self,
        tree_id: TreeId,
        setting: Setting<'_>,
        argv: Vec<String>,
        limits: Limits,
        own: &Variables,
    ) -> Result<Launch, Unknown> {
        let named = setting.run_as.map(|run_as| self.accounts.borrow().get(run_as).map(|found| found.cloned()));
        let named = named.transpose()?.flatten();
        let account = named.as_ref().unwrap_or(&self.own);
        Ok(Launch {
            tree_id,
            argv: argv.iter().collect(),
            environment: environment(&setting, account, own),
            files: files(&setting),
            input: String::new(),
            streams: None,
            directory: directory(setting.working_directory, account),
            or_root: setting.working_directory.is_none(),
            umask: setting.umask,
            user: named.as_ref().and_then(|named| self.become_user(named)),
            nice: None,
            limits,
            cgroup: self.cgroups.as_ref().map(|cgroups| cgroups.place(tree_id, &limits)),
            not_before: None,
            not_after: Uptime::NEVER,
            deadline: Deadline::None,
            time_limit: None,
            max_output: 0,
        })
    }

    /// The user to switch to; absent if none is needed.
    ///
    /// Root always switches, even to root, to get the groups of the named user. A daemon that is not root can only run
    /// jobs as itself.
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
}

/// The engine reports which user or group this host does not know.
impl event_loop::Launcher for Launcher {
    fn launch(&self, start: &Start) -> Option<Launch> {
        Self::launch(self, start).ok()
    }

    fn hook(&self, start: &HookStart) -> Option<Launch> {
        Self::hook(self, start).ok()
    }
}

/// The names of the usual variables, which a file may replace.
const USUAL: [&str; 6] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG"];

/// The environment of a process: the usual variables, overridden by the job's own, overridden by the run's
/// parameters, overridden by cronkeeper's own.
///
/// Each name occurs once: of two variables with the same name some programs use the first and others the last.
/// Cronkeeper's own variables come first, because a node that looks for its processes reads only the beginning of an
/// environment.
fn environment(setting: &Setting<'_>, account: &Account, own: &Variables) -> ExecStrings {
    let usual = [PATH, &account.home, &account.name, &account.name, setting.shell, "C.UTF-8"];
    let usual = USUAL.into_iter().zip(usual);
    let mut all: BTreeMap<&str, &str> = usual.collect();
    all.extend(setting.environment.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str())));
    all.extend(setting.parameters.into_iter().flat_map(Parameters::iter));
    let own: BTreeMap<String, &str> =
        own.iter().map(|(name, value)| (format!("CRONKEEPER_{name}"), value.as_str())).collect();
    all.retain(|name, _| !own.contains_key(*name));
    let own = own.iter().map(|(name, value)| (name.as_str(), *value));
    ExecStrings::of_variables(own.chain(all))
}

/// What the process is to read at its start. The job's own `environment` and the run's parameters
/// count more than a file.
fn files(setting: &Setting<'_>) -> LaunchFiles {
    let secret = |(name, path): (&String, &PathBuf)| SecretFile { name: name.clone(), path: path.clone() };
    let secrets = setting.secrets.into_iter().flatten().map(secret).collect();
    if setting.environment_file.is_empty() {
        return LaunchFiles { secrets, ..LaunchFiles::default() };
    }
    let is_own = |name: &str| {
        let mut parameters = setting.parameters.into_iter().flat_map(Parameters::iter);
        setting.environment.is_some_and(|own| own.contains_key(name)) || parameters.any(|(given, _)| given == name)
    };
    let replaceable = USUAL.into_iter().filter(|name| !is_own(name)).map(str::to_owned).collect();
    LaunchFiles { environment: setting.environment_file.to_vec(), replaceable, secrets, are_dispensable: false }
}

/// The working directory of a process: the job's own, else the user's home directory.
///
/// It is not checked here, because the daemon may lack access to it, or its file server may not answer.
fn directory(named: Option<&Path>, account: &Account) -> String {
    let named = named.map(|directory| directory.to_string_lossy().into_owned());
    named.unwrap_or_else(|| account.home.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variable_occurs_once_and_cronkeepers_own_override_parameters_those_the_jobs_and_those_the_usual_ones() {
        let text =
            "jobs: {a: {schedule: '@daily', command: x, environment: {LANG: own, CRONKEEPER_JOB: own, OTHER: own}}}";
        let (set, _) = crate::config::parse("j", text.as_bytes()).unwrap();
        let (_, job) = set.jobs.first_key_value().unwrap();
        let account = Account { uid: 1, gid: 1, groups: vec![], name: "u".into(), home: "/h".into() };
        let given = [("OTHER", "given"), ("CRONKEEPER_NODE", "given"), ("NEW", "$x\n'y'")];
        let given = given.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let allowed = given.iter().map(|(name, _)| name.clone()).collect();
        let parameters = Parameters::check("a", &allowed, given.into()).unwrap();
        let own = vec![("JOB", "a".to_owned()), ("NODE", "n".to_owned())];
        let all = environment(&Setting::of(job, Some(&parameters)), &account, &own);
        let of = |wanted: &str| {
            all.variables().filter(|(name, _)| *name == wanted).map(|(_, value)| value).collect::<Vec<_>>()
        };
        assert_eq!(
            [of("LANG"), of("CRONKEEPER_JOB"), of("OTHER"), of("CRONKEEPER_NODE")],
            [["own"], ["a"], ["given"], ["n"]]
        );
        assert_eq!(of("NEW"), ["$x\n'y'"]);
        assert_eq!((of("PATH"), of("HOME"), of("USER")), (vec![PATH], vec!["/h"], vec!["u"]));
        assert_eq!(of("SHELL"), ["/bin/sh"]);
        assert!(
            all.variables().take(2).all(|(name, _)| name.starts_with("CRONKEEPER_")),
            "however many others there are"
        );
    }

    #[test]
    fn a_file_may_replace_the_usual_variables_but_not_the_jobs_own() {
        let text = "jobs: {a: {schedule: '@daily', command: x, environment: {LANG: own}, environment_file: /e, \
                    secrets: {DB: {file: /s}}}}";
        let (set, _) = crate::config::parse("j", text.as_bytes()).unwrap();
        let files = files(&Setting::of(set.jobs.first_key_value().unwrap().1, None));
        assert_eq!(files.replaceable, ["PATH", "HOME", "USER", "LOGNAME", "SHELL"]);
        assert_eq!(files.environment, [EnvironmentFile::of("/e")]);
        assert_eq!(files.secrets, [SecretFile { name: "DB".into(), path: "/s".into() }]);
    }
}
