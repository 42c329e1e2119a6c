//! The walk along a path, and the rules that each part of it is judged by.
//!
//! - A folder, from `/` on, belongs to root or to the user of this process, and nobody else may write it. A sticky one on the way,
//!   such as /tmp, is an exception: others may add names to it, and take away none but their own.
//! - A link is followed by hand. The folder it stands in counts, then every part of where it leads. In a folder where others may add
//!   names it has to be root's or this user's.
//! - What the path ends at is of the same owners, and nobody else may write it; a sticky folder is no exception there.
//! - A file with several names, in a folder where others may add names, may have got this one from them.
//! - Nothing lies in a file system of the kernel's own: a process decides what is in its `/proc/PID/cmdline`, whoever owns the file.
//! - A group that only this user is a member of is no other: with a umask of 002 everything is writable by it.
//!
//! Asks a [`Tree`] and does nothing else; knows no system call.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::telemetry::escape;

/// As many as the kernel follows.
const MOST_LINKS: u32 = 40;

const STICKY: u32 = 0o1000;
const BY_GROUP: u32 = 0o020;
const BY_ANYBODY: u32 = 0o002;

/// Folders, files and links, as the walk sees them.
pub(super) trait Tree {
    /// Something in it, which stays the same thing whatever becomes of its name.
    type Node;

    /// `/`.
    fn root(&self) -> io::Result<Self::Node>;
    /// What has this name in a folder; a link itself, not what it leads to.
    fn enter(&self, folder: &Self::Node, name: &OsStr) -> io::Result<Self::Node>;
    fn facts(&self, node: &Self::Node) -> io::Result<Facts>;
    /// Where a link leads.
    fn target(&self, link: &Self::Node) -> io::Result<PathBuf>;
    /// True for a group that nobody but the user of this process is a member of.
    fn is_private(&self, group: u32) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Folder,
    File,
    Link,
    Other,
}

/// What is judged of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) kind: Kind,
    pub(super) owner: u32,
    pub(super) group: u32,
    /// The permission bits and the sticky bit.
    pub(super) mode: u32,
    /// How many names it has.
    pub(super) links: u64,
    /// In a file system that the kernel makes up.
    pub(super) is_kernels: bool,
}

/// What is to be made of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It is relied on: nobody else may change it.
    Trusted,
    /// Nobody else may read it either. A file of root's may be readable by a group where this process is another user: that is how
    /// it is given to it.
    Secret,
}

/// What is wrong with a part of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It belongs to somebody who is neither root nor the user of this process.
    ForeignOwner {
        /// Who.
        owner: u32,
    },
    /// The same of a link, in a folder where others may add names.
    ForeignLink {
        /// Who.
        owner: u32,
    },
    /// Every user may write it.
    AnybodyWrites {
        /// Its permissions.
        mode: u32,
    },
    /// A group may write it.
    GroupWrites {
        /// Its permissions.
        mode: u32,
        /// Which.
        group: u32,
    },
    /// It has several names, of which others may have made this one.
    HardLinked {
        /// How many.
        links: u64,
    },
    /// It is in a file system of the kernel's own.
    OfKernel,
    /// A link, where none is followed.
    Link,
    /// Not a regular file.
    NoFile,
    /// A secret that others may read or write.
    Open {
        /// Its permissions.
        mode: u32,
    },
}

/// A part of a path by which others can decide what is found at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsafe {
    /// The part, links on the way to it resolved.
    pub component: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
    /// The user of this process.
    pub me: u32,
}

/// Why a path is not used.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Others can decide what is found there.
    #[error(transparent)]
    Unsafe(#[from] Unsafe),
    /// It cannot be looked at.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl std::error::Error for Unsafe {}

impl From<Unsafe> for io::Error {
    fn from(found: Unsafe) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, found)
    }
}

