//! Access rights on cronkeeper's paths.
//!
//! What a node creates belongs to the identities of its authentication file. The leader sets the same access list on
//! everything that was there before, in the background. Any node can also report what is open to others.
//!
//! The right access list is that of this node's own member, because the servers have created it according to the
//! authentication file. Ephemeral nodes are left alone: they are created and removed with their sessions.
//!
//! The locks of jobs are not cronkeeper's alone: other programs may share them under identities of their own. A lock
//! whose access list names somebody else is left alone. One that is open to everybody, as it is when it was created before
//! there were identities, gets the right list, and so does one of this node's own users under another password.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::client::{Acl, Client, Error, OpenReason, Ownership};
use super::folders;
use crate::paths;
use crate::tree::{self, Failed, Secured};
use cronkeeper_core::clock::{Clock, Wake};
use cronkeeper_core::lock::LockPath;

/// Paths that are checked, one after the other, between two rests.
const AT_ONCE: usize = 20;
/// Length of a rest. Commits, and everybody else who uses these servers, come first.
const REST: Duration = Duration::from_millis(20);

/// Most paths that are shown for one identity.
const MOST_SHOWN: usize = 20;

/// The identities of a list that this node may not read.
const UNLISTED: &str = "identities that this node may not list";

/// The parents whose children are checked too.
const WITH_RECORDS: [&str; 10] = [
    paths::JOBS,
    paths::RUNNING,
    paths::LAST,
    paths::CONTROL,
    paths::TRIGGERS,
    paths::GONE,
    paths::WANTED,
    paths::PLACES,
    paths::OUTBOX,
    paths::CHANNELS,
];
/// The parents whose children have children of their own.
const WITH_FOLDERS: [&str; 2] = [paths::HISTORY, paths::OFFERS];

/// The paths that everything else depends on. Some of them may not exist.
pub(super) fn base_paths() -> impl Iterator<Item = &'static str> {
    paths::PARENTS.into_iter().chain([paths::CLUSTER, paths::GONE])
}

/// Whose the znodes are that a session creates.
pub fn ownership(belongs: Ownership) -> tree::Ownership {
    match belongs {
        Ownership::Own => tree::Ownership::Own,
        Ownership::OwnAndEverybody => tree::Ownership::OwnAndEverybody(AS_CONFIGURED),
        Ownership::Everybody(OpenReason::NoIdentity) => tree::Ownership::Unowned(NO_IDENTITY),
        Ownership::Everybody(OpenReason::NotIdentified) => tree::Ownership::Everybody(NOT_IDENTIFIED),
        Ownership::Everybody(OpenReason::CannotBeAsked) => tree::Ownership::Everybody(CANNOT_BE_ASKED),
        Ownership::Everybody(OpenReason::OpenBefore) => tree::Ownership::Everybody(OPEN_BEFORE),
    }
}

const AS_CONFIGURED: &str = "who can reach the servers, because the authentication file contains `world:anyone`";
const NO_IDENTITY: &str =
    "who can reach the servers, because this node has no identity there (`--zookeeper-auth-file`)";
const NOT_IDENTIFIED: &str = "who can reach the servers, because they do not accept this node's certificate as an \
                              identity (x509 authentication)";
const CANNOT_BE_ASKED: &str = "who can reach the servers: servers before ZooKeeper 3.7 do not report whether they \
                               accept this node's certificate as an identity, so the authentication file has to (a \
                               line `x509:`)";
const OPEN_BEFORE: &str = "who can reach the servers, as before: a line `x509:` in the authentication file limits it \
                           to this node's certificate";

