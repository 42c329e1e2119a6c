//! Sessions of browsers that have shown the token, and how often somebody may try one.
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

use crate::api::caller::Caller;
use cronkeeper_core::clock::{Uptime, system};

/// How long a session lasts.
const LIFETIME: Duration = Duration::from_secs(12 * 3_600);
/// Most sessions; the one that ends first makes room.
const MOST_SESSIONS: usize = 1_000;
/// Most wrong tokens of a caller in [`WINDOW`].
const MOST_FAILURES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Most callers whose wrong tokens are counted.
const MOST_CALLERS: usize = 1_000;
/// The cookie's name.
const NAME: &str = "cronkeeper-session";

type IdDigest = [u8; 32];

#[derive(Default)]
pub(super) struct Sessions(Mutex<Open>);

#[derive(Default)]
struct Open {
    /// When each session ends.
    until: HashMap<IdDigest, Uptime>,
    /// The wrong tokens of each caller, and since when they are counted.
    failures: HashMap<Caller, (Uptime, u32)>,
}

impl Sessions {
    /// Opens a session. Returns its id.
    pub fn open(&self) -> String {
        let id = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let now = system::uptime();
        let mut open = self.locked();
        open.until.retain(|_, until| *until > now);
        if open.until.len() >= MOST_SESSIONS {
            let first = open.until.iter().min_by_key(|(_, until)| **until).map(|(id, _)| *id);
            first.and_then(|first| open.until.remove(&first));
        }
        open.until.insert(digest(&id), now + LIFETIME);
        id
    }

    pub fn is_open(&self, id: &str) -> bool {
        self.locked().until.get(&digest(id)).is_some_and(|until| system::uptime() < *until)
    }

    pub fn close(&self, id: &str) {
        self.locked().until.remove(&digest(id));
    }

    /// Ends all sessions.
    pub fn clear(&self) {
        self.locked().until.clear();
    }

    /// False while a caller has sent too many wrong tokens.
    pub fn may_try(&self, caller: Caller) -> bool {
        let counted = self.locked().failures.get(&caller).copied();
        counted.is_none_or(|(since, count)| count < MOST_FAILURES || system::uptime().since(since) >= WINDOW)
    }

    /// Counts a wrong token.
    pub fn failed(&self, caller: Caller) {
        let now = system::uptime();
        let mut open = self.locked();
        open.failures.retain(|_, (since, _)| now.since(*since) < WINDOW);
        // Tokens cannot be guessed even without this limit, so forgetting the counts is harmless.
        if open.failures.len() >= MOST_CALLERS {
            open.failures.clear();
        }
        open.failures.entry(caller).or_insert((now, 0)).1 += 1;
    }

    fn locked(&self) -> MutexGuard<'_, Open> {
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
        assert_eq!(sessions.locked().until.len(), MOST_SESSIONS);
        let last = sessions.open();
        sessions.clear();
        assert!(!sessions.is_open(&last));
    }

    #[test]
    fn a_session_that_is_over_does_not_count() {
        let sessions = Sessions::default();
        let id = sessions.open();
        sessions.locked().until.insert(digest(&id), Uptime::ZERO);
        assert!(!sessions.is_open(&id));
    }

    #[test]
    fn who_sends_wrong_tokens_has_to_wait_and_others_do_not() {
        let sessions = Sessions::default();
        let [one, other] = [7, 8].map(|last| Caller::Remote([192, 0, 2, last].into()));
        for _ in 0..MOST_FAILURES {
            assert!(sessions.may_try(one));
            sessions.failed(one);
        }
        assert!(!sessions.may_try(one) && sessions.may_try(other));
    }

    #[test]
    fn the_id_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; cronkeeper-session=0123; c"));
        assert_eq!(shown(&headers).as_deref(), Some("0123"));
        assert_eq!(shown(&HeaderMap::new()), None);
    }
}
