//! Access rights on cronkeeper's paths.
//!
//! What a node creates belongs to the identities of its authentication file. The leader sets the same access list on
//! everything that was there before, in the background. Any node can also report what is open to others.
//!
//! The right access list is that of this node's own member, because the servers have created it according to the
//! authentication file. Ephemeral nodes are left alone: they are created and removed with their sessions.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::client::{Acl, Client, Error};
use super::context::{self, At as _, SessionContext, SessionError};
use super::damage::Damage;
use super::paths;
use cronkeeper_core::clock::{Clock, Wake};

/// Paths that are checked, one after the other, between two rests.
const AT_ONCE: usize = 20;
/// Length of a rest. Commits, and everybody else who uses these servers, come first.
const REST: Duration = Duration::from_millis(20);

/// The parents whose children are checked too. The history is not among them: it has one more level.
const WITH_RECORDS: [&str; 6] =
    [paths::JOBS, paths::RUNNING, paths::CONTROL, paths::TRIGGERS, paths::GONE, paths::WANTED];

/// The paths that everything else depends on. Some of them may not exist.
pub(super) fn base_paths() -> impl Iterator<Item = &'static str> {
    paths::PARENTS.into_iter().chain([paths::CLUSTER, paths::GONE])
}

/// Result of setting access lists.
#[derive(Debug, Default)]
pub struct Taken {
    /// Number of paths whose access list was changed.
    pub changed: usize,
    /// Paths whose access list could not be changed.
    pub refused: Vec<Damage>,
}

/// Sets the access list of every persistent path that differs from the own member's.
pub async fn take<C: Client, K: Clock>(context: SessionContext<C, K>) -> Result<Taken, SessionError> {
    let own = own(&context).await?;
    let mut taking = AclUpdate { context, own, checked: 0, taken: Taken::default() };
    for path in base_paths() {
        taking.take(path.to_owned()).await?;
    }
    for parent in WITH_RECORDS {
        taking.take_children(parent).await?;
    }
    for job in taking.children(paths::HISTORY).await? {
        let parent = paths::under(paths::HISTORY, &job);
        taking.take(parent.clone()).await?;
        taking.take_children(&parent).await?;
    }
    Ok(taking.taken)
}

/// Paths that are open to identities other than this node's: by identity and rights.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Open(BTreeMap<String, Vec<&'static str>>);

impl Open {
    /// True if nothing is open to others.
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.0.iter().map(|(who, paths)| format!("to {who} {}", paths.join(", "))).collect();
        f.write_str(&each.join("; "))
    }
}

/// Finds out which of the base paths are open to others.
pub async fn look<C: Client, K: Clock>(context: SessionContext<C, K>) -> Result<Open, SessionError> {
    let own = own(&context).await?;
    let mut open = Open::default();
    for path in base_paths() {
        let others = match context.line()?.acl(path).await {
            Ok((acl, _)) => acl.iter().filter(|one| !own.iter().any(|own| own.is_of(one))).map(describe).collect(),
            Err(Error::NoNode) => Vec::new(),
            Err(error) if error.is_of_path() => vec!["identities that this node may not list".to_owned()],
            Err(error) => return Err(error).at(path),
        };
        others.into_iter().for_each(|who| open.0.entry(who).or_default().push(path));
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

/// The access list that the servers have given to this node's member.
async fn own<C: Client, K: Clock>(context: &SessionContext<C, K>) -> Result<Vec<Acl>, SessionError> {
    let member = context.member();
    let (own, _) = context.line()?.acl(&member).await.at(&member)?;
    Ok(sorted(own))
}

struct AclUpdate<C, K> {
    context: SessionContext<C, K>,
    own: Vec<Acl>,
    checked: usize,
    taken: Taken,
}

impl<C: Client, K: Clock> AclUpdate<C, K> {
    async fn children(&mut self, parent: &str) -> Result<Vec<String>, SessionError> {
        // A parent that this node must not read is reported when its own access list cannot be set.
        context::or_none(context::children(self.context.line()?, parent).await)
    }

    async fn take_children(&mut self, parent: &str) -> Result<(), SessionError> {
        for name in self.children(parent).await? {
            self.take(paths::under(parent, &name)).await?;
        }
        Ok(())
    }

    async fn take(&mut self, path: String) -> Result<(), SessionError> {
        self.rest().await;
        let taken = match self.context.line()?.acl(&path).await {
            Ok((acl, stat)) if stat.ephemeral_owner != 0 || sorted(acl.clone()) == self.own => return Ok(()),
            Ok(_) => self.context.line()?.set_acl(&path, self.own.clone()).await,
            Err(error) => Err(error),
        };
        match taken {
            Ok(()) => {
                self.taken.changed += 1;
                Ok(())
            }
            Err(Error::NoNode) => Ok(()),
            Err(error) if error.is_of_path() => {
                self.taken.refused.push(Damage::new(path, format_args!("its access list cannot be set: {error}")));
                Ok(())
            }
            Err(error) => Err(error).at(&path),
        }
    }

    async fn rest(&mut self) {
        self.checked += 1;
        if self.checked.is_multiple_of(AT_ONCE) {
            let until = self.context.clock.now().up + REST;
            self.context.clock.sleep_until(Wake { wall: None, up: Some(until) }).await;
        }
    }
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
}
