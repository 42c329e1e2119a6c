//! `api.sock`: made so that nobody ever meets one that is half made, or loses one that is in use.
//!
//! The socket is bound under a name of its own, given mode and group before it listens, and then renamed to its
//! place. The directory is one in which nobody else may write: a name in it means what was put there. So a stale one is replaced in one step, and on the solo backend a new leader takes the place of the old one
//! with no gap.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net as std_net;
use std::path::{Path, PathBuf};

use nix::sys::stat::FchmodatFlags;
use rustix::fs::{AtFlags, CWD, Gid, Mode, chownat, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::net::UnixListener;

use crate::safe_path::{self, Refusal, Unsafe};

/// Its name in the runtime directory.
pub const NAME: &str = "api.sock";
/// The group that may use it, where it exists.
pub const GROUP: &str = "cronkeeper";

/// What to do where another process answers on the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Leave it to it: another node of another cluster was given the same directory.
    IfFree,
    /// Take its place: this node leads, the other one led.
    TakeOver,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process answers on it.
    #[error("{0} is in use by another process: give each node a runtime directory of its own")]
    InUse(PathBuf),
    /// Others may write in the directory, or put another one in its place.
    #[error("runtime directory `{0}` is not safe from others")]
    Unsafe(PathBuf, #[source] Unsafe),
    /// Something else is in its place.
    #[error("{0} exists and is no socket")]
    NoSocket(PathBuf),
    /// The system refused.
    #[error("{0} cannot be made")]
    Failed(PathBuf, #[source] io::Error),
}

/// Looks whether the socket may be put in `directory`: anybody who may write there could put another one in its place. Whether it is
/// there at all is found when the socket is made.
///
/// # Errors
/// [`SocketError::Unsafe`].
pub fn check(directory: &Path) -> Result<(), SocketError> {
    match safe_path::check_folder(directory) {
        Err(Refusal::Unsafe(found)) => Err(SocketError::Unsafe(directory.to_owned(), found)),
        Err(Refusal::Io(_)) | Ok(()) => Ok(()),
    }
}

/// The socket, listening.
#[derive(Debug)]
pub struct ApiSocket {
    pub(super) listener: UnixListener,
    pub(super) place: Place,
}

/// Where a socket was put. Dropping it takes the socket away again, unless another one took its place.
///
/// On the solo backend it is to be dropped before leadership is given up: afterwards it may be the successor's
/// that is looked at, and between look and removal the successor's that is removed.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl ApiSocket {
    /// Makes `api.sock` in `directory`.
    ///
    /// # Errors
    /// Where it is in use, or cannot be made.
    pub async fn open(directory: &Path, claim: Claim) -> Result<Self, SocketError> {
        let path = directory.join(NAME);
        let failed = |error| SocketError::Failed(path.clone(), error);
        let make = {
            let path = path.clone();
            // The group's number is looked up, which may ask a slow directory service.
            tokio::task::spawn_blocking(move || make(&path, claim))
        };
        let (socket, place) = make.await.map_err(|error| failed(io::Error::other(error)))??;
        let listener = UnixListener::from_std(socket).map_err(failed)?;
        Ok(Self { listener, place })
    }
}

fn make(path: &Path, claim: Claim) -> Result<(std_net::UnixListener, Place), SocketError> {
    let failed = |error| SocketError::Failed(path.to_owned(), error);
    check(path.parent().unwrap_or(path))?;
    match path.symlink_metadata() {
        Ok(meta) if !meta.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) if claim == Claim::IfFree && std_net::UnixStream::connect(path).is_ok() => {
            return Err(SocketError::InUse(path.to_owned()));
        }
        _ => {}
    }
    let aside = path.with_file_name(format!(".api-{}.sock", &uuid::Uuid::new_v4().simple().to_string()[..8]));
    let made = listening(&aside).and_then(|socket| {
        let meta = aside.symlink_metadata()?;
        std::fs::rename(&aside, path)?;
        Ok((socket, Place { path: path.to_owned(), device: meta.dev(), inode: meta.ino() }))
    });
    if made.is_err() {
        // Best effort: the error that matters is told.
        drop(std::fs::remove_file(&aside));
    }
    made.map_err(failed)
}

/// Nobody can connect before the mode is right: until then it is closed to all others, and does not listen.
fn listening(path: &Path) -> io::Result<std_net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The kernel gives the name the mode of the socket itself. The umask would do it too, but it is that of all threads.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    if let Ok(Some(group)) = nix::unistd::Group::from_name(GROUP) {
        // Only root and members may give it away; for others it stays with their own group.
        let group = Gid::from_raw(group.gid.as_raw());
        let _ = chownat(CWD, path, None, Some(group), AtFlags::SYMLINK_NOFOLLOW);
    }
    // rustix has no such call that follows no link.
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o660);
    nix::sys::stat::fchmodat(CWD, path, mode, FchmodatFlags::NoFollowSymlink)?;
    listen(&socket, 128)?;
    Ok(socket.into())
}

impl Drop for Place {
    fn drop(&mut self) {
        let is_ours = |meta: std::fs::Metadata| (meta.dev(), meta.ino()) == (self.device, self.inode);
        if self.path.symlink_metadata().is_ok_and(is_ours) {
            // Left behind it is stale, and replaced by whoever comes next.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn answers(path: &Path) -> bool {
        std_net::UnixStream::connect(path).is_ok()
    }

    #[tokio::test]
    async fn only_owner_and_group_may_use_it() {
        let dir = tempfile::tempdir().unwrap();
        let _socket = ApiSocket::open(dir.path(), Claim::IfFree).await.unwrap();
        let mode = dir.path().join(NAME).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_directory_that_others_may_write_gets_no_socket() {
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

    #[tokio::test]
    async fn a_living_one_is_left_alone_unless_the_new_leader_takes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let old = ApiSocket::open(dir.path(), Claim::IfFree).await.unwrap();
        assert!(matches!(ApiSocket::open(dir.path(), Claim::IfFree).await, Err(SocketError::InUse(_))));
        let new = ApiSocket::open(dir.path(), Claim::TakeOver).await.unwrap();
        drop(old);
        assert!(answers(&path), "the old leader's end takes nothing from the new one");
        drop(new);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_no_socket_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), "precious").unwrap();
        assert!(matches!(ApiSocket::open(dir.path(), Claim::TakeOver).await, Err(SocketError::NoSocket(_))));
        assert_eq!(std::fs::read_to_string(dir.path().join(NAME)).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_path_too_long_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let error = ApiSocket::open(&deep, Claim::IfFree).await.unwrap_err();
        assert!(error.to_string().contains("ddd"), "{error}");
    }
}
