//! Which programs have begun, noted where the death of the warden does not lose it.
//!
//! A child notes the begin of its program just before exec, in a file in memory that the daemon has too. So once warden
//! and children are dead, the daemon knows of each start how far it came: without a note its program never ran, whether
//! the warden had not read the start, was preparing the process or held it.
//!
//! The file has a byte for each tree. A daemon counts its trees for as long as it lives, so a tree shares its byte with
//! those that come [`TREES`] later. A page is cleared before it is used again, unless a tree from the last time is still
//! alive: then the trees there can no longer be proven not to have begun.
//!
//! If the daemon dies, the warden leaves the notes to the next one: see [`left`].

mod left;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

pub(super) use self::left::leave;
pub use self::left::{BeginsFile, LeftBegins, remove_left};
use crate::memory_file;
use cronkeeper_core::process::TreeId;

/// The number of trees with a byte of their own, and the size of the file.
const TREES: u64 = 1 << 20;

/// Trees whose notes are cleared together.
const PAGE: u64 = 4 << 10;

fn offset(tree_id: TreeId) -> u64 {
    tree_id.0 % TREES
}

/// The daemon's end.
#[derive(Debug)]
pub(super) struct Begins {
    file: OwnedFd,
    /// The number of living trees, by page.
    living: BTreeMap<u64, u64>,
    /// The page of the newest tree.
    newest: u64,
}

impl Begins {
    /// # Errors
    /// If there is no memory or no descriptor for it.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { file: memory_file::writable()?, living: BTreeMap::new(), newest: 0 })
    }

    /// Expects a note on a tree, before it is started. Tree ids only grow.
    pub(super) fn expect(&mut self, tree_id: TreeId) {
        let page = offset(tree_id) / PAGE;
        if page != self.newest && !self.living.contains_key(&page) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // If it fails, the notes of the last time stay, and prove nothing.
            let _ = fallocate(&self.file, flags, page * PAGE, PAGE);
        }
        self.newest = page;
        *self.living.entry(page).or_default() += 1;
    }

    /// Forgets a tree that is over, or whose start has failed.
    pub(super) fn forget(&mut self, tree_id: TreeId) {
        let page = offset(tree_id) / PAGE;
        if let Entry::Occupied(mut trees) = self.living.entry(page) {
            *trees.get_mut() -= 1;
            if *trees.get() == 0 {
                trees.remove();
            }
        }
    }
}

impl AsFd for Begins {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// In the child: notes that its program begins.
pub(super) fn note(file: BorrowedFd<'_>, tree_id: TreeId) -> Result<(), Errno> {
    rustix::io::pwrite(file, &[1], offset(tree_id)).map(drop)
}

/// True if the program of a tree is known not to have begun. The caller must know that its processes are dead.
pub(super) fn is_unbegun(file: BorrowedFd<'_>, tree_id: TreeId) -> bool {
    let mut noted = [0];
    rustix::io::pread(file, &mut noted, offset(tree_id)).is_ok_and(|_| noted == [0])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_is_noted_has_begun() {
        let begins = Begins::new().unwrap();
        note(begins.as_fd(), TreeId(70_000)).unwrap();
        for (tree_id, is) in [(0, true), (69_999, true), (70_000, false), (70_001, true), (TREES - 1, true)] {
            assert_eq!(is_unbegun(begins.as_fd(), TreeId(tree_id)), is, "{tree_id}");
        }
    }

    #[test]
    fn what_cannot_be_read_may_have_begun() {
        let (no_file, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_unbegun(no_file.as_fd(), TreeId(1)));
    }

    #[test]
    fn a_byte_is_used_again_once_its_tree_is_over() {
        let mut begins = Begins::new().unwrap();
        let is_unbegun = |begins: &Begins, tree_id| is_unbegun(begins.as_fd(), TreeId(tree_id));
        let [lives, over] = [5, 5 + PAGE].map(TreeId);
        for tree_id in [lives, over] {
            begins.expect(tree_id);
            note(begins.as_fd(), tree_id).unwrap();
        }
        begins.forget(over);
        for (tree_id, is) in [(lives.0 + TREES, false), (over.0 + TREES, true)] {
            begins.expect(TreeId(tree_id));
            assert_eq!(is_unbegun(&begins, tree_id), is, "{tree_id}");
        }
        assert!(!is_unbegun(&begins, lives.0));
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn no_note_on_a_living_tree_is_lost(
            trees in prop::collection::vec((1..TREES / 8, any::<bool>(), any::<bool>()), 1..60),
        ) {
            let mut begins = Begins::new().unwrap();
            let (mut living, mut noted, mut tree_id) = (BTreeSet::new(), BTreeSet::new(), 0);
            for (gap, has_begun, is_first_over) in trees {
                tree_id += gap;
                begins.expect(TreeId(tree_id));
                living.insert(tree_id);
                if has_begun {
                    note(begins.as_fd(), TreeId(tree_id)).unwrap();
                    noted.insert(tree_id);
                }
                let over = if is_first_over { living.pop_first() } else { living.pop_last() };
                if let Some(over) = over {
                    match gap % 3 {
                        0 => _ = living.insert(over),
                        _ => begins.forget(TreeId(over)),
                    }
                }
                for tree_id in living.intersection(&noted) {
                    prop_assert!(!is_unbegun(begins.as_fd(), TreeId(*tree_id)));
                }
            }
        }
    }
}
