//! The connect string: the servers of an ensemble, and the path below which everything is.
//!
//! It is read as ZooKeeper's own client and kazoo read it: blanks around servers and empty parts of the list do not
//! count, and a server without a port has the usual one. What can never lead to a server is refused here, because a
//! client that tries it would try forever. Pure: looks no name up.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use cronkeeper_core::lock::check_components;

/// The port of a server that is named without one.
const USUAL_PORT: u16 = 2181;
/// Most bytes of a host name and of one of its labels, by the rules of DNS.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// Servers and chroot. Its text is canonical: without blanks, each server with its port, the chroot last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectString {
    /// Not empty.
    servers: Vec<ServerAddress>,
    /// Empty if there is none.
    chroot: String,
}

/// A server as named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// A name or an address, an IPv6 one without brackets.
    pub host: String,
    pub port: u16,
}

/// Why a text is not a connect string. Each message quotes the part and says what belongs there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectStringError {
    #[error("no servers are named")]
    NoServers,
    #[error("`{server}` has a scheme: write it as `host:port`")]
    Scheme { server: String },
    #[error("a server is `host:port`, without a user or a password: those are in the file of `--zookeeper-auth-file`")]
    Password,
    #[error("`{server}` is more than one server, or none: separate servers with commas, `host:port,host:port`")]
    Separator { server: String },
    #[error("`{server}` has the port `{port}`: a port is a number from 1 to 65535")]
    Port { server: String, port: String },
    #[error("`{server}` has several colons: write an IPv6 address in brackets, `[::1]:2181`")]
    Brackets { server: String },
    #[error("`{host}` is not an IPv6 address, and only an IPv6 address may be in brackets")]
    NotInBrackets { host: String },
    #[error("`{server}` has no host in front of the port")]
    NoHost { server: String },
    #[error("`{host}` is neither a host name nor an address: {why}")]
    Host { host: String, why: &'static str },
    #[error(
        "the path `{chroot}` contains servers: name the path once, after the last server, `host:port,host:port/path`"
    )]
    SeveralPaths { chroot: String },
    #[error("the path `{chroot}` ends with `/`: leave out that slash")]
    TrailingSlash { chroot: String },
    #[error("the path `{chroot}` cannot exist in ZooKeeper: {why}")]
    Chroot { chroot: String, why: &'static str },
}

impl ConnectString {
    /// The servers, in the order in which they are named.
    pub fn servers(&self) -> &[ServerAddress] {
        &self.servers
    }

    /// The chroot; empty if there is none.
    pub fn chroot(&self) -> &str {
        &self.chroot
    }

    /// The chroot for messages; `/` if there is none.
    pub fn shown_chroot(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }
}

impl FromStr for ConnectString {
    type Err = ConnectStringError;

    fn from_str(text: &str) -> Result<Self, ConnectStringError> {
        // Whatever it is, a part of it may be a password. A path may have an `@`.
        let before_path = if text.contains("://") { text } else { text.split('/').next().unwrap_or_default() };
        if before_path.contains('@') {
            return Err(ConnectStringError::Password);
        }
        if let Some(server) = text.split(',').find(|server| server.contains("://")) {
            return Err(ConnectStringError::Scheme { server: server.trim().to_owned() });
        }
        let (servers, chroot) = text.find('/').map_or((text, ""), |at| text.split_at(at));
        let named = servers.split(',').map(str::trim).filter(|server| !server.is_empty());
        let servers = named.map(str::parse).collect::<Result<Vec<_>, _>>()?;
        if servers.is_empty() {
            return Err(ConnectStringError::NoServers);
        }
        Ok(Self { servers, chroot: checked_chroot(chroot.trim_end())?.to_owned() })
    }
}

impl fmt::Display for ConnectString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, server) in self.servers.iter().enumerate() {
            write!(f, "{}{server}", if at == 0 { "" } else { "," })?;
        }
        f.write_str(&self.chroot)
    }
}

