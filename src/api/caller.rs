//! Who is at the other end of a connection.

use tokio::net::{TcpStream, UnixStream};
use tokio::task::spawn_blocking;

use crate::term::NodeName;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// A process of this host, of this user, by the kernel's word.
    Local {
        /// The user.
        uid: u32,
    },
    /// Whoever reaches the address, or a process whose user the kernel does not tell.
    Unknown,
}

/// A connection that tells who made it.
pub(super) trait Introduced {
    /// Who made it.
    fn caller(&self) -> Caller;
}

impl Introduced for UnixStream {
    fn caller(&self) -> Caller {
        self.peer_cred().map_or(Caller::Unknown, |peer| Caller::Local { uid: peer.uid() })
    }
}

impl Introduced for TcpStream {
    fn caller(&self) -> Caller {
        Caller::Unknown
    }
}

/// A user of a node, for people: `uid 1000 (alice) on host-a`.
pub(super) async fn told(uid: u32, node: &NodeName) -> String {
    // The name is looked up, which may ask a slow directory service.
    let user = spawn_blocking(move || nix::unistd::User::from_uid(uid.into()).ok().flatten()).await;
    match user.ok().flatten() {
        Some(user) => format!("uid {uid} ({}) on {node}", user.name),
        None => format!("uid {uid} on {node}"),
    }
}
