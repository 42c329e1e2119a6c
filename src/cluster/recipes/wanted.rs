//! What operators want of a node, as recorded under `wanted`: reads by the node itself, and writes for operators.
//!
//! Each node watches its own record only.

use std::collections::BTreeMap;

use super::bounded;
use super::context::{self, At as _, SessionContext, SessionError, json};
use super::damage::Damage;
use crate::paths;
use crate::tree::{Error, Life, Op, Session, Stat};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::run::{Drain, NodeControl};
use cronkeeper_core::term::NodeName;

/// What is wanted of this node, with a watch on the record, and what is wrong with the record, if anything.
pub struct Wanted<W> {
    pub control: NodeControl,
    pub watch: W,
    pub damage: Option<Damage>,
}

/// Reads what is wanted of this node.
pub async fn read_own<C: Session, K: Clock>(context: SessionContext<C, K>) -> Result<Wanted<C::Watch>, SessionError> {
    let path = paths::wanted(&context.me.node);
    let line = context.line()?;
    // In this order, so that no change is missed; both are sent before the first answer. The check for existence needs
    // no right to read.
    let (watching, reading) = (line.stat_and_watch(&path), line.get(&path));
    let (_, watch) = watching.await.at(&path)?;
    let (control, damage) = match reading.await {
        Ok((data, _)) => parsed(&path, &data),
        Err(Error::Missing) => (NodeControl::default(), None),
        Err(error) if error.is_of_path() => (NodeControl::unreadable(), Some(Damage::unread(path, &error))),
        Err(error) => return Err(error).at(&path),
    };
    Ok(Wanted { control, watch, damage })
}

fn parsed(path: &str, data: &[u8]) -> (NodeControl, Option<Damage>) {
    match bounded::SMALL.parse(data) {
        Ok(control) => (control, None),
        Err(error) => (NodeControl::unreadable(), Some(Damage::new(path, error))),
    }
}

/// The nodes that are drained. A record that cannot be read counts, as it does for its node.
pub async fn drained<C: Session>(client: &C) -> Result<BTreeMap<NodeName, Drain>, SessionError> {
    let names = context::or_none(context::names(client, paths::WANTED).await)?;
    let records = context::get_small(client, paths::WANTED, names).await?;
    let unread = records.unread.into_iter().map(|(name, _)| (name, NodeControl::unreadable()));
    let found = records.found.into_iter().map(|(name, data, _)| (name, NodeControl::read(&data)));
    let named =
        found.chain(unread).filter_map(|(name, control)| Some((NodeName::parse(&name).ok()?, control.drained?)));
    Ok(named.collect())
}

/// What is wanted of a node, and the record's stat if there is one.
pub(super) async fn read<C: Session>(client: &C, node: &NodeName) -> Result<(NodeControl, Option<Stat>), SessionError> {
    let path = paths::wanted(node);
    match client.get(&path).await {
        Ok((data, stat)) => Ok((parsed(&path, &data).0, Some(stat))),
        Err(Error::Missing) => Ok((NodeControl::default(), None)),
        Err(error) if error.is_of_path() => Ok((NodeControl::unreadable(), client.stat(&path).await.at(&path)?)),
        Err(error) => Err(error).at(&path),
    }
}

/// The write that replaces a record that was read. A record that wants nothing is removed.
pub(super) fn replace(node: &NodeName, control: &NodeControl, was: Option<&Stat>) -> Op {
    let path = paths::wanted(node);
    match was.map(|stat| stat.version) {
        Some(version) if *control == NodeControl::default() => Op::Delete { path, at: version.into() },
        Some(version) => Op::Set { path, data: json(control), at: version.into() },
        None => Op::Create { path, data: json(control), life: Life::Lasting },
    }
}