/// The path behind the servers; empty for the root.
fn checked_chroot(chroot: &str) -> Result<&str, ConnectStringError> {
    let Some(components) = chroot.strip_prefix('/').filter(|components| !components.is_empty()) else { return Ok("") };
    let chroot_text = || chroot.to_owned();
    // A znode may have a comma in its name, but the client library takes each for the end of a server.
    if chroot.contains(',') {
        return Err(ConnectStringError::SeveralPaths { chroot: chroot_text() });
    }
    if components.ends_with('/') {
        return Err(ConnectStringError::TrailingSlash { chroot: chroot_text() });
    }
    check_components(components).map_err(|why| ConnectStringError::Chroot { chroot: chroot_text(), why })?;
    Ok(chroot)
}

impl FromStr for ServerAddress {
    type Err = ConnectStringError;

    fn from_str(text: &str) -> Result<Self, ConnectStringError> {
        let server = || text.to_owned();
        if text.contains(|c: char| c.is_whitespace() || c == ';') {
            return Err(ConnectStringError::Separator { server: server() });
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => in_brackets(text, rest)?,
            None => text.rsplit_once(':').unwrap_or((text, "")),
        };
        if host.is_empty() {
            return Err(ConnectStringError::NoHost { server: server() });
        }
        if !is_ipv6(host) {
            if host.contains(':') {
                return Err(ConnectStringError::Brackets { server: server() });
            }
            check_host(host).map_err(|why| ConnectStringError::Host { host: host.to_owned(), why })?;
        }
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let number = if port.is_empty() { Some(USUAL_PORT) } else { port.parse().ok().filter(|_| is_number) };
        match number {
            Some(port) if port != 0 => Ok(Self { host: host.to_owned(), port }),
            _ => Err(ConnectStringError::Port { server: server(), port: port.to_owned() }),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Host and port of a server that begins with a bracket, which `rest` does not have any more.
fn in_brackets<'a>(server: &str, rest: &'a str) -> Result<(&'a str, &'a str), ConnectStringError> {
    let (host, behind) =
        rest.split_once(']').ok_or_else(|| ConnectStringError::Brackets { server: server.to_owned() })?;
    if !is_ipv6(host) {
        return Err(ConnectStringError::NotInBrackets { host: host.to_owned() });
    }
    match behind.strip_prefix(':') {
        Some(port) => Ok((host, port)),
        None if behind.is_empty() => Ok((host, "")),
        None => Err(ConnectStringError::Port { server: server.to_owned(), port: behind.to_owned() }),
    }
}

/// True for an IPv6 address, also with a zone, as in `fe80::1%eth0`.
fn is_ipv6(host: &str) -> bool {
    let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
    let is_zone = !zone.is_empty() && zone.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    is_zone && address.parse::<Ipv6Addr>().is_ok()
}

/// The rule that a name breaks which no resolver can find.
fn check_host(host: &str) -> Result<(), &'static str> {
    if host.chars().any(|c| !c.is_alphanumeric() && !"-_.".contains(c)) {
        return Err("a name has letters, digits, `-`, `_` and dots only");
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.len() > LONGEST_NAME || name.split('.').any(|label| label.len() > LONGEST_LABEL) {
        return Err("a name has at most 253 characters, and 63 between two dots");
    }
    if name.split('.').any(str::is_empty) {
        return Err("there is nothing between two of its dots");
    }
    // With a leading zero a part may be octal, which resolvers accept.
    let is_decimal = |part: &str| !part.starts_with('0') && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_dotted = name.split('.').count() == 4 && name.split('.').all(|part| part == "0" || is_decimal(part));
    if is_dotted && name.parse::<Ipv4Addr>().is_err() {
        return Err("the parts of an IPv4 address are numbers from 0 to 255");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> String {
        text.parse::<ConnectString>().map_or_else(|error| panic!("{text:?}: {error}"), |connect| connect.to_string())
    }

    fn refusal(text: &str) -> String {
        text.parse::<ConnectString>().expect_err(text).to_string()
    }

    #[test]
    fn a_list_is_read_as_zookeepers_own_client_reads_it() {
        for list in ["a:1,b:1,c:1", "a:1, b:1, c:1", " a:1 ,b:1\t,\n c:1 ", "a:1,,b:1,c:1,", ",a:1,b:1,c:1"] {
            assert_eq!(read(list), "a:1,b:1,c:1", "{list:?}");
        }
        assert_eq!(read("a, b:,c:2182/x/y "), "a:2181,b:2181,c:2182/x/y");
        assert_eq!(read("a:1 , b:1 /x"), "a:1,b:1/x");
        assert_eq!(read("a:1/"), "a:1");
    }

    #[test]
    fn addresses_and_odd_names_are_servers_too() {
        assert_eq!(read("127.0.0.1:1,[::1]:2,[fe80::1%eth0],::1:4"), "127.0.0.1:1,[::1]:2,[fe80::1%eth0]:2181,[::1]:4");
        for name in ["zk_1", "zk-0.zk.svc.cluster.local.", "ZK1", "10.1", "1.2.3.4.example", "010.0.0.1", "käse"] {
            assert_eq!(read(name), format!("{name}:2181"));
        }
    }

    #[test]
    fn the_chroot_is_told_apart_from_the_servers() {
        let connect: ConnectString = "a:1,b:2/x".parse().unwrap();
        assert_eq!((connect.chroot(), connect.shown_chroot(), connect.servers().len()), ("/x", "/x", 2));
        let connect: ConnectString = "a:1,b:2".parse().unwrap();
        assert_eq!((connect.chroot(), connect.shown_chroot()), ("", "/"));
    }

    #[test]
    fn what_can_never_lead_to_a_server_is_refused_with_the_part_and_the_remedy() {
        let cases = [
            ("", "no servers are named"),
            (" , ", "no servers are named"),
            ("/x", "no servers are named"),
            ("http://h:1", "`http://h:1` has a scheme"),
            ("a:1, tcp+tls://h:1/x", "`tcp+tls://h:1/x` has a scheme"),
            ("postgres://u:SECRET@h/d", "without a user or a password"),
            ("a:1,postgres://u:SECRET@h/d", "without a user or a password"),
            ("digest:SECRET@h:1", "without a user or a password"),
            ("h:99999", "`h:99999` has the port `99999`: a port is a number from 1 to 65535"),
            ("a:1,h:0", "`h:0` has the port `0`"),
            ("h:+1", "the port `+1`"),
            ("h:zookeeper", "the port `zookeeper`"),
            ("[::1]2181", "the port `2181`"),
            ("h:1/x,h2:1/x", "the path `/x,h2:1/x` contains servers: name the path once"),
            ("a:1;b:1", "separate servers with commas"),
            ("a:1 b:1", "separate servers with commas"),
            ("a: 1", "separate servers with commas"),
            (":2181", "`:2181` has no host"),
            ("fe80::1", "in brackets"),
            ("a:1:2", "in brackets"),
            ("[::1", "in brackets"),
            ("[localhost]:1", "`localhost` is not an IPv6 address"),
            ("[]:1", "is not an IPv6 address"),
            ("user@h:1", "without a user or a password"),
            ("h?x:1", "is neither"),
            ("a..b:1", "there is nothing between two of its dots"),
            (".:1", "there is nothing between"),
            ("1.2.3.256:1", "from 0 to 255"),
            ("h:1/x/", "ends with `/`"),
            ("h:1//x", "no empty components"),
            ("h:1/x/../y", "none that is `.` or `..`"),
            ("h:1/..", "none that is `.` or `..`"),
            ("h:1/x\u{1}", "no control characters"),
        ];
        for (text, part) in cases {
            let refusal = refusal(text);
            assert!(refusal.contains(part), "{text:?}: {refusal}");
        }
        assert!(refusal(&format!("{}:1", "a".repeat(64))).contains("63"));
        assert!(refusal(&format!("{}a:1", "a.".repeat(127))).contains("253"));
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn what_is_read_is_read_again_from_its_own_text(text in "[ab:, /\\[\\].0-9-]{0,24}") {
            if let Ok(connect) = text.parse::<ConnectString>() {
                prop_assert_eq!(connect.to_string().parse::<ConnectString>(), Ok(connect));
            }
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<ConnectString>();
        }
    }
}
