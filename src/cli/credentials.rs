//! What convinces ZooKeeper: secrets and certificates, from files and never from the command line.

use std::path::{Path, PathBuf};

use crate::cli::Error;
use crate::zookeeper::session::Tls;

/// Credentials for ZooKeeper.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "credentials", multiple = true)]
pub struct Args {
    /// A file with one line, `scheme:credential`, such as `digest:user:password`
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_AUTH_FILE", requires = "zookeeper")]
    zookeeper_auth_file: Option<PathBuf>,
    /// Certificates of the authorities to trust, PEM; switches TLS on
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_CA", requires = "zookeeper")]
    zookeeper_ca: Option<PathBuf>,
    /// The certificate to show, PEM
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_CERT", requires_all = ["zookeeper_key", "zookeeper_ca"])]
    zookeeper_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", env = "CRONKEEPER_ZOOKEEPER_KEY", requires = "zookeeper_cert")]
    zookeeper_key: Option<PathBuf>,
}

impl Args {
    /// Scheme and credential.
    pub(super) fn auth(&self) -> Result<Option<(String, Vec<u8>)>, Error> {
        let Some(path) = &self.zookeeper_auth_file else { return Ok(None) };
        let text = read(path)?;
        match text.trim_end_matches(['\r', '\n']).split_once(':') {
            Some((scheme, credential)) if !scheme.is_empty() && !credential.contains('\n') => {
                Ok(Some((scheme.to_owned(), credential.as_bytes().to_owned())))
            }
            _ => Err(Error::AuthFile(path.clone())),
        }
    }

    /// Certificates, where TLS is wanted.
    pub(super) fn tls(&self) -> Result<Option<Tls>, Error> {
        let Some(ca) = &self.zookeeper_ca else { return Ok(None) };
        let identity = match (&self.zookeeper_cert, &self.zookeeper_key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        Ok(Some(Tls { ca: Some(read(ca)?), identity }))
    }
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::CredentialFile { path: path.to_owned(), source })
}
