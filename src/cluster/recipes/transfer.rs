//! Transfer of leadership to a named node, in one multi.
//!
//! The multi deletes every cronkeeper entry between the leader and the named node; those nodes join again at the end of
//! the queue. An entry of another program is not cronkeeper's to delete, so it forbids the transfer. Sequence numbers
//! are never made by hand: the servers alone decide the order.

use std::collections::BTreeMap;

use super::context::{self, At as _, SessionContext, SessionError};
use super::place;
use crate::paths;
use crate::tree::{AtVersion, Error, Op, Session};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::election::TransferError;
use cronkeeper_core::term::{CandidateName, NodeName, SessionId};

/// A queue entry, as far as a transfer needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TransferEntry {
    name: String,
    /// `None` if the entry is not cronkeeper's.
    node: Option<NodeName>,
    /// The session that it belongs to.
    session: Option<SessionId>,
}

/// The node to lead next, and the queue entries that the transfer depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor {
    pub node: NodeName,
    candidate: String,
    between: Vec<String>,
}

/// Checks whether the holder of `own` can give leadership to `to`.
pub async fn find<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    own: CandidateName,
    to: NodeName,
) -> Result<Result<Successor, TransferError>, SessionError> {
    let names = place::ordered(context.line()?).await?;
    let stats = context::stats(context.line()?, paths::LEADER, names.clone()).await?;
    // An entry that cannot be read is not cronkeeper's.
    let found = context.get_small(paths::LEADER, names).await?.found;
    let nodes: BTreeMap<_, _> = found.into_iter().map(|(name, data, _)| (name, context::node_in(&data))).collect();
    let queue = stats.into_iter().map(|(name, stat)| {
        let node = nodes.get(&name).cloned().flatten();
        TransferEntry { name, node, session: stat.session }
    });
    let path = paths::member(&to);
    let member = match context.line()?.stat(&path).await {
        Ok(stat) => stat.and_then(|stat| stat.session),
        // An invalid name stays invalid: report that there is no such member, and let the term continue.
        Err(error) if error.is_of_path() => None,
        Err(error) => return Err(error).at(&path),
    };
    Ok(successor(&queue.collect::<Vec<_>>(), &own, to, member))
}

/// The successor and the entries between. `member` is the session that the member of `to` belongs to.
fn successor(
    queue: &[TransferEntry],
    own: &CandidateName,
    to: NodeName,
    member: Option<SessionId>,
) -> Result<Successor, TransferError> {
    let Some(at) = queue.iter().position(|entry| entry.name == own.0) else {
        return Err(TransferError::NotLeading);
    };
    if queue[at].node.as_ref() == Some(&to) {
        return Err(TransferError::Leads);
    }
    let behind = &queue[at + 1..];
    let Some(place) = behind.iter().position(|entry| entry.node.as_ref() == Some(&to)) else {
        return Err(TransferError::NotQueued);
    };
    if member.is_none() || member != behind[place].session {
        return Err(TransferError::NotAlive);
    }
    let between = &behind[..place];
    if let Some(foreign) = between.iter().find(|entry| entry.node.is_none()) {
        return Err(TransferError::Foreign { entry: CandidateName(foreign.name.clone()) });
    }
    let between = between.iter().map(|entry| entry.name.clone()).collect();
    Ok(Successor { node: to, candidate: behind[place].name.clone(), between })
}

/// Gives up the own place in favour of the successor.
///
/// Returns false if the queue had changed: then whoever is next leads. Repeating it after a lost answer does no harm.
pub async fn hand_over<C: Session, K: Clock>(
    context: SessionContext<C, K>,
    own: CandidateName,
    successor: Successor,
) -> Result<bool, SessionError> {
    let delete = |name: &String| Op::Delete { path: paths::under(paths::LEADER, name), at: AtVersion::Any };
    let check = |path| Op::Check { path, at: AtVersion::Any };
    let mut ops = vec![
        delete(&own.0),
        check(paths::under(paths::LEADER, &successor.candidate)),
        check(paths::member(&successor.node)),
    ];
    ops.extend(successor.between.iter().map(delete));
    match context.line()?.commit(ops).await {
        Ok(_) => Ok(true),
        Err(failed) if failed.error == Error::Missing => {
            if failed.index == Some(0) {
                return Ok(true);
            }
            place::withdraw(context, own).await?;
            Ok(false)
        }
        Err(failed) => Err(failed).at(paths::LEADER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(at: usize) -> SessionId {
        SessionId(format!("0x{at}"))
    }

    fn queue(entries: &[(&str, Option<&str>)]) -> Vec<TransferEntry> {
        let entry = |(at, &(name, node)): (usize, &(&str, Option<&str>))| TransferEntry {
            name: name.into(),
            node: node.map(NodeName::new),
            session: Some(session(at)),
        };
        entries.iter().enumerate().map(entry).collect()
    }

    fn transfer(entries: &[(&str, Option<&str>)], to: &str, member: Option<usize>) -> Result<Successor, TransferError> {
        successor(&queue(entries), &CandidateName("own".into()), NodeName::new(to), member.map(session))
    }

    #[test]
    fn all_that_stand_between_go_and_nobody_else() {
        let entries = [("own", Some("a")), ("x", Some("b")), ("y", Some("c")), ("z", Some("d"))];
        let expected = Successor { node: NodeName::new("c"), candidate: "y".into(), between: vec!["x".into()] };
        assert_eq!(transfer(&entries, "c", Some(2)), Ok(expected));
    }

    #[test]
    fn an_entry_of_another_program_before_the_successor_forbids_it_and_one_behind_does_not() {
        let entries = [("own", Some("a")), ("x", Some("b")), ("lock", None), ("z", Some("d"))];
        let foreign = TransferError::Foreign { entry: CandidateName("lock".into()) };
        assert_eq!(transfer(&entries, "d", Some(3)), Err(foreign));
        assert!(transfer(&entries, "b", Some(1)).is_ok());
    }

    #[test]
    fn the_successor_must_wait_in_the_queue_and_live_under_the_session_of_its_entry() {
        let entries = [("own", Some("a")), ("x", Some("b"))];
        assert_eq!(transfer(&entries, "c", Some(7)), Err(TransferError::NotQueued));
        assert_eq!(transfer(&entries, "b", None), Err(TransferError::NotAlive));
        assert_eq!(transfer(&entries, "b", Some(7)), Err(TransferError::NotAlive));
    }

    #[test]
    fn only_the_leader_gives_leadership_away_and_not_to_itself() {
        assert_eq!(transfer(&[("own", Some("a"))], "a", Some(0)), Err(TransferError::Leads));
        assert_eq!(transfer(&[("x", Some("b"))], "b", Some(0)), Err(TransferError::NotLeading));
    }
}
