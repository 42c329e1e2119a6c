//! Options for the API's TCP address.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::Error;
use crate::api::network::{Files, HostName, Network, TlsFiles};
use crate::api::peers::Peers;
use crate::option_file::OptionFile;
use cronkeeper_core::escape::short;
use cronkeeper_core::term::NodeName;

#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "listening", multiple = true)]
pub struct Args {
    /// Also serve the API and the page on this TCP address, read-only without a token
    #[arg(long, value_name = "ADDR:PORT", env = "CRONKEEPER_LISTEN", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Further host names of the --listen address, comma-separated. Requests with any other `Host`, except the address
    /// itself and localhost, are refused
    #[arg(long, value_name = "NAME", env = "CRONKEEPER_LISTEN_HOST", requires = "listen", value_delimiter = ',', value_parser = HostName::parse)]
    listen_host: Vec<HostName>,
    /// Use TLS on the --listen address, with this certificate chain (PEM file). SIGHUP reloads all files of that
    /// address
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_LISTEN_CERT", requires_all = ["listen", "listen_key"])]
    listen_cert: Option<PathBuf>,
    /// Private key of the certificate for --listen (PEM file)
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_LISTEN_KEY", requires = "listen_cert")]
    listen_key: Option<PathBuf>,
    /// On the --listen address, accept only clients with a certificate from one of these authorities (PEM file)
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_LISTEN_CLIENT_CA", requires = "listen_cert")]
    listen_client_ca: Option<PathBuf>,
    /// A file with tokens, made with `cronkeeper token`, or with one token alone. On the --listen address, only requests
    /// with one of them (`Authorization: Bearer TOKEN`) can read everything, and change what its role allows; all others
    /// see only names, times and outcomes
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_API_TOKEN_FILE", requires = "listen")]
    api_token_file: Option<PathBuf>,
    /// Authorities of the other nodes' --listen-cert, to fetch the output of their runs (PEM file) [default: the
    /// certificates in --listen-cert]
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_PEER_CA", requires = "listen")]
    peer_ca: Option<PathBuf>,
}

/// An address to listen on: of this host, or without one all of it.
fn address(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let is_port = port.parse::<u16>().is_ok();
    let ip = match host {
        _ if !is_port => {
            return Err(format!(
                "`{}` has no valid port: expected ADDR:PORT, such as `127.0.0.1:7475`",
                short(text, 60)
            ));
        }
        "" if text.starts_with(':') => "0.0.0.0",
        "" => {
            return Err(format!(
                "write `:{port}` for all addresses of this host, or `127.0.0.1:{port}` for local clients"
            ));
        }
        "localhost" => "127.0.0.1",
        host => host,
    };
    let unknown = || {
        let named = short(host, 60);
        format!(
            "`{named}` is not an address: write one of this host's, such as `10.0.0.5:{port}`, and its name in `--listen-host`"
        )
    };
    format!("{ip}:{port}").parse().map_err(|_| unknown())
}

impl Args {
    /// The address with its rules; `None` without `--listen`.
    pub(super) fn network(&self, node: &NodeName) -> Result<Option<Arc<Network>>, Error> {
        let Some(address) = self.listen else { return Ok(None) };
        Ok(Some(Arc::new(Network::new(address, self.listen_host.clone(), self.files(), node.clone())?)))
    }

    /// The client for the addresses of other nodes; `None` without `--listen`.
    pub(super) fn peers(&self) -> Result<Option<Arc<Peers>>, Error> {
        if self.listen.is_none() {
            return Ok(None);
        }
        Ok(Some(Arc::new(Peers::new(self.files(), given("--peer-ca", self.peer_ca.as_ref()))?)))
    }

    fn files(&self) -> Files {
        let certificate = given("--listen-cert", self.listen_cert.as_ref());
        let tls = certificate.zip(given("--listen-key", self.listen_key.as_ref())).map(|(certificate, key)| {
            let client_ca = given("--listen-client-ca", self.listen_client_ca.as_ref());
            TlsFiles { certificate, key, client_ca }
        });
        Files { token: given("--api-token-file", self.api_token_file.as_ref()), tls }
    }
}

fn given(option: &'static str, path: Option<&PathBuf>) -> Option<OptionFile> {
    path.map(|path| OptionFile::given(option, path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_the_host_out_or_call_it_localhost() {
        for (text, expected) in [
            (":7475", "0.0.0.0:7475"),
            ("localhost:7475", "127.0.0.1:7475"),
            ("10.0.0.5:7475", "10.0.0.5:7475"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(address(text).map(|address| address.to_string()).as_deref(), Ok(expected));
        }
        for (text, why) in [
            ("7475", "write `:7475` for all addresses"),
            ("10.0.0.5", "`10.0.0.5` has no valid port"),
            ("10.0.0.5:99999", "`10.0.0.5:99999` has no valid port"),
            ("host-a:7475", "`host-a` is not an address: write one of this host's"),
            ("::1:7475", "`::1` is not an address"),
            ("", "`` has no valid port"),
        ] {
            let error = address(text).unwrap_err();
            assert!(error.starts_with(why), "{text}: {error}");
        }
    }
}
