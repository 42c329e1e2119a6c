//! Other users around a lock: what they may have put where the file is, and what they can do with its record.

use std::os::unix::fs::lchown;
use std::os::unix::net::UnixListener;

use rustix::fs::{OFlags, fcntl_getfl};

use super::*;
use crate::safe_path::{Fault, Unsafe};

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped(Facility::Root, "only root can give a link to another user");
    }
    is_root
}

/// Keeps the first byte of the sidecar, as everybody can who may read it.
fn keep_turn(file: &Path) -> File {
    let reader = File::open(sidecar(file)).unwrap();
    let turn = ranges::Range { start: 0, end: 1 };
    assert!(ranges::RangeKind::Shared.within(&reader, turn, TIMEOUT).unwrap());
    reader
}

#[test]
fn a_reader_who_keeps_the_turn_hangs_nobody_who_does_not_wait() {
    let folder = Folder::new();
    let file = folder.path("lock");
    drop(take(&file, LockKind::Mutex));
    let reader = keep_turn(&file);
    // A listing only reads: it shares the turn.
    assert_eq!(holders(&file).unwrap(), []);
    for kind in [LockKind::Mutex, LockKind::Shared, permits(2, 1)] {
        let refused = try_take_free(&file, kind).unwrap_err();
        assert!(matches!(&refused, FileLockError::Occupied { file: path } if *path == sidecar(&file)), "{refused}");
        assert!(is_unlocked(&file), "nothing is held");
    }
    let waiter = taking(request(&[&file], LockKind::Mutex));
    assert!(is_waiting(&waiter));
    drop(reader);
    drop(taken(&waiter));
}

#[test]
fn a_writer_who_keeps_the_turn_hangs_no_listing() {
    let folder = Folder::new();
    let file = folder.path("lock");
    drop(take(&file, LockKind::Mutex));
    let writer = File::options().write(true).open(sidecar(&file)).unwrap();
    assert!(ranges::RangeKind::Exclusive.within(&writer, ranges::Range { start: 0, end: 1 }, TIMEOUT).unwrap());
    assert!(holders(&file).unwrap_err().to_string().contains("lslocks(8)"));
    assert!(held_by_key(&file, &[LockKey::draw()]).is_err());
}

#[test]
fn a_link_of_another_user_leads_nowhere() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let target = folder.path("target");
    fs::write(&target, "").unwrap();
    fs::create_dir(folder.path("way")).unwrap();
    fs::write(folder.path("way/target"), "").unwrap();
    symlink("target", folder.path("file")).unwrap();
    symlink("way", folder.path("folder")).unwrap();
    symlink("nothing", folder.path("missing")).unwrap();
    symlink("file", folder.path("own")).unwrap();
    for link in ["file", "folder", "missing"] {
        lchown(folder.path(link), Some(4242), None).unwrap();
    }
    for name in ["file", "folder", "folder/target", "folder/new", "missing", "own", "folder/../target"] {
        let refused = try_take(&folder.path(name), LockKind::Mutex).unwrap_err();
        let FileLockError::Misled(Unsafe { fault, .. }) = &refused else { panic!("{name}: {refused}") };
        assert_eq!(*fault, Fault::ForeignLink { owner: 4242 }, "{name}");
        assert!(holders(&folder.path(name)).is_err(), "{name}");
    }
    for made in ["target.cronkeeper", "way.cronkeeper", "way/target.cronkeeper", "way/new", "nothing"] {
        assert!(!folder.path(made).exists(), "{made}");
    }
    lchown(folder.path("file"), Some(0), Some(0)).unwrap();
    drop(try_take(&folder.path("own"), LockKind::Mutex).unwrap());
    assert!(sidecar(&target).exists(), "beside the file, not the link");
}

