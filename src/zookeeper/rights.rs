//! Who may do what with cronkeeper's paths: what its nodes make belongs to the identities of their authentication files, and what stood
//! there before is taken into possession by the leader, in the background.
//!
//! What is right is read off the leader's own member, which the servers have made with what its file says. Entries that live with
//! a session are left alone: they come and go with their nodes.

use std::time::Duration;

use super::client::{Acl, Client, Error};
use super::damage::Damage;
use super::desk::{self, At as _, Desk, Trouble};
use super::paths;
use crate::clock::{Clock, Wake};

/// So many paths are looked at, one after the other, between two rests.
const AT_ONCE: usize = 20;
/// Commits, and everybody else who uses these servers, come first.
const REST: Duration = Duration::from_millis(20);

/// The folders whose children are looked at too; those of the history have folders of their own.
const WITH_RECORDS: [&str; 4] = [paths::JOBS, paths::RUNNING, paths::CONTROL, paths::TRIGGERS];

/// What taking all into possession came to.
#[derive(Debug, Default)]
pub struct Taken {
    /// Paths whose access lists were set.
    pub changed: usize,
    /// Those whose could not be.
    pub refused: Vec<Damage>,
}

/// Takes every path into possession that is not as the own entries are.
pub async fn take<C: Client, K: Clock>(desk: Desk<C, K>) -> Result<Taken, Trouble> {
    let member = desk.member();
    let (own, _) = desk.line()?.acl(&member).await.at(&member)?;
    let mut taking = Taking { desk, own: sorted(own), looked_at: 0, taken: Taken::default() };
    for path in paths::FOLDERS.into_iter().chain([paths::CLUSTER]) {
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

struct Taking<C, K> {
    desk: Desk<C, K>,
    own: Vec<Acl>,
    looked_at: usize,
    taken: Taken,
}

impl<C: Client, K: Clock> Taking<C, K> {
    async fn children(&mut self, folder: &str) -> Result<Vec<String>, Trouble> {
        // That it cannot be read is told as the reason why it cannot be taken.
        desk::or_none(desk::children(self.desk.line()?, folder).await)
    }

    async fn take_children(&mut self, folder: &str) -> Result<(), Trouble> {
        for name in self.children(folder).await? {
            self.take(paths::under(folder, &name)).await?;
        }
        Ok(())
    }

    async fn take(&mut self, path: String) -> Result<(), Trouble> {
        self.rest().await;
        let taken = match self.desk.line()?.acl(&path).await {
            Ok((acl, stat)) if stat.ephemeral_owner != 0 || sorted(acl.clone()) == self.own => return Ok(()),
            Ok(_) => self.desk.line()?.set_acl(&path, self.own.clone()).await,
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
            let until = self.desk.clock.now().up + REST;
            self.desk.clock.sleep_until(Wake { wall: None, up: Some(until) }).await;
        }
    }
}

fn sorted(mut acl: Vec<Acl>) -> Vec<Acl> {
    acl.sort_unstable();
    acl
}
