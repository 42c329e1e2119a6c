//! Who looks at the page, and the keys by which a form proves that it comes from the page.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Extension, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::layout::{SignedIn, Standing};
use super::times::{Clock, Zone};
use super::view::Sight;
use crate::api::admission::Admitted;
use crate::api::authorize::Actor;
use crate::api::caller::{Caller, Grant};
use crate::api::network::{Network, Visibility};
use crate::api::roles::role_of;
use crate::api::{ApiState, RefusedRequest};
use cronkeeper_core::clock::system;

/// Makes the keys of forms. A page of another origin cannot read them.
pub(super) struct FormKeys([u8; 32]);

impl Default for FormKeys {
    fn default() -> Self {
        let secret = [*Uuid::new_v4().as_bytes(), *Uuid::new_v4().as_bytes()];
        Self(Sha256::digest(secret.concat()).into())
    }
}

impl FormKeys {
    /// The key of a session's forms; without a session, of those on the socket.
    fn of(&self, session: Option<&str>) -> String {
        let keyed = Sha256::new().chain_update(self.0).chain_update(session.unwrap_or_default()).finalize();
        keyed.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn is_right(&self, session: Option<&str>, shown: &str) -> bool {
        self.of(session).as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

/// What is known of a request for a page.
pub(super) struct Visitor {
    pub visibility: Visibility,
    pub standing: Standing,
    /// The zone in which the visitor wants to see times.
    pub zone: Zone,
    /// How the last action ended, in the page's own words.
    pub done: Option<&'static str>,
    /// The tag of what the browser shows already.
    pub known_tag: Option<String>,
    pub network: Option<Arc<Network>>,
    /// Who it is, in a request to change something.
    actor: Option<Actor>,
    caller: Caller,
    grant: Option<Grant>,
    connection: Option<Arc<Admitted>>,
}

impl FromRequestParts<Arc<ApiState>> for Visitor {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<ApiState>) -> Result<Self, Infallible> {
        let extensions = &parts.extensions;
        let visibility = extensions.get().copied().unwrap_or(Visibility::Outline);
        let network = extensions.get::<Arc<Network>>().cloned();
        let grant = extensions.get::<Grant>().cloned();
        let caller = extensions.get().copied().unwrap_or(Caller::Unknown);
        let standing = match role_of(caller, grant.as_ref()) {
            None => Standing::Stranger { can_sign_in: network.as_ref().is_some_and(|network| network.has_token()) },
            Some(role) => Standing::Known {
                form_key: state.page.keys.of(session(grant.as_ref())),
                role,
                signed_in: signed_in(grant.as_ref()),
            },
        };
        let actor = extensions.get().cloned();
        let known_tag = parts.headers.get(header::IF_NONE_MATCH).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let done = parts.uri.query().and_then(done);
        let zone = zone(&parts.headers).unwrap_or_else(Zone::utc);
        let connection = extensions.get::<Arc<Admitted>>().cloned();
        Ok(Self { visibility, standing, zone, done, known_tag, network, actor, caller, grant, connection })
    }
}

fn session(grant: Option<&Grant>) -> Option<&str> {
    match grant {
        Some(Grant::Session { id, .. }) => Some(id),
        Some(Grant::Token(_) | Grant::Peer) | None => None,
    }
}

fn signed_in(grant: Option<&Grant>) -> SignedIn {
    match grant {
        Some(Grant::Session { identity, .. }) => SignedIn::Session(Arc::clone(&identity.name)),
        Some(Grant::Token(identity)) => SignedIn::Token(Arc::clone(&identity.name)),
        Some(Grant::Peer) | None => SignedIn::No,
    }
}

/// The cookie with the name of a visitor's zone.
const ZONE: &str = "cronkeeper-zone";

/// The zone in a request's cookies.
fn zone(headers: &HeaderMap) -> Option<Zone> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == ZONE).and_then(|(_, name)| Zone::parse(name))
}

