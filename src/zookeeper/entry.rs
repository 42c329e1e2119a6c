//! How a node comes in: the folders, the cluster's id, what its own earlier sessions left, and its member.

use super::client::{Client, Error, Mode, Op};
use super::desk::{self, Desk, Trouble};
use super::give_up::{Leftover, give_up};
use super::paths;
use crate::clock::Clock;
use crate::election::Member;

/// What became of making the member.
#[derive(Debug, PartialEq, Eq)]
pub enum Entered {
    /// The node lives.
    Yes,
    /// Another session has the name.
    NameHeld {
        /// Whose it is, for people.
        by: String,
        /// The session.
        owner: i64,
    },
}

/// Makes the folders, and the cluster's id if there is none; returns the id that stands there.
pub async fn prepare<C: Client, K: Clock>(desk: Desk<C, K>, new_cluster: String) -> Result<String, Trouble> {
    make_folders(&desk).await?;
    let made = desk.line()?.create(paths::CLUSTER, new_cluster.into_bytes(), Mode::Persistent).await;
    if let Err(error) = made
        && error != Error::NodeExists
    {
        return Err(error.into());
    }
    let (id, _) = desk.line()?.get(paths::CLUSTER).await?;
    String::from_utf8(id).map_err(|_| Trouble::Again(format!("{} holds no text", paths::CLUSTER)))
}

async fn make_folders<C: Client, K: Clock>(desk: &Desk<C, K>) -> Result<(), Trouble> {
    let client = desk.line()?;
    let creates = paths::FOLDERS.map(|folder| (folder, client.create(folder, Vec::new(), Mode::Persistent)));
    for (folder, create) in creates {
        match create.await {
            Ok(_) | Err(Error::NodeExists) => {}
            // The first one's parent is the chroot itself.
            Err(Error::NoNode) if folder == paths::LEADER => return Err(Trouble::NoChroot),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Gives up what dead processes left, then makes the member.
pub(super) async fn enter<C: Client, K: Clock>(
    desk: Desk<C, K>,
    member: Member,
    left: Leftover,
) -> Result<Entered, Trouble> {
    give_up(&desk, left).await?;
    let (path, data) = (desk.member(), desk::json(&member));
    match desk.line()?.create(&path, data.clone(), Mode::Ephemeral).await {
        Ok(_) => return Ok(Entered::Yes),
        Err(Error::NodeExists) => {}
        // A folder was removed by hand: they are made again first.
        Err(Error::NoNode) => {
            make_folders(&desk).await?;
            return Err(Trouble::Again(format!("{} was gone", paths::NODES)));
        }
        Err(error) => return Err(error.into()),
    }
    let (held, stat) = match desk.line()?.get(&path).await {
        Ok(found) => found,
        Err(Error::NoNode) => return Err(Trouble::Again("the name has just become free".into())),
        Err(error) => return Err(error.into()),
    };
    if stat.ephemeral_owner != desk.me.owner {
        let owner = stat.ephemeral_owner;
        return Ok(Entered::NameHeld { by: describe(&held, owner), owner });
    }
    // Made by a create of this session whose answer was lost.
    desk.line()?.multi(vec![Op::Set { path, data, version: stat.version }]).await?;
    Ok(Entered::Yes)
}

fn describe(data: &[u8], owner: i64) -> String {
    match serde_json::from_slice::<Member>(data) {
        Ok(holder) => format!("process {} on host {}, session {owner:#x}", holder.pid, holder.host),
        Err(_) => format!("session {owner:#x}"),
    }
}

/// Writes what the node has loaded into its member. False: the member is gone.
pub async fn publish<C: Client, K: Clock>(desk: Desk<C, K>, member: Member) -> Result<bool, Trouble> {
    let set = Op::Set { path: desk.member(), data: desk::json(&member), version: -1 };
    match desk.line()?.multi(vec![set]).await {
        Ok(_) => Ok(true),
        Err(failed) if failed.error == Error::NoNode => Ok(false),
        Err(failed) => Err(failed.into()),
    }
}