#[test]
fn only_files_and_directories_are_opened() {
    let folder = Folder::new();
    nix::unistd::mkfifo(&folder.path("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let _listener = UnixListener::bind(folder.path("socket")).unwrap();
    symlink("/dev/null", folder.path("device")).unwrap();
    symlink("fifo", folder.path("link")).unwrap();
    for name in ["fifo", "socket", "device", "link"] {
        let refused = try_take(&folder.path(name), LockKind::Mutex).unwrap_err();
        assert!(refused.to_string().contains("neither a regular file nor a directory"), "{name}: {refused}");
    }
    let made = fs::read_dir(folder.0.path()).unwrap().count();
    assert_eq!((made, Path::new("/dev/null.cronkeeper").exists()), (4, false));
}

#[test]
fn a_name_that_ends_in_a_slash_is_no_file() {
    let folder = Folder::new();
    assert!(try_take(&folder.path("none/"), LockKind::Mutex).is_err());
    assert!(!folder.path("none").exists());
}

#[test]
fn a_command_that_inherits_the_descriptor_keeps_the_lock_and_may_only_read() {
    let folder = Folder::new();
    let (file, directory) = (folder.path("lock"), folder.path("directory"));
    fs::create_dir(&directory).unwrap();
    for path in [&file, &directory] {
        for kind in [LockKind::Mutex, LockKind::Shared] {
            let held = take(path, kind);
            let inherited = held.inheritable().unwrap().try_clone_to_owned().unwrap();
            drop(held);
            assert!(loses_its_holders(path), "the record is not inherited");
            assert!(is_busy(path, LockKind::Exclusive));
            assert!(fcntl_getfl(&inherited).unwrap().intersection(OFlags::RWMODE).is_empty());
            drop(inherited);
            assert!(gets_free(path, LockKind::Exclusive));
        }
    }
}

/// Whatever is under the sidecar's name: the file is locked without it, and it is left as it is.
fn assert_locks_beside(file: &Path, why: &str) {
    for kind in [LockKind::Mutex, LockKind::Shared, LockKind::Exclusive] {
        let held = try_take_free(file, kind).unwrap_or_else(|error| panic!("{why}: {error}"));
        assert!(is_busy(file, LockKind::Mutex), "{why}: others are excluded");
        let said = held.unrecorded.as_ref().expect("it has no record").to_string();
        assert!(said.contains(why) && said.contains("remove it"), "{said}");
        assert_eq!(held_by_key(file, &[LockKey::draw()]).unwrap(), None);
    }
    let refused = try_take_free(file, permits(2, 1)).unwrap_err();
    assert!(refused.to_string().contains(why), "permits are counted in the record only: {refused}");
    assert!(is_unlocked(file));
    assert!(holders(file).unwrap_err().to_string().contains(why));
}

#[test]
fn what_others_put_in_place_of_the_sidecar_keeps_nobody_from_the_lock() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let beside = sidecar(&file);
    drop(take(&file, LockKind::Mutex));
    fs::rename(&beside, folder.path("target")).unwrap();
    let before = fs::read(folder.path("target")).unwrap();
    symlink(folder.path("target"), &beside).unwrap();
    assert_locks_beside(&file, "is a symbolic link");
    fs::remove_file(&beside).unwrap();
    symlink(folder.path("nowhere"), &beside).unwrap();
    assert_locks_beside(&file, "is a symbolic link");
    assert!(!folder.path("nowhere").exists());
    fs::remove_file(&beside).unwrap();
    fs::hard_link(folder.path("target"), &beside).unwrap();
    assert_locks_beside(&file, "hard link");
    assert_eq!(fs::read(folder.path("target")).unwrap(), before);
    fs::remove_file(&beside).unwrap();
    nix::unistd::mkfifo(&beside, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    assert_locks_beside(&file, "is a FIFO");
    fs::remove_file(&beside).unwrap();
    let socket = UnixListener::bind(&beside).unwrap();
    assert_locks_beside(&file, "is a socket");
    drop(socket);
    fs::remove_file(&beside).unwrap();
    fs::create_dir(&beside).unwrap();
    assert_locks_beside(&file, "is a directory");
}

#[test]
fn a_file_of_a_stranger_in_place_of_the_sidecar_keeps_nobody_from_the_lock() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let file = folder.path("lock");
    fs::write(sidecar(&file), "").unwrap();
    chown(sidecar(&file), Some(4242), None).unwrap();
    assert_locks_beside(&file, "belongs to another user (uid 4242)");
    assert_eq!(fs::read(sidecar(&file)).unwrap(), b"");
}
