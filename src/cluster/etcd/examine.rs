//! What is at the other end: whether it is an etcd that can be used, and what its commits are worth.

use std::time::Duration;

use super::gateway::{Failed, Gateway};
use super::json::{MembersResponse, Nothing, StatusResponse};
use crate::tree::ConnectError;
use cronkeeper_core::election::Worth;

/// Checks that the cluster can be used. Changes nothing.
///
/// # Errors
/// [`ConnectError::Refused`] if somebody must change something.
pub async fn look(gateway: &Gateway, patience: Duration) -> Result<Worth, ConnectError> {
    let status: StatusResponse = ask(gateway, "/v3/maintenance/status", patience).await?;
    let members: MembersResponse = ask(gateway, "/v3/cluster/member/list", patience).await?;
    if let Some(why) = objection(&status) {
        return Err(ConnectError::Refused(why));
    }
    Ok(worth(&status, members.members.len()))
}

async fn ask<T: serde::de::DeserializeOwned>(
    gateway: &Gateway,
    path: &str,
    patience: Duration,
) -> Result<T, ConnectError> {
    gateway.ask(path, &Nothing {}, patience).await.map_err(|failed| match failed {
        Failed::Refused { message, .. } => ConnectError::Refused(message),
        Failed::Unanswered(why) => ConnectError::Unreachable(why),
        Failed::NotConnected(error) => error,
    })
}

/// The first numbers of a version.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().ok());
    Some([parts.next()??, parts.next()??, parts.next()??])
}

fn objection(status: &StatusResponse) -> Option<String> {
    let version = &status.version;
    if numbers(version).is_none_or(|numbers| numbers < [3, 4, 0]) {
        return Some(format!("the server is etcd {version}; cronkeeper needs 3.4 or newer"));
    }
    let is_full = status.errors.iter().any(|error| error.contains("NOSPACE"));
    is_full.then(|| {
        "the database has reached its quota, and etcd accepts no writes: compact and defragment it, then disarm the alarm \
         (`etcdctl alarm disarm`)"
            .to_owned()
    })
}

fn worth(status: &StatusResponse, members: usize) -> Worth {
    let version = &status.version;
    // Members of these differ after a crash: etcd's own postmortem of April 2022.
    let may_rewind = numbers(version).is_some_and(|numbers| ([3, 5, 0]..=[3, 5, 2]).contains(&numbers));
    let durability = match (may_rewind, members) {
        (true, _) => "a member that crashes may lose acknowledged commits in this version".to_owned(),
        (false, 1) => "each commit is on the disk of the one member".to_owned(),
        (false, members) => format!("each commit is on the disks of {} of {members} members", members / 2 + 1),
    };
    Worth { service: format!("etcd {version}"), durability, may_rewind }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(version: &str, errors: &[&str]) -> StatusResponse {
        let errors = errors.iter().map(|error| (*error).to_owned()).collect();
        StatusResponse { version: version.to_owned(), errors, ..StatusResponse::default() }
    }

    #[test]
    fn old_and_full_servers_are_refused() {
        assert!(objection(&status("3.3.27", &[])).is_some_and(|why| why.contains("needs 3.4")));
        assert!(objection(&status("", &[])).is_some());
        assert!(objection(&status("3.5.9", &["memberID:1 alarm:NOSPACE "])).is_some_and(|why| why.contains("disarm")));
        assert_eq!(objection(&status("3.6.0-rc.1", &[])), None);
    }

    #[test]
    fn versions_whose_members_lose_data_are_known() {
        for (version, may_rewind) in
            [("3.4.23", false), ("3.5.0", true), ("3.5.2", true), ("3.5.3", false), ("3.6.0", false)]
        {
            assert_eq!(worth(&status(version, &[]), 3).may_rewind, may_rewind, "{version}");
        }
        assert_eq!(worth(&status("3.4.23", &[]), 3).durability, "each commit is on the disks of 2 of 3 members");
    }
}
