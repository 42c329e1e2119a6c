//! Tests of loading files and directories: joining and trust.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use tempfile::TempDir;

use super::*;
use crate::skips::{Facility, skipped};

const A: &str = "defaults: {timeout: 5m}\njobs:\n  a: {schedule: \"0 0 * * *\", command: x}\n";
const B: &str = "jobs:\n  b: {schedule: \"0 0 * * *\", command: x}\n";

/// A directory with these files, writable only by its owner, whatever the umask.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    mode(directory.path(), 0o755);
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
        mode(&directory.path().join(name), 0o644);
    }
    directory
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The problems of a path, with `dir` in place of the directory's name.
fn reported_for(path: &Path, directory: &TempDir) -> String {
    let reported = match load(path) {
        Ok(loaded) => lines(&loaded.warnings),
        Err(LoadError::Invalid { problems, .. }) => lines(&problems),
        Err(LoadError::Unreadable { path, source }) => format!("{}: {:?}", path.display(), source.kind()),
    };
    reported.replace(&directory.path().display().to_string(), "dir")
}

#[test]
fn the_files_of_a_directory_are_joined_and_others_are_not_read() {
    let directory =
        directory(&[("a.yaml", A), ("b.yml", B), (".hidden.yaml", "["), ("notes.txt", "["), ("c.yaml~", "[")]);
    let loaded = load(directory.path()).unwrap();
    assert_eq!(loaded.set.jobs.keys().map(JobName::as_str).collect::<Vec<_>>(), ["a", "b"]);
    let timeouts: Vec<_> = loaded.set.jobs.values().map(|job| job.timeout.is_some()).collect();
    assert_eq!(timeouts, [true, false], "defaults are those of one file");
    assert_eq!((loaded.warnings, loaded.path), (vec![], directory.path().to_owned()));
}

#[test]
fn a_name_is_unique_over_all_files_and_all_errors_are_reported() {
    let directory = directory(&[("1.yaml", A), ("2.yaml", &format!("{A}  c: 1\n")), ("3.yaml", "x: y")]);
    same(
        &reported_for(directory.path(), &directory),
        "dir/2.yaml:3:3: job `a` is already defined in dir/1.yaml:3
         dir/2.yaml:4:6: job `c`: must be a map of keys, not a number
         dir/3.yaml:1:1: `jobs` is missing; write `jobs: {}` for no jobs
         dir/3.yaml:1:1: `x` is not a key of a jobs file",
    );
}

#[test]
fn a_chain_may_lead_through_several_files() {
    let after =
        |name: &str, upstream: &str| format!("jobs:\n  {name}: {{after: {{{upstream}: success}}, command: x}}\n");
    let good = directory(&[("1.yaml", &after("c", "b")), ("2.yaml", &after("b", "a")), ("3.yaml", A)]);
    assert_eq!(reported_for(good.path(), &good), "");
    let circle = directory(&[("1.yaml", &after("c", "b")), ("2.yaml", &after("b", "c")), ("3.yaml", &after("d", "e"))]);
    same(
        &reported_for(circle.path(), &circle),
        "dir/2.yaml:2:15: job `b`: `after`: it runs after itself: after `c`, which runs after `b`
         dir/3.yaml:2:15: job `d`: `after`: there is no job `e`",
    );
    // It is unknown whether `e` exists.
    let unread = directory(&[("1.yaml", &after("d", "e")), ("2.yaml", "jobs: [")]);
    assert_eq!(reported_for(unread.path(), &unread).lines().count(), 1);
}

#[test]
fn the_digest_covers_names_and_bytes_but_not_directories() {
    let digest = |files: &[(&str, &str)]| {
        let directory = directory(files);
        load(directory.path()).unwrap().set.digest
    };
    let both = digest(&[("a.yaml", A), ("b.yaml", B)]);
    assert_eq!(both, digest(&[("b.yaml", B), ("a.yaml", A)]));
    assert_ne!(both, digest(&[("a.yaml", A), ("c.yaml", B)]));
    assert_eq!(digest(&[("a.yaml", A)]), digest(&[("c.yaml", A)]), "the only file may have another name on each node");
    assert_ne!(both, digest(&[("a.yaml", A), ("b.yaml", &format!("{B}\n"))]));
    let directory = directory(&[("a.yaml", A)]);
    assert_eq!(
        load(&directory.path().join("a.yaml")).unwrap().set.digest,
        parse("a.yaml", A.as_bytes()).unwrap().0.digest
    );
}

