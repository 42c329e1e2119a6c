//! Who a client is to the servers, and to whom belongs what it makes.
//!
//! The lines of an authentication file are the operator's word, and what is made follows them. A certificate alone says less: whether
//! the servers take it for an identity (x509 authentication) only they know, and a node whose certificate names another, or that
//! shows none, would be locked out. So it closes what is made anew, and leaves open what stood open before.

use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client as zk;

use super::Settings;
use crate::zookeeper::client::{ConnectError, OpenReason, Ownership};
use crate::zookeeper::rights::foundations;

/// Longest that the servers may take to say who this is.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Every client has an address, which is nobody.
const ADDRESS: &str = "ip";

/// What a client has to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// What the servers shall know it by is fixed from the start.
    Known(Ownership),
    /// A certificate and nothing else.
    Certificate,
}

impl Identity {
    pub(super) fn of(settings: &Settings) -> Self {
        let shows_certificate = settings.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        match (settings.auth.identities.is_empty(), settings.auth.with_world) {
            (true, _) if shows_certificate => Self::Certificate,
            (true, _) => Self::Known(Ownership::Everybody(OpenReason::NoIdentity)),
            (false, true) => Self::Known(Ownership::OwnAndEverybody),
            (false, false) => Self::Known(Ownership::Own),
        }
    }

    /// To whom belongs what this client makes.
    pub(super) async fn belongs(self, client: &zk::Client) -> Result<Ownership, ConnectError> {
        match self {
            Self::Known(belongs) => Ok(belongs),
            Self::Certificate => match timeout(TIMEOUT, by_certificate(client)).await {
                Ok(belongs) => belongs.map_err(|error| ConnectError::Unreachable(error.to_string())),
                Err(_) => Err(ConnectError::Unreachable("the servers do not say who this node is to them".to_owned())),
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
    for path in foundations() {
        match client.get_acl(path).await {
            Ok((acl, _)) if acl.iter().any(is_open) => return Ok(Ownership::Everybody(OpenReason::OpenBefore)),
            // Made by whom it is closed to others; whether this node is one of those shows soon.
            Ok(_) | Err(zk::Error::NoNode | zk::Error::NoAuth) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Ownership::Own)
}

fn is_open(acl: &zk::Acl) -> bool {
    acl.scheme() == "world" && acl.permission().has(zk::Permission::WRITE)
}

/// `auth` stands for all identities of the session: the server puts them in its place.
static OWN_AND_EVERYBODY: [zk::Acl; 2] =
    [zk::Acl::new_const(zk::Permission::ALL, "auth", ""), zk::Acl::new_const(zk::Permission::ALL, "world", "anyone")];

/// As the servers are told.
pub(super) fn acls(belongs: Ownership) -> zk::Acls<'static> {
    match belongs {
        Ownership::Everybody(_) => zk::Acls::anyone_all(),
        Ownership::Own => zk::Acls::creator_all(),
        Ownership::OwnAndEverybody => zk::Acls::new(&OWN_AND_EVERYBODY),
    }
}
