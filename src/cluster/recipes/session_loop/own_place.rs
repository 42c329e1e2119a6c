//! The node's own record as a place to run jobs. It stays when the node is away, so it is written only where it differs.

use std::time::Duration;

use super::futures::{BoxFuture, under_way};
use crate::paths;
use crate::recipes::bounded;
use crate::recipes::context::{At as _, SessionContext, SessionError, json};
use crate::recipes::requests;
use crate::tree::{AtVersion, Error, Life, Op, Session};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::Place;

/// Time before a try that failed is repeated.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps the record as it must be.
pub(super) struct OwnPlace {
    /// When it is checked, if that is due.
    at: Option<Uptime>,
    keeping: Option<BoxFuture<Result<(), SessionError>>>,
}

impl OwnPlace {
    pub fn new() -> Self {
        Self { at: Some(Uptime::ZERO), keeping: None }
    }

    /// Waits for the end of a check, forever if there is none. Cancellation safe: it is kept.
    pub async fn kept(&mut self) -> Result<(), SessionError> {
        under_way(self.keeping.as_mut()).await
    }

    /// When the next check is due: once the member exists, which shows whose name it is.
    pub fn at(&self, is_member: bool) -> Option<Uptime> {
        self.at.filter(|_| is_member && self.keeping.is_none())
    }

    /// A check is due.
    pub fn check(&mut self, now: Uptime) {
        self.at.get_or_insert(now);
    }

    /// Starts a check if one is due.
    pub fn start<C: Session, K: Clock>(
        &mut self,
        now: Uptime,
        is_member: bool,
        place: impl FnOnce() -> Place,
        context: &SessionContext<C, K>,
    ) {
        if self.at(is_member).is_some_and(|at| at <= now) {
            self.at = None;
            self.keeping = Some(Box::pin(keep(context.clone(), place())));
        }
    }

    /// A check is done. `is_retried`: it failed, and may succeed soon.
    pub fn finish(&mut self, now: Uptime, is_retried: bool) {
        self.keeping = None;
        if is_retried {
            self.at = Some(now + PAUSE);
        }
    }
}

/// Writes the record unless it is right, and rings the bell of the places.
async fn keep<C: Session, K: Clock>(context: SessionContext<C, K>, place: Place) -> Result<(), SessionError> {
    let (path, data) = (paths::place(&context.me.node), json(&place));
    let stat = context.line()?.stat(&path).await.at(&path)?;
    if let Some(stat) = &stat
        && bounded::NODES.check(stat.bytes).is_ok()
    {
        match context.line()?.get(&path).await {
            Ok((found, _)) if found == data => return Ok(()),
            Err(error) if !error.is_of_path() => return Err(error).at(&path),
            // What cannot be read is written again, if that is allowed.
            Ok(_) | Err(_) => {}
        }
    }
    let write = match stat {
        Some(stat) => Op::Set { path: path.clone(), data, at: AtVersion::Version(stat.version) },
        None => Op::Create { path: path.clone(), data, life: Life::Lasting },
    };
    match requests::write_of_node(context.line()?, write).await {
        // It was written after all, by a try whose answer was lost, or by hand: the next check reads it.
        Err(failed) if failed.error == Error::Exists => Ok(()),
        done => done.at(&path).map(drop),
    }
}
