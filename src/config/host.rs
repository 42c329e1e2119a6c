//! Checks that depend on the host: known users, the right to switch to them, and the files and programs of jobs.

mod program;

use std::collections::BTreeMap;
use std::io::ErrorKind;

use jiff::Timestamp;

use super::raw::merged;
use super::schema::shown;
use super::settings;
use super::spanned::Position;
use super::validate::LocatedSettings;
use crate::accounts::{self, Account, Unknown};
use crate::job_files::{self, FileError};
use cronkeeper_core::clock::system;
use cronkeeper_core::job::{RunAs, Target};
use cronkeeper_core::run::Reason;

/// A host. Looks up each user only once.
pub(super) struct Host {
    /// `None` for an unknown host, which accepts every job.
    rights: Option<ProcessRights>,
    known: BTreeMap<RunAs, AccountCheck>,
    /// Looks at the files that jobs are given, at their programs and directories.
    looks_at_files: bool,
    /// When the jobs are checked: a job may have no occurrences left.
    pub(super) now: Timestamp,
}

/// The rights of a process on its host.
#[derive(Clone, Copy)]
pub(super) struct ProcessRights {
    /// The process runs as root and so may become any user.
    pub is_root: bool,
    /// Looks up a user; returns true if it is the process's own.
    pub look_up: fn(&RunAs) -> Result<bool, Unknown>,
}

type AccountCheck = Result<bool, Unknown>;

/// A setting that the host cannot fulfil.
pub(super) struct Objection {
    pub at: Position,
    /// The setting comes from the defaults.
    pub is_default: bool,
    pub message: String,
    /// False for a mere warning.
    pub is_error: bool,
}

impl Host {
    pub fn this() -> Self {
        let look_up = |run_as: &RunAs| accounts::look_up(run_as).map(|account| account.is_own());
        Self::with(ProcessRights { is_root: accounts::is_root(), look_up })
    }

    /// This host with the files on it. Not for a daemon: a file may be on a server that does not answer.
    pub fn this_with_files() -> Self {
        Self { looks_at_files: true, ..Self::this() }
    }

    /// An unknown host.
    pub fn any() -> Self {
        Self { rights: None, known: BTreeMap::new(), looks_at_files: false, now: system::now().wall }
    }

    pub(super) fn with(rights: ProcessRights) -> Self {
        Self { rights: Some(rights), ..Self::any() }
    }

    /// What keeps this host from sending to a channel.
    pub fn unfit_channel(&self, target: &Target) -> Vec<String> {
        if !self.looks_at_files {
            return Vec::new();
        }
        let own = nix::unistd::geteuid().as_raw();
        let secrets = target.secret_files().into_iter().map(|path| (path, job_files::secret(path, own).err()));
        let authorities = target.ca_file().map(|path| (path, std::fs::File::open(path).err().map(FileError::Io)));
        let wrong = secrets.chain(authorities).filter_map(|(path, error)| {
            let error = error.filter(|error| !may_be_closed_to_this_user_alone(error))?;
            Some(format!("`{}`: {error}", shown(&path.to_string_lossy())))
        });
        wrong.collect()
    }

    /// The settings of a job that this host cannot fulfil.
    pub fn objections(&mut self, own: &LocatedSettings, defaults: &LocatedSettings) -> Vec<Objection> {
        let Some(rights) = self.rights else { return Vec::new() };
        let mut objections = Vec::new();
        let nice = merged(&own.settings.nice, &defaults.settings.nice);
        if let Some(nice) = nice.filter(|&nice| nice < 0 && !rights.is_root) {
            let message = format!("`nice: {nice}` needs root, and cronkeeper does not run as root");
            objections.extend(objection(own, defaults, &["nice"], message, true));
        }
        let user = merged(&own.settings.user, &defaults.settings.user);
        let run_as = RunAs { user, group: merged(&own.settings.group, &defaults.settings.group) };
        if self.looks_at_files {
            objections.extend(unfit_files(own, defaults, &run_as));
            objections.extend(program::unfit(own, defaults));
        }
        if run_as == RunAs::default() {
            return objections;
        }
        let check = self.known.entry(run_as.clone()).or_insert_with(|| (rights.look_up)(&run_as));
        let keys: &[&str] = match check {
            Err(Unknown::Group(_)) => &["group"],
            _ => &["user", "group"],
        };
        let (message, is_error) = match check {
            Ok(true) => return objections,
            Ok(false) if rights.is_root => return objections,
            Err(unknown) if rights.is_root => (format!("{unknown}: its runs will fail with `no-user`"), false),
            _ => {
                let whom = run_as.user.map(|user| format!("user: {user}"));
                let whom = whom.or(run_as.group.map(|group| format!("group: {group}"))).unwrap_or_default();
                (format!("`{}` needs root, and cronkeeper does not run as root", shown(&whom)), true)
            }
        };
        objections.extend(objection(own, defaults, keys, message, is_error));
        objections
    }
}

