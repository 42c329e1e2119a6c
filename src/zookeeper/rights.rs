//! Who may do what with cronkeeper's paths: what its nodes make belongs to the identities of their authentication files, and what stood
//! there before is taken into possession by the leader, in the background. What stands open to others all the same can be told.
//!
//! What is right is read off the leader's own member, which the servers have made with what its file says. Entries that live with
//! a session are left alone: they come and go with their nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::client::{Acl, Client, Error};
use super::context::{self, At as _, SessionContext, SessionError};
use super::damage::Damage;
use super::paths;
use crate::clock::{Clock, Wake};

/// So many paths are looked at, one after the other, between two rests.
const AT_ONCE: usize = 20;
/// Commits, and everybody else who uses these servers, come first.
const REST: Duration = Duration::from_millis(20);

/// The folders whose children are looked at too; those of the history have folders of their own.
const WITH_RECORDS: [&str; 5] = [paths::JOBS, paths::RUNNING, paths::CONTROL, paths::TRIGGERS, paths::GONE];

/// What all else stands in, or rests on. Not each of them is there.
pub(super) fn foundations() -> impl Iterator<Item = &'static str> {
    paths::FOLDERS.into_iter().chain([paths::CLUSTER, paths::GONE])
}

/// What taking all into possession came to.
#[derive(Debug, Default)]
pub struct Taken {
    /// Paths whose access lists were set.
    pub changed: usize,
    /// Those whose could not be.
    pub refused: Vec<Damage>,
}

/// Takes every path into possession that is not as the own entries are.
pub async fn take<C: Client, K: Clock>(context: SessionContext<C, K>) -> Result<Taken, SessionError> {
    let own = own(&context).await?;
    let mut taking = Taking { context, own, looked_at: 0, taken: Taken::default() };
    for path in foundations() {
        taking.take(path.to_owned()).await?;
    }
    for folder in WITH_RECORDS {
        taking.take_children(folder).await?;
    }
    for job in taking.children(paths::HISTORY).await? {
        let folder = paths::under(paths::HISTORY, &job);
        taking.take(folder.clone()).await?;
        taking.take_children(&folder).await?;
    }
    Ok(taking.taken)
}

/// What is open to others than the identities of this node, by who they are and what they may do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Open(BTreeMap<String, Vec<&'static str>>);

impl Open {
    /// True where nothing is.
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

/// Looks what all else stands in.
pub async fn look<C: Client, K: Clock>(context: SessionContext<C, K>) -> Result<Open, SessionError> {
    let own = own(&context).await?;
    let mut open = Open::default();
    for path in foundations() {
        let others = match context.line()?.acl(path).await {
            Ok((acl, _)) => acl.iter().filter(|one| !own.iter().any(|own| own.is_of(one))).map(in_words).collect(),
            Err(Error::NoNode) => Vec::new(),
            Err(error) if error.is_of_path() => vec!["whom this node is not told".to_owned()],
            Err(error) => return Err(error).at(path),
        };
        others.into_iter().for_each(|who| open.0.entry(who).or_default().push(path));
    }
    Ok(open)
}

/// As ZooKeeper's shell writes it, but for what was made of a password.
fn in_words(acl: &Acl) -> String {
    let letters = [(4, 'c'), (8, 'd'), (1, 'r'), (2, 'w'), (16, 'a')];
    let may: String = letters.iter().filter(|(bit, _)| acl.permissions & bit != 0).map(|(_, letter)| letter).collect();
    let id = match acl.scheme.as_str() {
        "digest" => acl.id.split(':').next().unwrap_or_default(),
        _ => &acl.id,
    };
    format!("{}:{id} ({may})", acl.scheme)
}

/// The access list that the servers have given the own member.
async fn own<C: Client, K: Clock>(context: &SessionContext<C, K>) -> Result<Vec<Acl>, SessionError> {
    let member = context.member();
    let (own, _) = context.line()?.acl(&member).await.at(&member)?;
    Ok(sorted(own))
}

struct Taking<C, K> {
    context: SessionContext<C, K>,
    own: Vec<Acl>,
    looked_at: usize,
    taken: Taken,
}

impl<C: Client, K: Clock> Taking<C, K> {
    async fn children(&mut self, folder: &str) -> Result<Vec<String>, SessionError> {
        // That it cannot be read is told as the reason why it cannot be taken.
        context::or_none(context::children(self.context.line()?, folder).await)
    }

    async fn take_children(&mut self, folder: &str) -> Result<(), SessionError> {
        for name in self.children(folder).await? {
            self.take(paths::under(folder, &name)).await?;
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
        self.looked_at += 1;
        if self.looked_at.is_multiple_of(AT_ONCE) {
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
    fn who_may_what_is_told_without_what_was_made_of_a_password() {
        assert_eq!(in_words(&acl(31, "world", "anyone")), "world:anyone (cdrwa)");
        assert_eq!(in_words(&acl(1, "ip", "10.0.0.0/8")), "ip:10.0.0.0/8 (r)");
        assert_eq!(in_words(&acl(15, "digest", "cron:b2xk")), "digest:cron (cdrw)");
        assert_eq!(in_words(&acl(31, "x509", "CN=a,O=b")), "x509:CN=a,O=b (cdrwa)");
    }
}
