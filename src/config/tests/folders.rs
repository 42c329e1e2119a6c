//! Files and folders: joined, trusted or refused.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use tempfile::TempDir;

use super::*;

const A: &str = "defaults: {timeout: 5m}\njobs:\n  a: {schedule: \"0 0 * * *\", command: x}\n";
const B: &str = "jobs:\n  b: {schedule: \"0 0 * * *\", command: x}\n";

/// A folder with these files, writable by its owner only, whatever the umask.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    mode(folder.path(), 0o755);
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
        mode(&folder.path().join(name), 0o644);
    }
    folder
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// What is said about a folder, its own name left out.
fn said_about(path: &Path, folder: &TempDir) -> String {
    let said = match load(path) {
        Ok(loaded) => lines(&loaded.warnings),
        Err(LoadError::Invalid { problems }) => lines(&problems),
        Err(LoadError::Unreadable { path, source }) => format!("{}: {:?}", path.display(), source.kind()),
    };
    said.replace(&folder.path().display().to_string(), "dir")
}

#[test]
fn the_files_of_a_folder_are_joined_and_others_are_not_read() {
    let folder = folder(&[("a.yaml", A), ("b.yml", B), (".hidden.yaml", "["), ("notes.txt", "["), ("c.yaml~", "[")]);
    let loaded = load(folder.path()).unwrap();
    assert_eq!(loaded.set.jobs.keys().map(JobName::as_str).collect::<Vec<_>>(), ["a", "b"]);
    let timeouts: Vec<_> = loaded.set.jobs.values().map(|job| job.timeout.is_some()).collect();
    assert_eq!(timeouts, [true, false], "defaults are those of one file");
    assert_eq!((loaded.warnings, loaded.path), (vec![], folder.path().to_owned()));
}

#[test]
fn a_name_is_unique_over_all_files_and_errors_of_all_are_said() {
    let folder = folder(&[("1.yaml", A), ("2.yaml", &format!("{A}  c: 1\n")), ("3.yaml", "x: y")]);
    same(
        &said_about(folder.path(), &folder),
        "dir/2.yaml:3:3: job `a` is already defined in dir/1.yaml:3
         dir/2.yaml:4:6: job `c`: must be a map of keys, not a number
         dir/3.yaml:1:1: `jobs` is missing; no jobs at all is `jobs: {}`
         dir/3.yaml:1:1: `x` is not a key of a jobs file",
    );
}

#[test]
fn a_chain_may_lead_through_several_files() {
    let after =
        |name: &str, upstream: &str| format!("jobs:\n  {name}: {{after: {{{upstream}: success}}, command: x}}\n");
    let good = folder(&[("1.yaml", &after("c", "b")), ("2.yaml", &after("b", "a")), ("3.yaml", A)]);
    assert_eq!(said_about(good.path(), &good), "");
    let circle = folder(&[("1.yaml", &after("c", "b")), ("2.yaml", &after("b", "c")), ("3.yaml", &after("d", "e"))]);
    same(
        &said_about(circle.path(), &circle),
        "dir/2.yaml:2:15: job `b`: `after`: it runs after itself: after `c`, which runs after `b`
         dir/3.yaml:2:15: job `d`: `after`: there is no job `e`",
    );
    // Whether `e` is there is not known.
    let unread = folder(&[("1.yaml", &after("d", "e")), ("2.yaml", "jobs: [")]);
    assert_eq!(said_about(unread.path(), &unread).lines().count(), 1);
}

#[test]
fn the_digest_is_of_names_and_bytes_not_of_places() {
    let digest = |files: &[(&str, &str)]| {
        let folder = folder(files);
        load(folder.path()).unwrap().set.digest
    };
    let both = digest(&[("a.yaml", A), ("b.yaml", B)]);
    assert_eq!(both, digest(&[("b.yaml", B), ("a.yaml", A)]));
    assert_ne!(both, digest(&[("a.yaml", A), ("c.yaml", B)]));
    assert_ne!(both, digest(&[("a.yaml", A), ("b.yaml", &format!("{B}\n"))]));
    let folder = folder(&[("a.yaml", A)]);
    assert_eq!(
        load(&folder.path().join("a.yaml")).unwrap().set.digest,
        parse("a.yaml", A.as_bytes()).unwrap().0.digest
    );
}

