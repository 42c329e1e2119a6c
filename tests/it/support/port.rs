//! Ports of servers that the tests start.
//!
//! They are reserved with bound sockets that never listen: the kernel does not assign them to others, even while the
//! server is down, and the server can still bind them because both sides set SO_REUSEADDR.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};

use super::host::Host;

/// A port that the kernel assigns to nobody else while this value exists.
pub struct Port {
    pub address: SocketAddr,
    _held: Option<OwnedFd>,
}

impl Port {
    /// A port on a host of its own, where nobody else is.
    pub fn usual(host: &Host, port: u16) -> Self {
        Self { address: (host.address(), port).into(), _held: None }
    }

    pub fn hold() -> Self {
        let held = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket can be had");
        sockopt::set_socket_reuseaddr(&held, true).expect("a socket can share its address");
        bind(&held, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port is free");
        let bound = getsockname(&held).expect("a bound socket has a name");
        let address = SocketAddr::try_from(bound).expect("it is an internet address");
        Self { address, _held: Some(held) }
    }

    pub fn number(&self) -> u16 {
        self.address.port()
    }
}
