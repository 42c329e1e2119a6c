//! Identity of a client at the servers, and ownership of what it creates.
//!
//! The lines of an authentication file express the operator's intent, so ownership follows them. A certificate alone
//! says less: only the servers know whether they accept it as an identity (x509 authentication), and a node with a
//! different certificate, or none, would be locked out. So a client with only a certificate closes what it creates in a
//! new cluster, and leaves open what was open before.

use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client as zk;

use super::ConnectionSettings;
use crate::zookeeper::client::{ConnectError, OpenReason, Ownership};
use crate::zookeeper::rights::base_paths;

/// Longest time to wait for the servers to list this client's identities.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Scheme of a client's address. Every client has one; it does not count as an identity.
const ADDRESS: &str = "ip";

/// Credentials of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// Ownership follows from the settings.
    Known(Ownership),
    /// The client has a certificate and nothing else, so the servers must be asked.
    Certificate,
}

impl Identity {
    pub(super) fn of(settings: &ConnectionSettings) -> Self {
        let shows_certificate = settings.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        match (settings.auth.identities.is_empty(), settings.auth.with_world) {
            (true, _) if shows_certificate => Self::Certificate,
            (true, _) => Self::Known(Ownership::Everybody(OpenReason::NoIdentity)),
            (false, true) => Self::Known(Ownership::OwnAndEverybody),
            (false, false) => Self::Known(Ownership::Own),
        }
    }

    /// Ownership of what this client creates.
    pub(super) async fn belongs(self, client: &zk::Client) -> Result<Ownership, ConnectError> {
        match self {
            Self::Known(belongs) => Ok(belongs),
            Self::Certificate => match timeout(TIMEOUT, by_certificate(client)).await {
                Ok(belongs) => belongs.map_err(|error| ConnectError::Unreachable(error.to_string())),
                Err(_) => {
                    Err(ConnectError::Unreachable("the servers do not say which identities this node has".to_owned()))
                }
            },
        }
    }
}

async fn by_certificate(client: &zk::Client) -> Result<Ownership, zk::Error> {
    let known_as = match client.list_auth_users().await {
        Ok(known_as) => known_as,
        Err(zk::Error::Unimplemented) => return Ok(Ownership::Everybody(OpenReason::CannotBeAsked)),
        Err(error) => return Err(error),
    };
    if known_as.iter().all(|user| user.scheme() == ADDRESS) {
        return Ok(Ownership::Everybody(OpenReason::NotIdentified));
    }
    for path in base_paths() {
        match client.get_acl(path).await {
            Ok((acl, _)) if acl.iter().any(is_open) => return Ok(Ownership::Everybody(OpenReason::OpenBefore)),
            // Closed to others. If this node is excluded too, its first write fails.
            Ok(_) | Err(zk::Error::NoNode | zk::Error::NoAuth) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Ownership::Own)
}

fn is_open(acl: &zk::Acl) -> bool {
    acl.scheme() == "world" && acl.permission().has(zk::Permission::WRITE)
}

/// `auth` means all identities of the session: the server replaces it by them.
static OWN_AND_EVERYBODY: [zk::Acl; 2] =
    [zk::Acl::new_const(zk::Permission::ALL, "auth", ""), zk::Acl::new_const(zk::Permission::ALL, "world", "anyone")];

/// Converts an ownership to the access list to send.
pub(super) fn acls(belongs: Ownership) -> zk::Acls<'static> {
    match belongs {
        Ownership::Everybody(_) => zk::Acls::anyone_all(),
        Ownership::Own => zk::Acls::creator_all(),
        Ownership::OwnAndEverybody => zk::Acls::new(&OWN_AND_EVERYBODY),
    }
}