#[test]
fn who_may_write_the_file_decides_what_runs() {
    let folder = folder(&[("a.yaml", A)]);
    let file = folder.path().join("a.yaml");
    mode(&file, 0o666);
    same(
        &said_about(&file, &folder),
        "dir/a.yaml:1:1: anybody may write to `dir/a.yaml` (mode 0666); take that away with `chmod go-w dir/a.yaml`",
    );
    // Of another user the group may be his alone.
    if rustix::process::geteuid().is_root() {
        mode(&file, 0o664);
        same(
            &said_about(&file, &folder),
            "dir/a.yaml:1:1: group 0 may write to `dir/a.yaml` (mode 0664); take that away with `chmod g-w dir/a.yaml`",
        );
    }
    mode(&file, 0o600);
    mode(folder.path(), 0o777);
    for path in [&file, folder.path()] {
        let said = said_about(path, &folder).replace("dir/a.yaml:1:1", "dir:1:1");
        same(&said, "dir:1:1: anybody may write to `dir` (mode 0777); take that away with `chmod go-w dir`");
    }
}

#[test]
fn of_what_is_not_safe_nothing_is_read_and_the_rest_is() {
    let folder = folder(&[("1.yaml", "x: y"), ("2.yaml", "x: y")]);
    mode(&folder.path().join("1.yaml"), 0o666);
    same(
        &said_about(folder.path(), &folder),
        "dir/1.yaml:1:1: anybody may write to `dir/1.yaml` (mode 0666); take that away with `chmod go-w dir/1.yaml`
         dir/2.yaml:1:1: `jobs` is missing; no jobs at all is `jobs: {}`
         dir/2.yaml:1:1: `x` is not a key of a jobs file",
    );
}

#[test]
fn a_file_that_becomes_unsafe_is_another_content() {
    let folder = folder(&[("a.yaml", A)]);
    let file = folder.path().join("a.yaml");
    let before = fingerprint(&file);
    mode(&file, 0o666);
    assert_ne!(fingerprint(&file), before);
    mode(&file, 0o644);
    assert_eq!(fingerprint(&file), before);
}

#[test]
fn a_file_of_another_user_is_refused() {
    let folder = folder(&[("a.yaml", A)]);
    let file = folder.path().join("a.yaml");
    // Only root can give files away.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::os::unix::fs::chown(&file, Some(4242), None).unwrap();
    same(
        &said_about(&file, &folder),
        "dir/a.yaml:1:1: `dir/a.yaml` belongs to user 4242, who is neither root nor the user of this process (0); \
         give it to this one with `chown 0 dir/a.yaml`, or use another path",
    );
}

#[test]
fn what_cannot_be_read_says_why() {
    let folder = folder(&[]);
    assert_eq!(said_about(&folder.path().join("none"), &folder), "dir/none: NotFound");
    same(&said_about(folder.path(), &folder), "dir:1:1: the folder has no `*.yaml` or `*.yml`");
    fs::create_dir(folder.path().join("x.yaml")).unwrap();
    mode(&folder.path().join("x.yaml"), 0o755);
    same(&said_about(folder.path(), &folder), "dir/x.yaml:1:1: `dir/x.yaml` is not a regular file");
    symlink("/nowhere", folder.path().join("y.yaml")).unwrap();
    assert_eq!(said_about(folder.path(), &folder), "dir/y.yaml: NotFound");
    same(&said_about(Path::new("/dev/null"), &folder), "/dev/null:1:1: `/dev/null` is not a regular file");
}

#[test]
fn a_difference_names_what_was_added_changed_and_removed() {
    let set = |text: &str| parse("j", text.as_bytes()).unwrap().0;
    let old = set("jobs: {a: &j {schedule: \"0 0 * * *\", command: x}, b: *j, c: *j}");
    let new =
        set("jobs: {a: &j {schedule: \"0 0 * * *\", command: x}, c: {schedule: \"0 0 * * *\", command: y}, d: *j}");
    let difference = old.difference(&new);
    let names = |names: Vec<JobName>| names.iter().map(JobName::to_string).collect::<String>();
    assert_eq!([difference.added, difference.changed, difference.removed].map(names), ["d", "c", "b"]);
    assert_eq!(new.difference(&new), crate::job::Difference::default());
}
