//! Opens files and directories that no other user can change or replace.
//!
//! Like sshd for its keys (StrictModes), it checks every component of a path while it follows the path.
//!
//! ```text
//!  path ─► walk   from `/`, name by name, resolving links: who owns it, who may write to it   (pure, on a FileTree)
//!            │
//!           disk  holds each component by a descriptor, opens the last one from its directory, checks the open file
//! ```
//! What is checked is what is used: no name is looked up a second time by its path. If the path of a directory is safe,
//! no other user can replace the directory, so files in it may be named by their path afterwards. Jobs files, state and
//! runtime directory, and secrets are all opened here. Files to lock are only found here: others may change those.

mod disk;
mod refusal;
mod walk;

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use self::disk::Disk;
pub use self::refusal::{Fault, Refusal, Unsafe, of_setting};
pub use self::walk::Wanted;
use self::walk::{AccessRules, FileKind, ResolvedPath};

/// A file or directory, open for reading.
#[derive(Debug)]
pub enum Opened {
    Folder(OwnedFd),
    File(File),
}

/// Opens a file or directory that no other user can change or replace. Never blocks: it does not open a FIFO.
///
/// # Errors
/// If it cannot be opened, or another user can change or replace it.
pub fn open(path: &Path) -> Result<Opened, Refusal> {
    let (disk, rules) = (Disk::read_only(), rules());
    let resolved = walk::walk(&disk, &absolute(path)?, &rules)?;
    match resolved.last().facts.kind {
        FileKind::Directory => opened_directory(&disk, &rules, &resolved).map(Opened::Folder),
        _ => opened_file(&disk, &rules, &resolved, Wanted::Trusted).map(Opened::File),
    }
}

/// Opens a regular file.
///
/// # Errors
/// As for [`open`]; also if it is not a regular file.
pub fn open_file(path: &Path, wanted: Wanted) -> Result<File, Refusal> {
    let (disk, rules) = (Disk::read_only(), rules());
    let resolved = walk::walk(&disk, &absolute(path)?, &rules)?;
    opened_file(&disk, &rules, &resolved, wanted)
}

/// Opens a regular file for a job of this user, who may own it and the directories on the way to it.
///
/// What such a user could have put in its place is refused: a link, or another user's file.
///
/// # Errors
/// As for [`open_file`].
pub fn open_file_for(path: &Path, wanted: Wanted, user: u32) -> Result<File, Refusal> {
    let (disk, rules) = (Disk::read_only(), AccessRules { user: Some(user), ..rules() });
    let resolved = walk::walk(&disk, &absolute(path)?, &rules)?;
    opened_file(&disk, &rules, &resolved, wanted)
}

/// Reads a text file that must be trusted or secret, at most this many bytes.
///
/// # Errors
/// As for [`open_file`]; also if it is larger, or not UTF-8.
pub fn read_text(path: &Path, wanted: Wanted, most: u64) -> Result<String, Refusal> {
    let bytes = read_bytes(path, wanted, most)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8").into())
}

/// Reads a file that must be trusted or secret, at most this many bytes.
///
/// # Errors
/// As for [`open_file`]; also if it is larger.
pub fn read_bytes(path: &Path, wanted: Wanted, most: u64) -> Result<Vec<u8>, Refusal> {
    Ok(read_whole(open_file(path, wanted)?, most)?)
}

/// Reads the rest of a file, at most this many bytes.
///
/// # Errors
/// If it cannot be read, or is larger.
pub fn read_whole(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is larger than {most} bytes")));
    }
    Ok(bytes)
}

/// A file or directory of any user, and the directory that it is in.
#[derive(Debug)]
pub struct Found {
    /// Its path, with links resolved.
    pub path: PathBuf,
    /// An `O_PATH` descriptor of it.
    pub node: OwnedFd,
    /// An `O_PATH` descriptor of its directory; `None` for `/`.
    pub folder: Option<OwnedFd>,
}