/// Sets the access list of every persistent path that differs from that of the entry `own`, and of those of these locks
/// that are not shared with others by name.
pub async fn secure<C: Client, K: Clock>(
    client: C,
    own: String,
    locks: BTreeSet<LockPath>,
    clock: K,
) -> Result<Secured, Failed> {
    let own = acl_of(&client, &own).await?;
    let mut taking = AclUpdate { client, clock, own, checked: 0, secured: Secured::default() };
    for path in base_paths() {
        taking.take(path.to_owned()).await?;
    }
    for lock in locks {
        taking.take_unless(lock.to_string(), names_others).await?;
    }
    for parent in WITH_RECORDS {
        taking.take_children(parent).await?;
    }
    for folder in WITH_FOLDERS {
        for name in taking.children(folder).await? {
            let parent = paths::under(folder, &name);
            taking.take(parent.clone()).await?;
            taking.take_children(&parent).await?;
        }
    }
    Ok(taking.secured)
}

/// Paths that are open to identities other than this node's: by identity and rights.
#[derive(Debug, Default, PartialEq, Eq)]
struct OpenPaths(BTreeMap<String, Vec<String>>);

impl OpenPaths {
    /// True if nothing is open to others.
    fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for OpenPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |(who, paths): (&String, &Vec<String>)| {
            let more = paths.len().saturating_sub(MOST_SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("to {who} {}{more}", paths[..paths.len().min(MOST_SHOWN)].join(", "))
        };
        let each: Vec<String> = self.0.iter().map(of).collect();
        f.write_str(&each.join("; "))
    }
}

/// Finds out which of the base paths and of these locks are open to identities other than those of the entry `own`, and
/// in which folders of locks everybody may create or delete children.
pub async fn exposed<C: Client>(client: C, own: String, locks: BTreeSet<LockPath>) -> Result<Vec<String>, Failed> {
    let own = acl_of(&client, &own).await?;
    let is_other = |acl: &Acl| !own.iter().any(|own| own.is_of(acl));
    let base = open_paths(&client, base_paths().map(str::to_owned).collect(), is_other, Some(UNLISTED)).await?;
    let folders = folders_of(&locks).into_iter().map(str::to_owned).collect();
    let folders = open_paths(&client, folders, lets_everybody_replace, None).await?;
    let locks = open_paths(&client, locks.iter().map(LockPath::to_string).collect(), is_other, Some(UNLISTED)).await?;
    Ok(exposures(&base, &folders, &locks))
}

fn exposures(base: &OpenPaths, folders: &OpenPaths, locks: &OpenPaths) -> Vec<String> {
    let base = (!base.is_nothing()).then(|| {
        format!(
            "cronkeeper's data in ZooKeeper is open to identities other than this node's: {base}. {}. A leader with \
             the same identities closes what it can",
            tree::RISK
        )
    });
    let folders = (!folders.is_nothing()).then(|| {
        format!(
            "folders of jobs' locks are open to everybody: {folders}. {RISK_OF_FOLDERS}. cronkeeper leaves them as \
             they are, because other programs may use them too; give each an access list (`setAcl` in ZooKeeper's \
             shell)"
        )
    });
    let locks = (!locks.is_nothing()).then(|| {
        format!(
            "locks of jobs are open to identities other than this node's: {locks}. {RISK_OF_LOCKS}. A leader with the \
             same identities closes those that name nobody else"
        )
    });
    [base, folders, locks].into_iter().flatten().collect()
}

const RISK_OF_LOCKS: &str = "Everybody who can write there can hold a lock forever, so that its jobs wait or are \
                             skipped, and can delete the entry of a run, which kills the run";
const RISK_OF_FOLDERS: &str = "Everybody who can reach the servers can put a znode of their own in place of a lock that \
                               nobody uses, which keeps its jobs from running";

/// The folders that these locks are in, at every level below the root, which is the whole service's.
fn folders_of(locks: &BTreeSet<LockPath>) -> BTreeSet<&str> {
    locks.iter().flat_map(|lock| paths::ancestors(lock.as_str())).collect()
}

/// True if an entry lets whoever can reach the servers put something else in place of a folder's child: create or
/// delete children, or change who may. Other programs are named in the list of a folder on purpose.
fn lets_everybody_replace(acl: &Acl) -> bool {
    let (create, delete, admin) = (4, 8, 16);
    let is_everybody = acl.scheme == "world" || (acl.scheme == "ip" && acl.id.ends_with("/0"));
    is_everybody && acl.permissions & (create | delete | admin) != 0
}

