//! Sessions of browsers that have shown the token.
//!
//! They are in memory only, so a restart ends them. The browser's cookie holds a random id and not the token: who gets
//! hold of it can do something until the session ends, but not afterwards and not elsewhere. Only digests of the ids
//! are kept, so that looking one up takes no time that depends on how much of an id is right.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use cronkeeper_core::clock::{Uptime, system};

/// How long a session lasts.
const LIFETIME: Duration = Duration::from_secs(12 * 3_600);
/// Most sessions; the one that ends first makes room.
const MOST_SESSIONS: usize = 1_000;
/// The cookie's name.
const NAME: &str = "cronkeeper-session";

type IdDigest = [u8; 32];

/// The open sessions, each with the time at which it ends.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<IdDigest, Uptime>>);

impl Sessions {
    /// Opens a session. Returns its id.
    pub fn open(&self) -> String {
        let id = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let now = system::uptime();
        let mut open = self.locked();
        open.retain(|_, until| *until > now);
        if open.len() >= MOST_SESSIONS {
            let first = open.iter().min_by_key(|(_, until)| **until).map(|(id, _)| *id);
            first.and_then(|first| open.remove(&first));
        }
        open.insert(digest(&id), now + LIFETIME);
        id
    }

    pub fn is_open(&self, id: &str) -> bool {
        self.locked().get(&digest(id)).is_some_and(|until| system::uptime() < *until)
    }

    pub fn close(&self, id: &str) {
        self.locked().remove(&digest(id));
    }

    /// Ends all sessions.
    pub fn clear(&self) {
        self.locked().clear();
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<IdDigest, Uptime>> {
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

    #[test]
    fn a_session_lasts_until_it_is_closed_and_their_number_is_bounded() {
        let sessions = Sessions::default();
        let (first, second) = (sessions.open(), sessions.open());
        assert!(sessions.is_open(&first) && sessions.is_open(&second) && !sessions.is_open("") && first != second);
        sessions.close(&first);
        assert!(!sessions.is_open(&first) && sessions.is_open(&second));
        for _ in 0..MOST_SESSIONS {
            sessions.open();
        }
        assert!(!sessions.is_open(&second), "it made room");
        assert_eq!(sessions.locked().len(), MOST_SESSIONS);
        let last = sessions.open();
        sessions.clear();
        assert!(!sessions.is_open(&last));
    }

    #[test]
    fn a_session_that_is_over_does_not_count() {
        let sessions = Sessions::default();
        let id = sessions.open();
        sessions.locked().insert(digest(&id), Uptime::ZERO);
        assert!(!sessions.is_open(&id));
    }

    #[test]
    fn the_id_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; cronkeeper-session=0123; c"));
        assert_eq!(shown(&headers).as_deref(), Some("0123"));
        assert_eq!(shown(&HeaderMap::new()), None);
    }
}
