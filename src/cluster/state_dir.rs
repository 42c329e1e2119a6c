//! The state directory: the files that a node keeps on its own disk.
//!
//! ```text
//! lock             held as long as a process uses the directory: exclusively with a service, shared on solo
//! identity.json    the backend, chroot and cluster that this directory belongs to
//! sessions.json    sessions whose entries may still exist in the service, or exist again
//! head.json        the newest commit of a store that the node was shown
//! journal          what was done about the runs of this node   (on solo, one for each member: see `solo`)
//! last-good.json   the jobs files as last accepted   (the program's `config::last_good`)
//! begins.<id>      which programs of a dead daemon had begun     (the program's `warden::begins`)
//! output/          what the runs of this node wrote             (the program's `output`)
//! ```
//!
//! A directory belongs to one backend and, once its node has joined, to one cluster for good. Otherwise a missing environment file would turn three
//! hosts into three solo leaders, and the journal of one cluster would be settled in another. All calls here block on
//! the disk. This module uses neither ZooKeeper nor SQLite.

mod boot_scope;
pub mod file;
mod identity;
pub mod journal;
pub mod lock;
mod sessions;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

pub use identity::BackendIdentity;

use self::identity::Identity;
use self::journal::FileJournal;
use self::lock::{FileLock, Kind};
pub use self::sessions::KEPT_SESSIONS;
use self::sessions::Sessions;
use crate::safe_path::{self, Refusal, Unsafe};
use crate::store::Head;
use crate::tree::Revision;
use cronkeeper_core::run::journal::Recovered;
use cronkeeper_core::term::{NodeName, SessionId};

/// A state directory, locked by this process until dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    identity: Mutex<Identity>,
    sessions: Mutex<Sessions>,
    earlier: Vec<SessionId>,
    left: Vec<SessionId>,
    _lock: FileLock,
}

const HEAD: &str = "head.json";

/// The content of `head.json`.
#[derive(Debug, Serialize, Deserialize)]
struct HeadFile {
    v: u32,
    revision: i64,
    nonce: u64,
}

/// The reason why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Another user may write to it or replace it.
    #[error("state directory `{path}` is not safe from other users")]
    Unsafe {
        path: PathBuf,
        /// The path component that other users can change.
        source: Unsafe,
    },
    #[error("state directory `{path}` cannot be created")]
    Create { path: PathBuf, source: io::Error },
    /// Another process uses it.
    #[error("state directory `{path}` is in use by {holder}: stop that process, or set another --state-dir")]
    InUse {
        path: PathBuf,
        /// The holder's description of itself in the lock file.
        holder: String,
    },
    #[error(
        "state directory `{path}` belongs to {ours}, but {but}, or empty the directory, or set another --state-dir",
        but = ours.but_asked(asked)
    )]
    OtherBackend {
        path: PathBuf,
        /// The backend recorded in the directory.
        ours: BackendIdentity,
        /// The backend in the settings.
        asked: BackendIdentity,
    },
    #[error(
        "state directory `{path}` belongs to cluster {ours}, but the settings name cluster {theirs}: \
         correct them, or empty the directory, or set another --state-dir"
    )]
    OtherCluster {
        path: PathBuf,
        /// The cluster recorded in the directory.
        ours: String,
        /// The cluster that the service reports.
        theirs: String,
    },
    #[error(
        "state directory `{path}` belongs to node `{ours}`, not to `{asked}`: \
         correct --node (CRONKEEPER_NODE) or --state-dir"
    )]
    OtherNode {
        path: PathBuf,
        /// The node that used the directory last.
        ours: NodeName,
        /// The node in the settings.
        asked: NodeName,
    },
    /// A file in it does not have the expected content.
    #[error("`{path}` in the state directory is damaged")]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("`{path}` in the state directory cannot be read")]
    Read { path: PathBuf, source: io::Error },
    /// A file in it cannot be written. Its old content is intact.
    #[error("`{path}` in the state directory cannot be written")]
    Write { path: PathBuf, source: io::Error },
}

impl StateDirError {
    /// True if an operator must change a setting: exit code 78.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Unsafe { .. }
            | Self::OtherBackend { .. }
            | Self::OtherCluster { .. }
            | Self::OtherNode { .. }
            | Self::InUse { .. } => true,
            Self::Read { source, .. } | Self::Write { source, .. } => safe_path::refused(source).is_some(),
            Self::Create { source, .. } => safe_path::is_settled(source),
            Self::Damaged { .. } => false,
        }
    }
}

