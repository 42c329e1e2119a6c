//! The file tree of this host. A node is an `O_PATH` descriptor, which only allows metadata.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use nix::unistd::{Gid, Group, User, getegid, geteuid};
use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags, fstat, fstatfs, fstatvfs, mkdirat, openat, readlinkat};
use rustix::io::Errno;

use super::walk::{Facts, FileKind, FileTree};

/// Magic numbers of file systems whose content the kernel or a process generates (linux/magic.h).
const VIRTUAL_FILE_SYSTEMS: [u32; 22] = [
    0x0000_9fa0, // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x0765_5821, // resctrl
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x5a3c_69f0, // apparmorfs
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x4249_4e4d, // binfmt_misc
    0x6573_5543, // fusectl
    0x1980_0202, // mqueue
    0x0000_1cd1, // devpts
    0xcafe_4a11, // bpf
    0x6e73_6673, // nsfs
    0x5049_5045, // pipefs
    0x534f_434b, // sockfs
];

#[derive(Debug)]
pub(super) struct Disk {
    creates_directories: bool,
}

impl Disk {
    pub(super) fn read_only() -> Self {
        Self { creates_directories: false }
    }

    /// Creates missing directories during the walk, for this user alone.
    pub(super) fn creating() -> Self {
        Self { creates_directories: true }
    }
}

impl FileTree for Disk {
    type Node = OwnedFd;

    fn root(&self) -> io::Result<OwnedFd> {
        open_path(rustix::fs::CWD, OsStr::new("/"))
    }

    fn enter(&self, parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
        match open_path(parent, name) {
            Err(error) if self.creates_directories && error.kind() == io::ErrorKind::NotFound => {
                match mkdirat(parent, name, Mode::RWXU) {
                    // If another process created it first, it is checked like any other.
                    Ok(()) | Err(Errno::EXIST) => open_path(parent, name),
                    Err(errno) => Err(errno.into()),
                }
            }
            found => found,
        }
    }

    fn facts(&self, node: &OwnedFd) -> io::Result<Facts> {
        facts(node)
    }

    fn target(&self, link: &OwnedFd) -> io::Result<PathBuf> {
        let target = readlinkat(link, "", Vec::new())?;
        Ok(std::ffi::OsString::from_vec(target.into_bytes()).into())
    }

    /// True for the primary group of this user if it has the user's name, as useradd creates it, and no other members.
    ///
    /// May query a directory service.
    fn is_private(&self, group: u32) -> bool {
        let me = geteuid();
        // In containers, the group of root is often given to other users.
        if me.is_root() || group != getegid().as_raw() {
            return false;
        }
        let (Ok(Some(user)), Ok(Some(group))) = (User::from_uid(me), Group::from_gid(Gid::from_raw(group))) else {
            return false;
        };
        group.name == user.name && group.mem.iter().all(|member| *member == user.name)
    }
}

/// Opens an `O_PATH` descriptor of this name; of a link, not of its target.
pub(super) fn open_path(parent: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // As a directory first: an automount is mounted only then.
    match openat(&parent, name, flags | OFlags::DIRECTORY, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(openat(&parent, name, flags, Mode::empty())?),
        found => Ok(found?),
    }
}

pub(super) fn facts(node: impl AsFd) -> io::Result<Facts> {
    let stat = fstat(&node)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => FileKind::Directory,
        FileType::RegularFile => FileKind::File,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    };
    Ok(Facts {
        kind,
        owner: stat.st_uid,
        group: stat.st_gid,
        mode: stat.st_mode & 0o7777,
        // These types have other widths on other architectures.
        links: stat.st_nlink as u64,
        // True of the mount or of the whole file system.
        is_read_only: fstatvfs(&node)?.f_flag.contains(StatVfsMountFlags::RDONLY),
        is_virtual: VIRTUAL_FILE_SYSTEMS.contains(&(fstatfs(&node)?.f_type as u32)),
    })
}

/// Opens a directory for listing.
pub(super) fn open_directory(directory: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a file for reading. If it has become a FIFO meanwhile, opening it does not block.
pub(super) fn open_file(parent: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?.into())
}
