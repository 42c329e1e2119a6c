//! The TLS configuration of an address, and of a client for other nodes' addresses, read from files, for rustls.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore, ServerConfig};

use super::TlsFiles;
use super::secret::{SecretError, read};
use crate::pem;
use cronkeeper_cluster::safe_path::Wanted;

/// Reads the server's certificate and key and, if given, the authorities for client certificates.
pub(super) fn config(files: &TlsFiles) -> Result<ServerConfig, SecretError> {
    let TlsFiles { certificate, key, client_ca } = files;
    let chain = certificates(certificate)?;
    let private = private_key(key)?;
    // Set explicitly, because another library in this process could install a different default provider.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| unusable(certificate, error))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(path, error))?)
        }
    };
    let mut config = builder.with_single_cert(chain, private).map_err(|error| refused(error, certificate, key))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Reads the configuration of a client that trusts these authorities, by default the certificates that this node shows
/// itself. It shows the node's own certificate where a server requires one.
///
/// `None` if there is nothing to trust.
pub(in crate::api) fn client(own: Option<&TlsFiles>, ca: Option<&Path>) -> Result<Option<ClientConfig>, SecretError> {
    let Some(trusted) = ca.or(own.map(|own| own.certificate.as_path())) else { return Ok(None) };
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| unusable(trusted, error))?;
    let builder = builder.with_root_certificates(authorities(trusted)?);
    let Some(TlsFiles { certificate, key, .. }) = own else { return Ok(Some(builder.with_no_client_auth())) };
    let (chain, private) = (certificates(certificate)?, private_key(key)?);
    builder.with_client_auth_cert(chain, private).map(Some).map_err(|error| refused(error, certificate, key))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, SecretError> {
    pem::private_key(&read(path, Wanted::Secret)?).map_err(|fault| SecretError::Pem { path: path.to_owned(), fault })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SecretError> {
    pem::certificates(&read(path, Wanted::Trusted)?).map_err(|fault| SecretError::Pem { path: path.to_owned(), fault })
}

fn authorities(path: &Path) -> Result<RootCertStore, SecretError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| unusable(path, error))?;
    }
    Ok(roots)
}

/// Words why the TLS library refuses a certificate with its key.
fn refused(error: Error, certificate: &Path, key: &Path) -> SecretError {
    match error {
        Error::InconsistentKeys(_) => {
            SecretError::OtherKey { key: key.to_owned(), certificate: certificate.to_owned() }
        }
        Error::InvalidCertificate(_) => unusable(certificate, error),
        error => unusable(key, error),
    }
}

fn unusable(path: &Path, error: impl std::fmt::Display) -> SecretError {
    SecretError::Unusable { path: path.to_owned(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    struct CertificateDir(tempfile::TempDir);

    impl CertificateDir {
        fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
            let path = self.0.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        /// Writes a self-signed certificate and its key.
        fn identity(&self, name: &str) -> TlsFiles {
            let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            let certificate = self.file(&format!("{name}.pem"), &cert.pem(), 0o644);
            let key = self.file(&format!("{name}.key"), &signing_key.serialize_pem(), 0o600);
            TlsFiles { certificate, key, client_ca: None }
        }
    }

    #[test]
    fn a_certificate_with_its_key_is_accepted_with_and_without_an_authority() {
        let dir = CertificateDir(tempfile::tempdir().unwrap());
        let good = dir.identity("good");
        assert!(config(&good).is_ok());
        assert!(config(&TlsFiles { client_ca: Some(good.certificate.clone()), ..good }).is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let dir = CertificateDir(tempfile::tempdir().unwrap());
        let (good, other) = (dir.identity("good"), dir.identity("other"));
        let empty = dir.file("empty", "", 0o600);
        let garbled = dir.file("garbled", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0o600);
        let open = dir.file("open.key", &std::fs::read_to_string(&good.key).unwrap(), 0o644);
        let gone = dir.0.path().join("gone");
        let bad = [
            (TlsFiles { certificate: empty.clone(), ..good.clone() }, &empty),
            (TlsFiles { certificate: garbled.clone(), ..good.clone() }, &garbled),
            (TlsFiles { certificate: gone.clone(), ..good.clone() }, &gone),
            (TlsFiles { key: empty.clone(), ..good.clone() }, &empty),
            (TlsFiles { key: good.certificate.clone(), ..good.clone() }, &good.certificate),
            (TlsFiles { key: open.clone(), ..good.clone() }, &open),
            (TlsFiles { key: other.key.clone(), ..good.clone() }, &other.key),
            (TlsFiles { client_ca: Some(empty.clone()), ..good.clone() }, &empty),
            (TlsFiles { client_ca: Some(garbled.clone()), ..good.clone() }, &garbled),
        ];
        for (files, named) in bad {
            let error = config(&files).unwrap_err().to_string();
            assert!(error.contains(named.to_str().unwrap()), "{error}");
        }
    }
}