impl StateDir {
    /// Like [`StateDir::open`], but returns `None` if no process ever used the directory.
    ///
    /// For commands that clean up after other processes.
    ///
    /// # Errors
    /// If it is in use, belongs to another backend, or cannot be read and written.
    pub fn open_existing(
        path: &Path,
        belongs: BackendIdentity,
        node: &NodeName,
    ) -> Result<Option<Self>, StateDirError> {
        match Identity::exists(path)? {
            true => Self::open(path, belongs, node).map(Some),
            false => Ok(None),
        }
    }

    /// Opens a directory, creating it if it does not exist, and locks it for `belongs`.
    ///
    /// `node` describes the holder in error messages of other processes.
    ///
    /// # Errors
    /// If it is in use, belongs to another backend, or cannot be read and written.
    pub fn open(path: &Path, belongs: BackendIdentity, node: &NodeName) -> Result<Self, StateDirError> {
        make_folder(path)?;
        let lock = take_lock(path, &belongs, node)?;
        let identity = Identity::load_or_create(path, belongs)?;
        let sessions = Sessions::read(path)?;
        let (earlier, left) = (sessions.made_here(), sessions.left_here());
        let path = path.to_owned();
        Ok(Self { path, identity: Mutex::new(identity), sessions: Mutex::new(sessions), earlier, left, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An id that distinguishes this directory from all others; a copy of it has the same id.
    pub fn instance(&self) -> String {
        locked(&self.identity).instance().to_owned()
    }

    /// Binds the directory to the cluster `id`, or checks that it is bound to it.
    ///
    /// # Errors
    /// [`StateDirError::OtherCluster`]; also if the id cannot be written.
    pub fn claim_cluster(&self, id: &str) -> Result<(), StateDirError> {
        locked(&self.identity).claim_cluster(&self.path, id)
    }

    /// Records the node that uses the directory from now on: for [`StateDir::check_node`].
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn note_node(&self, node: &NodeName) -> Result<(), StateDirError> {
        locked(&self.identity).note_node(&self.path, node)
    }

    /// The node that used the directory last; `None` if that is not recorded.
    pub fn node(&self) -> Option<NodeName> {
        locked(&self.identity).node().cloned()
    }

    /// Checks that no other node used the directory last.
    ///
    /// # Errors
    /// [`StateDirError::OtherNode`].
    pub fn check_node(&self, asked: &NodeName) -> Result<(), StateDirError> {
        match self.node().filter(|ours| ours != asked) {
            Some(ours) => Err(StateDirError::OtherNode { path: self.path.clone(), ours, asked: asked.clone() }),
            None => Ok(()),
        }
    }

    /// The cluster that the directory is bound to; `None` before [`StateDir::claim_cluster`].
    pub fn cluster(&self) -> Option<String> {
        locked(&self.identity).cluster()
    }

    /// Records a session. Must be called before the session creates its first znode.
    ///
    /// # Errors
    /// If it cannot be written: the session must then not create any znode.
    pub fn record_session(&self, id: &SessionId) -> Result<(), StateDirError> {
        locked(&self.sessions).record(&self.path, id)
    }

    /// The sessions of earlier processes whose entries may exist, as recorded when the directory was opened.
    ///
    /// Only those recorded in this boot and in this very directory. Their processes are dead, because the directory's
    /// lock was free.
    pub fn earlier_sessions(&self) -> &[SessionId] {
        &self.earlier
    }

    /// The last sessions of earlier processes whose entries were removed, as recorded when the directory was opened.
    ///
    /// ZooKeeper may have lost that, and then they exist again. The limits of [`Self::earlier_sessions`] apply.
    pub fn left_sessions(&self) -> &[SessionId] {
        &self.left
    }

    /// Records that the entries of these sessions are gone.
    ///
    /// # Errors
    /// If that cannot be written; their entries then count as existing.
    pub fn note_left(&self, ids: &[SessionId]) -> Result<(), StateDirError> {
        locked(&self.sessions).note_left(&self.path, ids)
    }

    /// The newest commit that the node was shown, by the processes before this one.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn head(&self) -> Result<Option<Head>, StateDirError> {
        let file: Option<HeadFile> = file::read(&self.path.join(HEAD))?;
        Ok(file.map(|HeadFile { revision, nonce, .. }| Head { revision: Revision(revision), nonce }))
    }

    /// Opens this node's journal; returns also what earlier processes left open in it.
    ///
    /// Only with ZooKeeper, and once: on solo each member has a journal of its own, which
    /// [`solo::start`](crate::solo::start) opens.
    ///
    /// # Errors
    /// If it cannot be read and written.
    pub fn journal(&self) -> Result<(FileJournal, Recovered), StateDirError> {
        FileJournal::open(&self.path.join("journal"))
    }
}

/// Records the newest commit that the node was shown. `directory` belongs to it, also while nobody holds its lock.
///
/// # Errors
/// If it cannot be written.
pub fn note_head(directory: &Path, head: Head) -> Result<(), StateDirError> {
    let Head { revision: Revision(revision), nonce } = head;
    file::replace(&directory.join(HEAD), &HeadFile { v: 1, revision, nonce })
}

/// Ignores poisoning: a panic leaves no half-done update, because each one replaces a value after it is on disk.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a directory that no other user can write to or replace.
///
/// Files in it may then be named by their path.
pub fn make_folder(path: &Path) -> Result<(), StateDirError> {
    let path = path.to_owned();
    safe_path::make_folder(&path).map_err(|refusal| match refusal {
        Refusal::Unsafe(source) => StateDirError::Unsafe { path, source },
        Refusal::Io(source) => StateDirError::Create { path, source },
    })
}

fn take_lock(directory: &Path, belongs: &BackendIdentity, node: &NodeName) -> Result<FileLock, StateDirError> {
    let path = directory.join("lock");
    let kind = match belongs {
        BackendIdentity::Solo => Kind::Shared,
        _ => Kind::Exclusive,
    };
    let failed = |source| StateDirError::Write { path: path.clone(), source };
    let Some(lock) = FileLock::try_take(&path, kind).map_err(failed)? else {
        return Err(StateDirError::InUse { path: directory.to_owned(), holder: lock::holder(&path) });
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
    fn a_directory_that_never_joined_a_cluster_follows_a_corrected_path() {
        let dir = tempfile::tempdir().unwrap();
        let instance = open(dir.path(), zookeeper("/misspelt")).unwrap().instance();
        assert!(open(dir.path(), BackendIdentity::Solo).is_err(), "a missing environment file must not make it solo");
        assert_eq!(open(dir.path(), zookeeper("/c")).unwrap().instance(), instance);
        open(dir.path(), zookeeper("/c")).unwrap().claim_cluster("one").unwrap();
        assert!(matches!(open(dir.path(), zookeeper("/misspelt")), Err(StateDirError::OtherBackend { .. })));
    }

    #[test]
    fn another_backend_or_chroot_is_refused_with_the_setting_to_change() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), zookeeper("/c")).unwrap().claim_cluster("one").unwrap();
        for other in [BackendIdentity::Solo, zookeeper("/d")] {
            let refused = open(dir.path(), other).unwrap_err();
            assert!(refused.is_configuration());
            assert!(refused.to_string().contains("--zookeeper"), "{refused}");
        }
    }