/// Files with which the job could not start now.
fn unfit_files(own: &LocatedSettings, defaults: &LocatedSettings, run_as: &RunAs) -> Vec<Objection> {
    let files = merged(&own.settings.environment_file, &defaults.settings.environment_file).unwrap_or_default();
    let secrets = settings::merged_maps(&own.settings.secrets, &defaults.settings.secrets);
    if files.is_empty() && secrets.is_empty() {
        return Vec::new();
    }
    // A user that this host does not know is reported anyway.
    let Ok(Account { uid, .. }) = accounts::look_up(run_as) else { return Vec::new() };
    let files = files.iter().map(|file| ("environment_file", &file.path, job_files::variables(file, uid).err()));
    let secrets = secrets.values().map(|path| ("secrets", path, job_files::secret(path, uid).err()));
    files
        .chain(secrets)
        .filter_map(|(key, path, error)| {
            let error = error.filter(|error| !may_be_closed_to_this_user_alone(error))?;
            let (kind, reason) = match key {
                "secrets" => ("secret", Reason::NoSecret),
                _ => ("environment file", Reason::NoEnvironment),
            };
            let (path, reason) = (shown(&path.to_string_lossy()), reason.as_str());
            let message = format!("{kind} `{path}`: {error}: its runs would fail with `{reason}`");
            objection(own, defaults, &[key], message, false)
        })
        .collect()
}

/// True if the daemon, as another user, may be able to read the file.
fn may_be_closed_to_this_user_alone(error: &FileError) -> bool {
    matches!(error, FileError::Io(error) if error.kind() == ErrorKind::PermissionDenied) && !accounts::is_root()
}

/// Places an objection at the first of these keys that the job has, otherwise at the first in the defaults.
fn objection(
    own: &LocatedSettings,
    defaults: &LocatedSettings,
    keys: &[&str],
    message: String,
    is_error: bool,
) -> Option<Objection> {
    let in_own = keys.iter().find_map(|key| own.position(key));
    let at = in_own.or_else(|| keys.iter().find_map(|key| defaults.position(key)))?;
    Some(Objection { at, is_default: in_own.is_none(), message, is_error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_for;

    /// The problems on a host that knows the users `own` (the process's user) and `backup`.
    fn reported(is_root: bool, defaults: &str, keys: &str) -> String {
        let look_up = |run_as: &RunAs| match (run_as.user.as_deref(), run_as.group.as_deref()) {
            (_, Some("nobodies")) => Err(Unknown::Group("nobodies".into())),
            (Some("own"), None) => Ok(true),
            (Some("backup") | None, _) => Ok(false),
            (Some(user), _) => Err(Unknown::User(user.into())),
        };
        let text = format!("defaults: {{{defaults}}}\njobs: {{a: {{schedule: \"0 0 * * *\", command: x, {keys}}}}}");
        let problems = match parse_for("j", text.as_bytes(), Host::with(ProcessRights { is_root, look_up })) {
            Ok((_, warnings)) => warnings.into_iter().map(|problem| format!("warning: {problem}")).collect(),
            Err(problems) => problems.into_iter().map(|problem| problem.to_string()).collect::<Vec<_>>(),
        };
        problems.join("\n")
    }

    #[test]
    fn another_user_or_a_lower_nice_value_needs_root() {
        let refused = "needs root, and cronkeeper does not run as root";
        assert_eq!(reported(false, "", "user: backup"), format!("j:2:53: job `a`: `user: backup` {refused}"));
        assert_eq!(reported(false, "", "group: backup"), format!("j:2:54: job `a`: `group: backup` {refused}"));
        assert_eq!(reported(false, "user: stranger", ""), format!("j:1:18: defaults: `user: stranger` {refused}"));
        assert_eq!(reported(false, "", "nice: -1"), format!("j:2:53: job `a`: `nice: -1` {refused}"));
        for keys in ["user: own", "nice: 19"] {
            assert_eq!(reported(false, "", keys), "", "{keys}");
        }
        for keys in ["user: backup", "nice: -20"] {
            assert_eq!(reported(true, "", keys), "", "{keys}");
        }
    }

    #[test]
    fn a_name_that_root_does_not_find_is_a_warning() {
        let fails = "on this host: its runs will fail with `no-user`";
        assert_eq!(
            reported(true, "", "user: stranger"),
            format!("warning: j:2:53: job `a`: no user `stranger` {fails}")
        );
        let group = "user: backup, group: nobodies";
        assert_eq!(reported(true, "", group), format!("warning: j:2:68: job `a`: no group `nobodies` {fails}"));
    }
}
