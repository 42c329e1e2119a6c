//! Access rules of the `--listen` address: who is admitted, and what they see.
//!
//! ```text
//!  TLS, if there is a certificate ─▶ Host ─┬─ token or session ─▶ everything to see; to do, as its role says
//!                                          ├─ proof of a node ──▶ what nodes fetch from each other
//!                                          └─ nothing ──────────▶ names and outcomes, to read
//! ```
//!
//! What a request may do is decided in [`authorize`](super::authorize), by its role.
//!
//! `Host` is checked against DNS rebinding: a web page in a browser on this network could make its own domain resolve
//! to this address, and then read the answers. Requests are therefore accepted only under the address's own names. Job
//! output and texts of the jobs file are visible only with a token, and only with one can anything be changed. A
//! browser sends the token once and gets a session for it, which shows the same, and changes something only through the
//! forms of the page. Another node never sends the token, but a [`proof`] that it has it.

mod host;
pub(super) mod proof;
mod secret;
mod session;
mod tls;
pub mod tokens;
mod wrong_tokens;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRequestParts, Query, Request, State};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

pub use self::host::HostName;
use self::proof::{Accepted, Asked, BadProof};
pub use self::secret::SecretError;
pub(crate) use self::secret::read_token;
pub(super) use self::secret::read_tokens;
use self::session::Sessions;
pub(super) use self::tls::client as tls_client;
pub use self::tokens::Identity;
use self::tokens::{Token, Tokens};
use self::wrong_tokens::Answer;
pub use self::wrong_tokens::WrongTokens;
use super::RefusedRequest;
use super::admission::Admitted;
use super::caller::{Caller, Grant};
use super::serve::LocalAddress;
use crate::option_file::OptionFile;
use cronkeeper_core::clock::system;
use cronkeeper_core::election::ApiAddress;
use cronkeeper_core::log;
use cronkeeper_core::term::NodeName;

/// What nodes fetch from each other, with `*` for one part of the path.
const FOR_PEERS: &[(&str, Scope)] =
    &[("/v1/runs/*/output", Scope::Any), ("/v1/history", Scope::Local), ("/v1/jobs/*/history", Scope::Local)];
const NOT_FOR_PEERS: &str = "other nodes are shown the output of runs and, with `local=true`, this node's part of the history, and nothing else";
/// How long a caller waits for each further answer that has sent many wrong tokens.
const PAUSE: Duration = Duration::from_secs(1);
/// What an answer 401 says is accepted. Other nodes see from it that this one knows proofs.
const CHALLENGES: &str = "Bearer, Cronkeeper-Peer";

/// Whose part of an answer a proof opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Any,
    /// Only that of the asked node: with `local=true`, it asks nobody else.
    Local,
}

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

/// The files with the tokens and the certificates.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The tokens of those who may see more than the outline.
    pub token: Option<OptionFile>,
    /// Without certificates, the address does not use TLS.
    pub tls: Option<TlsFiles>,
}

/// The files for TLS, all PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server certificate with its intermediate certificates.
    pub certificate: OptionFile,
    pub key: OptionFile,
    /// Authorities that must have signed a client's certificate; absent: clients need none.
    pub client_ca: Option<OptionFile>,
}

/// The contents of [`Files`].
struct Secrets {
    tokens: Option<Tokens>,
    tls: Option<Arc<ServerConfig>>,
}

impl Secrets {
    fn read(files: &Files) -> Result<Self, SecretError> {
        Ok(Self {
            tokens: files.token.as_ref().map(read_tokens).transpose()?,
            tls: files.tls.as_ref().map(tls::config).transpose()?.map(Arc::new),
        })
    }
}

/// A TCP address with its access rules.
pub struct Network {
    address: SocketAddr,
    names: Vec<HostName>,
    files: Files,
    /// The node that is asked at this address.
    node: NodeName,
    secrets: RwLock<Arc<Secrets>>,
    sessions: Sessions,
    proofs: Accepted,
    wrong_tokens: Arc<WrongTokens>,
}

/// Why a request is not admitted.
enum NotAdmitted {
    /// It shows something that was not made from one of this node's tokens.
    WrongToken(String),
    Refused(RefusedRequest),
}

impl From<RefusedRequest> for NotAdmitted {
    fn from(refused: RefusedRequest) -> Self {
        Self::Refused(refused)
    }
}

