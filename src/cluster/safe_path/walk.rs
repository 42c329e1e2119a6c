//! The walk along a path, and the rules that each component must satisfy.
//!
//! - Each directory, from `/` on, must belong to root or to the user of this process, and nobody else may write to it.
//!   Exception: a sticky directory on the way, such as /tmp, where others may add names but can remove only their own.
//! - Links are resolved here. The directory of a link counts, then every component of its target. In a directory where
//!   others may add names, the link must belong to root or to this user.
//! - The last component must have one of these owners too, and nobody else may write to it, not even to a sticky
//!   directory.
//! - In a directory where others may add names, the file must not have several names, because others may have added
//!   this one.
//! - No component may be in a virtual file system: a process determines the content of its `/proc/PID/cmdline`, whoever
//!   owns the file.
//! - On a read-only mount nobody may write, whatever the mode says: Kubernetes mounts a ConfigMap, whose directory has
//!   the mode 0777, like this. Only root mounts, and vouches for whoever may write to it elsewhere. Owners and several names still
//!   count.
//! - A group whose only member is this user does not count as other users: with a umask of 002, all files are writable
//!   by it.
//!
//! For a job, the job's user may own components too. In a directory of that user no link is followed, and the last
//! component must belong to the same user: he could have put anything there, and must not get what only root or this
//! process may read.
//!
//! For a file that others may change anyway, nothing of this counts. But each link must belong to root or this user,
//! whatever directory it is in: the owner of a link chooses the file.
//!
//! The walk uses a [`FileTree`] and nothing else; it makes no system calls.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use super::refusal::{Fault, Refusal, Unsafe};

/// The kernel follows as many.
const MAX_LINKS: u32 = 40;

const STICKY: u32 = 0o1000;
const BY_GROUP: u32 = 0o020;
const BY_ANYBODY: u32 = 0o002;

/// Directories, files and links.
pub(super) trait FileTree {
    /// A node, which stays the same file even if its name is removed or reused.
    type Node;

    /// The root directory.
    fn root(&self) -> io::Result<Self::Node>;
    /// The node with this name in a directory; for a link, the link itself.
    fn enter(&self, parent: &Self::Node, name: &OsStr) -> io::Result<Self::Node>;
    fn facts(&self, node: &Self::Node) -> io::Result<Facts>;
    fn target(&self, link: &Self::Node) -> io::Result<PathBuf>;
    /// True for a group whose only member is the user of this process.
    fn is_private(&self, group: u32) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Directory,
    File,
    Link,
    Other,
}

/// The attributes of a node that the rules are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) kind: FileKind,
    pub(super) owner: u32,
    pub(super) group: u32,
    /// The permission bits and the sticky bit.
    pub(super) mode: u32,
    /// Number of hard links.
    pub(super) links: u64,
    /// In a file system whose content the kernel or a process generates.
    pub(super) is_virtual: bool,
    /// Nobody can write to it here, because it is mounted read-only.
    pub(super) is_read_only: bool,
}

/// The protection that a file needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Only root and this user may change it.
    Trusted,
    /// Others must not read it either. Exception: root may own the file and let a group read it, if this process runs
    /// as another user. Administrators grant it access in this way.
    Secret,
}

/// The rules about owners and writers.
#[derive(Clone, Debug)]
pub(super) struct AccessRules {
    /// The user id of this process.
    pub(super) me: u32,
    /// The user of a job, who may own components too.
    pub(super) user: Option<u32>,
    /// Everything may belong to and be writable by anybody, except the links.
    pub(super) are_only_links_checked: bool,
}

impl AccessRules {
    fn is_own(&self, facts: &Facts) -> bool {
        facts.owner == 0 || facts.owner == self.me
    }

    /// True if it belongs to the job's user, and that is neither root nor the user of this process.
    fn is_of_user(&self, facts: &Facts) -> bool {
        self.user == Some(facts.owner) && !self.is_own(facts)
    }

    fn check_owner(&self, facts: &Facts) -> Result<(), Fault> {
        let is_accepted = self.is_own(facts) || self.is_of_user(facts);
        if is_accepted { Ok(()) } else { Err(Fault::ForeignOwner { owner: facts.owner }) }
    }

    fn check_not_writable(&self, tree: &impl FileTree, facts: &Facts) -> Result<(), Fault> {
        if facts.is_read_only { Ok(()) } else { self.check_mode(tree, facts) }
    }

