//! The tree of this host: a node is a descriptor that nothing can be done with but look (`O_PATH`).

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use nix::unistd::{Gid, Group, User, getegid, geteuid};
use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, mkdirat, openat, readlinkat};
use rustix::io::Errno;

use super::walk::{Facts, Kind, Tree};

/// The file systems whose contents are answers of the kernel, or of a process, and no bytes that somebody stored: linux/magic.h.
const MADE_UP: [u32; 22] = [
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

/// This host's files.
#[derive(Debug)]
pub(super) struct Disk {
    makes_folders: bool,
}

impl Disk {
    pub(super) fn as_it_is() -> Self {
        Self { makes_folders: false }
    }

    /// A folder that is missing is made, for this user alone.
    pub(super) fn making() -> Self {
        Self { makes_folders: true }
    }
}

impl Tree for Disk {
    type Node = OwnedFd;

    fn root(&self) -> io::Result<OwnedFd> {
        look(rustix::fs::CWD, OsStr::new("/"))
    }

    fn enter(&self, folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
        match look(folder, name) {
            Err(error) if self.makes_folders && error.kind() == io::ErrorKind::NotFound => {
                match mkdirat(folder, name, Mode::RWXU) {
                    // Whoever was quicker: what is there now is judged like anything else.
                    Ok(()) | Err(Errno::EXIST) => look(folder, name),
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

    /// Named as the user is, as useradd makes it, and without members beside. It may ask a directory service.
    fn is_private(&self, group: u32) -> bool {
        let me = geteuid();
        // Root's is often given to others in containers.
        if me.is_root() || group != getegid().as_raw() {
            return false;
        }
        let (Ok(Some(user)), Ok(Some(group))) = (User::from_uid(me), Group::from_gid(Gid::from_raw(group))) else {
            return false;
        };
        group.name == user.name && group.mem.iter().all(|member| *member == user.name)
    }
}

/// Holds what has this name, a link itself.
pub(super) fn look(folder: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // As a folder first: an automount is mounted only when a folder is asked for.
    match openat(&folder, name, flags | OFlags::DIRECTORY, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(openat(&folder, name, flags, Mode::empty())?),
        found => Ok(found?),
    }
}

/// What there is to be known of it.
pub(super) fn facts(node: impl AsFd) -> io::Result<Facts> {
    let stat = fstat(&node)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Folder,
        FileType::RegularFile => Kind::File,
        FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    };
    Ok(Facts {
        kind,
        owner: stat.st_uid,
        group: stat.st_gid,
        mode: stat.st_mode & 0o7777,
        // Of another width on other architectures, as is the type of the file system.
        links: stat.st_nlink as u64,
        is_kernels: MADE_UP.contains(&(fstatfs(&node)?.f_type as u32)),
    })
}

/// A folder that is held, to be listed.
pub(super) fn open_folder(folder: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(openat(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A file of a folder that is held, to be read. Should it have become a FIFO meanwhile, opening it does not wait.
pub(super) fn open_file(folder: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(openat(folder, name, flags, Mode::empty())?.into())
}