impl Network {
    /// Reads the files. `names` are accepted as `Host` besides the address itself and localhost.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn new(address: SocketAddr, names: Vec<HostName>, files: Files, node: NodeName) -> Result<Self, SecretError> {
        let secrets = RwLock::new(Arc::new(Secrets::read(&files)?));
        let (sessions, proofs, wrong_tokens) = (Sessions::default(), Accepted::default(), Arc::default());
        Ok(Self { address, names, files, node, secrets, sessions, proofs, wrong_tokens })
    }

    /// The wrong tokens that were sent to this address.
    pub fn wrong_tokens(&self) -> Arc<WrongTokens> {
        Arc::clone(&self.wrong_tokens)
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

    fn admit(&self, request: &Request) -> Result<Option<Grant>, NotAdmitted> {
        let local = request.extensions().get::<LocalAddress>().and_then(|local| local.0);
        self.check_host(local.map(|local| local.ip()), request)?;
        self.grant(local, request)
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
    fn grant(&self, local: Option<SocketAddr>, request: &Request) -> Result<Option<Grant>, NotAdmitted> {
        let headers = request.headers();
        let Some(shown) = headers.get(header::AUTHORIZATION) else {
            return Ok(session::shown(headers).and_then(|id| self.session(id)));
        };
        if proof::is_meant(shown.as_bytes()) {
            return self.check_proof(shown.as_bytes(), local, request).map(|()| Some(Grant::Peer));
        }
        let token = bearer(shown).and_then(|shown| self.token(shown));
        token.map(|token| Some(Grant::Token(token.identity))).ok_or_else(|| NotAdmitted::WrongToken(WRONG.to_owned()))
    }

    /// An open session, with what its token may do now.
    fn session(&self, id: String) -> Option<Grant> {
        let digest = self.sessions.token(&id)?;
        let identity = self.secrets().tokens.as_ref()?.with(&digest)?.identity.clone();
        Some(Grant::Session { id, identity })
    }

    /// Accepts the proof of another node, for a request that nodes send each other.
    fn check_proof(&self, shown: &[u8], local: Option<SocketAddr>, request: &Request) -> Result<(), NotAdmitted> {
        let refused = |code, error: String| Err(RefusedRequest::new(code, error).into());
        let secrets = self.secrets();
        let Some(tokens) = &secrets.tokens else {
            let error =
                format!("{} has no token, and so shows nothing to other nodes: set `--api-token-file`", self.node);
            return refused(StatusCode::FORBIDDEN, error);
        };
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let asked = Asked { method: request.method().as_str(), path, host: own_host(local, request.headers()) };
        match self.proofs.check(shown, asked, tokens.proof_keys(), &self.node, system::now().wall) {
            Ok(()) if is_for_peers(request.method(), request.uri()) => Ok(()),
            Ok(()) => refused(StatusCode::FORBIDDEN, NOT_FOR_PEERS.to_owned()),
            Err(wrong @ BadProof::OtherToken) => Err(NotAdmitted::WrongToken(wrong.to_string())),
            Err(busy @ BadProof::TooMany { .. }) => refused(StatusCode::SERVICE_UNAVAILABLE, busy.to_string()),
            Err(bad) => refused(StatusCode::UNAUTHORIZED, bad.to_string()),
        }
    }

    fn token(&self, shown: &[u8]) -> Option<Token> {
        self.secrets().tokens.as_ref()?.find(shown).cloned()
    }

    /// True if somebody can sign in.
    pub(super) fn has_token(&self) -> bool {
        self.secrets().tokens.is_some()
    }

    /// Counts a wrong token and returns the refusal, after some time if the caller has sent many. Meanwhile the
    /// connection makes room for others, like one that has not sent its request.
    async fn refuse_token(&self, caller: Caller, connection: Option<&Admitted>, error: String) -> WrongToken {
        let Answer::Late { seconds } = self.wrong_tokens.count(caller) else {
            return WrongToken { error, retry_after: None };
        };
        if let Some(connection) = connection {
            connection.offer_place();
        }
        sleep(PAUSE).await;
        let error = format!("{error}; more than ten came from {caller} within a minute");
        WrongToken { error, retry_after: Some(seconds) }
    }

    /// Opens a session for a token. Returns the cookie.
    pub(super) async fn sign_in(
        &self,
        caller: Caller,
        connection: Option<&Admitted>,
        shown: &[u8],
    ) -> Result<String, WrongToken> {
        let Some(Token { identity, digest, .. }) = self.token(shown) else {
            return Err(self.refuse_token(caller, connection, WRONG.to_owned()).await);
        };
        let Identity { name, role } = identity;
        log!(API_SIGNED_IN, %caller, by = &*name, role = role.as_str());
        Ok(session::cookie(&self.sessions.open(digest), self.files.tls.is_some()))
    }

    /// Ends a session. Returns the cookie that removes the browser's.
    pub(super) fn sign_out(&self, id: &str) -> String {
        self.sessions.close(id);
        session::no_cookie(self.files.tls.is_some())
    }
}

/// The refusal of a wrong token.
pub(super) struct WrongToken {
    pub error: String,
    /// The caller has sent many: how many seconds until its count begins anew.
    pub retry_after: Option<u64>,
}

impl WrongToken {
    pub fn code(&self) -> StatusCode {
        if self.retry_after.is_some() { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::UNAUTHORIZED }
    }

    /// Adds what the answer says in its head.
    pub fn mark(&self, answer: &mut Response) {
        if let Some(seconds) = self.retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
    }
}

impl IntoResponse for WrongToken {
    fn into_response(self) -> Response {
        let mut answer = RefusedRequest::new(self.code(), self.error.clone()).into_response();
        self.mark(&mut answer);
        answer
    }
}

const WRONG: &str = "wrong token";

/// Where a browser sends the token.
pub(super) const SIGN_IN: &str = "/session";

/// The token of an `Authorization: Bearer TOKEN` header.
fn bearer(shown: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = shown.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}

/// The `Host` of a request, if it has the port that the request came to. That its name is an own one is checked for
/// every request; with the port, it is the address of this node and of nobody else on its host.
fn own_host(local: Option<SocketAddr>, headers: &HeaderMap) -> &str {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.parse::<Authority>().ok().and_then(|authority| authority.port_u16());
    if port.is_some() && port == local.map(|local| local.port()) { host } else { "" }
}

/// True for a request that nodes send each other.
fn is_for_peers(method: &Method, uri: &Uri) -> bool {
    let mut wanted = FOR_PEERS.iter().filter(|(pattern, _)| fits(uri.path(), pattern));
    *method == Method::GET && wanted.any(|(_, scope)| *scope == Scope::Any || is_local(uri))
}

/// True if the request asks for the node's own part. It is read as who answers it reads it, and `local` may be there more
/// than once.
fn is_local(uri: &Uri) -> bool {
    let Ok(Query(parameters)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else { return false };
    let mut values = parameters.iter().filter(|(name, _)| name == "local").map(|(_, value)| value == "true").peekable();
    values.peek().is_some() && values.all(|is_true| is_true)
}

fn fits(path: &str, pattern: &str) -> bool {
    let (mut parts, mut wanted) = (path.split('/'), pattern.split('/'));
    wanted.all(|wanted| parts.next().is_some_and(|part| wanted == "*" || wanted == part)) && parts.next().is_none()
}

async fn admit_or_refuse(State(network): State<Arc<Network>>, mut request: Request, next: Next) -> Response {
    let mut answer = match network.admit(&request) {
        Ok(grant) => {
            let extensions = request.extensions_mut();
            extensions.insert(if grant.is_some() { Visibility::All } else { Visibility::Outline });
            extensions.insert(Arc::clone(&network));
            if let Some(grant) = grant {
                extensions.insert(grant);
            }
            return next.run(request).await;
        }
        Err(NotAdmitted::Refused(refusal)) => refusal.into_response(),
        Err(NotAdmitted::WrongToken(error)) => {
            let caller = request.extensions().get().copied().unwrap_or(Caller::Unknown);
            let connection = request.extensions().get::<Arc<Admitted>>().cloned();
            network.refuse_token(caller, connection.as_deref(), error).await.into_response()
        }
    };
    if answer.status() == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGES));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_fetch_outputs_and_each_others_own_history_and_nothing_else() {
        let run = "/v1/runs/load.20261120T024000Z";
        let fits = |method: &Method, path: &str| is_for_peers(method, &path.parse().unwrap());
        assert!(fits(&Method::GET, &format!("{run}/output")));
        for path in
            ["/", "/v1/status", "/v1/definitions", "/v1/runs//output/x", "/v1/runs/a/b/output", "/v1/runs/output"]
        {
            assert!(!fits(&Method::GET, path), "{path}");
        }
        for path in [run.to_owned(), format!("{run}/output/"), format!("{run}/kill"), format!("/x{run}/output")] {
            assert!(!fits(&Method::GET, &path), "{path}");
        }
        for method in [Method::POST, Method::HEAD, Method::DELETE] {
            assert!(!fits(&method, &format!("{run}/output")), "{method}");
        }
        for path in ["/v1/history", "/v1/jobs/load/history"] {
            for own in ["local=true", "limit=3&local=true&before=5.run.x", "run=load.x&local=true", "%6cocal=true"] {
                assert!(fits(&Method::GET, &format!("{path}?{own}")), "{path}?{own}");
                assert!(!fits(&Method::POST, &format!("{path}?{own}")), "{path}?{own}");
            }
            let all = ["", "limit=3", "local", "local=false", "xlocal=true", "job=local=true", "job=a%26local=true"];
            let hidden = ["local=true&local=false", "local=false&local=true", "local=true&%6cocal=false"];
            for other in all.into_iter().chain(hidden) {
                assert!(!fits(&Method::GET, &format!("{path}?{other}")), "{path}?{other}");
            }
            assert!(!fits(&Method::GET, &format!("{path}/x?local=true")), "{path}");
        }
    }

    #[test]
    fn a_host_counts_for_a_proof_only_with_the_port_of_its_connection() {
        let host = |local: &str, host: &'static str| {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
            own_host(local.parse().ok(), &headers).to_owned()
        };
        for own in ["192.0.2.7:7475", "cron.example:7475"] {
            assert_eq!(host("192.0.2.7:7475", own), own);
        }
        assert_eq!(host("[2001:db8::1]:7475", "[2001:db8::1]:7475"), "[2001:db8::1]:7475");
        for other in ["192.0.2.7:7476", "192.0.2.7", "", "192.0.2.7:"] {
            assert_eq!(host("192.0.2.7:7475", other), "", "{other}");
        }
        assert_eq!(host("", "192.0.2.7:7475"), "");
    }
}