    fn check_mode(&self, tree: &impl FileTree, facts: &Facts) -> Result<(), Fault> {
        let mode = facts.mode;
        if mode & BY_ANYBODY != 0 {
            return Err(Fault::AnybodyWrites { mode });
        }
        if mode & BY_GROUP != 0 && !tree.is_private(facts.group) {
            return Err(Fault::GroupWrites { mode, group: facts.group });
        }
        Ok(())
    }

    /// True if others may add names in this directory, or may have added them where it is not read-only.
    fn is_shared(&self, tree: &impl FileTree, directory: &Facts) -> bool {
        self.check_mode(tree, directory).is_err()
    }

    /// Checks a component on the way. A node that is neither directory nor link ends the way and is checked there.
    fn check_component(&self, tree: &impl FileTree, parent: &Facts, facts: &Facts) -> Result<(), Fault> {
        if self.are_only_links_checked {
            let is_foreign = facts.kind == FileKind::Link && !self.is_own(facts);
            return if is_foreign { Err(Fault::ForeignLink { owner: facts.owner }) } else { Ok(()) };
        }
        if facts.is_virtual {
            return Err(Fault::OfKernel);
        }
        match facts.kind {
            FileKind::Directory => self.check_directory(tree, facts),
            FileKind::Link if self.is_shared(tree, parent) => {
                if !self.is_own(facts) {
                    return Err(Fault::ForeignLink { owner: facts.owner });
                }
                check_single_name(facts)
            }
            FileKind::Link | FileKind::File | FileKind::Other => Ok(()),
        }
    }

    fn check_directory(&self, tree: &impl FileTree, facts: &Facts) -> Result<(), Fault> {
        self.check_owner(facts)?;
        if facts.mode & STICKY != 0 { Ok(()) } else { self.check_not_writable(tree, facts) }
    }

    /// Checks the last component.
    fn check_last(
        &self,
        tree: &impl FileTree,
        parent: Option<&Facts>,
        facts: &Facts,
        wanted: Wanted,
    ) -> Result<(), Fault> {
        if facts.is_virtual {
            return Err(Fault::OfKernel);
        }
        self.check_owner(facts)?;
        match wanted {
            Wanted::Trusted => self.check_not_writable(tree, facts)?,
            Wanted::Secret => self.check_secret(facts)?,
        }
        let is_shared = parent.is_some_and(|parent| self.is_shared(tree, parent));
        if is_shared && facts.kind != FileKind::Directory {
            check_single_name(facts)?;
        }
        Ok(())
    }

    /// Checks one of this process's own files, in a directory that others may once have been able to write to.
    ///
    /// If this process writes to the file, it must not have another name, which could be another user's.
    pub(super) fn check_own(&self, tree: &impl FileTree, facts: &Facts, is_written: bool) -> Result<(), Fault> {
        self.check_last(tree, None, facts, Wanted::Trusted)?;
        if is_written { check_single_name(facts) } else { Ok(()) }
    }

    fn check_secret(&self, facts: &Facts) -> Result<(), Fault> {
        let is_given = facts.owner == 0 && self.me != 0;
        let others = if is_given { 0o037 } else { 0o077 };
        if facts.mode & others == 0 { Ok(()) } else { Err(Fault::Open { mode: facts.mode }) }
    }
}

fn check_single_name(facts: &Facts) -> Result<(), Fault> {
    let links = facts.links;
    if links <= 1 { Ok(()) } else { Err(Fault::HardLinked { links }) }
}

/// A component of a path.
#[derive(Debug)]
pub(super) struct PathComponent<N> {
    /// Empty for `/`.
    pub(super) name: OsString,
    pub(super) node: N,
    pub(super) facts: Facts,
}

/// A path from `/` to its end, with links resolved.
#[derive(Debug)]
pub(super) struct ResolvedPath<N> {
    root: PathComponent<N>,
    below: Vec<PathComponent<N>>,
}

enum PathStep {
    Up,
    Down(OsString),
}

