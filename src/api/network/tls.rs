//! The TLS configuration of an address, and of a client for other nodes' addresses, read from files, for rustls.

use std::sync::Arc;

use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore, ServerConfig};

use super::TlsFiles;
use super::secret::{SecretError, read};
use crate::option_file::OptionFile;
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
        Some(file) => {
            let roots = Arc::new(authorities(file)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(file, error))?)
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
pub(in crate::api) fn client(
    own: Option<&TlsFiles>,
    ca: Option<&OptionFile>,
) -> Result<Option<ClientConfig>, SecretError> {
    let Some(trusted) = ca.or(own.map(|own| &own.certificate)) else { return Ok(None) };
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| unusable(trusted, error))?;
    let builder = builder.with_root_certificates(authorities(trusted)?);
    let Some(TlsFiles { certificate, key, .. }) = own else { return Ok(Some(builder.with_no_client_auth())) };
    let (chain, private) = (certificates(certificate)?, private_key(key)?);
    builder.with_client_auth_cert(chain, private).map(Some).map_err(|error| refused(error, certificate, key))
}

fn private_key(file: &OptionFile) -> Result<PrivateKeyDer<'static>, SecretError> {
    pem::private_key(&read(file, Wanted::Secret)?).map_err(|fault| SecretError::Pem { file: file.clone(), fault })
}

fn certificates(file: &OptionFile) -> Result<Vec<CertificateDer<'static>>, SecretError> {
    pem::certificates(&read(file, Wanted::Trusted)?).map_err(|fault| SecretError::Pem { file: file.clone(), fault })
}

fn authorities(file: &OptionFile) -> Result<RootCertStore, SecretError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| unusable(file, error))?;
    }
    Ok(roots)
}

/// Words why the TLS library refuses a certificate with its key.
fn refused(error: Error, certificate: &OptionFile, key: &OptionFile) -> SecretError {
    match error {
        Error::InconsistentKeys(_) => SecretError::OtherKey { key: key.clone(), certificate: certificate.clone() },
        Error::InvalidCertificate(_) => unusable(certificate, error),
        error => unusable(key, error),
    }
}

fn unusable(file: &OptionFile, error: impl std::fmt::Display) -> SecretError {
    SecretError::Unusable { file: file.clone(), why: pem::why_refused(&error) }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct CertificateDir(tempfile::TempDir);

    impl CertificateDir {
        fn file(&self, name: &str, text: &str, mode: u32) -> std::path::PathBuf {
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
            TlsFiles { certificate: certificate_of(&certificate), key: key_of(&key), client_ca: None }
        }
    }

    fn certificate_of(path: &std::path::Path) -> OptionFile {
        OptionFile::given("--listen-cert", path.to_owned())
    }

    fn key_of(path: &std::path::Path) -> OptionFile {
        OptionFile::given("--listen-key", path.to_owned())
    }

    fn authority_of(path: &std::path::Path) -> Option<OptionFile> {
        Some(OptionFile::given("--listen-client-ca", path.to_owned()))
    }

    #[test]
    fn a_certificate_with_its_key_is_accepted_with_and_without_an_authority() {
        let dir = CertificateDir(tempfile::tempdir().unwrap());
        let good = dir.identity("good");
        assert!(config(&good).is_ok());
        assert!(config(&TlsFiles { client_ca: authority_of(&good.certificate.path), ..good }).is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_its_option() {
        let dir = CertificateDir(tempfile::tempdir().unwrap());
        let (good, other) = (dir.identity("good"), dir.identity("other"));
        let empty = dir.file("empty", "", 0o600);
        let garbled = dir.file("garbled", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0o600);
        let open = dir.file("open.key", &std::fs::read_to_string(&good.key.path).unwrap(), 0o644);
        let gone = dir.0.path().join("gone");
        let bad = [
            (TlsFiles { certificate: certificate_of(&empty), ..good.clone() }, &empty, "--listen-cert"),
            (TlsFiles { certificate: certificate_of(&garbled), ..good.clone() }, &garbled, "--listen-cert"),
            (TlsFiles { certificate: certificate_of(&gone), ..good.clone() }, &gone, "--listen-cert"),
            (TlsFiles { key: key_of(&empty), ..good.clone() }, &empty, "--listen-key"),
            (TlsFiles { key: key_of(&good.certificate.path), ..good.clone() }, &good.certificate.path, "--listen-key"),
            (TlsFiles { key: key_of(&open), ..good.clone() }, &open, "--listen-key"),
            (TlsFiles { key: other.key.clone(), ..good.clone() }, &other.key.path, "--listen-key"),
            (TlsFiles { client_ca: authority_of(&empty), ..good.clone() }, &empty, "--listen-client-ca"),
            (TlsFiles { client_ca: authority_of(&garbled), ..good.clone() }, &garbled, "--listen-client-ca"),
        ];
        for (files, named, option) in bad {
            let error = config(&files).unwrap_err().to_string();
            assert!(error.contains(named.to_str().unwrap()), "{error}");
            assert!(error.starts_with(&format!("`{option}`: ")), "{error}");
        }
    }
}
