//! Sessions of browsers that have shown a token.
//!
//! They are in memory only, so a restart ends them. The browser's cookie holds a random id and not the token: who gets
//! hold of it can do something until the session ends, but not afterwards and not elsewhere. Only digests of the ids
//! are kept, so that looking one up takes no time that depends on how much of an id is right. A session knows the digest
//! of its token and nothing else of it: it may do what that token may now, and nothing once the token is gone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::tokens::TokenDigest;
use cronkeeper_core::clock::{Uptime, system};

/// How long a session lasts.
const LIFETIME: Duration = Duration::from_secs(12 * 3_600);
/// Most sessions; the one that ends first makes room.
const MOST_SESSIONS: usize = 1_000;
/// The cookie's name.
const NAME: &str = "cronkeeper-session";

type IdDigest = [u8; 32];

/// The open sessions.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<IdDigest, Open>>);

struct Open {
    /// When it ends.
    until: Uptime,
    token: TokenDigest,
}

impl Sessions {
    /// Opens a session for who has shown this token. Returns its id.
    pub fn open(&self, token: TokenDigest) -> String {
        let id = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let now = system::uptime();
        let mut open = self.locked();
        open.retain(|_, session| session.until > now);
        if open.len() >= MOST_SESSIONS {
            let first = open.iter().min_by_key(|(_, session)| session.until).map(|(id, _)| *id);
            first.and_then(|first| open.remove(&first));
        }
        open.insert(digest(&id), Open { until: now + LIFETIME, token });
        id
    }

    /// The token of a session; `None` if it is not open.
    pub fn token(&self, id: &str) -> Option<TokenDigest> {
        self.locked().get(&digest(id)).filter(|session| system::uptime() < session.until).map(|session| session.token)
    }

    pub fn close(&self, id: &str) {
        self.locked().remove(&digest(id));
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<IdDigest, Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest(id: &str) -> IdDigest {
    Sha256::digest(id).into()
}

/// The session's id in a request's cookies.
pub(super) fn shown(headers: &HeaderMap) -> Option<String> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == NAME).map(|(_, id)| id.to_owned())
}

/// The value of `Set-Cookie` for a new session.
pub(super) fn cookie(id: &str, is_tls: bool) -> String {
    let secure = if is_tls { "; Secure" } else { "" };
    format!("{NAME}={id}; Max-Age={}; Path=/; HttpOnly; SameSite=Strict{secure}", LIFETIME.as_secs())
}

/// The value of `Set-Cookie` that removes the cookie.
pub(super) fn no_cookie(is_tls: bool) -> String {
    let secure = if is_tls { "; Secure" } else { "" };
    format!("{NAME}=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn token() -> TokenDigest {
        TokenDigest::of(b"0123456789abcdef")
    }

    #[test]
    fn a_session_lasts_until_it_is_closed_and_their_number_is_bounded() {
        let sessions = Sessions::default();
        let is_open = |id: &str| sessions.token(id).is_some_and(|found| found.is(&token()));
        let (first, second) = (sessions.open(token()), sessions.open(token()));
        assert!(is_open(&first) && is_open(&second) && !is_open("") && first != second);
        sessions.close(&first);
        assert!(!is_open(&first) && is_open(&second));
        for _ in 0..MOST_SESSIONS {
            sessions.open(token());
        }
        assert!(!is_open(&second), "it made room");
        assert_eq!(sessions.locked().len(), MOST_SESSIONS);
    }

    #[test]
    fn a_session_that_is_over_does_not_count() {
        let sessions = Sessions::default();
        let id = sessions.open(token());
        sessions.locked().insert(digest(&id), Open { until: Uptime::ZERO, token: token() });
        assert!(sessions.token(&id).is_none());
    }

    #[test]
    fn the_id_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; cronkeeper-session=0123; c"));
        assert_eq!(shown(&headers).as_deref(), Some("0123"));
        assert_eq!(shown(&HeaderMap::new()), None);
    }
}