#[test]
fn a_file_that_others_may_write_is_rejected() {
    let directory = directory(&[("a.yaml", A)]);
    let file = directory.path().join("a.yaml");
    mode(&file, 0o666);
    same(
        &reported_for(&file, &directory),
        "dir/a.yaml:1:1: anybody may write to `dir/a.yaml` (mode 0666); run `chmod go-w dir/a.yaml`",
    );
    // For other users, the group may be private.
    if rustix::process::geteuid().is_root() {
        mode(&file, 0o664);
        same(
            &reported_for(&file, &directory),
            "dir/a.yaml:1:1: group 0 may write to `dir/a.yaml` (mode 0664); run `chmod g-w dir/a.yaml`",
        );
    } else {
        skipped(Facility::Root, "only root's group is certainly not private");
    }
    mode(&file, 0o600);
    mode(directory.path(), 0o777);
    for path in [&file, directory.path()] {
        let reported = reported_for(path, &directory).replace("dir/a.yaml:1:1", "dir:1:1");
        same(&reported, "dir:1:1: anybody may write to `dir` (mode 0777); run `chmod go-w dir`");
    }
}

#[test]
fn an_unsafe_file_is_not_read_and_the_others_are() {
    let directory = directory(&[("1.yaml", "x: y"), ("2.yaml", "x: y")]);
    mode(&directory.path().join("1.yaml"), 0o666);
    same(
        &reported_for(directory.path(), &directory),
        "dir/1.yaml:1:1: anybody may write to `dir/1.yaml` (mode 0666); run `chmod go-w dir/1.yaml`
         dir/2.yaml:1:1: `jobs` is missing; write `jobs: {}` for no jobs
         dir/2.yaml:1:1: `x` is not a key of a jobs file",
    );
}

#[test]
fn a_file_that_becomes_unsafe_changes_the_fingerprint() {
    let directory = directory(&[("a.yaml", A)]);
    let file = directory.path().join("a.yaml");
    let before = fingerprint(&file);
    mode(&file, 0o666);
    assert_ne!(fingerprint(&file), before);
    mode(&file, 0o644);
    assert_eq!(fingerprint(&file), before);
}

#[test]
fn a_file_of_another_user_is_rejected() {
    let directory = directory(&[("a.yaml", A)]);
    let file = directory.path().join("a.yaml");
    if !rustix::process::geteuid().is_root() {
        return skipped(Facility::Root, "only root can give a file to another user");
    }
    std::os::unix::fs::chown(&file, Some(4242), None).unwrap();
    same(
        &reported_for(&file, &directory),
        "dir/a.yaml:1:1: `dir/a.yaml` belongs to user 4242, who is neither root nor the user of this process (0); \
         run `chown 0 dir/a.yaml`, or use another path",
    );
}

#[test]
fn an_unreadable_path_gives_the_reason() {
    let directory = directory(&[]);
    assert_eq!(reported_for(&directory.path().join("none"), &directory), "dir/none: NotFound");
    same(&reported_for(directory.path(), &directory), "dir:1:1: the directory has no `*.yaml` or `*.yml` file");
    fs::create_dir(directory.path().join("x.yaml")).unwrap();
    mode(&directory.path().join("x.yaml"), 0o755);
    same(&reported_for(directory.path(), &directory), "dir/x.yaml:1:1: `dir/x.yaml` is not a regular file");
    symlink("/nowhere", directory.path().join("y.yaml")).unwrap();
    assert_eq!(reported_for(directory.path(), &directory), "dir/y.yaml: NotFound");
    same(&reported_for(Path::new("/dev/null"), &directory), "/dev/null:1:1: `/dev/null` is not a regular file");
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
    assert_eq!(new.difference(&new), cronkeeper_core::job::Difference::default());
}
