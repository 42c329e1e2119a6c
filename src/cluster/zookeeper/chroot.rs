//! The chroot that a connect string names: it must exist, and not be among the data of another cluster.

use super::client::{self, Client};
use crate::paths::{LEADER, ROOT};
use crate::tree::Error;

/// A chroot is deep in the data of that many clusters at most, as far as that is looked for.
const MOST_AROUND: usize = 16;

/// The chroots of the clusters that this chroot would be in the data of, if they existed, highest first; empty stands
/// for ZooKeeper's root.
fn clusters_around(chroot: &str) -> impl Iterator<Item = &str> {
    let holds = |at: usize| {
        let below = &chroot[at..];
        let first = below[1..].find('/').map_or(below, |end| &below[..=end]);
        first == LEADER || first == ROOT
    };
    let around = chroot.match_indices('/').filter(move |&(at, _)| holds(at)).map(|(at, _)| &chroot[..at]);
    around.take(MOST_AROUND)
}

/// The failure to create this znode: what is missing above the first level is the chroot.
pub fn of_create(path: &str, error: client::Error) -> Error {
    match error {
        client::Error::NoNode if path.rfind('/') == Some(0) => Error::NoRoot,
        error => error.into(),
    }
}

/// Checks that the chroot exists.
///
/// A server that lags behind may not know a new one yet, so a write confirms that it is missing.
pub async fn check<C: Client>(client: C) -> Result<(), Error> {
    if client.chroot().is_empty() || client.stat("/").await.map_err(Error::from)?.is_some() {
        return Ok(());
    }
    match client.multi(vec![client::Op::Check { path: "/".to_owned(), version: -1 }]).await {
        Ok(_) => Ok(()),
        Err(client::MultiError { error: client::Error::NoNode, .. }) => Err(Error::NoRoot),
        Err(failed) => Err(failed.error.into()),
    }
}

/// Refuses a chroot among the data of another cluster: of one without a path, that is below `/leader` and
/// `/cronkeeper`, which is also the first name that comes to mind for a path.
pub async fn check_around<C: Client>(client: C, record: String) -> Result<(), Error> {
    let chroot = client.chroot();
    for root in clusters_around(&chroot) {
        let is_cluster = match client.stat_outside(&format!("{root}{record}")).await {
            Ok(found) => found.is_some(),
            // What lies outside the chroot may be closed to this node.
            Err(client::Error::NoAuth) => false,
            Err(failed) => return Err(failed.into()),
        };
        if is_cluster && client.stat(&record).await.map_err(Error::from)?.is_none() {
            let cluster = if root.is_empty() { "/" } else { root };
            return Err(Error::RootInCluster { cluster: cluster.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chroot_is_in_a_cluster_only_below_that_clusters_own_folders() {
        let around = |chroot| clusters_around(chroot).collect::<Vec<_>>();
        for free in ["", "/cron", "/leaders", "/cronkeeper2/jobs", "/other/cron/keeper"] {
            assert!(around(free).is_empty(), "{free}");
        }
        for (inside, root) in [
            ("/cronkeeper", ""),
            ("/leader", ""),
            ("/cronkeeper/jobs/deeper", ""),
            ("/a/b/leader/c", "/a/b"),
            ("/a/cronkeeper/", "/a"),
        ] {
            assert_eq!(around(inside), [root], "{inside}");
        }
        assert_eq!(around("/a/leader/b/cronkeeper/jobs"), ["/a", "/a/leader/b"]);
        assert_eq!(around(&"/leader".repeat(1_000)).len(), MOST_AROUND);
    }
}
