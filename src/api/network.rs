//! The address of `--listen`: who is let in there, and what he is shown.
//!
//! ```text
//!  TLS, where there is a certificate ─▶ Host ─▶ read only ─▶ token ─▶ all, or names and outcomes
//! ```
//! A page of a stranger that a browser on this network has open can make its own name mean this address, and then read what
//! this address answers: so only the names that are its own are answered to. What jobs print, and what stands in the jobs
//! file, is for whoever has the token alone. Nobody is let change anything: that takes the Unix socket.

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
use super::Refusal;
use super::serve::Local;

/// What a caller may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visibility {
    /// Everything.
    All,
    /// Names, times and outcomes: neither what jobs printed, nor what operators or the jobs file say.
    Outline,
}

/// Whoever was not said to see more sees the outline.
impl<S: Send + Sync> FromRequestParts<S> for Visibility {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or(Self::Outline))
    }
}

/// The files that say who is who.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// A token, for whoever is to see all.
    pub token: Option<PathBuf>,
    /// Certificates; without them TLS is not spoken.
    pub tls: Option<TlsFiles>,
}

/// The files that TLS takes, all of them PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate to show, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities by which clients must have a certificate; absent: they need none.
    pub client_ca: Option<PathBuf>,
}

/// What was in them.
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

/// The rules of an address.
pub struct Network {
    address: SocketAddr,
    names: Vec<HostName>,
    files: Files,
    secrets: RwLock<Arc<Secrets>>,
}

impl Network {
    /// The rules of `address`, which answers to `names` too.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn new(address: SocketAddr, names: Vec<HostName>, files: Files) -> Result<Self, SecretError> {
        let secrets = RwLock::new(Arc::new(Secrets::read(&files)?));
        Ok(Self { address, names, files, secrets })
    }

    /// Where to listen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// True where whoever sees what passes can read the token.
    pub fn is_token_sent_in_clear(&self) -> bool {
        self.files.token.is_some() && self.files.tls.is_none() && !self.address.ip().is_loopback()
    }

    /// Reads the files again. Connections that stand keep what they were made with.
    ///
    /// # Errors
    /// When one of them cannot be used: then all stays as it was.
    pub fn reload(&self) -> Result<(), SecretError> {
        let secrets = Arc::new(Secrets::read(&self.files)?);
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
        Ok(())
    }

    fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.secrets.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Who speaks TLS with a new connection, where it is spoken.
    pub(super) fn tls(&self) -> Option<TlsAcceptor> {
        self.secrets().tls.clone().map(TlsAcceptor::from)
    }

    /// Puts the rules before all that is served.
    pub(super) fn guard(network: &Arc<Self>, router: Router) -> Router {
        router.layer(middleware::from_fn_with_state(Arc::clone(network), guarded))
    }

    fn admit(&self, request: &Request) -> Result<Visibility, Refusal> {
        let local = request.extensions().get::<Local>().and_then(|local| local.0);
        self.is_meant(local, request)?;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "over TCP this can only be read: ask on the Unix socket"));
        }
        self.sight(request.headers())
    }

    /// All names that the request has for its host are this one's.
    fn is_meant(&self, local: Option<IpAddr>, request: &Request) -> Result<(), Refusal> {
        let is_own = |name: &str| {
            HostName::of_authority(name).is_some_and(|name| name.is_of(local) || self.names.contains(&name))
        };
        let headers: Vec<_> = request.headers().get_all(header::HOST).iter().collect();
        let is_meant = match *headers.as_slice() {
            [host] => {
                let asked = request.uri().authority().map(|authority| authority.as_str());
                host.to_str().is_ok_and(is_own) && asked.is_none_or(is_own)
            }
            _ => false,
        };
        let refusal = "the `Host` of the request is neither this address nor a name given by `--listen-host`";
        is_meant.then_some(()).ok_or_else(|| Refusal::new(StatusCode::MISDIRECTED_REQUEST, refusal))
    }

    /// One who shows a token means to see all, and is told where it is wrong.
    fn sight(&self, headers: &HeaderMap) -> Result<Visibility, Refusal> {
        let Some(shown) = headers.get(header::AUTHORIZATION) else { return Ok(Visibility::Outline) };
        let is_right = bearer(shown).zip(self.secrets().token.as_ref()).is_some_and(|(shown, token)| token.is(shown));
        is_right
            .then_some(Visibility::All)
            .ok_or_else(|| Refusal::new(StatusCode::UNAUTHORIZED, "this is not the token"))
    }
}

/// What is shown as `Bearer TOKEN`.
fn bearer(shown: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = shown.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}

async fn guarded(State(network): State<Arc<Network>>, mut request: Request, next: Next) -> Response {
    match network.admit(&request) {
        Ok(sight) => {
            request.extensions_mut().insert(sight);
            next.run(request).await
        }
        Err(refusal) => {
            let is_unknown = refusal.code == StatusCode::UNAUTHORIZED;
            let mut answer = refusal.into_response();
            if is_unknown {
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            answer
        }
    }
}
