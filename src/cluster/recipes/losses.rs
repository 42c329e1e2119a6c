//! The record that commits are lost, which the next leader reads, and whoever reads the history.
//!
//! A store shows its sessions that commits are lost, and nobody knows which: they leave the record by themselves
//! ([`Session::NOTES_LOSSES`]). Where that is not so, a node notices by what it has written itself.

use cronkeeper_core::clock::{Clock, earlier, later};
use cronkeeper_core::ledger::LostCommits;

use super::bounded;
use super::context::{At as _, SessionContext, SessionError};
use crate::paths;
use crate::tree::{Error, Life, Op, Session};

/// Notes that commits are lost.
///
/// What was to begin until a session timeout from now may have begun by one of them: a leader may continue for that
/// long at a server that does not know of the others.
pub async fn note<C: Session, K: Clock>(context: &SessionContext<C, K>) -> Result<(), SessionError> {
    let line = context.line()?;
    if C::NOTES_LOSSES {
        return Ok(());
    }
    let until = later(context.clock.now().wall, line.timeout());
    loop {
        let path = paths::REWOUND.to_owned();
        let (at, known) = match line.get(&path).await {
            Ok((data, stat)) => (Some(stat.version), bounded::SMALL.parse::<LostCommits>(&data).ok()),
            Err(Error::Missing) => (None, None),
            Err(error) => return Err(error).at(&path),
        };
        // Each run that is lost is noted: one record is enough for all that are found at once.
        let soon = earlier(until, line.timeout() / 2)..=until;
        if known.is_some_and(|known| soon.contains(&known.until)) {
            return Ok(());
        }
        // Another loss may last longer.
        let lost = LostCommits { v: 1, until: known.map_or(until, |known| known.until.max(until)) };
        let data = super::context::json(&lost);
        let op = match at {
            Some(version) => Op::Set { path: path.clone(), data, at: version.into() },
            None => Op::Create { path: path.clone(), data, life: Life::Lasting },
        };
        match line.commit(vec![op]).await {
            Ok(_) => return Ok(()),
            // Another node was quicker.
            Err(failed) if matches!(failed.error, Error::Exists | Error::Changed | Error::Missing) => {}
            Err(failed) => return Err(failed).at(&path),
        }
    }
}
