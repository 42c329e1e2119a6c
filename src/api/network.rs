//! Access rules of the `--listen` address: who is admitted, and what they see.
//!
//! ```text
//!  TLS, if there is a certificate ─▶ Host ─▶ token or session ─▶ everything, or names and outcomes to read
//! ```
//!
//! `Host` is checked against DNS rebinding: a web page in a browser on this network could make its own domain resolve
//! to this address, and then read the answers. Requests are therefore accepted only under the address's own names. Job
//! output and texts of the jobs file are visible only with the token, and only with it can anything be changed. A
//! browser sends the token once and gets a session for it, which counts for the page only.

mod host;
mod secret;
mod session;
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
pub(super) use self::secret::read_token;
use self::session::Sessions;
pub(super) use self::tls::client as tls_client;
use super::RefusedRequest;
use super::caller::{Caller, Grant};
use super::serve::LocalAddress;
use cronkeeper_core::election::ApiAddress;

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
    sessions: Sessions,
}

impl Network {
    /// Reads the files. `names` are accepted as `Host` besides the address itself and localhost.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn new(address: SocketAddr, names: Vec<HostName>, files: Files) -> Result<Self, SecretError> {
        let secrets = RwLock::new(Arc::new(Secrets::read(&files)?));
        Ok(Self { address, names, files, secrets, sessions: Sessions::default() })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where other nodes reach this one, if it listens at `bound`.
    pub fn published(&self, bound: SocketAddr) -> ApiAddress {
        let name = self.names.first().map(|name| name.as_str().to_owned());
        ApiAddress { address: bound, name, tls: self.files.tls.is_some() }
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
        let has_other_token = self.secrets().token != secrets.token;
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
        if has_other_token {
            self.sessions.clear();
        }
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

    fn admit(&self, request: &Request) -> Result<Option<Grant>, RefusedRequest> {
        let local = request.extensions().get::<LocalAddress>().and_then(|local| local.0);
        self.check_host(local.map(|local| local.ip()), request)?;
        let grant = self.grant(request.headers())?;
        let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
        // Signing in needs no grant: it is how a browser gets one.
        let is_signing_in = request.uri().path() == SIGN_IN && self.has_token();
        if is_reading || is_signing_in || grant.is_some() {
            return Ok(grant);
        }
        let error = match self.has_token() {
            true => "over TCP only who sends the token can change something",
            false => "the API is read-only over TCP: use the Unix socket",
        };
        Err(RefusedRequest::new(StatusCode::FORBIDDEN, error))
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

    /// What the request shows. A wrong token is an error, because the caller expects to see everything; a session that
    /// has ended is none.
    fn grant(&self, headers: &HeaderMap) -> Result<Option<Grant>, RefusedRequest> {
        let Some(shown) = headers.get(header::AUTHORIZATION) else {
            return Ok(session::shown(headers).filter(|id| self.sessions.is_open(id)).map(Grant::Session));
        };
        let is_right = bearer(shown).is_some_and(|shown| self.is_token(shown));
        let refusal = || RefusedRequest::new(StatusCode::UNAUTHORIZED, "wrong token");
        is_right.then_some(Some(Grant::Token)).ok_or_else(refusal)
    }

    fn is_token(&self, shown: &[u8]) -> bool {
        self.secrets().token.as_ref().is_some_and(|token| token.is(shown))
    }

    /// True if somebody can sign in.
    pub(super) fn has_token(&self) -> bool {
        self.secrets().token.is_some()
    }

    /// Opens a session for the token. Returns the cookie.
    pub(super) fn sign_in(&self, caller: Caller, shown: &[u8]) -> Result<String, RefusedRequest> {
        if !self.sessions.may_try(caller) {
            let error = "too many wrong tokens: try again in a minute";
            return Err(RefusedRequest::new(StatusCode::TOO_MANY_REQUESTS, error));
        }
        let secrets = self.secrets();
        if !self.is_token(shown) {
            self.sessions.failed(caller);
            return Err(RefusedRequest::new(StatusCode::UNAUTHORIZED, "wrong token"));
        }
        let id = self.sessions.open();
        // If the token was replaced meanwhile, its sessions may have been ended before this one was opened.
        if !Arc::ptr_eq(&secrets, &self.secrets()) {
            self.sessions.close(&id);
        }
        Ok(session::cookie(&id, self.files.tls.is_some()))
    }

    /// Ends a session. Returns the cookie that removes the browser's.
    pub(super) fn sign_out(&self, id: &str) -> String {
        self.sessions.close(id);
        session::no_cookie(self.files.tls.is_some())
    }
}

/// Where a browser sends the token.
pub(super) const SIGN_IN: &str = "/session";

/// The token of an `Authorization: Bearer TOKEN` header.
fn bearer(shown: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = shown.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}

async fn admit_or_refuse(State(network): State<Arc<Network>>, mut request: Request, next: Next) -> Response {
    match network.admit(&request) {
        Ok(grant) => {
            let extensions = request.extensions_mut();
            extensions.insert(if grant.is_some() { Visibility::All } else { Visibility::Outline });
            extensions.insert(Arc::clone(&network));
            if let Some(grant) = grant {
                extensions.insert(grant);
            }
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
