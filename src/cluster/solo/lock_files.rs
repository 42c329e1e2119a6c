//! The files of locks that are named by paths, on a host without ZooKeeper.
//!
//! They are in the directory `locks` of the state directory, so processes of one user share them: others could not even
//! open them. A path and its file name each other.

use std::path::{Path, PathBuf};

use crate::safe_path::{self, Refusal};
use cronkeeper_core::lock::LockPath;

const DIRECTORY: &str = "locks";

/// The files of one state directory.
#[derive(Clone, Debug)]
pub struct LockFiles {
    directory: PathBuf,
}

impl LockFiles {
    pub fn of(state_dir: &Path) -> Self {
        Self { directory: state_dir.join(DIRECTORY) }
    }

    /// The directory, which need not exist.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file for the lock at `path`. Creates the directory if it does not exist.
    ///
    /// # Errors
    /// If the directory cannot be created, or another user can write to it.
    pub fn file_of(&self, path: &LockPath) -> Result<PathBuf, Refusal> {
        safe_path::make_folder(&self.directory)?;
        Ok(self.directory.join(file_name(path)))
    }
}

fn file_name(path: &LockPath) -> String {
    path.as_str().trim_start_matches('/').replace('%', "%25").replace('/', "%2F")
}

/// The path of the lock in the file with this name; `None` for other files.
pub fn path_of(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str().filter(|name| !name.ends_with(".cronkeeper"))?;
    Some(format!("/{}", name.replace("%2F", "/").replace("%25", "%")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_file_of_its_own() {
        for path in ["/locks/orders", "/a%2Fb", "/a/b", "/%", "/ä b"] {
            let path = LockPath::parse(path).unwrap();
            let name = file_name(&path);
            assert!(!name.contains('/'), "{name}");
            assert_eq!(path_of(Path::new(&name)).as_deref(), Some(path.as_str()));
        }
        assert_eq!(path_of(Path::new("locks%2Forders.cronkeeper")), None);
    }
}
