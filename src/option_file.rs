//! Files and directories that options name. A message about one names the option, and its variable if that has set it.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// An option, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionName {
    option: &'static str,
    /// Its variable has set it.
    is_of_variable: bool,
}

impl OptionName {
    /// An option that has no variable.
    pub const fn without_variable(option: &'static str) -> Self {
        Self { option, is_of_variable: false }
    }
}

impl fmt::Display for OptionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.option)?;
        if self.is_of_variable { write!(f, " ({})", variable(self.option)) } else { Ok(()) }
    }
}

/// A file, and the option that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionFile {
    pub option: OptionName,
    pub path: PathBuf,
}

impl OptionFile {
    /// A file that this process's command line or environment names.
    pub fn given(option: &'static str, path: PathBuf) -> Self {
        let is_of_variable = std::env::var_os(variable(option)).is_some_and(|value| value == path.as_os_str());
        Self { option: OptionName { option, is_of_variable }, path }
    }

    /// A file that the variable of an option names in an environment file.
    pub fn of_variable(option: &'static str, path: PathBuf) -> Self {
        Self { option: OptionName { option, is_of_variable: true }, path }
    }
}

/// A path that can never be the directory that an option is to name, whatever is created or mounted there later.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: `{}` {why}; name a directory, or a path where one can be created", folder.option, folder.path.display())]
pub struct NotAFolder {
    pub folder: OptionFile,
    pub why: String,
}

/// Checks that a path is a directory or may become one.
///
/// Other problems with it, such as its owner, are reported by whoever uses it. A link to nothing is refused, because the
/// disk that it leads to may not be mounted: what a node has on record is there.
///
/// # Errors
/// If it is a file, is below a file, or is or is below a link that leads nowhere.
pub fn check_folder(option: &'static str, path: &Path) -> Result<(), NotAFolder> {
    let refuse = |why: String| Err(NotAFolder { folder: OptionFile::given(option, path.to_owned()), why });
    let error = match path.metadata() {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => return refuse("is not a directory".to_owned()),
        Err(error) => error,
    };
    let is_file = |path: &&Path| path.metadata().is_ok_and(|found| !found.is_dir());
    let exists = |path: &&Path| path.symlink_metadata().is_ok();
    let leads_nowhere = |path: &&Path| path.is_symlink() && !path.exists();
    match (error.kind(), Errno::from_io_error(&error)) {
        (ErrorKind::NotADirectory, _) => match path.ancestors().skip(1).find(is_file) {
            Some(file) => refuse(format!("is below `{}`, which is not a directory", file.display())),
            None => refuse("is below something that is not a directory".to_owned()),
        },
        (ErrorKind::NotFound, _) => match path.ancestors().find(exists).filter(leads_nowhere) {
            Some(link) if link == path => refuse("is a link to something that does not exist".to_owned()),
            Some(link) => refuse(format!("is below `{}`, a link to something that does not exist", link.display())),
            None => Ok(()),
        },
        (_, Some(Errno::LOOP)) => refuse("is a link that leads back to itself".to_owned()),
        (_, Some(Errno::NAMETOOLONG)) => refuse("is too long for a path".to_owned()),
        _ => Ok(()),
    }
}

/// The variable of an option.
pub fn variable(option: &str) -> String {
    format!("CRONKEEPER_{}", option.trim_start_matches('-').to_uppercase().replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_named_where_it_has_set_the_option() {
        let of = |option: OptionName| option.to_string();
        assert_eq!(of(OptionFile::given("--listen-cert", "x".into()).option), "`--listen-cert`");
        let set = OptionFile::of_variable("--listen-cert", "x".into());
        assert_eq!(of(set.option), "`--listen-cert` (CRONKEEPER_LISTEN_CERT)");
        assert_eq!(of(OptionName::without_variable("--environment-file")), "`--environment-file`");
    }

    #[test]
    fn what_can_never_be_a_directory_is_refused() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        for (link, target) in [("good", "folder"), ("dangling", "nowhere"), ("circle", "circle"), ("to-file", "file")] {
            symlink(target, at(link)).unwrap();
        }
        for (name, why) in [
            ("file", "` is not a directory"),
            ("to-file", "` is not a directory"),
            ("file/x/y", "file`, which is not a directory"),
            ("to-file/x", "to-file`, which is not a directory"),
            ("dangling", "dangling` is a link to something that does not exist"),
            ("dangling/x/y", "dangling`, a link to something that does not exist"),
            ("circle", "leads back to itself"),
            ("circle/x", "leads back to itself"),
            (&"x".repeat(300), "is too long"),
        ] {
            let refused = check_folder("--state-dir", &at(name)).unwrap_err().to_string();
            assert!(refused.starts_with("`--state-dir`: `") && refused.contains(why), "{name}: {refused}");
            assert!(refused.ends_with("; name a directory, or a path where one can be created"), "{refused}");
        }
        for name in ["folder", "good", "new/x", "good/new", "folder/../new"] {
            assert_eq!(check_folder("--state-dir", &at(name)), Ok(()), "{name}");
        }
    }
}
