//! What a node keeps on its own disk: the directory's lock, what the directory belongs to, its sessions, and its journal.
//!
//! ```text
//! lock             held while a process lives here: exclusively on ZooKeeper, shared on solo
//! identity.json    the backend, chroot and cluster that this directory belongs to
//! sessions.json    sessions whose nodes may still stand in ZooKeeper
//! journal          what was done about the runs of this node   (on solo: one for each member, see `solo`)
//! ```
//!
//! A directory belongs to one backend and one cluster for good. Else a missing environment file would make three solo
//! leaders of three hosts, and the journal of one cluster would be settled in another. All calls here block on the disk.
//! Knows no ZooKeeper and no SQLite.

mod boot_scope;
pub(crate) mod file;
mod identity;
pub mod journal;
pub mod lock;
mod sessions;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use identity::BackendIdentity;

use self::identity::Identity;
use self::journal::FileJournal;
use self::lock::{FileLock, Kind};
use self::sessions::Sessions;
use crate::run::journal::Recovered;
use crate::safe_path::{self, Refusal, Unsafe};
use crate::term::{NodeName, SessionId};

/// A state directory, held by this process until dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    identity: Mutex<Identity>,
    sessions: Mutex<Sessions>,
    earlier: Vec<SessionId>,
    _lock: FileLock,
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Others may write in it, or put another one in its place.
    #[error("state directory `{path}` is not safe from others")]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// By which part of its path.
        source: Unsafe,
    },
    /// It cannot be made.
    #[error("state directory `{path}` cannot be made")]
    Create {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process lives here.
    #[error("state directory `{path}` is in use by {holder}: give this one another by --state-dir, or stop that one")]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Who, as it wrote itself down.
        holder: String,
    },
    /// It belongs to another backend or chroot.
    #[error(
        "state directory `{path}` belongs to {ours}, but this start asks for {asked}: \
         correct --zookeeper (CRONKEEPER_ZOOKEEPER), or give another --state-dir"
    )]
    OtherBackend {
        /// The directory.
        path: PathBuf,
        /// What it remembers.
        ours: BackendIdentity,
        /// What was asked for.
        asked: BackendIdentity,
    },
    /// It belongs to another cluster.
    #[error(
        "state directory `{path}` belongs to cluster {ours}, but --zookeeper leads to cluster {theirs}: \
         correct --zookeeper, or give another --state-dir"
    )]
    OtherCluster {
        /// The directory.
        path: PathBuf,
        /// What it remembers.
        ours: String,
        /// What the service says.
        theirs: String,
    },
    /// A file in it makes no sense.
    #[error("`{path}` in the state directory is damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A file in it cannot be read.
    #[error("`{path}` in the state directory cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file in it cannot be written; what was there before is still there, whole.
    #[error("`{path}` in the state directory cannot be written")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl StateDirError {
    /// True where an operator must change a setting: exit code 78.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Unsafe { .. } | Self::OtherBackend { .. } | Self::OtherCluster { .. } | Self::InUse { .. } => true,
            Self::Read { source, .. } | Self::Write { source, .. } => safe_path::refused(source).is_some(),
            Self::Create { .. } | Self::Damaged { .. } => false,
        }
    }
}

impl StateDir {
    /// The same as [`StateDir::open`], for who only looks after what others left: `None` where no process ever lived.
    ///
    /// # Errors
    /// When it is in use, belongs to another, or cannot be read and written.
    pub fn open_existing(
        path: &Path,
        belongs: BackendIdentity,
        node: &NodeName,
    ) -> Result<Option<Self>, StateDirError> {
        match Identity::is_kept(path)? {
            true => Self::open(path, belongs, node).map(Some),
            false => Ok(None),
        }
    }

