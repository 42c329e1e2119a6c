//! Proofs by which nodes show each other that they have the token, without sending it.
//!
//! ```text
//! Authorization: Cronkeeper-Peer to=host-b, at=1763606400123, nonce=<32 hex digits>, mac=<64 hex digits>
//! ```
//!
//! The address of another node comes from a record in the coordination service, so it may be anybody's. A proof is
//! therefore useless to whoever receives it: it covers the method, the path with its query, the name of the asked node,
//! and the address that it was asked at, which is the request's `Host`. A stranger cannot pass it on to the real node,
//! because that node has another address. It counts once, and only within a minute.
//!
//! What a proof cannot prevent is that its receiver tries tokens until one fits. That takes as long as the token is
//! good: one that `openssl rand -hex 32` wrote is never found.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use cronkeeper_core::term::NodeName;

/// The scheme of the `Authorization` header.
pub(in crate::api) const SCHEME: &str = "Cronkeeper-Peer";
/// How far the clocks of two nodes may differ.
const MOST_SKEW: SignedDuration = SignedDuration::from_secs(60);
/// Most proofs that are remembered, for the two minutes in which they could be shown again. Output that is fetched as
/// fast as can be takes far fewer; they are some megabytes.
const MOST_REMEMBERED: usize = 100_000;

/// The request that a proof is for.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct Asked<'a> {
    pub method: &'a str,
    /// The path with its query, as in the request line.
    pub path: &'a str,
    /// The request's `Host`.
    pub host: &'a str,
}

/// The key of proofs, made from a token or, if the node keeps only that, from its digest.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::api) struct ProofKey([u8; 32]);

impl ProofKey {
    pub fn of(token: &[u8]) -> Self {
        Self(Sha256::new().chain_update("cronkeeper: proofs between nodes\0").chain_update(token).finalize().into())
    }

    /// The key of a token that is kept as its digest. Whoever has the token can make it, and so can whoever reads the file.
    pub fn of_digest(digest: &[u8; 32]) -> Self {
        Self(
            Sha256::new()
                .chain_update("cronkeeper: proofs between nodes, by a digest\0")
                .chain_update(digest)
                .finalize()
                .into(),
        )
    }

    /// The value of `Authorization` for a request to this node.
    pub fn prove(&self, asked: Asked<'_>, node: &NodeName, at: Timestamp) -> String {
        let nonce = Uuid::new_v4().simple().to_string();
        let proof = Proof { to: node.as_str(), at: at.as_millisecond(), nonce: &nonce, mac: "" };
        let mac = self.mac(asked, &proof);
        format!("{SCHEME} to={node}, at={}, nonce={nonce}, mac={mac}", proof.at)
    }

    /// True if the proof was made with this key for this request. Compares in constant time.
    fn fits(&self, asked: Asked<'_>, proof: &Proof<'_>) -> bool {
        self.mac(asked, proof).as_bytes().ct_eq(proof.mac.as_bytes()).into()
    }

    fn mac(&self, asked: Asked<'_>, proof: &Proof<'_>) -> String {
        let at = proof.at.to_string();
        let mut covered = Vec::new();
        for part in [asked.method, asked.path, asked.host, proof.to, &at, proof.nonce] {
            // With its length before it, no part can pass for two, nor two for one.
            covered.extend((part.len() as u64).to_be_bytes());
            covered.extend(part.as_bytes());
        }
        let mac = hmac::sign(&hmac::Key::new(HMAC_SHA256, &self.0), &covered);
        mac.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A proof as a request shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Proof<'a> {
    /// The node that is asked.
    to: &'a str,
    /// When it was made, in milliseconds since 1970, by the clock of the node that asks.
    at: i64,
    nonce: &'a str,
    mac: &'a str,
}

/// True if the value of `Authorization` is meant as a proof.
pub(super) fn is_meant(value: &[u8]) -> bool {
    let scheme = value.split(|byte| *byte == b' ').next().unwrap_or_default();
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes())
}

impl<'a> Proof<'a> {
    fn parse(value: &'a [u8]) -> Option<Self> {
        let (_, rest) = str::from_utf8(value).ok()?.split_once(' ')?;
        let mut fields = rest.split(", ");
        let mut field = |name: &str| -> Option<&'a str> { fields.next()?.strip_prefix(name)?.strip_prefix('=') };
        let proof =
            Self { to: field("to")?, at: field("at")?.parse().ok()?, nonce: field("nonce")?, mac: field("mac")? };
        fields.next().is_none().then_some(proof)
    }
}

