//! Terms open in the order of their tokens, and once one has opened nothing fenced by an older one is accepted.
//!
//! Judged by what the ensemble commits: the opening sets `/leader` behind a check of the own candidate, and every fenced
//! write has such a check. A term's token is the creation of its candidate.

use std::collections::BTreeMap;

use cronkeeper::clock::Uptime;
use cronkeeper::zookeeper::client::Op;

use super::super::facts::Fact;
use super::{Invariant, below, ops};

const QUEUE: &str = "/leader";

#[derive(Default)]
pub struct TokensGrow {
    candidates: BTreeMap<String, i64>,
    opened: i64,
}

impl Invariant for TokensGrow {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        let Fact::Committed { entry, touched } = fact else { return Ok(()) };
        for path in touched.iter().filter(|path| below(path, QUEUE).is_some()) {
            self.candidates.entry(path.clone()).or_insert(entry.txn.zxid);
        }
        let fence = ops(entry).iter().find_map(|op| match op {
            Op::Check { path, .. } => self.candidates.get(path),
            _ => None,
        });
        let Some(&token) = fence else { return Ok(()) };
        if token < self.opened {
            return Err(format!(
                "a write fenced by the token {token} was accepted after the term {} opened",
                self.opened
            ));
        }
        if ops(entry).iter().any(|op| matches!(op, Op::Set { path, .. } if path == QUEUE)) {
            self.opened = token;
        }
        Ok(())
    }
}
