//! TLS to PostgreSQL by rustls, trusting what `sslmode` says.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as Encrypted;
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
}

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("`sslrootcert` has no certificate that can be used: {0}")]
    Authorities(String),
    #[error("`sslcert` and `sslkey` cannot be used: {0}")]
    Identity(String),
}

/// Encrypts connections.
#[derive(Clone)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// With a certificate and its key (PEM), if the server asks for one.
    ///
    /// # Errors
    /// If a certificate or the key cannot be used.
    pub fn new(trust: Trust, identity: Option<(Vec<u8>, Vec<u8>)>) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match trust {
            Trust::Anybody => Arc::new(Lenient { provider: Arc::clone(&provider), chain: None }),
            Trust::Signed(pem) => {
                let chain = Some(chain(&pem, &provider)?);
                Arc::new(Lenient { provider: Arc::clone(&provider), chain })
            }
            Trust::Named(pem) => chain(&pem, &provider)?,
        };
        let identity_error = |error: &dyn fmt::Display| TlsError::Identity(error.to_string());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| identity_error(&error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
                let certificates = certificates.map_err(|error| identity_error(&error))?;
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| identity_error(&error))?;
                config.with_client_auth_cert(certificates, key).map_err(|error| identity_error(&error))?
            }
        };
        Ok(Self(Arc::new(config)))
    }
}

/// Checks that a certificate is signed by one of these authorities, for the host's name.
fn chain(pem: &[u8], provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let failed = |error: &dyn fmt::Display| TlsError::Authorities(error.to_string());
    let mut authorities = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        authorities.add(certificate.map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(provider))
        .build()
        .map_err(|error| failed(&error))
}

/// Accepts what libpq accepts without `verify-full`.
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

/// Makes the handshake with one host.
pub struct ToHost {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = ToHost;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<ToHost, io::Error> {
        // Sockets of this host have no name, and no TLS.
        let name = if host.is_empty() { "localhost" } else { host };
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        Ok(ToHost { connector: TlsConnector::from(Arc::clone(&self.0)), name })
    }
}

impl TlsConnect<Socket> for ToHost {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let Self { connector, name } = self;
        Box::pin(async move { connector.connect(name, socket).await.map(|stream| Stream(Box::new(stream))) })
    }
}

/// An encrypted connection.
pub struct Stream(Box<Encrypted<Socket>>);

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
