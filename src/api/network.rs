//! Access rules of the `--listen` address: who is admitted, and what they see.
//!
//! ```text
//!  TLS, if there is a certificate ─▶ Host ─▶ read only ─▶ token ─▶ everything, or names and outcomes
//! ```
//!
//! `Host` is checked against DNS rebinding: a web page in a browser on this network could make its own domain resolve
//! to this address, and then read the answers. Requests are therefore accepted only under the address's own names. Job
//! output and texts of the jobs file are visible only with the token. Nothing can be changed here; that requires the
//! Unix socket.

mod host;
mod secret;
mod tls;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

pub use self::host::HostName;
pub use self::secret::SecretError;
use self::secret::Token;
use super::RefusedRequest;
use super::serve::LocalAddress;

/// What a caller may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visibility {
    /// Everything.
    All,
    /// Names, times and outcomes, but no job output and no texts of operators or of the jobs file.
    Outline,
}

/// Without an explicit grant, a request sees the outline only.
impl<S: Send + Sync> FromRequestParts<S> for Visibility {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or(Self::Outline))
    }
}

/// The files with the token and the certificates.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The token that callers must send to see everything.
    pub token: Option<PathBuf>,
    /// Without certificates, the address does not use TLS.
    pub tls: Option<TlsFiles>,
}

/// The files for TLS, all PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server certificate with its intermediate certificates.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Authorities that must have signed a client's certificate; absent: clients need none.
    pub client_ca: Option<PathBuf>,
}

/// The contents of [`Files`].
struct Secrets {
    token: Option<Token>,
    tls: Option<Arc<ServerConfig>>,
}

impl Secrets {
    fn read(files: &Files) -> Result<Self, SecretError> {
        Ok(Self {
            token: files.token.as_deref().map(Token::read).transpose()?,
            tls: files.tls.as_ref().map(tls::config).transpose()?.map(Arc::new),
        })
    }
}

/// A TCP address with its access rules.
pub struct Network {
    address: SocketAddr,
    names: Vec<HostName>,
    files: Files,
    secrets: RwLock<Arc<Secrets>>,
}

impl Network {
    /// Reads the files. `names` are accepted as `Host` besides the address itself and localhost.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn new(address: SocketAddr, names: Vec<HostName>, files: Files) -> Result<Self, SecretError> {
        let secrets = RwLock::new(Arc::new(Secrets::read(&files)?));
        Ok(Self { address, names, files, secrets })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// True if the token travels over the network without TLS.
    pub fn is_token_sent_in_clear(&self) -> bool {
        self.files.token.is_some() && self.files.tls.is_none() && !self.address.ip().is_loopback()
    }

    /// Reads the files again. Open connections keep the certificates they were made with.
    ///
    /// # Errors
    /// When a file cannot be used; then all old files stay in effect.
    pub fn reload(&self) -> Result<(), SecretError> {
        let secrets = Arc::new(Secrets::read(&self.files)?);
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
        Ok(())
    }

    fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.secrets.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The TLS acceptor for a new connection; `None` without certificates.
    pub(super) fn tls(&self) -> Option<TlsAcceptor> {
        self.secrets().tls.clone().map(TlsAcceptor::from)
    }

    /// Puts the access rules in front of all routes.
    pub(super) fn guard(network: &Arc<Self>, router: Router) -> Router {
        router.layer(middleware::from_fn_with_state(Arc::clone(network), admit_or_refuse))
    }

    fn admit(&self, request: &Request) -> Result<Visibility, RefusedRequest> {
        let local = request.extensions().get::<LocalAddress>().and_then(|local| local.0);
        self.check_host(local, request)?;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(RefusedRequest::new(
                StatusCode::FORBIDDEN,
                "the API is read-only over TCP: use the Unix socket",
            ));
        }
        self.visibility(request.headers())
    }

    /// Accepts a request only if its `Host`, and the host in its URI if there is one, name this address.
    fn check_host(&self, local: Option<IpAddr>, request: &Request) -> Result<(), RefusedRequest> {
        let is_own = |name: &str| {
            HostName::of_authority(name).is_some_and(|name| name.is_of(local) || self.names.contains(&name))
        };
        let headers: Vec<_> = request.headers().get_all(header::HOST).iter().collect();
        let is_accepted = match *headers.as_slice() {
            [host] => {
                let in_uri = request.uri().authority().map(|authority| authority.as_str());
                host.to_str().is_ok_and(is_own) && in_uri.is_none_or(is_own)
            }
            _ => false,
        };
        let refusal = "the request's `Host` is neither this address nor a name of `--listen-host`";
        is_accepted.then_some(()).ok_or_else(|| RefusedRequest::new(StatusCode::MISDIRECTED_REQUEST, refusal))
    }

    /// Determines what a request may see. A wrong token is an error, because the caller expects to see everything.
    fn visibility(&self, headers: &HeaderMap) -> Result<Visibility, RefusedRequest> {
        let Some(shown) = headers.get(header::AUTHORIZATION) else { return Ok(Visibility::Outline) };
        let is_right = bearer(shown).zip(self.secrets().token.as_ref()).is_some_and(|(shown, token)| token.is(shown));
        is_right.then_some(Visibility::All).ok_or_else(|| RefusedRequest::new(StatusCode::UNAUTHORIZED, "wrong token"))
    }
}

/// The token of an `Authorization: Bearer TOKEN` header.
fn bearer(shown: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = shown.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}

async fn admit_or_refuse(State(network): State<Arc<Network>>, mut request: Request, next: Next) -> Response {
    match network.admit(&request) {
        Ok(visibility) => {
            request.extensions_mut().insert(visibility);
            next.run(request).await
        }
        Err(refusal) => {
            let is_unauthorized = refusal.code == StatusCode::UNAUTHORIZED;
            let mut answer = refusal.into_response();
            if is_unauthorized {
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            answer
        }
    }
}
