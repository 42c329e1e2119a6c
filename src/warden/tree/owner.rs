//! The owner of an inherited process: the tree that it belongs to.
//!
//! First come the things that no process can change about itself: cgroup, audit session, session and group, age, user.
//! The environment decides only if several trees remain after that and none of them has a cgroup: see `reap`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Tree;
use crate::warden::procfs::{self, Process, TICKS_PER_SECOND, Uids};
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::process::TreeId;
use cronkeeper_core::run::KnownBy;

const ROOT: u32 = 0;

/// A process that the warden inherited, with the attributes that it cannot change.
#[derive(Clone, Debug)]
pub(in crate::warden) struct Orphan {
    pub(in crate::warden) process: Process,
    cgroup: String,
    audit_session: Option<u32>,
    uids: Option<Uids>,
}

impl Orphan {
    /// None if it has ended.
    pub(in crate::warden) fn read(pid: i32) -> Option<Self> {
        let (cgroup, audit_session, uids) = (procfs::cgroup(pid), procfs::audit_session(pid), procfs::uids(pid));
        // Read last: if the process is alive now, everything above was read from a living process.
        let process = Process::read(pid).filter(|process| !process.is_dead)?;
        Some(Self { process, cgroup, audit_session, uids })
    }
}

/// The owner of an inherited process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::warden) enum Owner {
    Tree(TreeId),
    /// It belonged to a tree that no longer exists.
    Nobody,
    /// One of these, oldest first: the process changed session and group. It is examined again whenever one of them
    /// ends, so at the latest it dies with the last of them.
    OneOf(Vec<TreeId>),
}

/// Finds the owner of `orphan`.
///
/// By cgroup, by audit session, by having been seen in the tree, by session or group, and then by being younger than
/// only one tree of its user.
pub(in crate::warden) fn owner(orphan: &Orphan, trees: &BTreeMap<TreeId, Tree>) -> Owner {
    let holds = |tree: &Tree| tree.cgroup.as_ref().is_some_and(|cgroup| cgroup.holds(&orphan.cgroup));
    if let Some((tree_id, _)) = trees.iter().find(|(_, tree)| holds(tree)) {
        return Owner::Tree(*tree_id);
    }
    let older = trees.iter().filter(|(_, tree)| !tree.is_cleared && tree.is_older_than(&orphan.process));
    let older: Vec<(TreeId, &Tree)> = older.map(|(tree_id, tree)| (*tree_id, tree)).collect();
    if let Some((tree_id, _)) = older.iter().find(|(_, tree)| tree.is_known_to_have(orphan)) {
        return Owner::Tree(*tree_id);
    }
    match likely(orphan, &older).as_slice() {
        [] => Owner::Nobody,
        [tree_id] => Owner::Tree(*tree_id),
        several => Owner::OneOf(several.to_vec()),
    }
}

/// The trees that it may belong to.
///
/// A process needs root's rights to leave a cgroup or an audit session, so trees that are known by one are considered
/// only if there are no others.
fn likely(orphan: &Orphan, older: &[(TreeId, &Tree)]) -> Vec<TreeId> {
    let loose = |(_, tree): &&(TreeId, &Tree)| tree.known_by == KnownBy::Environment;
    let is_users = |(_, tree): &&(TreeId, &Tree)| orphan.uids.is_none_or(|uids| uids.contains(&tree.uid));
    // Root can become any user.
    let is_roots = |(_, tree): &&(TreeId, &Tree)| tree.uid == ROOT;
    let all = narrowed(older.iter().collect(), loose);
    let all = match all.iter().any(is_users) {
        true => narrowed(all, is_users),
        false => narrowed(all, is_roots),
    };
    all.into_iter().map(|(tree_id, _)| *tree_id).collect()
}

/// Filters by `is_so`, unless nothing would remain.
fn narrowed<'a, 'b>(
    all: Vec<&'a (TreeId, &'b Tree)>,
    is_so: impl Fn(&&'a (TreeId, &'b Tree)) -> bool,
) -> Vec<&'a (TreeId, &'b Tree)> {
    let some: Vec<_> = all.iter().copied().filter(|tree| is_so(tree)).collect();
    if some.is_empty() { all } else { some }
}

impl Tree {
    fn is_known_to_have(&self, orphan: &Orphan) -> bool {
        let Orphan { process, audit_session, .. } = orphan;
        let is_in_session = match self.known_by {
            KnownBy::AuditSession(session) => *audit_session == Some(session),
            KnownBy::Cgroup(_) | KnownBy::Environment => false,
        };
        is_in_session
            || self.found.contains_key(&process.identity())
            || [process.session, process.group].contains(&self.pid())
    }