/// Finds a file that other users may change or replace.
///
/// They must not have chosen it, though: each link on the way belongs to root or to this user.
///
/// # Errors
/// If it cannot be found, or a link on the way belongs to another user.
pub fn find(path: &Path) -> Result<Found, Refusal> {
    let rules = AccessRules { are_only_links_checked: true, ..rules() };
    let resolved = walk::walk(&Disk::read_only(), &absolute(path)?, &rules)?;
    let path = resolved.path();
    let (node, folder) = resolved.into_last_and_parent();
    Ok(Found { path, node, folder })
}

/// Checks that no other user can write to a directory or replace it.
///
/// # Errors
/// If another user can, or if it is not a directory.
pub fn check_folder(path: &Path) -> Result<(), Refusal> {
    walk_to_directory(path, &Disk::read_only())
}

/// Like [`check_folder`], but first creates missing directories, for this user alone.
///
/// # Errors
/// If another user can write to it or replace it, if it is not a directory, or if it cannot be created.
pub fn make_folder(path: &Path) -> Result<(), Refusal> {
    walk_to_directory(path, &Disk::creating())
}

/// The way to open one of this process's own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it. Several hard links are allowed, because a new file has two for a moment while it is moved into place.
    Read,
    /// Append to it.
    Append,
    /// Read and write it in place; create it, for this user alone, if it does not exist.
    ReadWrite,
}

/// Opens one of this process's own files in a directory that was found safe.
///
/// The directory may have belonged to another user before, so a link is not followed, and a file of another user is
/// refused.
///
/// # Errors
/// If it cannot be opened, or does not belong to this user; [`refused`] returns which.
pub fn open_own(path: &Path, access: Access) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    match access {
        Access::Read => options.read(true),
        Access::Append => options.append(true),
        Access::ReadWrite => options.read(true).write(true).create(true).truncate(false).mode(0o600),
    };
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => unsafe_at(path, Fault::Link).into(),
        _ => error,
    })?;
    check_own_file(path, &disk::facts(&file)?, access)?;
    Ok(file)
}

/// Like [`open_own`], but only checks a file that a library will read and write. A missing file is accepted.
///
/// # Errors
/// If it does not belong to this user.
pub fn check_own(path: &Path) -> io::Result<()> {
    match disk::open_path(rustix::fs::CWD, path.as_os_str()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        found => check_own_file(path, &disk::facts(found?)?, Access::ReadWrite),
    }
}

/// The refusal inside an error, if it is one.
pub fn refused(error: &io::Error) -> Option<&Unsafe> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// True for an error that lasts until an operator changes the path, or what is on the way to it.
pub fn is_settled(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    let settled = [Errno::ACCESS, Errno::PERM, Errno::NOTDIR, Errno::EXIST, Errno::LOOP, Errno::NAMETOOLONG];
    errno.is_some_and(|errno| settled.contains(&errno))
}

fn rules() -> AccessRules {
    AccessRules { me: rustix::process::geteuid().as_raw(), user: None, are_only_links_checked: false }
}

fn check_own_file(path: &Path, facts: &walk::Facts, access: Access) -> io::Result<()> {
    let fault = match facts.kind {
        FileKind::File => rules().check_own(&Disk::read_only(), facts, access != Access::Read).err(),
        FileKind::Link => Some(Fault::Link),
        _ => Some(Fault::NoFile),
    };
    fault.map_or(Ok(()), |fault| Err(unsafe_at(path, fault).into()))
}

fn unsafe_at(path: &Path, fault: Fault) -> Unsafe {
    Unsafe { component: path.to_owned(), fault, me: rules().me, is_read_only: false }
}

/// Makes a path absolute, because every component counts, including those above the current directory.
fn absolute(path: &Path) -> Result<PathBuf, Refusal> {
    if path.as_os_str().is_empty() {
        return Err(io::Error::from(Errno::NOENT).into());
    }
    Ok(std::path::absolute(path)?)
}

