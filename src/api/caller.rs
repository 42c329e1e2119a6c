//! The caller at the other end of a connection.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpStream, UnixStream};
use tokio::task::spawn_blocking;

use super::network::Identity;
use cronkeeper_core::term::NodeName;

/// Who sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Caller {
    /// A process on this host; the kernel reports its user.
    Local { uid: u32 },
    /// A host on the network. All addresses of an IPv6 /64 network are one caller, because a host can use any of them,
    /// and so are all loopback addresses, because any user of this host can.
    Remote(IpAddr),
    /// The kernel does not report the user or address.
    Unknown,
}

/// What a request over TCP has shown, so that it may see more than names, times and outcomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// A token itself.
    Token(Identity),
    /// The id of a session that was opened with a token. A browser sends it with every request, also with those that
    /// other pages cause, so something is changed only together with a form's key.
    Session { id: String, identity: Identity },
    /// The proof of another node. It shows one of the few answers that nodes fetch from each other, and changes nothing.
    Peer,
}

/// A connection whose ends are known.
pub(super) trait Endpoints {
    fn caller(&self) -> Caller;
    /// The local address of the connection; `None` on a Unix socket.
    fn local_address(&self) -> Option<SocketAddr>;
}

impl Endpoints for UnixStream {
    fn caller(&self) -> Caller {
        self.peer_cred().map_or(Caller::Unknown, |peer| Caller::Local { uid: peer.uid() })
    }

    fn local_address(&self) -> Option<SocketAddr> {
        None
    }
}

impl Endpoints for TcpStream {
    fn caller(&self) -> Caller {
        self.peer_addr().map_or(Caller::Unknown, |peer| Caller::Remote(network_of(peer.ip())))
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.local_addr().ok().map(|own| SocketAddr::new(own.ip().to_canonical(), own.port()))
    }
}

fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// `192.0.2.7`, `2001:db8:1:2::/64`, `uid 1000`, for the log.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remote(address @ IpAddr::V4(_)) => address.fmt(f),
            Self::Remote(network @ IpAddr::V6(_)) => write!(f, "{network}/64"),
            Self::Local { uid } => write!(f, "uid {uid}"),
            Self::Unknown => f.write_str("an unknown address"),
        }
    }
}

/// Formats who sends a token as `alice from 192.0.2.7 on host-a`, for records and log.
pub(super) fn describe_token(name: &str, caller: Caller, node: &NodeName) -> String {
    match caller {
        Caller::Remote(address) => format!("{name} from {address} on {node}"),
        Caller::Local { .. } | Caller::Unknown => format!("{name} on {node}"),
    }
}

/// Formats a user as `uid 1000 (alice) on host-a`, for records and log.
pub(super) async fn describe_user(uid: u32, node: &NodeName) -> String {
    // On a blocking thread, because a directory service may be slow.
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
    fn all_addresses_of_one_ipv6_network_are_one_caller() {
        let network = |text: &str| network_of(text.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!((network("192.0.2.7"), network("::ffff:192.0.2.7")), ("192.0.2.7".into(), "192.0.2.7".into()));
    }

    #[test]
    fn all_loopback_addresses_are_one_caller() {
        for own in ["127.0.0.1", "127.201.0.7", "127.255.255.254", "::1", "::ffff:127.0.0.9"] {
            assert_eq!(network_of(own.parse().unwrap()), Ipv4Addr::LOCALHOST, "{own}");
        }
    }
}