/// Why a proof does not count.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadProof {
    #[error(
        "the proof of the token does not fit: all nodes need the same token in `--api-token-file`, the first of the file \
         if it has several, and must reach each other without a proxy that changes requests"
    )]
    OtherToken,
    #[error("this is {own} and not {asked}: the record of one of them names the address of the other")]
    OtherNode { own: NodeName, asked: String },
    #[error(
        "the clock of {own} is {} s {} that of the node that asks, and at most {} s are accepted: correct the clock that is wrong",
        ahead.as_secs().abs(), if ahead.is_negative() { "behind" } else { "ahead of" }, MOST_SKEW.as_secs()
    )]
    OtherTime { own: NodeName, ahead: SignedDuration },
    #[error("this proof was shown before, and counts once")]
    Used,
    #[error("{own} was asked {MOST_REMEMBERED} times by other nodes within two minutes: ask again later")]
    TooMany { own: NodeName },
}

/// The proofs that were accepted lately.
#[derive(Debug, Default)]
pub(super) struct Accepted(Mutex<BTreeSet<(i64, Uuid)>>);

impl Accepted {
    /// Checks the value of an `Authorization` header that is [meant](is_meant) as a proof by one of these keys. Says what
    /// is wrong only to who has a token.
    pub fn check<'k>(
        &self,
        value: &[u8],
        asked: Asked<'_>,
        mut keys: impl Iterator<Item = &'k ProofKey>,
        own: &NodeName,
        now: Timestamp,
    ) -> Result<(), BadProof> {
        let proof =
            Proof::parse(value).filter(|proof| keys.any(|key| key.fits(asked, proof))).ok_or(BadProof::OtherToken)?;
        if proof.to != own.as_str() {
            return Err(BadProof::OtherNode { own: own.clone(), asked: proof.to.to_owned() });
        }
        let now = now.as_millisecond();
        // Who has the token may choose any number.
        let ahead = SignedDuration::from_millis(now.saturating_sub(proof.at));
        if ahead.abs() > MOST_SKEW {
            return Err(BadProof::OtherTime { own: own.clone(), ahead });
        }
        let nonce = Uuid::try_parse(proof.nonce).map_err(|_| BadProof::OtherToken)?;
        self.remember(proof.at, nonce, now, own)
    }

    fn remember(&self, at: i64, nonce: Uuid, now: i64, own: &NodeName) -> Result<(), BadProof> {
        let mut accepted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let too_old = now.saturating_sub(MOST_SKEW.as_secs() * 1_000);
        while accepted.first().is_some_and(|(at, _)| *at < too_old) {
            accepted.pop_first();
        }
        if accepted.contains(&(at, nonce)) {
            return Err(BadProof::Used);
        }
        // One that is forgotten too early would count twice.
        if accepted.len() >= MOST_REMEMBERED {
            return Err(BadProof::TooMany { own: own.clone() });
        }
        accepted.insert((at, nonce));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::Fuzz;

    const ASKED: Asked<'_> =
        Asked { method: "GET", path: "/v1/runs/load.20261120T024000Z/output?local=true", host: "192.0.2.7:7475" };

    fn key() -> ProofKey {
        ProofKey::of(b"0123456789abcdef")
    }

    fn own() -> NodeName {
        NodeName::new("host-b")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_763_606_400 + second).unwrap()
    }

    /// Shows a proof that was made for [`ASKED`] and `host-b`, when the clock of the asked node is at `now`.
    fn shown(accepted: &Accepted, proof: &str, asked: Asked<'_>, now: i64) -> Result<(), BadProof> {
        assert!(is_meant(proof.as_bytes()));
        accepted.check(proof.as_bytes(), asked, [&key()].into_iter(), &own(), at(now))
    }

    #[test]
    fn a_proof_counts_for_its_request_only() {
        let accepted = Accepted::default();
        let proof = || key().prove(ASKED, &own(), at(0));
        for other in [
            Asked { method: "POST", ..ASKED },
            Asked { path: "/v1/runs/load.20261120T024000Z/output", ..ASKED },
            Asked { path: "/v1/runs/load.20261120T024000Z/output?local=true&", ..ASKED },
            Asked { host: "192.0.2.7:7476", ..ASKED },
            Asked { host: "192.0.2.8:7475", ..ASKED },
        ] {
            assert_eq!(shown(&accepted, &proof(), other, 0), Err(BadProof::OtherToken), "{other:?}");
        }
        assert_eq!(shown(&accepted, &proof(), ASKED, 0), Ok(()));
        let foreign = ProofKey::of(b"0123456789abcdeF").prove(ASKED, &own(), at(0));
        assert_eq!(shown(&accepted, &foreign, ASKED, 0), Err(BadProof::OtherToken));
        let elsewhere = key().prove(ASKED, &NodeName::new("host-c"), at(0));
        let refused = shown(&accepted, &elsewhere, ASKED, 0).unwrap_err();
        assert!(refused.to_string().starts_with("this is host-b and not host-c"), "{refused}");
    }

    #[test]
    fn a_proof_counts_once_and_for_a_minute_around_its_time() {
        let accepted = Accepted::default();
        let proof = |second| key().prove(ASKED, &own(), at(second));
        for now in [-60, 0, 60] {
            assert_eq!(shown(&accepted, &proof(0), ASKED, now), Ok(()), "{now}");
        }
        let refused = |now| shown(&accepted, &proof(0), ASKED, now).unwrap_err().to_string();
        assert!(refused(61).starts_with("the clock of host-b is 61 s ahead of that of the node that asks"));
        assert!(refused(-75).starts_with("the clock of host-b is 75 s behind that of the node that asks"));
        let once = proof(100);
        assert_eq!(shown(&accepted, &once, ASKED, 40), Ok(()));
        for now in [40, 100, 160] {
            assert_eq!(shown(&accepted, &once, ASKED, now), Err(BadProof::Used), "{now}");
        }
        assert!(matches!(shown(&accepted, &once, ASKED, 161), Err(BadProof::OtherTime { .. })));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_forgotten_in_time() {
        let accepted = Accepted::default();
        let remember = |now: i64| accepted.remember(now, Uuid::new_v4(), now, &own());
        for _ in 0..MOST_REMEMBERED {
            assert_eq!(remember(0), Ok(()));
        }
        assert_eq!(remember(60_000), Err(BadProof::TooMany { own: own() }));
        assert_eq!(remember(60_001), Ok(()));
        assert_eq!(accepted.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_time_that_no_clock_shows_is_refused() {
        let accepted = Accepted::default();
        for at in [i64::MIN, i64::MAX] {
            let proof = Proof { to: "host-b", at, nonce: "00000000000000000000000000000001", mac: "" };
            let mac = key().mac(ASKED, &proof);
            let text = format!("{SCHEME} to=host-b, at={at}, nonce={}, mac={mac}", proof.nonce);
            let refused = shown(&accepted, &text, ASKED, 0).unwrap_err();
            assert!(matches!(refused, BadProof::OtherTime { .. }) && !refused.to_string().is_empty());
        }
    }

    /// Nobody but who has the token makes a proof, whatever it looks like.
    #[test]
    fn fuzz_proof_of_a_request() {
        let words = &["Cronkeeper-Peer ", "to=", "host-b", ", ", "at=", "-", "+", "0", "nonce=", "mac=", "=", "f"];
        Fuzz { longest: 4 << 10, ..Fuzz::of("proof", words) }.run(|input| {
            let checked = Accepted::default().check(input, ASKED, [&key()].into_iter(), &own(), at(0));
            assert!(!is_meant(input) || checked == Err(BadProof::OtherToken), "{checked:?}");
            Proof::parse(input).is_some()
        });
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn any_other_header_is_no_proof(at_byte in 0_usize..200, byte in any::<u8>(), text in "\\PC*") {
            let proof = key().prove(ASKED, &own(), at(0));
            let mut changed = proof.clone().into_bytes();
            let place = SCHEME.len() + at_byte % (changed.len() - SCHEME.len());
            let is_changed = std::mem::replace(&mut changed[place], byte) != byte;
            let check = |value: &[u8]| Accepted::default().check(value, ASKED, [&key()].into_iter(), &own(), at(0));
            prop_assert_eq!(check(&changed).is_err(), is_changed);
            let other = format!("{SCHEME} {text}");
            prop_assert!(check(text.as_bytes()).is_err() && check(other.as_bytes()).is_err());
        }
    }
}
