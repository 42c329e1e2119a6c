//! The TLS configuration as the client crate makes it: for the diagnosis of a handshake, and to refuse what the crate
//! would refuse at each attempt only.

use std::sync::Arc;

use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Tls;

/// The configuration with these certificates.
///
/// # Errors
/// If a certificate or key cannot be used, or they do not belong together.
pub(super) fn config(tls: &Tls) -> Result<Arc<ClientConfig>, String> {
    let ca = tls.ca.as_deref().unwrap_or_default();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain(ca)?);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(roots);
    match &tls.identity {
        None => Ok(Arc::new(builder.with_no_client_auth())),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| format!("the key: {error}"))?;
            let config = builder.with_client_auth_cert(chain(certificate)?, key);
            Ok(Arc::new(config.map_err(|error| format!("the certificate with its key: {error}"))?))
        }
    }
}

/// A configuration that accepts no server. It is enough to find out whether one speaks TLS.
pub(super) fn trusting_nobody() -> Option<Arc<ClientConfig>> {
    config(&Tls::default()).ok()
}

fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    chain.map_err(|error| format!("a certificate: {error}"))
}