fn walk_to_directory(path: &Path, disk: &Disk) -> Result<(), Refusal> {
    let rules = rules();
    let resolved = walk::walk(disk, &absolute(path)?, &rules)?;
    match resolved.last().facts.kind {
        FileKind::Directory => Ok(resolved.check_last(disk, &rules, &resolved.last().facts, Wanted::Trusted)?),
        _ => Err(io::Error::from(Errno::NOTDIR).into()),
    }
}

fn opened_directory(disk: &Disk, rules: &AccessRules, resolved: &ResolvedPath<OwnedFd>) -> Result<OwnedFd, Refusal> {
    resolved.check_last(disk, rules, &resolved.last().facts, Wanted::Trusted)?;
    Ok(disk::open_directory(&resolved.last().node)?)
}

/// Checks the facts of the open file: editors may replace the file between the walk and the opening.
fn opened_file(
    disk: &Disk,
    rules: &AccessRules,
    resolved: &ResolvedPath<OwnedFd>,
    wanted: Wanted,
) -> Result<File, Refusal> {
    let (FileKind::File, Some(parent)) = (resolved.last().facts.kind, resolved.parent()) else {
        return Err(resolved.not_a_file(rules).into());
    };
    let file = disk::open_file(&parent.node, &resolved.last().name)?;
    let facts = disk::facts(&file)?;
    match facts.kind {
        FileKind::File => resolved.check_last(disk, rules, &facts, wanted)?,
        _ => return Err(resolved.not_a_file(rules).into()),
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::skips::{Facility, skipped};

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn fault<T>(result: Result<T, Refusal>) -> Option<(PathBuf, Fault)> {
        match result {
            Err(Refusal::Unsafe(found)) => Some((found.component, found.fault)),
            Err(Refusal::Io(error)) => panic!("{error}"),
            Ok(_) => None,
        }
    }

    /// Creates a directory with one file in it; returns the file by its real path.
    fn with_file() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().canonicalize().unwrap().join("file");
        std::fs::write(&file, "text").unwrap();
        mode(&file, 0o600);
        (dir, file)
    }

    #[test]
    fn a_file_is_read_through_links_and_dots() {
        let (dir, file) = with_file();
        symlink("../sub/../file", dir.path().join("link")).unwrap_or_else(|error| panic!("{error}"));
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        symlink(dir.path(), dir.path().join("sub/up")).unwrap();
        symlink("sub/up/file", dir.path().join("far")).unwrap();
        assert_eq!(read_text(&file, Wanted::Secret, 1 << 10).unwrap(), "text");
        assert_eq!(read_text(&dir.path().join("far"), Wanted::Secret, 1 << 10).unwrap(), "text");
        assert_eq!(read_text(&dir.path().join("sub/../file"), Wanted::Secret, 1 << 10).unwrap(), "text");
    }

    #[test]
    fn a_file_in_a_directory_that_others_may_write_to_is_refused() {
        let (dir, file) = with_file();
        let directory = file.parent().unwrap().to_owned();
        mode(dir.path(), 0o777);
        assert_eq!(fault(open(&file)), Some((directory.clone(), Fault::AnybodyWrites { mode: 0o777 })));
        assert_eq!(fault(check_folder(dir.path())), Some((directory.clone(), Fault::AnybodyWrites { mode: 0o777 })));
        mode(dir.path(), 0o1777);
        assert_eq!(fault(open(&file)), None, "others cannot remove names in a sticky directory");
        assert_eq!(fault(check_folder(dir.path())), Some((directory, Fault::AnybodyWrites { mode: 0o1777 })));
        std::fs::hard_link(&file, dir.path().join("other")).unwrap();
        assert_eq!(fault(open(&file)), Some((file, Fault::HardLinked { links: 2 })));
    }

    #[test]
    fn a_link_into_a_virtual_file_system_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("jobs.yaml");
        symlink(format!("/proc/{}/cmdline", std::process::id()), &link).unwrap();
        assert_eq!(fault(open(&link)), Some(("/proc".into(), Fault::OfKernel)));
    }

    #[test]
    fn a_secret_must_be_accessible_to_its_owner_only() {
        let (_dir, file) = with_file();
        for (given, is_accepted) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            mode(&file, given);
            assert_eq!(read_text(&file, Wanted::Secret, 1 << 10).is_ok(), is_accepted, "{given:o}");
        }
    }

    #[test]
    fn a_device_is_neither_file_nor_directory() {
        assert_eq!(fault(open(Path::new("/dev/null"))), Some(("/dev/null".into(), Fault::NoFile)));
        let (dir, _) = with_file();
        assert!(matches!(fault(open_file(dir.path(), Wanted::Trusted)), Some((_, Fault::NoFile))));
        assert!(matches!(open(Path::new("")), Err(Refusal::Io(error)) if error.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn a_file_of_anybody_is_found_unless_another_user_has_chosen_it() {
        let (dir, file) = with_file();
        mode(dir.path(), 0o777);
        mode(&file, 0o666);
        symlink("file", dir.path().join("link")).unwrap();
        for name in ["file", "link", "./link"] {
            assert_eq!(find(&dir.path().join(name)).unwrap().path, file, "{name}");
        }
        let root = find(Path::new("/")).unwrap();
        assert!(root.folder.is_none() && root.path == Path::new("/"));
        assert!(
            matches!(find(&dir.path().join("none")), Err(Refusal::Io(error)) if error.kind() == io::ErrorKind::NotFound)
        );
        if !rustix::process::geteuid().is_root() {
            return skipped(Facility::Root, "only root can give a link to another user");
        }
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        symlink("folder", dir.path().join("way")).unwrap();
        symlink("way/../file", dir.path().join("chain")).unwrap();
        std::os::unix::fs::lchown(dir.path().join("way"), Some(4242), None).unwrap();
        for name in ["way", "way/../file", "chain"] {
            let found = fault(find(&dir.path().join(name)).map(drop));
            let way = file.parent().unwrap().join("way");
            assert_eq!(found, Some((way, Fault::ForeignLink { owner: 4242 })), "{name}");
        }
    }

    #[test]
    fn a_link_to_itself_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        symlink("a", dir.path().join("a")).unwrap();
        let Err(Refusal::Io(error)) = open(&dir.path().join("a")) else { panic!("a file?") };
        assert_eq!(Errno::from_io_error(&error), Some(Errno::LOOP));
    }

    #[test]
    fn missing_directories_are_created_for_this_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        make_folder(&deep).unwrap();
        make_folder(&deep).unwrap();
        for directory in [&deep, &dir.path().join("a")] {
            assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
        }
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(make_folder(&file), Err(Refusal::Io(_))));
    }

    #[test]
    fn nothing_is_created_in_a_directory_that_others_may_write_to() {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o777);
        assert!(fault(make_folder(&dir.path().join("a"))).is_some());
        assert!(!dir.path().join("a").exists());
    }

    #[test]
    fn an_own_file_is_not_a_link_and_has_no_other_name() {
        let (dir, file) = with_file();
        let open = |name: &str| open_own(&dir.path().join(name), Access::ReadWrite);
        assert!(open("file").is_ok());
        symlink(&file, dir.path().join("link")).unwrap();
        let refusal = open("link").unwrap_err();
        assert_eq!(refused(&refusal).map(|found| found.fault.clone()), Some(Fault::Link));
        assert!(check_own(&dir.path().join("link")).is_err());
        std::fs::hard_link(&file, dir.path().join("second")).unwrap();
        assert!(open("second").is_err());
        assert!(open_own(&dir.path().join("second"), Access::Read).is_ok());
        assert!(check_own(&dir.path().join("none")).is_ok());
    }
}
