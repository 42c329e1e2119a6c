//! The files that a job is given at its start: environment files and secrets.
//!
//! They are read with the rights of the daemon, and only if nobody could have changed them but root, the daemon's own
//! user and the job's user, who learns nothing from them that is not meant for him. What is in them is in no error.

use std::io::{self, Read as _};
use std::path::Path;

use cronkeeper_cluster::safe_path::{self, Fault, Refusal, Unsafe, Wanted};
use cronkeeper_core::environment_file::{self, BadLine, EnvironmentFile, Variable};
use cronkeeper_core::process::FileFault;

/// Maximum size of an environment file, in bytes.
const LARGEST_ENVIRONMENT: u32 = 1 << 20;

/// Maximum size of a secret, in bytes.
const LARGEST_SECRET: u32 = 64 << 10;

/// The reason why a file is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error(transparent)]
    Unsafe(#[from] Unsafe),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it has more than {0} bytes")]
    TooLarge(u32),
    #[error(transparent)]
    Line(#[from] BadLine),
}

impl From<Refusal> for FileError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unsafe(found) => Self::Unsafe(found),
            Refusal::Io(error) => Self::Io(error),
        }
    }
}

impl FileError {
    /// The same without texts, and the system's error number, if that is the reason.
    pub(crate) fn fault(&self) -> (FileFault, i32) {
        match self {
            Self::Io(error) => (FileFault::System, error.raw_os_error().unwrap_or(nix::libc::EIO)),
            Self::Unsafe(Unsafe { fault: Fault::Open { .. }, .. }) => (FileFault::Open, 0),
            Self::Unsafe(Unsafe { fault: Fault::NoFile, .. }) => (FileFault::NoFile, 0),
            Self::Unsafe(_) => (FileFault::Unsafe, 0),
            Self::TooLarge(bytes) => (FileFault::TooLarge(*bytes), 0),
            Self::Line(bad) => (FileFault::Line(*bad), 0),
        }
    }
}

/// The variables in a file for a job of this user; none if the file may be missing and is.
///
/// # Errors
/// If the file cannot be used.
pub(crate) fn variables(file: &EnvironmentFile, user: u32) -> Result<Vec<Variable>, FileError> {
    match read(&file.path, Wanted::Trusted, user, LARGEST_ENVIRONMENT) {
        Err(FileError::Io(error)) if file.is_optional && error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => Ok(environment_file::parse(&read?)?),
    }
}

/// The bytes of a secret for a job of this user.
///
/// # Errors
/// If the file cannot be used, or is open to others than its owner.
pub(crate) fn secret(path: &Path, user: u32) -> Result<Vec<u8>, FileError> {
    read(path, Wanted::Secret, user, LARGEST_SECRET)
}

fn read(path: &Path, wanted: Wanted, user: u32, most: u32) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let file = safe_path::open_file_for(path, wanted, user)?;
    file.take(u64::from(most) + 1).read_to_end(&mut bytes)?;
    if bytes.len() > most as usize { Err(FileError::TooLarge(most)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const ME: fn() -> u32 = || nix::unistd::geteuid().as_raw();

    fn fault(path: &Path) -> Option<FileFault> {
        let file = EnvironmentFile { path: path.to_owned(), is_optional: false };
        variables(&file, ME()).err().map(|error| error.fault().0)
    }

    #[test]
    fn a_file_that_is_not_fit_is_refused_and_the_fault_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("env");
        assert_eq!(fault(&file), Some(FileFault::System));
        fs::write(&file, "A=1\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(fault(&file), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(fault(&file), Some(FileFault::Unsafe));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&file, "x".repeat(LARGEST_ENVIRONMENT as usize + 1)).unwrap();
        assert_eq!(fault(&file), Some(FileFault::TooLarge(LARGEST_ENVIRONMENT)));
        fs::write(&file, "A='").unwrap();
        assert!(matches!(fault(&file), Some(FileFault::Line(BadLine { line: 1, .. }))));
        assert_eq!(fault(dir.path()), Some(FileFault::NoFile));
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(fault(&fifo), Some(FileFault::NoFile), "and nobody waits for its writer");
    }

    #[test]
    fn a_secret_is_read_unchanged_if_it_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        fs::write(&file, b"\0\xff\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(secret(&file, ME()).unwrap(), b"\0\xff\n");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(secret(&file, ME()).unwrap_err().fault().0, FileFault::Open);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&file, "x".repeat(LARGEST_SECRET as usize + 1)).unwrap();
        assert_eq!(secret(&file, ME()).unwrap_err().fault().0, FileFault::TooLarge(LARGEST_SECRET));
    }

    #[test]
    fn an_optional_file_may_be_missing_but_not_unfit() {
        let dir = tempfile::tempdir().unwrap();
        let file = EnvironmentFile { path: dir.path().join("env"), is_optional: true };
        assert_eq!(variables(&file, ME()).unwrap(), []);
        fs::write(&file.path, "A B=1").unwrap();
        assert!(matches!(variables(&file, ME()), Err(FileError::Line(_))));
    }
}