/// The entries of these paths' access lists that are open; of a list that this node may not read, `unlisted`.
async fn open_paths<C: Client>(
    client: &C,
    paths: Vec<String>,
    is_open: impl Fn(&Acl) -> bool,
    unlisted: Option<&str>,
) -> Result<OpenPaths, Failed> {
    let mut open = OpenPaths::default();
    for path in paths {
        let path = path.as_str();
        let others = match line(client, path)?.acl(path).await {
            Ok((acl, _)) => acl.iter().filter(|one| is_open(one)).map(describe).collect(),
            Err(Error::NoNode) => Vec::new(),
            Err(error) if error.is_of_path() => unlisted.map(str::to_owned).into_iter().collect(),
            Err(error) => return Err(failed(path, error)),
        };
        others.into_iter().for_each(|who| open.0.entry(who).or_default().push(path.to_owned()));
    }
    Ok(open)
}

/// Formats an entry as ZooKeeper's shell does, but without the hash of a password.
fn describe(acl: &Acl) -> String {
    let letters = [(4, 'c'), (8, 'd'), (1, 'r'), (2, 'w'), (16, 'a')];
    let may: String = letters.iter().filter(|(bit, _)| acl.permissions & bit != 0).map(|(_, letter)| letter).collect();
    let id = match acl.scheme.as_str() {
        "digest" => acl.id.split(':').next().unwrap_or_default(),
        _ => &acl.id,
    };
    format!("{}:{id} ({may})", acl.scheme)
}

/// The access list that the servers have given to an entry of this session.
async fn acl_of<C: Client>(client: &C, path: &str) -> Result<Vec<Acl>, Failed> {
    let (acl, _) = line(client, path)?.acl(path).await.map_err(|error| failed(path, error))?;
    Ok(sorted(acl))
}

fn line<'c, C: Client>(client: &'c C, path: &str) -> Result<&'c C, Failed> {
    folders::line(client).map_err(|error| (path.to_owned(), error))
}

fn failed(path: &str, error: Error) -> Failed {
    (path.to_owned(), error.into())
}

struct AclUpdate<C, K> {
    client: C,
    clock: K,
    own: Vec<Acl>,
    checked: usize,
    secured: Secured,
}

impl<C: Client, K: Clock> AclUpdate<C, K> {
    async fn children(&mut self, parent: &str) -> Result<Vec<String>, Failed> {
        match line(&self.client, parent)?.children(parent).await {
            Ok(names) => Ok(names),
            // A parent that this node must not read is reported when its own access list cannot be set.
            Err(Error::NoNode | Error::NoAuth) => Ok(Vec::new()),
            Err(error) => Err(failed(parent, error)),
        }
    }

    async fn take_children(&mut self, parent: &str) -> Result<(), Failed> {
        for name in self.children(parent).await? {
            self.take(paths::under(parent, &name)).await?;
        }
        Ok(())
    }

    async fn take(&mut self, path: String) -> Result<(), Failed> {
        self.take_unless(path, |_, _| false).await
    }

    /// Sets the access list unless it is right, or may stay as it is: that depends on it and on the own one.
    async fn take_unless(&mut self, path: String, may_stay: fn(&[Acl], &[Acl]) -> bool) -> Result<(), Failed> {
        self.rest().await;
        let taken = match line(&self.client, &path)?.acl(&path).await {
            Ok((acl, stat)) if stat.is_of_session() || sorted(acl.clone()) == self.own || may_stay(&acl, &self.own) => {
                return Ok(());
            }
            Ok(_) => line(&self.client, &path)?.set_acl(&path, self.own.clone()).await,
            Err(error) => Err(error),
        };
        match taken {
            Ok(()) => self.secured.changed += 1,
            Err(Error::NoNode) => {}
            Err(error) if error.is_of_path() => {
                self.secured.refused.push((path, format!("its access list cannot be set: {error}")));
            }
            Err(error) => return Err(failed(&path, error)),
        }
        Ok(())
    }

