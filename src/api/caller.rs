//! Who is at the other end of a connection.

use std::net::{IpAddr, Ipv6Addr};

use tokio::net::{TcpStream, UnixStream};
use tokio::task::spawn_blocking;

use crate::term::NodeName;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Caller {
    /// A process of this host, of this user, by the kernel's word.
    Local {
        /// The user.
        uid: u32,
    },
    /// Whoever has this address. IPv6 gives each network of a host 64 bits to draw addresses from: those are one caller's.
    Remote(IpAddr),
    /// A process whose user, or a host whose address, the kernel does not tell.
    Unknown,
}

/// A connection that tells who made it.
pub(super) trait KnowsPeer {
    /// Who made it.
    fn caller(&self) -> Caller;
    /// The address that it was made to.
    fn local(&self) -> Option<IpAddr>;
}

impl KnowsPeer for UnixStream {
    fn caller(&self) -> Caller {
        self.peer_cred().map_or(Caller::Unknown, |peer| Caller::Local { uid: peer.uid() })
    }

    fn local(&self) -> Option<IpAddr> {
        None
    }
}

impl KnowsPeer for TcpStream {
    fn caller(&self) -> Caller {
        self.peer_addr().map_or(Caller::Unknown, |peer| Caller::Remote(network_of(peer.ip())))
    }

    fn local(&self) -> Option<IpAddr> {
        self.local_addr().ok().map(|own| own.ip().to_canonical())
    }
}

fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_one_host_can_draw_are_one_callers() {
        let network = |text: &str| network_of(text.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!((network("192.0.2.7"), network("::ffff:192.0.2.7")), ("192.0.2.7".into(), "192.0.2.7".into()));
    }
}
