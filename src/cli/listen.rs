//! The address on the network that shows what the socket shows, and the rules for it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::Error;
use crate::api::network::{Files, HostName, Network, TlsFiles};

/// Whether and how the API is served on the network.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "listening", multiple = true)]
pub struct Args {
    /// Serve the API, read-only, on TCP too
    #[arg(long, value_name = "ADDR:PORT", env = "CRONKEEPER_LISTEN")]
    listen: Option<SocketAddr>,
    /// Names under which that address is asked, beside itself and localhost: requests for another `Host` are refused. Several with
    /// commas between
    #[arg(long, value_name = "NAME", env = "CRONKEEPER_LISTEN_HOST", requires = "listen", value_delimiter = ',', value_parser = HostName::parse)]
    listen_host: Vec<HostName>,
    /// Speak TLS there, with this certificate and those that it rests on, PEM; read again on SIGHUP, as are the files below
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_LISTEN_CERT", requires_all = ["listen", "listen_key"])]
    listen_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_LISTEN_KEY", requires = "listen_cert")]
    listen_key: Option<PathBuf>,
    /// Let only those in who show a certificate by one of these authorities, PEM
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_LISTEN_CLIENT_CA", requires = "listen_cert")]
    listen_client_ca: Option<PathBuf>,
    /// A file with a token: who sends it (`Authorization: Bearer TOKEN`) is shown there also what jobs printed and what is wrong with
    /// the jobs file. Without it nobody is
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_API_TOKEN_FILE", requires = "listen")]
    api_token_file: Option<PathBuf>,
}

impl Args {
    /// The rules of the address, if there is one.
    pub(super) fn network(&self) -> Result<Option<Arc<Network>>, Error> {
        let Some(address) = self.listen else { return Ok(None) };
        let tls = self.listen_cert.clone().zip(self.listen_key.clone());
        let tls = tls.map(|(certificate, key)| TlsFiles { certificate, key, client_ca: self.listen_client_ca.clone() });
        let files = Files { token: self.api_token_file.clone(), tls };
        Ok(Some(Arc::new(Network::new(address, self.listen_host.clone(), files)?)))
    }
}