/// Walks along an absolute path. Checks each component before looking up a name in it; does not check the last one.
pub(super) fn walk<T: FileTree>(tree: &T, path: &Path, rules: &AccessRules) -> Result<ResolvedPath<T::Node>, Refusal> {
    let mut resolved = ResolvedPath::from_root(tree, rules)?;
    let mut rest = VecDeque::from(steps(path));
    let mut links = 0;
    while let Some(step) = rest.pop_front() {
        let PathStep::Down(name) = step else {
            resolved.up()?;
            continue;
        };
        let component = resolved.enter(tree, name, rules)?;
        if component.facts.kind != FileKind::Link {
            resolved.below.push(component);
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = tree.target(&component.node)?;
        if target.has_root() {
            resolved.below.clear();
        }
        steps(&target).into_iter().rev().for_each(|step| rest.push_front(step));
    }
    Ok(resolved)
}

fn steps(path: &Path) -> Vec<PathStep> {
    let step = |component| match component {
        Component::Normal(name) => Some(PathStep::Down(name.to_owned())),
        Component::ParentDir => Some(PathStep::Up),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().filter_map(step).collect()
}

impl<N> ResolvedPath<N> {
    fn from_root(tree: &impl FileTree<Node = N>, rules: &AccessRules) -> Result<Self, Refusal> {
        let node = tree.root()?;
        let facts = tree.facts(&node)?;
        let resolved = Self { root: PathComponent { name: OsString::new(), node, facts }, below: Vec::new() };
        let checked = match rules.are_only_links_checked {
            true => Ok(()),
            false => rules.check_directory(tree, &resolved.root.facts),
        };
        let is_read_only = resolved.root.facts.is_read_only;
        checked.map_err(|fault| Unsafe { component: "/".into(), fault, me: rules.me, is_read_only })?;
        Ok(resolved)
    }

    pub(super) fn last(&self) -> &PathComponent<N> {
        self.below.last().unwrap_or(&self.root)
    }

    /// The directory of the last component; `None` for `/`.
    pub(super) fn parent(&self) -> Option<&PathComponent<N>> {
        match self.below.len() {
            0 => None,
            1 => Some(&self.root),
            more => self.below.get(more - 2),
        }
    }

    /// Checks the last component by `facts`, which the caller read after opening it.
    pub(super) fn check_last(
        &self,
        tree: &impl FileTree<Node = N>,
        rules: &AccessRules,
        facts: &Facts,
        wanted: Wanted,
    ) -> Result<(), Unsafe> {
        let parent = self.parent().map(|parent| &parent.facts);
        if let Some(user) = rules.user.filter(|_| self.is_in_hands_of_user(rules) && !rules.is_of_user(facts)) {
            return Err(self.refusal(Fault::NotOfUser { owner: facts.owner, user }, rules));
        }
        rules.check_last(tree, parent, facts, wanted).map_err(|fault| self.refusal(fault, rules))
    }

    pub(super) fn not_a_file(&self, rules: &AccessRules) -> Unsafe {
        self.refusal(Fault::NoFile, rules)
    }

    fn refusal(&self, fault: Fault, rules: &AccessRules) -> Unsafe {
        Unsafe { component: self.path(), fault, me: rules.me, is_read_only: self.last().facts.is_read_only }
    }

    /// True if one of these directories belongs to the job's user, who then may have put anything into it.
    fn is_in_hands_of_user(&self, rules: &AccessRules) -> bool {
        let is_users = |component: &PathComponent<N>| {
            component.facts.kind == FileKind::Directory && rules.is_of_user(&component.facts)
        };
        is_users(&self.root) || self.below.iter().any(is_users)
    }

    /// The nodes of the last component and, except for `/`, of its directory.
    pub(super) fn into_last_and_parent(mut self) -> (N, Option<N>) {
        match self.below.pop() {
            None => (self.root.node, None),
            Some(last) => (last.node, Some(self.below.pop().unwrap_or(self.root).node)),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        let mut path = PathBuf::from("/");
        path.extend(self.below.iter().map(|component| &component.name));
        path
    }

    fn up(&mut self) -> Result<(), Refusal> {
        if self.last().facts.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        // The parent of `/` is `/`.
        self.below.pop();
        Ok(())
    }

    fn enter<T: FileTree<Node = N>>(
        &self,
        tree: &T,
        name: OsString,
        rules: &AccessRules,
    ) -> Result<PathComponent<N>, Refusal> {
        let parent = self.last();
        if parent.facts.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let node = tree.enter(&parent.node, &name)?;
        let facts = tree.facts(&node)?;
        let checked = match facts.kind {
            FileKind::Link if self.is_in_hands_of_user(rules) => Err(Fault::Link),
            _ => rules.check_component(tree, &parent.facts, &facts),
        };
        let is_read_only = facts.is_read_only;
        checked.map_err(|fault| Unsafe { component: self.path().join(&name), fault, me: rules.me, is_read_only })?;
        Ok(PathComponent { name, node, facts })
    }
}

#[cfg(test)]
mod tests;
