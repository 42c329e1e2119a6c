//! Which files a command name may mean, as execvp(3) finds them, but in the job's own PATH.
//!
//! A name with a slash is a path. Any other is looked for in each folder of PATH; an empty folder is the working
//! directory. Whether a candidate exists is left to exec, in the child: only there do user and directory hold.

use std::ffi::{CString, NulError};

/// Where to look when the environment has no PATH, as the C library does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The paths to try, in order.
pub(super) fn candidates(name: &str, environment: &[(String, String)]) -> Result<Vec<CString>, NulError> {
    if name.contains('/') || name.is_empty() {
        return Ok(vec![CString::new(name)?]);
    }
    // The last one counts, as for a shell.
    let path = environment.iter().rev().find(|(key, _)| key == "PATH").map_or(DEFAULT_PATH, |(_, value)| value);
    path.split(':')
        .map(|folder| CString::new(if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, path: Option<&str>) -> Vec<String> {
        let environment: Vec<_> = path.map(|path| ("PATH".to_owned(), path.to_owned())).into_iter().collect();
        candidates(name, &environment).unwrap().into_iter().map(|path| path.into_string().unwrap()).collect()
    }

    #[test]
    fn a_name_is_looked_for_in_each_folder_of_the_jobs_path() {
        assert_eq!(found("true", Some("/opt/bin:/bin")), ["/opt/bin/true", "/bin/true"]);
        assert_eq!(found("true", Some("/bin:")), ["/bin/true", "true"]);
        assert_eq!(found("true", None), ["/bin/true", "/usr/bin/true"]);
    }

    #[test]
    fn a_name_with_a_slash_is_a_path() {
        assert_eq!(found("./run.sh", Some("/bin")), ["./run.sh"]);
    }

    #[test]
    fn a_nul_is_refused() {
        assert!(candidates("a\0b", &[]).is_err());
    }
}
