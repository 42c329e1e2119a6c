//! The outbox of notifications, read and written on sessions lent to people: never on the session that renews the lease.

use std::collections::{BTreeMap, BTreeSet};

use super::bounded;
use super::context::{self, At as _, SessionError, json};
use super::{LedgerReader, transaction};
use crate::paths;
use crate::tree::{AtVersion, CommitError, Error, Lend, Life, Op, Session};
use cronkeeper_core::job::ChannelName;
use cronkeeper_core::ledger::{ChannelEntry, OperatorError, OperatorFuture, Outbox};
use cronkeeper_core::run::{ChannelRecord, Notice, NoticeKey, Version};

impl<L: Lend> Outbox for LedgerReader<L> {
    fn keys(&self) -> OperatorFuture<'_, BTreeSet<NoticeKey>> {
        Box::pin(async move { read(async { keys(&self.line().await?).await }.await) })
    }

    fn notices(&self, wanted: BTreeSet<NoticeKey>) -> OperatorFuture<'_, BTreeMap<NoticeKey, Result<Notice, String>>> {
        Box::pin(async move { read(async { notices(&self.line().await?, &wanted).await }.await) })
    }

    fn add(&self, notice: Notice) -> OperatorFuture<'_, ()> {
        Box::pin(async move {
            let line = self.line().await.map_err(unwritten)?;
            written(line.commit(transaction::notices(&[notice]).collect()).await, paths::OUTBOX).map(drop)
        })
    }

    fn remove(&self, keys: BTreeSet<NoticeKey>) -> OperatorFuture<'_, ()> {
        Box::pin(async move {
            let line = self.line().await.map_err(unwritten)?;
            let paths: Vec<String> = keys.into_iter().map(paths::notice).collect();
            for paths in paths.chunks(context::MOST_DELETES.min(line.limits().jobs(1))) {
                removed(&line, paths).await?;
            }
            Ok(())
        })
    }

    fn channel(&self, name: ChannelName) -> OperatorFuture<'_, ChannelEntry> {
        Box::pin(async move { read(async { channel(&self.line().await?, &name).await }.await) })
    }

    fn put_channel(
        &self,
        name: ChannelName,
        record: ChannelRecord,
        at: Option<Version>,
    ) -> OperatorFuture<'_, Option<Version>> {
        Box::pin(async move {
            let line = self.line().await.map_err(unwritten)?;
            let (path, data) = (paths::channel(&name), json(&record));
            let write = match at {
                Some(at) => Op::Set { path: path.clone(), data, at: at.into() },
                None => Op::Create { path: path.clone(), data, life: Life::Lasting },
            };
            match line.commit(vec![write]).await {
                Err(failed) if matches!(failed.error, Error::Changed | Error::Exists | Error::Missing) => Ok(None),
                done => written(done, &path).map(|_| Some(at.map_or(Version::FIRST, Version::next))),
            }
        })
    }
}

async fn keys<C: Session>(client: &C) -> Result<BTreeSet<NoticeKey>, SessionError> {
    let names = context::names(client, paths::OUTBOX).await?;
    Ok(names.iter().filter_map(|name| NoticeKey::parse(name)).collect())
}

async fn notices<C: Session>(
    client: &C,
    wanted: &BTreeSet<NoticeKey>,
) -> Result<BTreeMap<NoticeKey, Result<Notice, String>>, SessionError> {
    let names = wanted.iter().map(NoticeKey::to_string).collect();
    let reads = context::get_history(client, paths::OUTBOX, names).await?;
    let found = reads.found.into_iter().map(|(name, data, _)| (name, bounded::HISTORY.parse(&data)));
    let unread = reads.unread.into_iter().map(|(name, error)| (name, Err(error.to_string())));
    Ok(found.chain(unread).filter_map(|(name, read)| Some((NoticeKey::parse(&name)?, read))).collect())
}

async fn channel<C: Session>(client: &C, name: &ChannelName) -> Result<ChannelEntry, SessionError> {
    let path = paths::channel(name);
    match client.get(&path).await {
        Ok((data, stat)) => {
            let record = bounded::CHANNELS.parse(&data);
            let is_damaged = record.is_err();
            Ok(ChannelEntry { record: record.unwrap_or_default(), at: Some(stat.version), is_damaged })
        }
        Err(Error::Missing) => Ok(ChannelEntry::default()),
        Err(error) => Err(error).at(&path),
    }
}

/// Removes these records in one commit; if one of them is gone, one by one.
async fn removed<C: Session>(client: &C, paths: &[String]) -> Result<(), OperatorError> {
    let delete = |path: &String| Op::Delete { path: path.clone(), at: AtVersion::Any };
    match client.commit(paths.iter().map(delete).collect()).await {
        Err(failed) if failed.error.is_of_state() => {}
        done => return written(done, paths::OUTBOX).map(drop),
    }
    for path in paths {
        match client.commit(vec![delete(path)]).await {
            Err(failed) if failed.error.is_of_state() => {}
            done => written(done, path).map(drop)?,
        }
    }
    Ok(())
}

fn read<T>(result: Result<T, SessionError>) -> Result<T, OperatorError> {
    result.map_err(|error| OperatorError::Unread(error.to_string()))
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err passes it")]
fn unwritten(error: SessionError) -> OperatorError {
    OperatorError::Unwritten(error.to_string())
}

fn written<T>(result: Result<T, CommitError>, path: &str) -> Result<T, OperatorError> {
    result.map_err(|failed| {
        let said = SessionError::of(&failed.error, path).to_string();
        match failed.error {
            Error::Unanswered(_) | Error::SessionOver => OperatorError::Unclear(said),
            _ => OperatorError::Unwritten(said),
        }
    })
}
