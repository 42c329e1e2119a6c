//! The Unix socket `api.sock`, created and replaced atomically.
//!
//! The socket is bound under a temporary name, gets its mode and group before it listens, and is then renamed. Clients
//! therefore never see one that is half set up. A stale socket is replaced in one step, and on the solo backend a new
//! leader takes over from the old one without a gap. Only this user may write to the directory, so nobody can swap the
//! file.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net as std_net;
use std::path::{Path, PathBuf};

use nix::sys::stat::FchmodatFlags;
use rustix::fs::{AtFlags, CWD, Gid, Mode, RenameFlags, chownat, fchmod, renameat_with};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::net::UnixListener;

use cronkeeper_cluster::safe_path::{self, Refusal, Unsafe};

/// The socket's name in the runtime directory.
pub const NAME: &str = "api.sock";
/// The group that may use the socket, if it exists.
pub const GROUP: &str = "cronkeeper";

/// What to do if another process answers on the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Fail: a node of another cluster was given the same directory.
    IfFree,
    /// Replace the socket: this node leads now, and the other process led before.
    TakeOver,
}

/// Why the socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("{0} is in use by another process: give each node its own runtime directory")]
    InUse(PathBuf),
    /// Others may write to the directory, or replace it.
    #[error("runtime directory `{0}` is not safe from other users")]
    Unsafe(PathBuf, #[source] Unsafe),
    #[error("{0} exists and is not a socket: remove it, or choose another runtime directory")]
    NoSocket(PathBuf),
    #[error("cannot create {0}")]
    Failed(PathBuf, #[source] io::Error),
}

/// Checks that only this user can write to `directory`, because others could replace the socket there.
///
/// Whether the directory exists is checked when the socket is created.
///
/// # Errors
/// [`SocketError::Unsafe`].
pub fn check(directory: &Path) -> Result<(), SocketError> {
    match safe_path::check_folder(directory) {
        Err(Refusal::Unsafe(found)) => Err(SocketError::Unsafe(directory.to_owned(), found)),
        Err(Refusal::Io(_)) | Ok(()) => Ok(()),
    }
}

/// The listening socket.
#[derive(Debug)]
pub struct ApiSocket {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
}

/// The file of a socket. Dropping this removes the file, unless another socket has replaced it.
///
/// On the solo backend the successor of a leader may replace the file at any moment, also while it is being removed.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl ApiSocket {
    /// Creates `api.sock` in `directory`.
    ///
    /// # Errors
    /// When the socket is in use, or cannot be created.
    pub async fn open(directory: &Path, claim: Claim) -> Result<Self, SocketError> {
        let path = directory.join(NAME);
        let failed = |error| SocketError::Failed(path.clone(), error);
        let creating = {
            let path = path.clone();
            // On a blocking thread, because the lookup of the group may be slow.
            tokio::task::spawn_blocking(move || create(&path, claim))
        };
        let (socket, file) = creating.await.map_err(|error| failed(io::Error::other(error)))??;
        let listener = UnixListener::from_std(socket).map_err(failed)?;
        Ok(Self { listener, file })
    }
}

fn create(path: &Path, claim: Claim) -> Result<(std_net::UnixListener, SocketFile), SocketError> {
    let failed = |error| SocketError::Failed(path.to_owned(), error);
    check(path.parent().unwrap_or(path))?;
    match path.symlink_metadata() {
        Ok(meta) if !meta.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) if claim == Claim::IfFree && std_net::UnixStream::connect(path).is_ok() => {
            return Err(SocketError::InUse(path.to_owned()));
        }
        _ => {}
    }
    let temporary = temporary(path);
    let created = listening(&temporary).and_then(|socket| {
        let meta = temporary.symlink_metadata()?;
        std::fs::rename(&temporary, path)?;
        Ok((socket, SocketFile { path: path.to_owned(), device: meta.dev(), inode: meta.ino() }))
    });
    if created.is_err() {
        // Best effort: the first error is the one to report.
        drop(std::fs::remove_file(&temporary));
    }
    created.map_err(failed)
}