/// The value of `Set-Cookie` that keeps the choice of a zone for a year.
pub(super) fn zone_cookie(zone: &Zone) -> String {
    format!("{ZONE}={}; Max-Age=31536000; Path=/; HttpOnly; SameSite=Strict", zone.name())
}

/// The text for a result in the address. The address is not trusted with the text itself.
fn done(query: &str) -> Option<&'static str> {
    query.split('&').find_map(|pair| match pair.strip_prefix("done=")? {
        "triggered" => Some("The run was requested."),
        "paused" => Some("The job is paused: its occurrences are skipped until it is resumed."),
        "resumed" => Some("The job is resumed."),
        "killing" => Some("The kill was requested."),
        "drained" => Some("The node is drained: it does not lead and starts nothing. Its runs in flight continue."),
        "undrained" => Some("The node is no longer drained: it joins the queue at its end."),
        "handed-over" => Some("This node has resigned. Another one takes over."),
        _ => None,
    })
}

impl Visitor {
    pub fn may_act(&self) -> bool {
        self.standing.may_act()
    }

    /// Times as this visitor sees them now.
    pub fn clock(&self) -> Clock {
        Clock::new(system::now().wall, self.zone.clone())
    }

    /// The visitor's session; absent without one.
    pub fn session(&self) -> Option<&str> {
        session(self.grant.as_ref())
    }

    pub fn caller(&self) -> Caller {
        self.caller
    }

    pub fn connection(&self) -> Option<&Admitted> {
        self.connection.as_deref()
    }

    /// What is shown to this visitor.
    pub fn sight(&self) -> Sight {
        Sight { visibility: self.visibility, may_act: self.may_act() }
    }

    /// The visitor who sends a form with this key to change something.
    pub fn operator(&self, state: &ApiState, form_key: &str) -> Result<Actor, RefusedRequest> {
        self.check_key(state, form_key)?;
        self.actor.clone().ok_or_else(|| RefusedRequest::new(StatusCode::FORBIDDEN, "this needs a role"))
    }

    /// Refuses a form that is not of a page of this visitor.
    pub fn check_key(&self, state: &ApiState, form_key: &str) -> Result<(), RefusedRequest> {
        if state.page.keys.is_right(self.session(), form_key) {
            return Ok(());
        }
        let error = "this form comes from a page that is no longer valid: load the page again";
        Err(RefusedRequest::new(StatusCode::FORBIDDEN, error))
    }
}

/// The request's connection.
pub(super) type Connection = Extension<Arc<Admitted>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_counts_for_its_own_session_only() {
        let (keys, others) = (FormKeys::default(), FormKeys::default());
        let key = keys.of(Some("a"));
        assert!(keys.is_right(Some("a"), &key));
        assert!(!keys.is_right(Some("b"), &key) && !keys.is_right(None, &key) && !others.is_right(Some("a"), &key));
        assert!(!keys.is_right(Some("a"), ""));
    }

    #[test]
    fn the_zone_is_found_among_other_cookies() {
        let of = |cookies: &'static str| {
            let headers = HeaderMap::from_iter([(header::COOKIE, header::HeaderValue::from_static(cookies))]);
            zone(&headers).map(|zone| zone.name().to_owned())
        };
        assert_eq!(of("a=b; cronkeeper-zone=Europe/Berlin; c").as_deref(), Some("Europe/Berlin"));
        assert_eq!((of("cronkeeper-zone=<b>"), of("a=b")), (None, None));
        let berlin = Zone::parse("Europe/Berlin").expect("a zone");
        assert!(zone_cookie(&berlin).starts_with("cronkeeper-zone=Europe/Berlin; "));
    }

    #[test]
    fn the_address_chooses_among_texts_and_adds_none() {
        assert_eq!(
            done("page=1&done=paused"),
            Some("The job is paused: its occurrences are skipped until it is resumed.")
        );
        assert_eq!(done("done=<b>"), None);
    }
}
