//! TLS to stores, by rustls: which servers a client trusts, and which certificate it shows.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// Whose certificate a server may have. The authorities are PEM.
pub enum Trust {
    /// Only eavesdroppers are kept out, not somebody in between.
    Anybody,
    /// Signed by one of these authorities, for whatever name.
    Signed(Vec<u8>),
    /// Signed by one of them for the host's name.
    Named(Vec<u8>),
    /// The same, with a system's authorities, of which some may be of a kind that is not known here.
    System(Vec<CertificateDer<'static>>),
}

/// A certificate and its key, PEM.
pub struct Identity {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("no authority in it can be used: {0}")]
    Authorities(String),
    #[error("the certificate and the key cannot be used: {0}")]
    Identity(String),
}

/// Words for a server that ends the connection instead of answering to the beginning of TLS.
pub const HANGS_UP: &str =
    "it hangs up when TLS begins: it does not speak TLS, does not serve this host, or is another service";

/// Words why a server cannot be spoken to over TLS; `None` if the reason is another. `authorities`: the setting that names
/// them.
pub fn words(error: &(dyn std::error::Error + 'static), authorities: &str) -> Option<String> {
    match cause(error) {
        // Two authorities may have the same name: then the signature shows that it is the other.
        Some(error @ Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            Some(format!("{error}: none of the authorities in `{authorities}` has signed it; name the one that has"))
        }
        Some(Error::InvalidMessage(_)) => Some("it does not speak TLS, or is another service".to_owned()),
        Some(error) => Some(error.to_string()),
        None => error.to_string().contains("tls handshake eof").then(|| HANGS_UP.to_owned()),
    }
}

/// The error of TLS behind an error.
fn cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // What an I/O error was made of is not its source.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// How to encrypt connections.
///
/// # Errors
/// If a certificate or the key cannot be used.
pub fn client(trust: Trust, identity: Option<Identity>) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Anybody => Arc::new(Lenient { provider: Arc::clone(&provider), chain: None }),
        Trust::Signed(pem) => {
            let chain = Some(chain(&pem, &provider)?);
            Arc::new(Lenient { provider: Arc::clone(&provider), chain })
        }
        Trust::Named(pem) => chain(&pem, &provider)?,
        Trust::System(found) => {
            let mut authorities = RootCertStore::empty();
            authorities.add_parsable_certificates(found);
            verifier(authorities, &provider)?
        }
    };
    let unusable = |error: &dyn fmt::Display| TlsError::Identity(error.to_string());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(Identity { certificate, key }) => {
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
            let certificates = certificates.map_err(|error| unusable(&error))?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| unusable(&error))?;
            config.with_client_auth_cert(certificates, key).map_err(|error| unusable(&error))?
        }
    };
    Ok(Arc::new(config))
}

/// Checks that a certificate is signed by one of these authorities, for the host's name.
fn chain(pem: &[u8], provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let unusable = |error: &dyn fmt::Display| TlsError::Authorities(error.to_string());
    let mut authorities = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        authorities.add(certificate.map_err(|error| unusable(&error))?).map_err(|error| unusable(&error))?;
    }
    verifier(authorities, provider)
}

fn verifier(authorities: RootCertStore, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(provider))
        .build()
        .map_err(|error| TlsError::Authorities(error.to_string()))
}

/// Accepts certificates for any name, or of anybody.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    /// Absent: whoever signed it.
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_tls_is_worded_with_what_to_do() {
        for wrong in [CertificateError::UnknownIssuer, CertificateError::BadSignature] {
            let error = io::Error::new(io::ErrorKind::InvalidData, Error::InvalidCertificate(wrong));
            let said = words(&error, "cacert");
            assert!(said.as_ref().is_some_and(|text| text.contains("none of the authorities in `cacert`")), "{said:?}");
        }
        let plain = Error::InvalidMessage(tokio_rustls::rustls::InvalidMessage::InvalidContentType);
        let said = words(&io::Error::other(plain), "cacert");
        assert_eq!(said.as_deref(), Some("it does not speak TLS, or is another service"));
        assert_eq!(words(&io::Error::from(io::ErrorKind::ConnectionRefused), "cacert"), None);
    }
}
