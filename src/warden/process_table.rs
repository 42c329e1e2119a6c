//! All processes of the machine at one moment, as trees.
//!
//! Reading /proc is the only input; everything else is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::procfs::{self, Process};

/// One reading of /proc, used for all trees that are being ended.
#[derive(Debug)]
pub(super) struct ProcessTable {
    processes: BTreeMap<i32, Process>,
    children: BTreeMap<i32, Vec<i32>>,
}

impl ProcessTable {
    pub(super) fn read() -> io::Result<Self> {
        Ok(Self::new(procfs::all()?))
    }

    fn new(processes: BTreeMap<i32, Process>) -> Self {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for process in processes.values() {
            children.entry(process.parent).or_default().push(process.pid);
        }
        Self { processes, children }
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    pub(super) fn get(&self, pid: i32) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// The pids of a process and all its ancestors.
    pub(super) fn ancestry(&self, pid: i32) -> BTreeSet<i32> {
        let parent = |pid: &i32| self.processes.get(pid).map(|process| process.parent);
        let mut line = BTreeSet::new();
        let mut next = Some(pid);
        while let Some(pid) = next.filter(|&pid| line.insert(pid)) {
            next = parent(&pid);
        }
        line
    }

    /// The living processes of a tree.
    ///
    /// These are `roots`, `leader`, all processes in its session or group, and the descendants of all of them.
    pub(super) fn members(&self, leader: Option<i32>, roots: impl IntoIterator<Item = i32>) -> Vec<&Process> {
        let is_led = |process: &Process| [process.pid, process.session, process.group].map(Some).contains(&leader);
        let led = self.processes().filter(|process| is_led(process));
        let mut open: Vec<i32> = led.map(|process| process.pid).chain(roots).collect();
        let mut seen = BTreeSet::new();
        while let Some(pid) = open.pop() {
            if seen.insert(pid) {
                open.extend(self.children.get(&pid).into_iter().flatten());
            }
        }
        seen.iter().filter_map(|pid| self.processes.get(pid)).filter(|process| !process.is_dead).collect()
    }
}

#[cfg(test)]
impl ProcessTable {
    /// Builds a table from `(pid, parent, session)`.
    fn of(processes: &[(i32, i32, i32)]) -> Self {
        let process =
            |&(pid, parent, session)| (pid, Process { pid, parent, group: session, session, start: 0, is_dead: false });
        Self::new(processes.iter().map(process).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pids(members: &[&Process]) -> Vec<i32> {
        members.iter().map(|process| process.pid).collect()
    }

    #[test]
    fn a_tree_consists_of_its_session_its_descendants_and_inherited_processes() {
        let process_table = ProcessTable::of(&[
            (2, 1, 2),
            (10, 2, 10),
            (11, 10, 10),
            (12, 11, 12),
            (13, 2, 10),
            (20, 2, 20),
            (21, 20, 20),
            (30, 2, 30),
        ]);
        assert_eq!(pids(&process_table.members(Some(10), [20])), [10, 11, 12, 13, 20, 21]);
    }

    #[test]
    fn a_cycle_of_parents_does_not_loop_forever() {
        let process_table = ProcessTable::of(&[(5, 6, 5), (6, 5, 5)]);
        assert_eq!(pids(&process_table.members(None, [5])), [5, 6]);
    }
}