    fn is_older_than(&self, process: &Process) -> bool {
        let born = Duration::from_secs(process.start / TICKS_PER_SECOND)
            + Duration::from_secs(process.start % TICKS_PER_SECOND) / TICKS_PER_SECOND as u32;
        // The kernel rounds the start time down to a tick.
        self.forked_at < Uptime::ZERO + born + Duration::from_secs(1) / TICKS_PER_SECOND as u32
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn orphan(session: i32, start_seconds: u64) -> Orphan {
        let start = start_seconds * TICKS_PER_SECOND;
        let process = Process { pid: 99, parent: 1, group: session, session, start, is_dead: false };
        Orphan { process, cgroup: "/".into(), audit_session: None, uids: Some([7, 7, 7]) }
    }

    fn two_trees() -> BTreeMap<TreeId, Tree> {
        BTreeMap::from([(TreeId(1), tree(10, "a", 5)), (TreeId(2), tree(20, "b", 50))])
    }

    fn of(uids: [u32; 2]) -> BTreeMap<TreeId, Tree> {
        let mut trees = two_trees();
        trees.values_mut().zip(uids).for_each(|(tree, uid)| tree.uid = uid);
        trees
    }

    #[test]
    fn an_orphan_is_recognized_by_its_session() {
        assert_eq!(owner(&orphan(20, 60), &two_trees()), Owner::Tree(TreeId(2)));
    }

    #[test]
    fn an_unmarked_orphan_belongs_to_the_only_tree_older_than_it() {
        assert_eq!(owner(&orphan(77, 10), &two_trees()), Owner::Tree(TreeId(1)));
        assert_eq!(owner(&orphan(77, 60), &two_trees()), Owner::OneOf(vec![TreeId(1), TreeId(2)]));
        assert_eq!(owner(&orphan(77, 1), &two_trees()), Owner::Nobody);
    }

    #[test]
    fn an_orphan_seen_while_its_parents_were_alive_is_recognized() {
        let mut trees = two_trees();
        trees.get_mut(&TreeId(2)).unwrap().found.insert(orphan(77, 60).process.identity(), true);
        assert_eq!(owner(&orphan(77, 60), &trees), Owner::Tree(TreeId(2)));
    }

    #[test]
    fn a_process_that_changed_all_it_could_is_recognized_by_its_audit_session() {
        let mut trees = two_trees();
        trees.get_mut(&TreeId(1)).unwrap().known_by = KnownBy::AuditSession(4);
        let escaped = Orphan { audit_session: Some(4), ..orphan(77, 60) };
        assert_eq!(owner(&escaped, &trees), Owner::Tree(TreeId(1)));
        let other = Orphan { audit_session: Some(5), ..escaped };
        assert_eq!(owner(&other, &trees), Owner::Tree(TreeId(2)));
    }

    #[test]
    fn of_several_trees_those_of_the_same_user_come_first_then_those_of_root() {
        assert_eq!(owner(&orphan(77, 60), &of([7, 8])), Owner::Tree(TreeId(1)));
        assert_eq!(owner(&orphan(77, 60), &of([8, 7])), Owner::Tree(TreeId(2)));
        assert_eq!(owner(&orphan(77, 60), &of([0, 7])), Owner::Tree(TreeId(2)));
        assert_eq!(owner(&orphan(77, 60), &of([8, 0])), Owner::Tree(TreeId(2)));
        assert_eq!(owner(&orphan(77, 60), &of([8, 9])), Owner::OneOf(vec![TreeId(1), TreeId(2)]));
        let by_sudo = Orphan { uids: Some([7, 0, 0]), ..orphan(77, 60) };
        assert_eq!(owner(&by_sudo, &of([7, 8])), Owner::Tree(TreeId(1)));
    }

    #[test]
    fn an_orphan_without_a_cgroup_belongs_to_a_tree_without_one() {
        let mut trees = two_trees();
        trees.get_mut(&TreeId(1)).unwrap().known_by = KnownBy::Cgroup("/c".into());
        assert_eq!(owner(&orphan(77, 60), &trees), Owner::Tree(TreeId(2)));
        trees.remove(&TreeId(2));
        assert_eq!(owner(&orphan(77, 60), &trees), Owner::Tree(TreeId(1)), "root can leave a cgroup");
    }
}