impl fmt::Display for Unsafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, me) = (self.component.to_string_lossy(), self.me);
        let name = escape::plain(&name);
        match &self.fault {
            Fault::ForeignOwner { owner } => write!(
                f,
                "`{name}` belongs to user {owner}, who is neither root nor the user of this process ({me}); \
                 give it to this one with `chown {me} {name}`, or use another path"
            ),
            Fault::ForeignLink { owner } => write!(
                f,
                "the link `{name}` is user {owner}'s, who is neither root nor the user of this process ({me}); \
                 name what it leads to"
            ),
            Fault::AnybodyWrites { mode } => {
                write!(f, "anybody may write to `{name}` (mode {mode:04o}); take that away with `chmod go-w {name}`")
            }
            Fault::GroupWrites { mode, group } => write!(
                f,
                "group {group} may write to `{name}` (mode {mode:04o}); take that away with `chmod g-w {name}`"
            ),
            Fault::HardLinked { links } => write!(
                f,
                "`{name}` has {links} names (hard links), and others may have made this one; put a copy in its place"
            ),
            Fault::OfKernel => {
                write!(f, "`{name}` is in a file system of the kernel's own, where any process may decide what is read")
            }
            Fault::Link => write!(f, "`{name}` is a symbolic link, where none is followed; remove it"),
            Fault::NoFile => write!(f, "`{name}` is not a regular file"),
            Fault::Open { mode } => write!(
                f,
                "`{name}` holds a secret, and others than its owner may read or write it (mode {mode:04o}); \
                 take that away with `chmod 600 {name}`"
            ),
        }
    }
}

/// By whom things may be owned and written.
#[derive(Clone, Debug)]
pub(super) struct Judge {
    /// The user of this process.
    pub(super) me: u32,
}

impl Judge {
    fn is_owned(&self, facts: &Facts) -> Result<(), Fault> {
        let owner = facts.owner;
        if owner == 0 || owner == self.me { Ok(()) } else { Err(Fault::ForeignOwner { owner }) }
    }

    fn is_unwritten(&self, tree: &impl Tree, facts: &Facts) -> Result<(), Fault> {
        let mode = facts.mode;
        if mode & BY_ANYBODY != 0 {
            return Err(Fault::AnybodyWrites { mode });
        }
        if mode & BY_GROUP != 0 && !tree.is_private(facts.group) {
            return Err(Fault::GroupWrites { mode, group: facts.group });
        }
        Ok(())
    }

    /// True of a folder in which others may add names.
    fn is_shared(&self, tree: &impl Tree, folder: &Facts) -> bool {
        self.is_unwritten(tree, folder).is_err()
    }

    /// A part on the way. What is neither folder nor link ends the way: it is judged there.
    fn step(&self, tree: &impl Tree, folder: &Facts, facts: &Facts) -> Result<(), Fault> {
        if facts.is_kernels {
            return Err(Fault::OfKernel);
        }
        match facts.kind {
            Kind::Folder => self.folder_on_the_way(tree, facts),
            Kind::Link if self.is_shared(tree, folder) => {
                self.is_owned(facts).map_err(|_| Fault::ForeignLink { owner: facts.owner })?;
                has_one_name(facts)
            }
            Kind::Link | Kind::File | Kind::Other => Ok(()),
        }
    }

    fn folder_on_the_way(&self, tree: &impl Tree, facts: &Facts) -> Result<(), Fault> {
        self.is_owned(facts)?;
        if facts.mode & STICKY != 0 { Ok(()) } else { self.is_unwritten(tree, facts) }
    }

    /// Where the way ends.
    fn end(&self, tree: &impl Tree, folder: Option<&Facts>, facts: &Facts, wanted: Wanted) -> Result<(), Fault> {
        if facts.is_kernels {
            return Err(Fault::OfKernel);
        }
        self.is_owned(facts)?;
        match wanted {
            Wanted::Trusted => self.is_unwritten(tree, facts)?,
            Wanted::Secret => self.is_kept(facts)?,
        }
        let is_shared = folder.is_some_and(|folder| self.is_shared(tree, folder));
        if is_shared && facts.kind != Kind::Folder {
            has_one_name(facts)?;
        }
        Ok(())
    }

    /// A file of this process's own, of which nobody knows who may once have been able to put it there. One that is written into where
    /// it stands could be somebody's by another name.
    pub(super) fn own(&self, tree: &impl Tree, facts: &Facts, is_written: bool) -> Result<(), Fault> {
        self.end(tree, None, facts, Wanted::Trusted)?;
        if is_written { has_one_name(facts) } else { Ok(()) }
    }

    fn is_kept(&self, facts: &Facts) -> Result<(), Fault> {
        let is_given = facts.owner == 0 && self.me != 0;
        let others = if is_given { 0o037 } else { 0o077 };
        if facts.mode & others == 0 { Ok(()) } else { Err(Fault::Open { mode: facts.mode }) }
    }
}

