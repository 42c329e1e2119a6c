//! The files that a command name may refer to.
//!
//! They are found as execvp(3) does, but in the job's own PATH. A name with a slash is a path. Any other name is
//! searched in each directory of PATH; an empty entry is the working directory. Only exec, in the child, decides
//! whether a file exists, because only there user and working directory are the job's.

use std::ffi::{CString, NulError};

/// The search path if the environment has no PATH; the C library uses the same.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// The paths to try, in order; `path` is the value of PATH.
pub(super) fn candidates(name: &str, path: Option<&[u8]>) -> Result<Vec<CString>, NulError> {
    if name.contains('/') || name.is_empty() {
        return Ok(vec![CString::new(name)?]);
    }
    let directories = path.unwrap_or(DEFAULT_PATH).split(|&byte| byte == b':');
    directories
        .map(|directory| {
            let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
            CString::new([directory, separator, name.as_bytes()].concat())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, path: Option<&str>) -> Vec<String> {
        candidates(name, path.map(str::as_bytes)).unwrap().into_iter().map(|path| path.into_string().unwrap()).collect()
    }

    #[test]
    fn a_name_is_searched_in_each_directory_of_the_jobs_path() {
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
        assert!(candidates("a\0b", None).is_err());
    }
}
