//! The time zone that cron on this host uses.

use std::fs;
use std::path::Path;

use cronkeeper_core::schedule::known_zone;

/// Finds the host's IANA zone name in `TZ`, the link `localtime` or the file `timezone`, in this order.
///
/// `None` if none of them names a known zone.
pub(super) fn zone(tz: Option<&str>, etc: &Path) -> Option<String> {
    let of_variable = || tz.and_then(|tz| zone_in(tz.strip_prefix(':').unwrap_or(tz)));
    let of_link = || fs::canonicalize(etc.join("localtime")).ok().and_then(|path| zone_in(path.to_str()?));
    let of_raw_link = || fs::read_link(etc.join("localtime")).ok().and_then(|path| zone_in(path.to_str()?));
    let of_file =
        || fs::read_to_string(etc.join("timezone")).ok().and_then(|text| zone_in(text.lines().next()?.trim()));
    // The text of the link comes before its resolved target, which may have another name, or not exist.
    of_variable().or_else(of_raw_link).or_else(of_link).or_else(of_file)
}

/// Recognizes a zone by its name or by the path of its file.
fn zone_in(text: &str) -> Option<String> {
    let name = text.split_once("zoneinfo/").map_or(text, |(_, name)| name);
    let name = name.strip_prefix("posix/").or_else(|| name.strip_prefix("right/")).unwrap_or(name);
    known_zone(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_variable_comes_before_the_link_and_the_link_before_the_file() {
        let etc = tempfile::tempdir().unwrap();
        let zone = |tz| zone(tz, etc.path());
        assert_eq!(zone(None), None);
        fs::write(etc.path().join("timezone"), "Asia/Tokyo\n").unwrap();
        assert_eq!(zone(None).as_deref(), Some("Asia/Tokyo"));
        symlink("/usr/share/zoneinfo/Europe/Berlin", etc.path().join("localtime")).unwrap();
        assert_eq!(zone(None).as_deref(), Some("Europe/Berlin"));
        assert_eq!(zone(Some(":America/New_York")).as_deref(), Some("America/New_York"));
        assert_eq!(zone(Some("/usr/share/zoneinfo/posix/UTC")).as_deref(), Some("UTC"));
        for unknown in ["", "XYZ5", "localtime", "CET-1CEST,M3.5.0,M10.5.0/3"] {
            assert_eq!(zone(Some(unknown)).as_deref(), Some("Europe/Berlin"), "{unknown}");
        }
    }
}