fn has_one_name(facts: &Facts) -> Result<(), Fault> {
    let links = facts.links;
    if links <= 1 { Ok(()) } else { Err(Fault::HardLinked { links }) }
}

/// A part that the way goes through.
#[derive(Debug)]
pub(super) struct Place<N> {
    /// Empty of `/`.
    pub(super) name: OsString,
    pub(super) node: N,
    pub(super) facts: Facts,
}

/// From `/` to the end, without links.
#[derive(Debug)]
pub(super) struct Way<N> {
    root: Place<N>,
    below: Vec<Place<N>>,
}

enum Step {
    Up,
    Down(OsString),
}

/// Goes along an absolute path. Each part is judged before anything is looked for in it; the end is only found.
pub(super) fn walk<T: Tree>(tree: &T, path: &Path, judge: &Judge) -> Result<Way<T::Node>, Refusal> {
    let mut way = Way::from_root(tree, judge)?;
    let mut rest = VecDeque::from(steps(path));
    let mut links = 0;
    while let Some(step) = rest.pop_front() {
        let Step::Down(name) = step else {
            way.up()?;
            continue;
        };
        let place = way.look(tree, name, judge)?;
        if place.facts.kind != Kind::Link {
            way.below.push(place);
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = tree.target(&place.node)?;
        if target.has_root() {
            way.below.clear();
        }
        steps(&target).into_iter().rev().for_each(|step| rest.push_front(step));
    }
    Ok(way)
}

fn steps(path: &Path) -> Vec<Step> {
    let step = |component| match component {
        Component::Normal(name) => Some(Step::Down(name.to_owned())),
        Component::ParentDir => Some(Step::Up),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().filter_map(step).collect()
}

impl<N> Way<N> {
    fn from_root(tree: &impl Tree<Node = N>, judge: &Judge) -> Result<Self, Refusal> {
        let node = tree.root()?;
        let facts = tree.facts(&node)?;
        let way = Self { root: Place { name: OsString::new(), node, facts }, below: Vec::new() };
        let judged = judge.folder_on_the_way(tree, &way.root.facts);
        judged.map_err(|fault| Unsafe { component: "/".into(), fault, me: judge.me })?;
        Ok(way)
    }

    /// What it ends at.
    pub(super) fn end(&self) -> &Place<N> {
        self.below.last().unwrap_or(&self.root)
    }

    /// Where that stands; `/` stands nowhere.
    pub(super) fn folder(&self) -> Option<&Place<N>> {
        match self.below.len() {
            0 => None,
            1 => Some(&self.root),
            more => self.below.get(more - 2),
        }
    }

    /// Judges what it ends at by `facts`, which are those of the same thing once it is open.
    pub(super) fn judge_end(
        &self,
        tree: &impl Tree<Node = N>,
        judge: &Judge,
        facts: &Facts,
        wanted: Wanted,
    ) -> Result<(), Unsafe> {
        let folder = self.folder().map(|folder| &folder.facts);
        judge.end(tree, folder, facts, wanted).map_err(|fault| self.found(fault, judge))
    }

    pub(super) fn no_file(&self, judge: &Judge) -> Unsafe {
        self.found(Fault::NoFile, judge)
    }

    fn found(&self, fault: Fault, judge: &Judge) -> Unsafe {
        Unsafe { component: self.path(), fault, me: judge.me }
    }

    fn path(&self) -> PathBuf {
        let mut path = PathBuf::from("/");
        path.extend(self.below.iter().map(|place| &place.name));
        path
    }

    fn up(&mut self) -> Result<(), Refusal> {
        if self.end().facts.kind != Kind::Folder {
            return Err(Errno::NOTDIR.into());
        }
        // Above `/` is `/`.
        self.below.pop();
        Ok(())
    }

    fn look<T: Tree<Node = N>>(&self, tree: &T, name: OsString, judge: &Judge) -> Result<Place<N>, Refusal> {
        let folder = self.end();
        if folder.facts.kind != Kind::Folder {
            return Err(Errno::NOTDIR.into());
        }
        let node = tree.enter(&folder.node, &name)?;
        let facts = tree.facts(&node)?;
        let judged = judge.step(tree, &folder.facts, &facts);
        judged.map_err(|fault| Unsafe { component: self.path().join(&name), fault, me: judge.me })?;
        Ok(Place { name, node, facts })
    }
}

#[cfg(test)]
mod tests;
