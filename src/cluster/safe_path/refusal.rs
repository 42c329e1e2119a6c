//! Why a path was not opened: the violated rule, in words.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use cronkeeper_core::escape;

/// The violated rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The owner is neither root nor the user of this process.
    ForeignOwner { owner: u32 },
    /// A file of another owner, in a directory of the job's user.
    NotOfUser { owner: u32, user: u32 },
    /// A link of another owner, in a directory where others may add names.
    ForeignLink { owner: u32 },
    /// Every user may write to it.
    AnybodyWrites { mode: u32 },
    /// A group may write to it.
    GroupWrites { mode: u32, group: u32 },
    /// It has several names, and others may have added one of them.
    HardLinked { links: u64 },
    /// It is in a virtual file system of the kernel.
    OfKernel,
    /// A symbolic link where none is allowed.
    Link,
    /// Neither a regular file nor, where allowed, a directory.
    NoFile,
    /// A secret that others may read or write.
    Open { mode: u32 },
}

/// A path component that lets other users determine what is found at the end of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsafe {
    /// The path of the component, with links resolved.
    pub component: PathBuf,
    pub fault: Fault,
    /// The user id of this process.
    pub me: u32,
    /// It is mounted read-only, so it can be changed only where it is mounted from.
    pub is_read_only: bool,
}

/// The reason why a path was not opened.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Another user can change or replace it.
    #[error(transparent)]
    Unsafe(#[from] Unsafe),
    /// A component cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Words why the file of a setting cannot be used, and names the file once.
pub fn of_setting(setting: &str, path: &Path, refusal: &Refusal) -> String {
    match refusal {
        Refusal::Unsafe(found) => format!("`{setting}`: {found}"),
        Refusal::Io(error) => format!("`{setting}`: {}: {error}", escape::plain(&path.to_string_lossy())),
    }
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
        // Commands that would fail on a read-only mount are not advised there.
        let remedy = |command: String| match self.is_read_only {
            true => "its mount is read-only: change that where it is mounted from".to_owned(),
            false => format!("run `{command}`"),
        };
        match &self.fault {
            Fault::ForeignOwner { owner } => write!(
                f,
                "`{name}` belongs to user {owner}, who is neither root nor the user of this process ({me}); \
                 {}, or use another path",
                remedy(format!("chown {me} {name}"))
            ),
            Fault::ForeignLink { owner } => write!(
                f,
                "the link `{name}` belongs to user {owner}, who is neither root nor the user of this process ({me}); \
                 use the path of its target"
            ),
            Fault::NotOfUser { owner, user } => write!(
                f,
                "`{name}` belongs to user {owner}, but is in a directory of user {user}, who may have put it there; \
                 use a path in another directory"
            ),
            Fault::AnybodyWrites { mode } => {
                write!(f, "anybody may write to `{name}` (mode {mode:04o}); run `chmod go-w {name}`")
            }
            Fault::GroupWrites { mode, group } => {
                write!(f, "group {group} may write to `{name}` (mode {mode:04o}); run `chmod g-w {name}`")
            }
            Fault::HardLinked { links } => write!(
                f,
                "`{name}` has {links} hard links, and another user may have created this one; replace it with a copy"
            ),
            Fault::OfKernel => {
                write!(
                    f,
                    "`{name}` is in a virtual file system of the kernel, where any process may determine the content"
                )
            }
            Fault::Link => write!(f, "`{name}` is a symbolic link, and links are not followed here; remove it"),
            Fault::NoFile => write!(f, "`{name}` is not a regular file"),
            Fault::Open { mode } => write!(
                f,
                "`{name}` holds a secret, but users other than its owner may read or write it (mode {mode:04o}); \
                 {}",
                remedy(format!("chmod 600 {name}"))
            ),
        }
    }
}
