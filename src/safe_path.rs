//! Files and folders that nobody else decides about: opened by a walk that looks at every part of their path, as sshd does for its keys
//! (StrictModes).
//!
//! ```text
//!  path ─► walk   `/`, then name by name, links by hand: who owns it, who may write it   (pure, asks a Tree)
//!            │
//!           disk  each part held by a descriptor; the last one is opened from its folder, and judged as it is open
//! ```
//! What is checked is what is used: no name is looked up a second time by its path. Where the path of a folder is safe nobody else can
//! put another one in its place, so what lies in it may be named by its path afterwards. Jobs files, state and runtime directory,
//! and secrets all go through here; what for, their own modules know.

mod disk;
mod walk;

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use self::disk::Disk;
pub use self::walk::{Fault, Refusal, Unsafe, Wanted};
use self::walk::{Judge, Kind, Way};

/// What a path that may name either led to, open for reading.
#[derive(Debug)]
pub enum Opened {
    /// A folder.
    Folder(OwnedFd),
    /// A regular file.
    File(File),
}

/// Opens a file or folder by which others must not be able to decide anything. Never waits: a FIFO is not opened.
///
/// # Errors
/// When it cannot be opened, or others may change it or put another one in its place.
pub fn open(path: &Path) -> Result<Opened, Refusal> {
    let (disk, judge) = (Disk::as_it_is(), judge());
    let way = walk::walk(&disk, &absolute(path)?, &judge)?;
    match way.end().facts.kind {
        Kind::Folder => opened_folder(&disk, &judge, &way).map(Opened::Folder),
        _ => opened_file(&disk, &judge, &way, Wanted::Trusted).map(Opened::File),
    }
}

/// Opens a regular file.
///
/// # Errors
/// As [`open`]; also when it is something else.
pub fn open_file(path: &Path, wanted: Wanted) -> Result<File, Refusal> {
    let (disk, judge) = (Disk::as_it_is(), judge());
    let way = walk::walk(&disk, &absolute(path)?, &judge)?;
    opened_file(&disk, &judge, &way, wanted)
}

/// Reads a file of text: one that must be trusted, or kept secret too.
///
/// # Errors
/// As [`open_file`]; also when it is not UTF-8.
pub fn read_text(path: &Path, wanted: Wanted) -> Result<String, Refusal> {
    let mut text = String::new();
    open_file(path, wanted)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Looks whether a folder is one in which nobody else may write, nor put another one in its place.
///
/// # Errors
/// When it is not, or is no folder.
pub fn check_folder(path: &Path) -> Result<(), Refusal> {
    folder(path, &Disk::as_it_is())
}

/// The same, and makes what is missing of it, for this user alone.
///
/// # Errors
/// When it is not safe, is no folder, or cannot be made.
pub fn make_folder(path: &Path) -> Result<(), Refusal> {
    folder(path, &Disk::making())
}

/// What a file of this process's own is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read. It may be about to lose a second name, by which it was made.
    Read,
    /// To be written at its end.
    Append,
    /// To be read and written where it stands; made, for this user alone, if there is none.
    ReadWrite,
}

/// Opens a file of this process's own in a folder that was found safe. The folder may have been another's before, so a link is not
/// followed, and what somebody else put there is refused.
///
/// # Errors
/// When it cannot be opened, or is not this user's own; [`refused`] tells which.
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
    judge_own(path, &disk::facts(&file)?, access)?;
    Ok(file)
}

/// The same for a file that a library will read and write. No file: nothing to refuse.
///
/// # Errors
/// When it is not this user's own.
pub fn check_own(path: &Path) -> io::Result<()> {
    match disk::look(rustix::fs::CWD, path.as_os_str()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        found => judge_own(path, &disk::facts(found?)?, Access::ReadWrite),
    }
}

/// What was refused, where an error is of that kind.
pub fn refused(error: &io::Error) -> Option<&Unsafe> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

fn judge() -> Judge {
    Judge { me: rustix::process::geteuid().as_raw() }
}

fn judge_own(path: &Path, facts: &walk::Facts, access: Access) -> io::Result<()> {
    let fault = match facts.kind {
        Kind::File => judge().own(&Disk::as_it_is(), facts, access != Access::Read).err(),
        Kind::Link => Some(Fault::Link),
        _ => Some(Fault::NoFile),
    };
    fault.map_or(Ok(()), |fault| Err(unsafe_at(path, fault).into()))
}

fn unsafe_at(path: &Path, fault: Fault) -> Unsafe {
    Unsafe { component: path.to_owned(), fault, me: judge().me }
}

/// Every part counts, up to `/`: also those above the current directory.
fn absolute(path: &Path) -> Result<PathBuf, Refusal> {
    if path.as_os_str().is_empty() {
        return Err(io::Error::from(Errno::NOENT).into());
    }
    Ok(std::path::absolute(path)?)
}

