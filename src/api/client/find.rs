//! Search for the daemon's socket.
//!
//! It is in `--runtime-dir`, else in $RUNTIME_DIRECTORY, else in `--state-dir`, where a daemon that systemd did not start
//! puts it. Without any of these it is in /run/cronkeeper if there is one, else in the usual state directory.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::api::socket::NAME;
use crate::option_file::{NotAFolder, check_folder};

/// Directory of the socket with the packaged systemd unit.
const PACKAGED: &str = "/run/cronkeeper";

/// A socket that nobody answered on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    pub socket: PathBuf,
    pub why: String,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.socket.display(), self.why)
    }
}

/// The directories that may hold the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketSearch {
    /// Named by the user or by systemd; then no other directory is searched.
    named: Option<PathBuf>,
    packaged: PathBuf,
    state: PathBuf,
    /// The user has named the state directory, so a daemon that uses another one is not meant.
    is_state_named: bool,
}

impl SocketSearch {
    /// Determines the directories from the options and this process's environment.
    pub fn new(runtime_dir: Option<&Path>, state_dir: Option<&Path>) -> Self {
        Self::of(runtime_dir, state_dir, |name| std::env::var_os(name), nix::unistd::geteuid().is_root())
    }

    fn of(
        runtime_dir: Option<&Path>,
        state_dir: Option<&Path>,
        variable: impl Fn(&str) -> Option<OsString>,
        is_root: bool,
    ) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let named = runtime_dir.map(Path::to_owned).or_else(|| set("RUNTIME_DIRECTORY").map(|dirs| first(&dirs)));
        let own_state = || {
            if is_root {
                return PathBuf::from("/var/lib/cronkeeper");
            }
            let home = || PathBuf::from(set("HOME").unwrap_or_else(|| "/".into())).join(".local/state");
            set("XDG_STATE_HOME").map_or_else(home, PathBuf::from).join("cronkeeper")
        };
        let state = state_dir.map(Path::to_owned).or_else(|| set("STATE_DIRECTORY").map(|dirs| first(&dirs)));
        let state = state.unwrap_or_else(own_state);
        Self { named, packaged: PACKAGED.into(), state, is_state_named: state_dir.is_some() }
    }

    /// Checks that the directories that a daemon would use are some, or may become some.
    ///
    /// # Errors
    /// If one can never be a directory.
    pub fn check(&self) -> Result<(), NotAFolder> {
        check_folder("--state-dir", &self.state)?;
        self.named.as_deref().map_or(Ok(()), |named| check_folder("--runtime-dir", named))
    }

    /// Checks the directory that was named for the search, if one was.
    pub(super) fn check_named(&self) -> Result<(), NotAFolder> {
        match &self.named {
            Some(named) => check_folder("--runtime-dir", named),
            None if self.is_state_named => check_folder("--state-dir", &self.state),
            None => Ok(()),
        }
    }

    /// The daemon's state directory.
    pub fn state_dir(&self) -> &Path {
        &self.state
    }

    /// The directory where the daemon creates its socket.
    pub fn named_or_state(&self) -> &Path {
        self.named.as_deref().unwrap_or(&self.state)
    }

    /// The socket to use, and those that were tried before.
    pub(super) fn socket(&self) -> (PathBuf, Vec<Tried>) {
        if let Some(named) = &self.named {
            return (named.join(NAME), Vec::new());
        }
        if self.is_state_named {
            return (self.state.join(NAME), Vec::new());
        }
        let packaged = self.packaged.join(NAME);
        match packaged.symlink_metadata() {
            Ok(_) => (packaged, Vec::new()),
            Err(error) => (self.state.join(NAME), vec![Tried { socket: packaged, why: error.to_string() }]),
        }
    }
}

/// The first directory of a colon-separated list, as systemd passes it.
fn first(directories: &OsStr) -> PathBuf {
    let bytes = directories.as_bytes().split(|&byte| byte == b':').next().unwrap_or_default();
    OsString::from_vec(bytes.to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of(variables: &[(&str, &str)], is_root: bool) -> PathBuf {
        SocketSearch::of(None, None, lookup(variables), is_root).state
    }

    fn lookup(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
    }

    #[test]
    fn a_named_directory_is_the_only_one() {
        let systemd = [("RUNTIME_DIRECTORY", "/run/cronkeeper/b:/run/other")];
        let search = SocketSearch::of(Some(Path::new("/x")), None, lookup(&systemd), true);
        assert_eq!(search.socket(), ("/x/api.sock".into(), vec![]));
        let search = SocketSearch::of(None, None, lookup(&systemd), true);
        assert_eq!(search.socket(), ("/run/cronkeeper/b/api.sock".into(), vec![]));
    }

    #[test]
    fn the_packaged_directory_is_used_if_it_has_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let mut search = SocketSearch::of(None, None, lookup(&[]), true);
        search.packaged = dir.path().to_owned();
        let (socket, tried) = search.socket();
        assert_eq!(socket, Path::new("/var/lib/cronkeeper/api.sock"));
        assert_eq!(tried[0].socket, dir.path().join(NAME));
        std::fs::write(dir.path().join(NAME), "").unwrap();
        assert_eq!(search.socket(), (dir.path().join(NAME), vec![]));
    }

    #[test]
    fn whoever_names_a_state_directory_means_no_other_daemon() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), "").unwrap();
        let mut search = SocketSearch::of(None, Some(Path::new("/demo")), lookup(&[]), true);
        search.packaged = dir.path().to_owned();
        assert_eq!(search.socket(), ("/demo/api.sock".into(), vec![]));
    }

    #[test]
    fn the_state_directory_is_found_as_the_daemon_finds_it() {
        assert_eq!(state_of(&[("STATE_DIRECTORY", "/var/lib/cronkeeper/b")], true), Path::new("/var/lib/cronkeeper/b"));
        assert_eq!(state_of(&[("XDG_STATE_HOME", "/s")], true), Path::new("/var/lib/cronkeeper"));
        assert_eq!(state_of(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")], false), Path::new("/s/cronkeeper"));
        assert_eq!(state_of(&[("XDG_STATE_HOME", ""), ("HOME", "/h")], false), Path::new("/h/.local/state/cronkeeper"));
    }
}