    /// Opens a directory, making it if there is none, and holds it for `belongs`. `node` is who the holder is, for people.
    ///
    /// # Errors
    /// When it is in use, belongs to another, or cannot be read and written.
    pub fn open(path: &Path, belongs: BackendIdentity, node: &NodeName) -> Result<Self, StateDirError> {
        make_folder(path)?;
        let lock = hold(path, &belongs, node)?;
        let identity = Identity::remembered(path, belongs)?;
        let sessions = Sessions::read(path)?;
        let earlier = sessions.made_here();
        let path = path.to_owned();
        Ok(Self { path, identity: Mutex::new(identity), sessions: Mutex::new(sessions), earlier, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells this directory from every other; a copy of it has the same.
    pub fn instance(&self) -> String {
        guard(&self.identity).instance().to_owned()
    }

    /// Binds the directory to the cluster `id`, or checks that it is bound to it.
    ///
    /// # Errors
    /// [`StateDirError::OtherCluster`]; or when the id cannot be written down.
    pub fn claim_cluster(&self, id: &str) -> Result<(), StateDirError> {
        guard(&self.identity).claim_cluster(&self.path, id)
    }

    /// The cluster that it is used with, once that is known.
    pub fn cluster(&self) -> Option<String> {
        guard(&self.identity).cluster()
    }

    /// Writes a session down, before its first node is made.
    ///
    /// # Errors
    /// When it cannot be written: the session must then make no node.
    pub fn record_session(&self, id: &SessionId) -> Result<(), StateDirError> {
        guard(&self.sessions).record(&self.path, id)
    }

    /// The sessions that earlier processes wrote down in this boot and this very folder, and nobody had forgotten when it was
    /// opened. These processes are dead, for the directory's lock was free.
    pub fn earlier_sessions(&self) -> &[SessionId] {
        &self.earlier
    }

    /// Forgets sessions whose nodes are gone.
    ///
    /// # Errors
    /// When that cannot be written; the sessions are then still remembered.
    pub fn forget_sessions(&self, ids: &[SessionId]) -> Result<(), StateDirError> {
        guard(&self.sessions).forget(&self.path, ids)
    }

    /// Opens this node's journal, and says what earlier processes left open in it. On ZooKeeper, and once: on solo each
    /// member has a journal of its own, which [`solo::start`](crate::solo::start) opens.
    ///
    /// # Errors
    /// When it cannot be read and written.
    pub fn journal(&self) -> Result<(FileJournal, Recovered), StateDirError> {
        FileJournal::open(&self.path.join("journal"))
    }
}

/// No update of the guarded values is left half done by a panic: each replaces a value after the disk has it.
fn guard<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes sure of a folder that nobody else may write in, nor put another one in its place: whatever is in it may then be named by its
/// path.
pub(crate) fn make_folder(path: &Path) -> Result<(), StateDirError> {
    let path = path.to_owned();
    safe_path::make_folder(&path).map_err(|refusal| match refusal {
        Refusal::Unsafe(source) => StateDirError::Unsafe { path, source },
        Refusal::Io(source) => StateDirError::Create { path, source },
    })
}

fn hold(folder: &Path, belongs: &BackendIdentity, node: &NodeName) -> Result<FileLock, StateDirError> {
    let path = folder.join("lock");
    let kind = match belongs {
        BackendIdentity::Zookeeper { .. } => Kind::Exclusive,
        BackendIdentity::Solo => Kind::Shared,
    };
    let failed = |source| StateDirError::Write { path: path.clone(), source };
    let Some(lock) = FileLock::try_take(&path, kind).map_err(failed)? else {
        return Err(StateDirError::InUse { path: folder.to_owned(), holder: lock::holder(&path) });
    };
    lock.set_text(&format!("process {} (node {node})\n", std::process::id())).map_err(failed)?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::boot_scope::boot_id;
    use super::*;
    use crate::fuzz::Fuzz;

    fn zookeeper(chroot: &str) -> BackendIdentity {
        BackendIdentity::Zookeeper { chroot: chroot.to_owned() }
    }

    fn open(path: &Path, belongs: BackendIdentity) -> Result<StateDir, StateDirError> {
        StateDir::open(path, belongs, &NodeName::new("host-a"))
    }

    #[test]
    fn a_directory_of_zookeeper_has_one_process() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path(), zookeeper("/c")).unwrap();
        let refused = open(dir.path(), zookeeper("/c")).unwrap_err();
        assert!(refused.to_string().contains(&format!("process {} (node host-a)", std::process::id())), "{refused}");
        drop(first);
        open(dir.path(), zookeeper("/c")).unwrap();
    }

    #[test]
    fn a_directory_of_solo_is_shared() {
        let dir = tempfile::tempdir().unwrap();
        let _first = open(dir.path(), BackendIdentity::Solo).unwrap();
        open(dir.path(), BackendIdentity::Solo).unwrap();
        assert!(matches!(open(dir.path(), zookeeper("")), Err(StateDirError::InUse { .. })));
    }

    #[test]
    fn another_backend_or_chroot_is_refused_and_says_what_to_change() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), zookeeper("/c")).unwrap();
        for other in [BackendIdentity::Solo, zookeeper("/d")] {
            let refused = open(dir.path(), other).unwrap_err();
            assert!(refused.is_configuration());
            assert!(refused.to_string().contains("--zookeeper"), "{refused}");
        }
    }

    #[test]
    fn another_cluster_is_refused_also_by_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), zookeeper("")).unwrap().claim_cluster("one").unwrap();
        let again = open(dir.path(), zookeeper("")).unwrap();
        again.claim_cluster("one").unwrap();
        assert!(matches!(again.claim_cluster("two"), Err(StateDirError::OtherCluster { .. })));
    }

    #[test]
    fn a_session_is_remembered_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (SessionId("1".into()), SessionId("2".into()));
        let first = open(dir.path(), zookeeper("")).unwrap();
        first.record_session(&one).unwrap();
        first.record_session(&two).unwrap();
        assert!(first.earlier_sessions().is_empty());
        drop(first);
        let second = open(dir.path(), zookeeper("")).unwrap();
        assert_eq!(second.earlier_sessions(), [one.clone(), two.clone()]);
        second.forget_sessions(&[one]).unwrap();
        drop(second);
        assert_eq!(open(dir.path(), zookeeper("")).unwrap().earlier_sessions(), [two]);
    }

    #[test]
    fn a_session_of_another_boot_is_passed_over_and_hides_none_of_this_boot() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), zookeeper("")).unwrap().record_session(&SessionId("1".into())).unwrap();
        let path = dir.path().join("sessions.json");
        let text = std::fs::read_to_string(&path).unwrap().replace(&boot_id(), "another-boot");
        std::fs::write(&path, text).unwrap();
        let after_boot = open(dir.path(), zookeeper("")).unwrap();
        assert!(after_boot.earlier_sessions().is_empty());
        let two = SessionId("2".into());
        after_boot.record_session(&two).unwrap();
        drop(after_boot);
        assert_eq!(open(dir.path(), zookeeper("")).unwrap().earlier_sessions(), [two]);
        assert!(!std::fs::read_to_string(&path).unwrap().contains("another-boot"));
    }

    #[test]
    fn a_session_of_a_directory_that_this_one_is_a_copy_of_is_passed_over() {
        let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        open(dir.path(), zookeeper("")).unwrap().record_session(&SessionId("1".into())).unwrap();
        for entry in std::fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        assert!(open(copy.path(), zookeeper("")).unwrap().earlier_sessions().is_empty());
        assert_eq!(open(dir.path(), zookeeper("")).unwrap().earlier_sessions(), [SessionId("1".into())]);
    }

    #[test]
    fn a_moved_directory_is_the_same_one() {
        let dir = tempfile::tempdir().unwrap();
        let (before, after) = (dir.path().join("before"), dir.path().join("after"));
        open(&before, zookeeper("")).unwrap().record_session(&SessionId("1".into())).unwrap();
        std::fs::rename(&before, &after).unwrap();
        assert_eq!(open(&after, zookeeper("")).unwrap().earlier_sessions(), [SessionId("1".into())]);
    }

    #[test]
    fn who_looks_after_others_makes_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let look = |belongs| StateDir::open_existing(&path, belongs, &NodeName::new("host-a"));
        assert!(look(BackendIdentity::Solo).unwrap().is_none());
        assert!(!path.exists());
        drop(open(&path, BackendIdentity::Solo).unwrap());
        assert!(look(BackendIdentity::Solo).unwrap().is_some());
        assert!(matches!(look(zookeeper("")), Err(StateDirError::OtherBackend { .. })));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        let refused = open(&path.join("below"), BackendIdentity::Solo).unwrap_err();
        assert!(matches!(&refused, StateDirError::Create { .. }), "{refused}");
        assert!(refused.to_string().contains("file/below"));
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        // Permissions do not bind root; a folder is no file for root either.
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("lock");
        std::fs::create_dir(&lock).unwrap();
        let refused = open(dir.path(), BackendIdentity::Solo).unwrap_err();
        assert!(matches!(&refused, StateDirError::Write { path, .. } if *path == lock), "{refused}");
        assert!(!refused.is_configuration());
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused_and_nothing_is_written_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = open(dir.path(), BackendIdentity::Solo).unwrap_err();
        assert!(matches!(&refused, StateDirError::Unsafe { .. }) && refused.is_configuration(), "{refused}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_that_somebody_left_in_it_is_not_followed() {
        for name in ["lock", "identity.json", "sessions.json"] {
            let (dir, precious) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
            std::os::unix::fs::symlink(precious.path(), dir.path().join(name)).unwrap();
            let refused = open(dir.path(), BackendIdentity::Solo).unwrap_err();
            assert!(refused.is_configuration(), "{refused}");
            assert_eq!(std::fs::read(precious.path()).unwrap(), b"");
        }
    }

    #[test]
    fn what_cannot_be_written_down_is_not_remembered_either() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(dir.path(), zookeeper("")).unwrap();
        std::fs::create_dir(dir.path().join("sessions.json")).unwrap(); // nothing can be moved over a folder
        assert!(matches!(state.record_session(&SessionId("1".into())), Err(StateDirError::Write { .. })));
        assert!(guard(&state.sessions).made_here().is_empty());
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".tmp")), "{left:?}");
    }

    #[test]
    fn a_damaged_identity_is_an_error_and_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("identity.json"), "{").unwrap();
        assert!(matches!(open(dir.path(), BackendIdentity::Solo), Err(StateDirError::Damaged { .. })));
        assert_eq!(std::fs::read_to_string(dir.path().join("identity.json")).unwrap(), "{");
    }

    /// The same text as each of the directory's documents.
    #[test]
    fn fuzz_documents_of_a_state_directory() {
        let words =
            &["\"backend\":\"solo\"", "\"chroot\":\"/a\"", "\"sessions\":[]", "\"boot_id\":\"x\"", "{}", "null", "0x1"];
        Fuzz { longest: 8 << 10, ..Fuzz::of("state-dir", words) }.run(|input| {
            thread_local!(static DIR: tempfile::TempDir = tempfile::tempdir().unwrap());
            let dir = DIR.with(|dir| dir.path().to_owned());
            std::fs::write(dir.join("sessions.json"), input).unwrap();
            std::fs::write(dir.join("identity.json"), input).unwrap();
            let sessions = Sessions::read(&dir);
            let _ = sessions.as_ref().map(Sessions::made_here);
            let identity = Identity::remembered(&dir, zookeeper("/a"));
            let _ = identity.as_ref().map(|identity| (identity.instance().to_owned(), identity.cluster()));
            let told = sessions.is_ok() | identity.is_ok();
            for error in [sessions.err(), identity.err()].into_iter().flatten() {
                assert!(error.to_string().contains(&*dir.to_string_lossy()), "{error}");
            }
            told
        });
    }
}
