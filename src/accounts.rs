//! Users and groups of this host, as jobs name them.
//!
//! A lookup may query a directory service and take long. It happens when jobs are loaded and periodically after that,
//! but never on the daemon's loop and never between fork and exec. Its results are kept in [`Accounts`].

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;

use nix::unistd::{Group, User, getegid, geteuid, getgrouplist};

use cronkeeper_core::job::{JobSet, RunAs};

/// The user and groups that a process runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    /// All groups of the user, `gid` among them; empty in [`Account::own`].
    pub groups: Vec<u32>,
    pub name: String,
    pub home: String,
}

/// The name of a user or group that does not exist on this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("no user `{0}` on this host")]
    User(String),
    #[error("no group `{0}` on this host")]
    Group(String),
}

/// True if this process may change to another user.
pub fn is_root() -> bool {
    geteuid().is_root()
}

impl Account {
    /// The user and group of this process.
    pub fn own() -> Self {
        let uid = geteuid();
        // A user that the host does not list gets its number as a name, and `/` as its home.
        let (name, home) = match User::from_uid(uid).ok().flatten() {
            Some(user) => (user.name, user.dir.to_string_lossy().into_owned()),
            None => (uid.to_string(), "/".to_owned()),
        };
        Self { uid: uid.as_raw(), gid: getegid().as_raw(), groups: Vec::new(), name, home }
    }

    /// True if this process already runs as this user and group.
    pub fn is_own(&self) -> bool {
        self.uid == geteuid().as_raw() && self.gid == getegid().as_raw()
    }
}

/// Looks up the account for `run_as`. It may block.
///
/// # Errors
/// If the user or group does not exist on this host.
pub fn look_up(run_as: &RunAs) -> Result<Account, Unknown> {
    let user = match &run_as.user {
        Some(name) => Some(user(name).ok_or_else(|| Unknown::User(name.clone()))?),
        None => User::from_uid(geteuid()).ok().flatten(),
    };
    let group = match &run_as.group {
        Some(name) => Some(group(name).ok_or_else(|| Unknown::Group(name.clone()))?),
        None => None,
    };
    let Some(user) = user else {
        // This process's own user is not listed, and the job names only a group.
        let own = Account::own();
        let gid = group.unwrap_or(own.gid);
        return Ok(Account { gid, groups: vec![gid], ..own });
    };
    let gid = group.unwrap_or(user.gid.as_raw());
    let groups = groups(&user.name, gid);
    Ok(Account { uid: user.uid.as_raw(), gid, groups, name: user.name, home: user.dir.to_string_lossy().into_owned() })
}

/// Looks up a name, then a number, as chown(1) does.
fn user(name: &str) -> Option<User> {
    let by_number = || User::from_uid(number(name)?.into()).ok().flatten();
    User::from_name(name).ok().flatten().or_else(by_number)
}

/// The number of a user or group: digits without leading zeros. The largest one means "unchanged" to the kernel.
pub fn number(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|&number| is_plain && number != u32::MAX)
}

fn group(name: &str) -> Option<u32> {
    let by_name = Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
    by_name.or_else(|| number(name))
}

fn groups(user: &str, gid: u32) -> Vec<u32> {
    let all = CString::new(user).ok().and_then(|user| getgrouplist(&user, gid.into()).ok());
    all.map_or_else(|| vec![gid], |all| all.into_iter().map(nix::unistd::Gid::as_raw).collect())
}

/// The accounts that the jobs of a set run as, looked up at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts(Arc<BTreeMap<RunAs, Result<Account, Unknown>>>);

impl Accounts {
    /// Looks up the accounts of all jobs. It may block.
    pub fn of(jobs: &JobSet) -> Self {
        let mut found = BTreeMap::new();
        for job in jobs.jobs.values().filter(|job| job.run_as != RunAs::default()) {
            found.entry(job.run_as.clone()).or_insert_with(|| look_up(&job.run_as));
        }
        Self(Arc::new(found))
    }

    /// Looks up the same accounts again. It may block.
    #[must_use]
    pub fn again(&self) -> Self {
        Self(Arc::new(self.0.keys().map(|run_as| (run_as.clone(), look_up(run_as))).collect()))
    }

    /// The account for `run_as`; `None` if it names neither user nor group.
    ///
    /// # Errors
    /// If the lookup found no such user or group.
    pub fn get(&self, run_as: &RunAs) -> Result<Option<&Account>, Unknown> {
        if *run_as == RunAs::default() {
            return Ok(None);
        }
        match self.0.get(run_as) {
            Some(found) => found.as_ref().map(Some).map_err(Clone::clone),
            // It was never looked up, so it counts as unknown.
            None => Err(Unknown::User(run_as.user.clone().unwrap_or_default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(user: Option<&str>, group: Option<&str>) -> Result<Account, Unknown> {
        look_up(&RunAs { user: user.map(str::to_owned), group: group.map(str::to_owned) })
    }

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        let root = of(Some("root"), None).unwrap();
        assert_eq!((root.uid, root.gid, root.name.as_str()), (0, 0, "root"));
        assert!(root.groups.contains(&0));
        assert_eq!(of(Some("0"), None), Ok(root));
    }

    #[test]
    fn a_named_group_replaces_the_users_own() {
        let daemon = of(Some("root"), Some("daemon")).unwrap();
        assert_eq!((daemon.uid, daemon.groups.contains(&daemon.gid)), (0, true));
        assert_ne!(daemon.gid, 0);
        assert_eq!(of(Some("root"), Some("54321")).unwrap().gid, 54_321);
    }

    #[test]
    fn a_name_unknown_to_the_host_is_an_error() {
        assert_eq!(of(Some("no-such-user"), None), Err(Unknown::User("no-such-user".into())));
        assert_eq!(of(Some("4000000000"), None), Err(Unknown::User("4000000000".into())));
        assert_eq!(of(None, Some("no-such-group")), Err(Unknown::Group("no-such-group".into())));
    }

    #[test]
    fn a_number_is_written_in_one_way_only() {
        assert_eq!([number("0"), number("33"), number("4294967294")], [Some(0), Some(33), Some(u32::MAX - 1)]);
        for text in ["", "+0", "-0", "00", "033", "4294967295", "4294967296", "0x0", " 0", "root"] {
            assert_eq!(number(text), None, "{text}");
            assert!(text == "root" || of(Some(text), None).is_err(), "{text}");
            assert!(text == "root" || of(None, Some(text)).is_err(), "{text}");
        }
    }
}