/// Creates the listening socket. Before its mode and group are set, it is closed to others and does not listen.
fn listening(path: &Path) -> io::Result<std_net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets the mode of the socket. The umask would work too, but it applies to all threads.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    if let Ok(Some(group)) = nix::unistd::Group::from_name(GROUP) {
        // Best effort: only root and members of the group may do this. For others the file keeps their own group.
        let group = Gid::from_raw(group.gid.as_raw());
        let _ = chownat(CWD, path, None, Some(group), AtFlags::SYMLINK_NOFOLLOW);
    }
    // rustix has no variant of this call that does not follow links.
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o660);
    nix::sys::stat::fchmodat(CWD, path, mode, FchmodatFlags::NoFollowSymlink)?;
    listen(&socket, 128)?;
    Ok(socket.into())
}

impl SocketFile {
    fn is_at(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == (self.device, self.inode))
    }

    /// True while the file is this socket's.
    pub(super) fn is_there(&self) -> bool {
        self.is_at(&self.path)
    }

    /// Removes the file. No call removes a file only if it is a certain one, so it is moved away first: one that turns
    /// out to be another socket's is put back, unless a third has come meanwhile.
    fn remove(&self) -> io::Result<()> {
        let aside = temporary(&self.path);
        std::fs::rename(&self.path, &aside)?;
        if self.is_at(&aside) || renameat_with(CWD, &aside, CWD, &self.path, RenameFlags::NOREPLACE).is_err() {
            std::fs::remove_file(&aside)?;
        }
        Ok(())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_at(&self.path) {
            // Best effort: a file left behind is stale, and the next node replaces it.
            drop(self.remove());
        }
    }
}

/// A name beside the socket that nobody else uses.
fn temporary(path: &Path) -> PathBuf {
    path.with_file_name(format!(".api-{}.sock", &uuid::Uuid::new_v4().simple().to_string()[..8]))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn answers(path: &Path) -> bool {
        std_net::UnixStream::connect(path).is_ok()
    }

    #[tokio::test]
    async fn only_owner_and_group_may_use_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let _socket = ApiSocket::open(dir.path(), Claim::IfFree).await.unwrap();
        let mode = dir.path().join(NAME).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_directory_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(ApiSocket::open(dir.path(), Claim::IfFree).await, Err(SocketError::Unsafe(..))));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        drop(std_net::UnixListener::bind(dir.path().join(NAME)).unwrap());
        let _socket = ApiSocket::open(dir.path(), Claim::IfFree).await.unwrap();
        assert!(answers(&dir.path().join(NAME)));
    }

    /// The successor may replace the file between the look at it and its removal.
    #[tokio::test]
    async fn the_socket_of_a_successor_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let old = ApiSocket::open(dir.path(), Claim::IfFree).await.unwrap();
        let _new = ApiSocket::open(dir.path(), Claim::TakeOver).await.unwrap();
        old.file.remove().unwrap();
        assert!(answers(&path));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_socket_in_use_is_replaced_only_by_a_new_leader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let old = ApiSocket::open(dir.path(), Claim::IfFree).await.unwrap();
        assert!(matches!(ApiSocket::open(dir.path(), Claim::IfFree).await, Err(SocketError::InUse(_))));
        let new = ApiSocket::open(dir.path(), Claim::TakeOver).await.unwrap();
        drop(old);
        assert!(answers(&path), "the old leader does not remove the new leader's socket");
        drop(new);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), "precious").unwrap();
        assert!(matches!(ApiSocket::open(dir.path(), Claim::TakeOver).await, Err(SocketError::NoSocket(_))));
        assert_eq!(std::fs::read_to_string(dir.path().join(NAME)).unwrap(), "precious");
    }

    #[tokio::test]
    async fn the_error_for_a_long_path_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let error = ApiSocket::open(&deep, Claim::IfFree).await.unwrap_err();
        assert!(error.to_string().contains("ddd"), "{error}");
    }
}
