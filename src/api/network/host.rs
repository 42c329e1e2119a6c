//! Host names in requests and in `--listen-host`. Pure.

use std::net::IpAddr;

use axum::http::uri::Authority;

/// A host name or address, without port, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

impl HostName {
    /// Parses an option value.
    ///
    /// # Errors
    /// A description of the expected format.
    pub fn parse(text: &str) -> Result<Self, String> {
        // A bare IPv6 address is accepted: brackets are needed only where a port may follow.
        let name = match text.parse::<IpAddr>() {
            Ok(address) => return Ok(Self(address.to_canonical().to_string())),
            Err(_) => Self::of_authority(text).filter(|_| !text.contains([':', '@', '[', '*'])),
        };
        name.ok_or_else(|| "expected a host name or an address, without port, as in a URL".to_owned())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the host of `host:port`; `None` if it is malformed or contains a user (`user@host`).
    pub(in crate::api) fn of_authority(text: &str) -> Option<Self> {
        let authority: Authority = text.parse().ok()?;
        let host = authority.host();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = host.strip_suffix('.').unwrap_or(host);
        let is_good = !host.is_empty() && !text.contains('@');
        let name = || match host.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().to_string(),
            Err(_) => host.to_ascii_lowercase(),
        };
        is_good.then(|| Self(name()))
    }

    /// True for a name that somebody on the internet can own. A name without a dot belongs to this host or network.
    pub(in crate::api) fn is_public(&self) -> bool {
        self.0.contains('.') && self.0.parse::<IpAddr>().is_err() && !self.0.ends_with(".localhost")
    }

    /// True for `localhost` and for the connection's local address. No foreign web page can have either as its name.
    pub(super) fn is_of(&self, local: Option<IpAddr>) -> bool {
        self.0 == "localhost" || self.0.parse().is_ok_and(|address: IpAddr| Some(address) == local)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::{Fuzz, text};

    fn is_own(text: &str) -> bool {
        let names = [HostName::parse("Cron.example.org").unwrap(), HostName::parse("2001:db8::1").unwrap()];
        let local = Some(IpAddr::from([192, 0, 2, 7]));
        HostName::of_authority(text).is_some_and(|name| name.is_of(local) || names.contains(&name))
    }

    #[test]
    fn only_the_address_localhost_and_given_names_are_accepted() {
        let own =
            ["192.0.2.7:7475", "192.0.2.7", "localhost:7475", "LOCALHOST", "cron.example.org", "CRON.example.org.:80"];
        for text in own.into_iter().chain(["[2001:db8::1]:7475", "[2001:DB8:0::1]"]) {
            assert!(is_own(text), "{text}");
        }
        let foreign =
            ["evil.example", "192.0.2.8", "cron.example.org.evil.example", "evil.example@192.0.2.7", "127.0.0.1"];
        for text in
            foreign.into_iter().chain(["", ":", "localhost@evil.example", "xlocalhost", "[::1]", "a b", "/", "[", "ö"])
        {
            assert!(!is_own(text), "{text}");
        }
    }

    #[test]
    fn an_invalid_name_is_refused_as_an_option() {
        for text in ["", "https://cron.example.org", "cron.example.org:7475", "*", "*.example.org", "a b", "user@host"]
        {
            assert!(HostName::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "\\PC*") {
            let _ = (HostName::of_authority(&text), HostName::parse(&text));
        }
    }

    #[test]
    fn fuzz_host_of_a_request() {
        let words =
            &["localhost", ":7475", "[", "]", "::1", "::ffff:192.0.2.7", "192.0.2.7", "@", ".", "*", "%", "xn--"];
        Fuzz { longest: 4 << 10, ..Fuzz::of("host", words) }.run(|input| {
            let text = text(input);
            for name in [HostName::of_authority(&text), HostName::parse(&text).ok()].into_iter().flatten() {
                assert!(!name.0.is_empty() && !name.0.contains(['@', '/']) && name.0.is_ascii(), "{name:?}");
                assert_eq!(name.0, name.0.to_ascii_lowercase());
            }
            HostName::of_authority(&text).is_some()
        });
    }
}
