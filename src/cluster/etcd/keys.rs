//! The keys of records.
//!
//! `<prefix>/<depth><path>`, for example `/cronkeeper/02/cronkeeper/jobs`. So what is directly below a folder is a range of
//! keys, and what is below that is not in it.

use super::json::Base64;

/// The key of the newest commit, which each commit writes.
pub fn head(prefix: &str) -> Base64 {
    Base64(format!("{prefix}/head").into_bytes())
}

pub fn record(prefix: &str, path: &str) -> Base64 {
    let depth = path.matches('/').count();
    Base64(format!("{prefix}/{depth:02}{path}").into_bytes())
}

/// From the first key below a folder to before the first that is not.
pub fn below(prefix: &str, folder: &str) -> (Base64, Base64) {
    let depth = folder.matches('/').count() + 1;
    let key = |end: char| Base64(format!("{prefix}/{depth:02}{folder}{end}").into_bytes());
    // The character after the slash.
    (key('/'), key('0'))
}

/// All keys with the prefix.
pub fn all(prefix: &str) -> (Base64, Base64) {
    (Base64(format!("{prefix}/").into_bytes()), Base64(format!("{prefix}0").into_bytes()))
}

/// The last part of a key.
pub fn name(key: &Base64) -> String {
    let text = String::from_utf8_lossy(&key.0);
    text.rsplit('/').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_the_keys_directly_below_it_and_no_others() {
        let (from, to) = below("/p", "/a/b");
        let is_in = |path: &str| (&from..&to).contains(&&record("/p", path));
        for (path, is_below) in [
            ("/a/b/c", true),
            ("/a/b/", true),
            ("/a/b", false),
            ("/a/b/c/d", false),
            ("/a/b-/c", false),
            ("/a/c/c", false),
        ] {
            assert_eq!(is_in(path), is_below, "{path}");
        }
        assert_eq!(name(&record("/p", "/a/b")), "b");
        let (from, to) = all("/p");
        assert!((&from..&to).contains(&&head("/p")) && (&from..&to).contains(&&record("/p", "/a")));
        assert!(!(&from..&to).contains(&&record("/pq", "/a")));
    }
}
