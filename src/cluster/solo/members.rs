//! The members: the processes that use the state directory, whether or not they are in the queue.
//!
//! The names of a member's files contain its session, so that a process never takes over the files of another, not even
//! those of an earlier process of the same node. The files of a dead member remain until a leader has settled what it
//! left behind. Any remaining file shows that this is still to be done: the absence of the lock file alone proves
//! nothing, because somebody may have removed it.

use std::fs;
use std::io;
use std::path::PathBuf;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::state_dir::file;
use crate::state_dir::lock::{self, FileLock};
use cronkeeper_core::clock::system;
use cronkeeper_core::election::{Failure, Member as Description, Published};
use cronkeeper_core::job::Digest;
use cronkeeper_core::term::{NodeName, SessionId};

use super::queue::remove;

/// The kinds of a member's files, in the order of removal: the lock comes last because it shows whether the member is
/// alive.
const KINDS: [&str; 3] = ["journal", "json", "lock"];

#[derive(Clone, Debug)]
pub(super) struct Members {
    directory: PathBuf,
}

/// Identifies a member; its files are named `NODE@SESSION.KIND`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberName {
    pub(super) node: NodeName,
    pub(super) session: SessionId,
}

/// This process's membership, held until dropped.
#[derive(Debug)]
pub(super) struct Member {
    name: MemberName,
    description: Description,
    lock: FileLock,
}

impl Members {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Makes this process a member, unless a live member has the same name. The caller must hold the queue's lock.
    pub(super) fn join(&self, node: &NodeName) -> io::Result<Result<Member, Failure>> {
        for other in self.all()?.into_iter().filter(|other| other.node == *node) {
            if self.is_alive(&other)? {
                let holder =
                    self.described(&other).map_or("another process".into(), |it| format!("process {}", it.pid));
                return Ok(Err(Failure::NameTaken { node: node.clone(), holder }));
            }
        }
        let name = MemberName { node: node.clone(), session: SessionId(uuid::Uuid::new_v4().to_string()) };
        let lock = FileLock::make(&self.lock(&name))?;
        let member = Member { description: describe(node), name, lock };
        self.publish(&member)?;
        Ok(Ok(member))
    }

    pub(super) fn publish(&self, member: &Member) -> io::Result<()> {
        file::replace(&self.file(&member.name, "json"), &member.description).map_err(io::Error::other)
    }

    /// All members that are alive or have left files behind.
    pub(super) fn all(&self) -> io::Result<Vec<MemberName>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            names.extend(entry?.file_name().to_str().and_then(MemberName::parse));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    pub(super) fn is_alive(&self, name: &MemberName) -> io::Result<bool> {
        lock::is_held(&self.lock(name))
    }

    /// The descriptions of the members that are alive.
    pub(super) fn alive(&self) -> io::Result<Vec<Description>> {
        let mut alive = Vec::new();
        for name in self.all()? {
            if self.is_alive(&name)? {
                alive.extend(self.described(&name));
            }
        }
        Ok(alive)
    }

    /// True if every live member has published exactly these jobs.
    pub(super) fn all_define(&self, digest: &Digest) -> io::Result<bool> {
        for name in self.all()? {
            let defines = || self.described(&name).is_some_and(|member| member.published.defines(digest));
            if self.is_alive(&name)? && !defines() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// True once no file of a member remains: a leader has settled it, or it left in order.
    pub(super) fn is_reaped(&self, name: &MemberName) -> bool {
        KINDS.iter().all(|kind| matches!(self.file(name, kind).try_exists(), Ok(false)))
    }

    /// Removes a member's files.
    pub(super) fn remove(&self, name: &MemberName) -> io::Result<()> {
        KINDS.iter().try_for_each(|kind| remove(&self.file(name, kind)))
    }

    pub(super) fn lock(&self, name: &MemberName) -> PathBuf {
        self.file(name, "lock")
    }

    pub(super) fn journal(&self, name: &MemberName) -> PathBuf {
        self.file(name, "journal")
    }

    /// A member's description; absent also for a moment after it has joined.
    fn described(&self, name: &MemberName) -> Option<Description> {
        file::read(&self.file(name, "json")).ok().flatten()
    }

    fn file(&self, name: &MemberName, kind: &str) -> PathBuf {
        self.directory.join(format!("{}@{}.{kind}", name.node, name.session))
    }
}

impl MemberName {
    fn parse(file: &str) -> Option<Self> {
        let (name, _) = file.rsplit_once('.').filter(|(_, kind)| KINDS.contains(kind))?;
        let (node, session) = name.split_once('@')?;
        Some(Self { node: NodeName::parse(node).ok()?, session: SessionId::try_from(session.to_owned()).ok()? })
    }
}

impl Member {
    pub(super) fn name(&self) -> &MemberName {
        &self.name
    }

    pub(super) fn set_published(&mut self, published: Published) {
        self.description.published = published;
    }

    /// False if the lock file was removed by hand.
    pub(super) fn is_intact(&self) -> bool {
        self.lock.is_current()
    }

    /// Calls `touched` when something may have happened to the lock file, until the watcher is dropped.
    ///
    /// It watches the file and not the directory, where every journal entry of every node would cause a call.
    pub(super) fn watch(&self, mut touched: impl FnMut() + Send + 'static) -> notify::Result<RecommendedWatcher> {
        let on_event = move |event: notify::Result<notify::Event>| match event {
            Ok(event) if event.kind.is_access() => {}
            _ => touched(),
        };
        let mut watcher = notify::recommended_watcher(on_event)?;
        watcher.watch(self.lock.path(), RecursiveMode::NonRecursive)?;
        Ok(watcher)
    }
}

fn describe(node: &NodeName) -> Description {
    Description {
        v: 1,
        node: node.clone(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: system::now().wall,
        session_timeout_ms: None,
        published: Published::default(),
        opened: None,
        session: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, is_read_back, text};

    #[test]
    fn fuzz_names_of_members() {
        let words = &["@", ".lock", ".json", ".journal", "..", "/", "host-a", "5f5b6a0e-3b1d-4c53-9a6e-0d9f0b7f5a11"];
        Fuzz { longest: 1 << 10, ..Fuzz::of("solo-members", words) }.run(|input| {
            let read = MemberName::parse(&text(input));
            if let Some(name) = &read {
                let path = Members::new(PathBuf::from("/members")).lock(name);
                let file = path.file_name().and_then(|file| file.to_str());
                assert_eq!(file.and_then(MemberName::parse).as_ref(), Some(name));
                assert_eq!(path.parent(), Some(std::path::Path::new("/members")));
            }
            read.is_some()
        });
    }

    #[test]
    fn fuzz_description_of_a_member() {
        let words = &["\"v\":1,", "\"node\":", "\"priority\":4294967295,", "\"jobs_invalid\":true,", "null", "host-a"];
        Fuzz { longest: 8 << 10, ..Fuzz::of("members", words) }.run(|input| {
            let read = serde_json::from_slice::<Description>(input);
            read.as_ref().map(is_read_back).is_ok()
        });
    }
}