fn folder(path: &Path, disk: &Disk) -> Result<(), Refusal> {
    let judge = judge();
    let way = walk::walk(disk, &absolute(path)?, &judge)?;
    match way.end().facts.kind {
        Kind::Folder => Ok(way.judge_end(disk, &judge, &way.end().facts, Wanted::Trusted)?),
        _ => Err(io::Error::from(Errno::NOTDIR).into()),
    }
}

fn opened_folder(disk: &Disk, judge: &Judge, way: &Way<OwnedFd>) -> Result<OwnedFd, Refusal> {
    way.judge_end(disk, judge, &way.end().facts, Wanted::Trusted)?;
    Ok(disk::open_folder(&way.end().node)?)
}

/// A file may be replaced between look and opening, as editors do: judged is what is open.
fn opened_file(disk: &Disk, judge: &Judge, way: &Way<OwnedFd>, wanted: Wanted) -> Result<File, Refusal> {
    let (Kind::File, Some(folder)) = (way.end().facts.kind, way.folder()) else {
        return Err(way.no_file(judge).into());
    };
    let file = disk::open_file(&folder.node, &way.end().name)?;
    let facts = disk::facts(&file)?;
    match facts.kind {
        Kind::File => way.judge_end(disk, judge, &facts, wanted)?,
        _ => return Err(way.no_file(judge).into()),
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

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

    /// A folder, by its real name, with one file in it.
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
        assert_eq!(read_text(&file, Wanted::Secret).unwrap(), "text");
        assert_eq!(read_text(&dir.path().join("far"), Wanted::Secret).unwrap(), "text");
        assert_eq!(read_text(&dir.path().join("sub/../file"), Wanted::Secret).unwrap(), "text");
    }

    #[test]
    fn what_lies_below_a_folder_that_others_may_write_is_refused() {
        let (dir, file) = with_file();
        let folder = file.parent().unwrap().to_owned();
        mode(dir.path(), 0o777);
        assert_eq!(fault(open(&file)), Some((folder.clone(), Fault::AnybodyWrites { mode: 0o777 })));
        assert_eq!(fault(check_folder(dir.path())), Some((folder.clone(), Fault::AnybodyWrites { mode: 0o777 })));
        mode(dir.path(), 0o1777);
        assert_eq!(fault(open(&file)), None, "names of others stay in a sticky folder");
        assert_eq!(fault(check_folder(dir.path())), Some((folder, Fault::AnybodyWrites { mode: 0o1777 })));
        std::fs::hard_link(&file, dir.path().join("other")).unwrap();
        assert_eq!(fault(open(&file)), Some((file, Fault::HardLinked { links: 2 })));
    }

    #[test]
    fn a_link_into_a_file_system_of_the_kernels_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("jobs.yaml");
        symlink(format!("/proc/{}/cmdline", std::process::id()), &link).unwrap();
        assert_eq!(fault(open(&link)), Some(("/proc".into(), Fault::OfKernel)));
    }

    #[test]
    fn a_secret_is_for_its_owner_alone() {
        let (_dir, file) = with_file();
        for (given, is_kept) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            mode(&file, given);
            assert_eq!(read_text(&file, Wanted::Secret).is_ok(), is_kept, "{given:o}");
        }
    }

    #[test]
    fn what_is_neither_file_nor_folder_is_said_to_be_neither() {
        assert_eq!(fault(open(Path::new("/dev/null"))), Some(("/dev/null".into(), Fault::NoFile)));
        let (dir, _) = with_file();
        assert!(matches!(fault(open_file(dir.path(), Wanted::Trusted)), Some((_, Fault::NoFile))));
        assert!(matches!(open(Path::new("")), Err(Refusal::Io(error)) if error.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn a_link_that_leads_to_itself_ends() {
        let dir = tempfile::tempdir().unwrap();
        symlink("a", dir.path().join("a")).unwrap();
        let Err(Refusal::Io(error)) = open(&dir.path().join("a")) else { panic!("a file?") };
        assert_eq!(Errno::from_io_error(&error), Some(Errno::LOOP));
    }

    #[test]
    fn what_is_missing_of_a_folder_is_made_for_this_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        make_folder(&deep).unwrap();
        make_folder(&deep).unwrap();
        for folder in [&deep, &dir.path().join("a")] {
            assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
        }
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(make_folder(&file), Err(Refusal::Io(_))));
    }

    #[test]
    fn nothing_is_made_below_a_folder_that_others_may_write() {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o777);
        assert!(fault(make_folder(&dir.path().join("a"))).is_some());
        assert!(!dir.path().join("a").exists());
    }

    #[test]
    fn an_own_file_is_no_link_and_has_no_other_name() {
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