    #[test]
    fn another_cluster_is_refused_by_the_next_process_too() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), zookeeper("")).unwrap().claim_cluster("one").unwrap();
        let again = open(dir.path(), zookeeper("")).unwrap();
        again.claim_cluster("one").unwrap();
        assert!(matches!(again.claim_cluster("two"), Err(StateDirError::OtherCluster { .. })));
    }

    #[test]
    fn a_session_may_have_entries_until_it_has_left() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (SessionId("1".into()), SessionId("2".into()));
        let first = open(dir.path(), zookeeper("")).unwrap();
        first.record_session(&one).unwrap();
        first.record_session(&two).unwrap();
        assert!(first.earlier_sessions().is_empty());
        drop(first);
        let second = open(dir.path(), zookeeper("")).unwrap();
        assert_eq!(second.earlier_sessions(), [one.clone(), two.clone()]);
        second.note_left(std::slice::from_ref(&one)).unwrap();
        drop(second);
        let third = open(dir.path(), zookeeper("")).unwrap();
        assert_eq!((third.earlier_sessions(), third.left_sessions()), ([two].as_slice(), [one].as_slice()));
    }

    #[test]
    fn the_last_sessions_that_left_no_entry_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(dir.path(), zookeeper("")).unwrap();
        let sessions: Vec<SessionId> = (0..20).map(|number| SessionId(number.to_string())).collect();
        for session in &sessions {
            state.record_session(session).unwrap();
            state.note_left(std::slice::from_ref(session)).unwrap();
        }
        drop(state);
        let after = open(dir.path(), zookeeper("")).unwrap();
        assert_eq!((after.earlier_sessions(), after.left_sessions()), ([].as_slice(), &sessions[4..]));
    }

    #[test]
    fn a_session_of_another_boot_is_skipped_but_not_those_of_this_boot() {
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
    fn sessions_in_a_copy_of_a_directory_are_skipped() {
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
    fn open_existing_creates_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let open_existing = |belongs| StateDir::open_existing(&path, belongs, &NodeName::new("host-a"));
        assert!(open_existing(BackendIdentity::Solo).unwrap().is_none());
        assert!(!path.exists());
        drop(open(&path, BackendIdentity::Solo).unwrap());
        assert!(open_existing(BackendIdentity::Solo).unwrap().is_some());
        assert!(matches!(open_existing(zookeeper("")), Err(StateDirError::OtherBackend { .. })));
    }

    #[test]
    fn the_error_names_a_directory_that_cannot_be_created() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        let refused = open(&path.join("below"), BackendIdentity::Solo).unwrap_err();
        assert!(matches!(&refused, StateDirError::Create { .. }), "{refused}");
        assert!(refused.to_string().contains("file/below"));
    }

    #[test]
    fn the_error_names_a_file_that_cannot_be_written() {
        // Root ignores permissions, but even root cannot open a directory as a file.
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("lock");
        std::fs::create_dir(&lock).unwrap();
        let refused = open(dir.path(), BackendIdentity::Solo).unwrap_err();
        assert!(matches!(&refused, StateDirError::Write { path, .. } if *path == lock), "{refused}");
        assert!(!refused.is_configuration());
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_and_left_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = open(dir.path(), BackendIdentity::Solo).unwrap_err();
        assert!(matches!(&refused, StateDirError::Unsafe { .. }) && refused.is_configuration(), "{refused}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_in_the_directory_is_not_followed() {
        for name in ["lock", "identity.json", "sessions.json"] {
            let (dir, precious) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
            std::os::unix::fs::symlink(precious.path(), dir.path().join(name)).unwrap();
            let refused = open(dir.path(), BackendIdentity::Solo).unwrap_err();
            assert!(refused.is_configuration(), "{refused}");
            assert_eq!(std::fs::read(precious.path()).unwrap(), b"");
        }
    }

    #[test]
    fn a_session_that_cannot_be_written_is_not_recorded_in_memory_either() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(dir.path(), zookeeper("")).unwrap();
        std::fs::create_dir(dir.path().join("sessions.json")).unwrap(); // no file can be renamed over a directory
        assert!(matches!(state.record_session(&SessionId("1".into())), Err(StateDirError::Write { .. })));
        assert!(locked(&state.sessions).made_here().is_empty());
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".tmp")), "{left:?}");
    }

    #[test]
    fn a_damaged_identity_is_an_error_and_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("identity.json"), "{").unwrap();
        assert!(matches!(open(dir.path(), BackendIdentity::Solo), Err(StateDirError::Damaged { .. })));
        assert_eq!(std::fs::read_to_string(dir.path().join("identity.json")).unwrap(), "{");
    }

    /// Writes the same text as each of the directory's JSON files.
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
            let identity = Identity::load_or_create(&dir, zookeeper("/a"));
            let _ = identity.as_ref().map(|identity| (identity.instance().to_owned(), identity.cluster()));
            let is_valid = sessions.is_ok() | identity.is_ok();
            let errors = [sessions.err(), identity.err()].map(|error| error.map(|error| error.to_string()));
            for error in errors.into_iter().flatten() {
                assert!(error.contains(&*dir.to_string_lossy()), "{error}");
            }
            is_valid
        });
    }
}
