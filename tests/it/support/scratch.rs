//! Temporary directories that are removed however the test process ends.
//!
//! All are in one directory per process. A shell (the janitor) reads from a pipe whose other end only this process
//! holds: when the process is gone, even by SIGKILL, the janitor removes the directory.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;

use super::evidence;

/// A directory that is removed when dropped.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Creates an empty directory.
    pub fn new(name: &str) -> Self {
        let made = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in(&BASE.path);
        Self(made.expect("the base directory takes a directory"))
    }

    /// Creates an empty directory that other users can reach: for servers that do not run as root.
    pub fn open_to_others(name: &str) -> Self {
        let made = Self::new(name);
        for path in [&BASE.path, made.path()] {
            fs::set_permissions(path, Permissions::from_mode(0o711)).expect("an own directory can be opened");
        }
        made
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file, and creates its parent directories. New files are readable only by their owner, as secrets must
    /// be.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("folders can be made");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("a file can be written");
        path
    }
}

impl Scratch {
    /// Writes a program; see [`write_program`].
    pub fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        write_program(&path, text);
        path
    }
}

/// Writes an executable file, and creates its parent directories.
///
/// Another process writes it: a child that another thread forks meanwhile has a copy of this process's descriptors until
/// its exec, and a file that is open for writing cannot be executed (ETXTBSY).
pub fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install")
        .args(["-D", "-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("install(1) can be started");
    let mut stdin = install.stdin.take().expect("it is piped");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    assert!(install.wait().expect("it ends").success(), "{} can be written", path.display());
}

impl Drop for Scratch {
    /// Keeps the files of a failed test that tell something: not those that fill a disk, and nothing that is mounted,
    /// which may answer no more.
    fn drop(&mut self) {
        let Some(folder) = evidence() else { return };
        let Some(name) = self.path().file_name() else { return };
        let mut command = Command::new("timeout");
        command.args(["10", "find"]).arg(name).args(["-xdev", "-type", "f", "-size", "-2048k"]);
        command.args(["-exec", "cp", "--parents", "-t"]).arg(folder).args(["{}", "+"]).current_dir(&BASE.path);
        // What cannot be copied, the test's output must replace.
        drop(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status());
    }
}

/// Creates a file that fills its file system. Returns its path.
pub fn fill(path: &Path) -> PathBuf {
    let mut piece = 64 << 10;
    let mut filler = std::fs::File::create(path).expect("a file can be made where there is room");
    while piece > 0 {
        // The file takes the room there is; then smaller pieces fill the rest.
        if filler.write_all(&vec![0; piece]).is_err() {
            piece /= 2;
        }
    }
    path.to_owned()
}

/// The process's directory, in a static that is never dropped: the janitor removes it.
struct Base {
    path: PathBuf,
    _janitor: Child,
}

static BASE: LazyLock<Base> = LazyLock::new(|| Base::new().expect("a temporary directory and a shell can be had"));

/// Servers may still be ending, and writing, when the janitor begins, so it retries for a few seconds.
const JANITOR: &str = r#"cat >/dev/null; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$1" && exit; sleep 0.5; done"#;

impl Base {
    fn new() -> io::Result<Self> {
        let path = tempfile::Builder::new().prefix("cronkeeper-it-").tempdir()?.keep();
        // A group of its own: Ctrl-C on the terminal must not reach it.
        let janitor = Command::new("sh")
            .args(["-c", JANITOR, "janitor"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()?;
        Ok(Self { path, _janitor: janitor })
    }
}