    async fn rest(&mut self) {
        self.checked += 1;
        if self.checked.is_multiple_of(AT_ONCE) {
            let until = self.clock.now().up + REST;
            self.clock.sleep_until(Wake { wall: None, up: Some(until) }).await;
        }
    }
}

/// True if an access list names an identity that is not one of `own`, nor one of them under another password.
fn names_others(acl: &[Acl], own: &[Acl]) -> bool {
    let user = |acl: &Acl| match acl.scheme.as_str() {
        "digest" => acl.id.split(':').next().unwrap_or_default().to_owned(),
        _ => acl.id.clone(),
    };
    let is_own = |one: &Acl| own.iter().any(|own| own.scheme == one.scheme && user(own) == user(one));
    !acl.iter().all(|one| one.scheme == "world" || is_own(one))
}

fn sorted(mut acl: Vec<Acl>) -> Vec<Acl> {
    acl.sort_unstable();
    acl
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(permissions: u8, scheme: &str, id: &str) -> Acl {
        Acl { permissions, scheme: scheme.into(), id: id.into() }
    }

    #[test]
    fn access_lists_are_shown_without_password_hashes() {
        assert_eq!(describe(&acl(31, "world", "anyone")), "world:anyone (cdrwa)");
        assert_eq!(describe(&acl(1, "ip", "10.0.0.0/8")), "ip:10.0.0.0/8 (r)");
        assert_eq!(describe(&acl(15, "digest", "cron:b2xk")), "digest:cron (cdrw)");
        assert_eq!(describe(&acl(31, "x509", "CN=a,O=b")), "x509:CN=a,O=b (cdrwa)");
    }

    #[test]
    fn a_lock_that_others_share_by_name_is_left_to_them() {
        let own = [acl(31, "digest", "cron:bmV3"), acl(31, "x509", "CN=a")];
        let (all, app) = (acl(31, "world", "anyone"), acl(31, "digest", "app:b2xk"));
        let before = acl(31, "digest", "cron:b2xk");
        for taken in [vec![], vec![all.clone()], vec![before.clone()], vec![own[0].clone(), before], own.to_vec()] {
            assert!(!names_others(&taken, &own), "{taken:?}");
        }
        for left in [vec![app.clone()], vec![all, app.clone()], vec![own[0].clone(), app], vec![acl(1, "x509", "CN=b")]]
        {
            assert!(names_others(&left, &own), "{left:?}");
        }
    }

    #[test]
    fn a_folder_is_open_where_everybody_may_replace_what_is_in_it() {
        let everybody = |permissions| acl(permissions, "world", "anyone");
        for open in [everybody(31), everybody(4), everybody(8), everybody(16), acl(31, "ip", "0.0.0.0/0")] {
            assert!(lets_everybody_replace(&open), "{open:?}");
        }
        for closed in [everybody(1), everybody(3), acl(31, "digest", "app:b2xk"), acl(31, "ip", "10.0.0.0/8")] {
            assert!(!lets_everybody_replace(&closed), "{closed:?}");
        }
    }

    #[test]
    fn the_folders_of_locks_are_found_once_at_every_level() {
        let locks = ["/top", "/locks/a", "/locks/team/b", "/locks/team/c"].map(|path| path.parse().unwrap());
        assert_eq!(folders_of(&locks.into()), ["/locks", "/locks/team"].into());
    }

    #[test]
    fn of_many_open_locks_some_are_shown() {
        let paths = (0..50).map(|n| format!("/locks/{n}")).collect();
        let open = OpenPaths([("world:anyone (cdrwa)".to_owned(), paths)].into()).to_string();
        assert!(
            open.starts_with("to world:anyone (cdrwa) /locks/0, /locks/1,") && open.ends_with("/locks/19 and 30 more")
        );
    }
}
