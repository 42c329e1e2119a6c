//! Locks of threads, of processes, and of flock(1), on real files.

mod strangers;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use proptest::prelude::*;
use uuid::Uuid;

use super::record::{BLOCK, Header, Start, block, next_token};
use super::*;
use crate::skips::{Facility, skipped};

/// Longer than anything takes that does not hang.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Long enough for a thread to reach its wait. If it is too short, a test sees less, and does not fail.
const MOMENT: Duration = Duration::from_millis(200);
/// Names the file whose lock the test binary takes when it runs as another process.
const CHILD: &str = "CRONKEEPER_TEST_FILE_LOCK";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn sidecar(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(".cronkeeper");
    path.into()
}

fn request(files: &[&Path], kind: LockKind) -> FileLockRequest {
    let files = files.iter().map(|file| file.to_path_buf()).collect();
    let holder = Holder { pid: std::process::id(), user: "ada".into(), program: "backup".into(), key: LockKey::draw() };
    FileLockRequest { files, kind, waits: true, holder }
}

fn take(file: &Path, kind: LockKind) -> HeldFileLock {
    acquire(&request(&[file], kind)).unwrap().remove(0)
}

/// Held while a process is started: until it executes its program, it has copies of all descriptors, also of those that
/// another test has opened and closes meanwhile.
static STARTING: Mutex<()> = Mutex::new(());

/// Does something while no process is started. Locks that are taken for a moment in it are free afterwards.
fn while_none_starts<T>(act: impl FnOnce() -> T) -> T {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    act()
}

fn started(command: &mut Command) -> io::Result<Child> {
    while_none_starts(|| command.spawn())
}

/// Takes locks if they are free now.
fn acquire_now(wanted: &FileLockRequest) -> Result<Vec<HeldFileLock>, FileLockError> {
    while_none_starts(|| acquire(&FileLockRequest { waits: false, ..wanted.clone() }))
}

fn try_take(file: &Path, kind: LockKind) -> Result<HeldFileLock, FileLockError> {
    acquire_now(&request(&[file], kind)).map(|mut held| held.remove(0))
}

fn is_busy(file: &Path, kind: LockKind) -> bool {
    let wanted = FileLockRequest { waits: false, ..request(&[file], kind) };
    while_none_starts(|| match acquire(&wanted) {
        Err(FileLockError::Busy { file: busy }) => busy == file,
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    })
}

/// Waits until a lock that was held for longer and is dropped is free: see [`STARTING`].
pub(in crate::solo) fn becomes(mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > TIMEOUT {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

fn gets_free(file: &Path, kind: LockKind) -> bool {
    becomes(|| !is_busy(file, kind))
}

fn loses_its_holders(file: &Path) -> bool {
    becomes(|| holders(file).unwrap().is_empty())
}

/// True as soon as nobody has a lock on the file itself.
fn is_unlocked(file: &Path) -> bool {
    let file = File::open(file).unwrap();
    let is_free = becomes(|| rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok());
    // Also for copies of the descriptor.
    rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
    is_free
}

/// Takes a lock as [`try_take`] does, once those that were dropped are free.
fn try_take_free(file: &Path, kind: LockKind) -> Result<HeldFileLock, FileLockError> {
    let mut taken = None;
    becomes(|| !matches!(taken.insert(try_take(file, kind)), Err(FileLockError::Busy { .. })));
    taken.unwrap()
}

fn permits(of: u32, count: u32) -> LockKind {
    LockKind::Permits { of, count }
}

/// Takes locks on a thread, which ends the test process's wait if it hangs.
fn taking(request: FileLockRequest) -> Receiver<Vec<HeldFileLock>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(acquire(&request).unwrap()));
    receiver
}

fn is_waiting(receiver: &Receiver<Vec<HeldFileLock>>) -> bool {
    matches!(receiver.recv_timeout(MOMENT), Err(RecvTimeoutError::Timeout))
}

/// True while somebody waits for the file in the kernel, which marks such a line with an arrow.
fn has_waiter(file: &Path) -> bool {
    let inode = format!(":{} ", fs::metadata(file).unwrap().ino());
    fs::read_to_string("/proc/locks").unwrap().lines().any(|line| line.contains("-> FLOCK") && line.contains(&inode))
}

fn taken(receiver: &Receiver<Vec<HeldFileLock>>) -> HeldFileLock {
    receiver.recv_timeout(TIMEOUT).unwrap().remove(0)
}

/// Another process that holds a lock until it is released or killed.
struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    /// What it printed once it held the lock.
    line: String,
}

impl Other {
    /// Runs this test binary, in it `holds_a_lock_as_another_process`.
    fn taking(file: &Path, kind: &str) -> Self {
        let test = "solo::file_lock::tests::holds_a_lock_as_another_process";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env(CHILD, format!("{kind} {}", file.display()));
        Self::spawn(&mut command)
    }

    /// `flock`, holding the file until its input ends; none if it is not installed.
    fn flock(option: &str, file: &Path) -> Option<Self> {
        has_flock().then(|| Self::spawn(Command::new("flock").arg(option).arg(file).args(["-c", "echo held; cat"])))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = started(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = output.find_map(|line| line.unwrap().strip_prefix("held").map(str::to_owned)).unwrap();
        Self { input: child.stdin.take(), child, output, line }
    }

    fn token(&self) -> FencingToken {
        FencingToken(self.line.trim().parse().unwrap())
    }

    fn release(mut self) {
        drop(self.input.take());
        self.output.by_ref().for_each(drop);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_installed(program: &str) -> bool {
    let started = started(Command::new(program).arg("--version").stdout(Stdio::null()));
    started.and_then(|mut child| child.wait()).is_ok()
}

fn has_flock() -> bool {
    let found = is_installed("flock");
    if !found {
        skipped(Facility::Installed, "flock of util-linux is not installed");
    }
    found
}

/// Does nothing unless [`Other::taking`] has started it.
#[test]
fn holds_a_lock_as_another_process() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let (kind, file) = text.split_once(' ').unwrap();
    let kind = match kind {
        "mutex" => LockKind::Mutex,
        "shared" => LockKind::Shared,
        _ => permits(3, 2),
    };
    let held = take(Path::new(file), kind);
    println!("\nheld {}", held.token);
    std::io::stdout().flush().unwrap();
    std::io::stdin().lines().for_each(drop);
}

#[test]
fn threads_hold_a_mutex_one_after_the_other() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let (is_inside, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (file, is_inside, done) = (file.clone(), Arc::clone(&is_inside), Arc::clone(&done));
            thread::spawn(move || {
                for _ in 0..50 {
                    let held = take(&file, LockKind::Mutex);
                    assert!(!is_inside.swap(true, Ordering::SeqCst));
                    thread::yield_now();
                    assert!(is_inside.swap(false, Ordering::SeqCst));
                    done.fetch_add(1, Ordering::SeqCst);
                    drop(held);
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert_eq!(done.load(Ordering::SeqCst), 200);
    assert!(loses_its_holders(&file));
    assert!(fs::metadata(sidecar(&file)).unwrap().len() < 20 * BLOCK as u64, "records are used again");
}

#[test]
fn readers_exclude_writers_and_not_each_other() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let first = take(&file, LockKind::Shared);
    let second = take(&file, LockKind::Shared);
    assert!(is_busy(&file, LockKind::Exclusive) && is_busy(&file, LockKind::Mutex));
    let writer = taking(request(&[&file], LockKind::Exclusive));
    assert!(is_waiting(&writer));
    drop((first, second));
    let writer = taken(&writer);
    assert!(is_busy(&file, LockKind::Shared));
    drop(writer);
    take(&file, LockKind::Shared);
}

#[test]
fn the_file_is_created_and_its_content_is_kept() {
    let folder = Folder::new();
    let file = folder.path("lock");
    drop(take(&file, LockKind::Mutex));
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    fs::write(&file, "4242\n").unwrap();
    drop(take(&file, LockKind::Mutex));
    assert_eq!(fs::read_to_string(&file).unwrap(), "4242\n");
}

#[test]
fn a_directory_and_a_running_program_can_be_locked() {
    let folder = Folder::new();
    let (directory, program) = (folder.path("directory"), folder.path("program"));
    fs::create_dir(&directory).unwrap();
    let held = take(&directory, LockKind::Mutex);
    assert!(is_busy(&directory, LockKind::Mutex));
    assert_eq!(holders(&directory).unwrap()[0].token, held.token);

    fs::copy("/bin/sleep", &program).unwrap();
    let mut child = loop {
        // Another test may be forking: then its child has the copy open for writing for a moment.
        match started(Command::new(&program).arg("1000")) {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => thread::yield_now(),
            child => break child.unwrap(),
        }
    };
    drop(take(&program, LockKind::Exclusive));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_root_directory_has_no_place_for_a_sidecar() {
    let refused = try_take(Path::new("/"), LockKind::Shared).unwrap_err();
    assert!(matches!(refused, FileLockError::Unsafe { .. }), "{refused}");
}

#[test]
fn a_missing_file_has_no_holders() {
    let folder = Folder::new();
    assert_eq!(holders(&folder.path("none")).unwrap(), []);
    fs::write(folder.path("plain"), "").unwrap();
    assert_eq!(holders(&folder.path("plain")).unwrap(), []);
    assert_eq!(held_by_key(&folder.path("plain"), &[LockKey::draw()]).unwrap(), None);
    assert!(!sidecar(&folder.path("plain")).exists());
}

#[test]
fn several_files_in_opposite_order_never_wait_for_each_other() {
    let folder = Folder::new();
    let files = ["a", "b", "c"].map(|name| folder.path(name));
    let (sender, receiver) = mpsc::channel();
    for is_reversed in [false, true] {
        let (mut files, sender) = (files.to_vec(), sender.clone());
        if is_reversed {
            files.reverse();
        }
        thread::spawn(move || {
            let wanted = FileLockRequest { files: files.clone(), ..request(&[], LockKind::Mutex) };
            for _ in 0..100 {
                let held = acquire(&wanted).unwrap();
                assert_eq!(held.iter().map(|lock| lock.file.clone()).collect::<Vec<_>>(), files);
            }
            sender.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        receiver.recv_timeout(TIMEOUT).expect("no deadlock");
    }
}

#[test]
fn several_files_are_all_held_or_none() {
    let folder = Folder::new();
    let files = ["a", "b", "c"].map(|name| folder.path(name));
    let wanted = request(&files.each_ref().map(PathBuf::as_path), LockKind::Mutex);
    for file in &files {
        let held = take(file, LockKind::Mutex);
        let refused = acquire_now(&wanted).unwrap_err();
        assert!(matches!(&refused, FileLockError::Busy { file: busy } if busy == file), "{refused}");
        drop(held);
        assert!(files.iter().all(|file| loses_its_holders(file) && gets_free(file, LockKind::Mutex)));
    }
    assert_eq!(acquire(&wanted).unwrap().len(), 3);
}

#[test]
fn a_file_with_several_names_counts_once() {
    let folder = Folder::new();
    let [file, link, hard] = ["lock", "link", "hard"].map(|name| folder.path(name));
    fs::write(&file, "").unwrap();
    symlink(&file, &link).unwrap();
    fs::hard_link(&file, &hard).unwrap();
    let dots = folder.path("../").join(folder.0.path().file_name().unwrap()).join("lock");
    let held = acquire(&request(&[&link, &file, &dots, &hard, &file], LockKind::Mutex)).unwrap();
    assert_eq!(held.iter().map(|lock| &lock.file).collect::<Vec<_>>(), [&link]);
    assert_eq!(holders(&file).unwrap(), holders(&link).unwrap());
    assert_eq!(holders(&file).unwrap().len(), 1);
    assert!(is_busy(&hard, LockKind::Mutex));
}

#[test]
fn a_link_to_a_missing_file_is_refused() {
    let folder = Folder::new();
    symlink(folder.path("missing"), folder.path("link")).unwrap();
    let refused = try_take(&folder.path("link"), LockKind::Mutex).unwrap_err();
    assert!(matches!(refused, FileLockError::Unsafe { .. }), "{refused}");
    assert!(!folder.path("missing").exists());
}

#[test]
fn flock_and_this_lock_exclude_each_other() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let Some(other) = Other::flock("-x", &file) else { return };
    assert!([LockKind::Mutex, LockKind::Shared, permits(2, 1)].into_iter().all(|kind| is_busy(&file, kind)));
    let waiter = taking(request(&[&file], LockKind::Mutex));
    assert!(is_waiting(&waiter));
    other.release();
    let held = taken(&waiter);

    let flock = |option| {
        let mut flock = started(Command::new("flock").args(["-n", option]).arg(&file).arg("true")).unwrap();
        flock.wait().unwrap().success()
    };
    assert!(!flock("-x") && !flock("-s"));
    drop(held);
    for kind in [LockKind::Shared, permits(2, 1)] {
        let held = take(&file, kind);
        assert!(!flock("-x") && becomes(|| flock("-s")));
        drop(held);
    }
    assert!(becomes(|| flock("-x")));
    let reader = Other::flock("-s", &file).unwrap();
    assert!(gets_free(&file, LockKind::Shared) && is_busy(&file, LockKind::Exclusive));
    reader.release();
}

#[test]
fn a_lock_is_held_as_long_as_a_duplicate_is_open() {
    let folder = Folder::new();
    let file = folder.path("lock");
    for kind in [LockKind::Mutex, permits(1, 1)] {
        let held = take(&file, kind);
        let duplicates: Vec<OwnedFd> = held.descriptors().map(|held| held.try_clone_to_owned().unwrap()).collect();
        let token = held.token;
        drop(held);
        assert!(is_busy(&file, kind));
        assert_eq!(holders(&file).unwrap()[0].token, token);
        drop(duplicates);
        assert!(loses_its_holders(&file) && gets_free(&file, kind));
    }
}

#[test]
fn a_waiter_gets_the_new_file_if_the_old_one_was_replaced() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let old = take(&file, LockKind::Mutex);
    let waiter = taking(request(&[&file], LockKind::Mutex));
    assert!(becomes(|| has_waiter(&file)));
    fs::remove_file(&file).unwrap();
    let new = take(&file, LockKind::Mutex);
    drop(old);
    assert!(is_waiting(&waiter), "the old file is no lock any more");
    let token = new.token;
    drop(new);
    let held = taken(&waiter);
    assert!(held.token > token);
    assert!(is_busy(&file, LockKind::Mutex));
}

#[test]
fn tokens_grow_with_every_holder() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let readers = [take(&file, LockKind::Shared), take(&file, LockKind::Shared)];
    let permit = take(&file, permits(2, 1));
    let other = Other::taking(&file, "shared");
    let listed: Vec<FencingToken> = holders(&file).unwrap().iter().map(|holder| holder.token).collect();
    assert_eq!(listed, [readers[0].token, readers[1].token, permit.token, other.token()]);
    assert!(listed.is_sorted_by(|one, next| one < next));
    other.release();
    drop((readers, permit));
    assert!(take(&file, LockKind::Mutex).token > listed[3]);
}

#[test]
fn tokens_do_not_go_back_when_the_sidecar_is_lost() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let losses: [fn(&Path); 3] = [
        |sidecar| fs::remove_file(sidecar).unwrap(),
        |sidecar| fs::write(sidecar, "").unwrap(),
        |sidecar| fs::write(sidecar, [0; 3000]).unwrap(),
    ];
    for lose in losses {
        let mut token = FencingToken(0);
        for _ in 0..20 {
            let next = take(&file, LockKind::Mutex).token;
            assert!(next > token);
            token = next;
        }
        lose(&sidecar(&file));
        assert!(take(&file, LockKind::Mutex).token > token);
    }
}

#[test]
fn tokens_do_not_go_back_with_the_clock() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let future = FencingToken(Timestamp::now().as_microsecond() + 1_000_000_000_000);
    fs::write(sidecar(&file), block(&Header::new(future)).unwrap()).unwrap();
    assert_eq!(take(&file, LockKind::Mutex).token, FencingToken(future.0 + 1));

    fs::write(sidecar(&file), block(&Header::new(FencingToken(i64::MAX))).unwrap()).unwrap();
    let refused = try_take(&file, LockKind::Mutex).unwrap_err();
    assert!(matches!(refused, FileLockError::Unsafe { .. }), "{refused}");
    assert!(is_unlocked(&file), "a failed claim holds nothing");
}

#[test]
fn a_sidecar_with_foreign_content_is_refused_and_kept() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let newer = r#"{"cronkeeper_lock":2,"token":7}"#;
    for text in ["7\n", "notes of somebody", "{}", newer, "{\"cronkeeper_lock\":1,\"token\":17"] {
        fs::write(sidecar(&file), text).unwrap();
        for kind in [LockKind::Mutex, permits(2, 1)] {
            let refused = try_take(&file, kind).unwrap_err();
            assert!(matches!(&refused, FileLockError::Unsafe { file: path, .. } if *path == sidecar(&file)));
        }
        assert_eq!(fs::read_to_string(sidecar(&file)).unwrap(), text);
        assert!(is_unlocked(&file));
    }
}

#[test]
fn root_and_the_owner_of_a_directory_share_its_locks() {
    if !rustix::process::geteuid().is_root() {
        return skipped(Facility::Root, "only root can give a file to another user");
    }
    let folder = Folder::new();
    let file = folder.path("lock");
    chown(folder.0.path(), Some(4242), Some(4243)).unwrap();
    drop(take(&file, LockKind::Mutex));
    let made = fs::metadata(sidecar(&file)).unwrap();
    assert_eq!((made.uid(), made.gid()), (4242, 4243));
    drop(take(&file, LockKind::Mutex));
}

#[test]
fn a_sidecar_has_the_rights_of_the_file() {
    let folder = Folder::new();
    for (given, expected) in [(0o600, 0o600), (0o666, 0o666), (0o400, 0o600), (0o755, 0o644), (0o620, 0o620)] {
        let file = folder.path(&format!("{given:o}"));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(given)).unwrap();
        drop(take(&file, LockKind::Mutex));
        let mode = fs::metadata(sidecar(&file)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, expected, "{given:o} gave {mode:o}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        drop(take(&file, LockKind::Mutex));
        let mode = fs::metadata(sidecar(&file)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o666, "an old one gets them too");
    }
}

/// Runs a lock of this file as another user: what the other process prints once it holds the lock.
fn as_user(uid: u32, file: &Path, kind: &str) -> Other {
    let test = "solo::file_lock::tests::holds_a_lock_as_another_process";
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()]);
    command.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    Other::spawn(command.env(CHILD, format!("{kind} {}", file.display())))
}

/// A directory like /tmp. Nobody but root can make files of several users.
fn public_folder() -> Option<Folder> {
    if !rustix::process::geteuid().is_root() || !is_installed("setpriv") {
        skipped(Facility::Root, "only root can become other users");
        return None;
    }
    // Other users must be able to run this program.
    let program = std::env::current_exe().unwrap();
    let is_open = |folder: &Path| fs::metadata(folder).unwrap().permissions().mode() & 0o005 == 0o005;
    if !program.ancestors().all(is_open) {
        skipped(Facility::Kernel, &format!("other users cannot run {}", program.display()));
        return None;
    }
    let folder = Folder::new();
    fs::set_permissions(folder.0.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    Some(folder)
}

#[test]
fn whoever_may_write_the_file_shares_its_lock_and_the_record_whoever_came_first() {
    let Some(folder) = public_folder() else { return };
    for first in ["root", "other"] {
        let file = folder.path(first);
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        let mut newest = FencingToken(0);
        for turn in 0..3 {
            let token = if (turn % 2 == 0) == (first == "root") {
                let held = take(&file, LockKind::Mutex);
                assert!(held.unrecorded.is_none(), "{:?}", held.unrecorded);
                held.token
            } else {
                let other = as_user(4242 + turn, &file, "mutex");
                assert_eq!(holders(&file).unwrap().len(), 1, "it is listed");
                assert!(is_busy(&file, LockKind::Mutex));
                let token = other.token();
                other.release();
                token
            };
            assert!(token > newest);
            newest = token;
            assert!(gets_free(&file, LockKind::Mutex));
        }
    }
}

#[test]
fn whoever_may_only_read_the_file_locks_it_without_a_record() {
    let Some(folder) = public_folder() else { return };
    let file = folder.path("lock");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let first = as_user(4242, &file, "mutex");
    assert!(is_busy(&file, LockKind::Mutex) && !sidecar(&file).exists(), "a sidecar of that user would be refused");
    let token = first.token();
    first.release();
    assert!(gets_free(&file, LockKind::Mutex));
    let held = take(&file, LockKind::Mutex);
    assert!(held.unrecorded.is_none() && held.token > token);
    let token = held.token;
    drop(held);
    assert!(gets_free(&file, LockKind::Mutex));
    let again = as_user(4242, &file, "mutex");
    assert!(again.token() > token, "it reads the newest token");
    assert!(holders(&file).unwrap().is_empty());
    again.release();
}

#[test]
fn a_forged_record_opens_nothing() {
    let folder = Folder::new();
    let [file, other] = ["lock", "other"].map(|name| folder.path(name));
    let key = LockKey::draw();
    let mut wanted = request(&[&other], LockKind::Mutex);
    wanted.holder.key = key.clone();
    let _held = acquire(&wanted).unwrap();
    assert!(held_by_key(&other, std::slice::from_ref(&key)).unwrap().is_some());
    // Somebody copies the record of that holder into the sidecar of a file that it does not hold.
    let _forger = take(&file, LockKind::Shared);
    let mut bytes = fs::read(sidecar(&file)).unwrap();
    bytes[BLOCK..2 * BLOCK].copy_from_slice(&fs::read(sidecar(&other)).unwrap()[BLOCK..2 * BLOCK]);
    let forged = File::options().write(true).open(sidecar(&file)).unwrap();
    forged.write_all_at(&bytes, 0).unwrap();
    assert_eq!(holders(&file).unwrap().remove(0).key, key.uuid(), "it is there");
    assert_eq!(held_by_key(&file, &[key]).unwrap(), None);
}

#[test]
fn a_holder_is_listed_until_its_end() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let before = Timestamp::now();
    let wanted = request(&[&file], permits(3, 2));
    let held = acquire(&wanted).unwrap().remove(0);
    let listed = holders(&file).unwrap().remove(0);
    let id = Place::find(&file).unwrap().unwrap().id();
    let expected = ListedHolder::new(id, &wanted.holder, permits(3, 2), held.token, listed.since);
    assert_eq!(listed, expected);
    assert_eq!((listed.pid, listed.user.as_str(), listed.program.as_str()), (std::process::id(), "ada", "backup"));
    assert!((before..=Timestamp::now()).contains(&listed.since));
    drop(held);
    assert!(loses_its_holders(&file));
}

#[test]
fn a_reader_of_the_sidecar_cannot_pass_for_a_holder() {
    let folder = Folder::new();
    let file = folder.path("lock");
    drop(take(&file, permits(1, 1)));
    assert!(loses_its_holders(&file));
    let reader = File::open(sidecar(&file)).unwrap();
    let block = ranges::Range { start: BLOCK as i64, end: 2 * BLOCK as i64 };
    assert!(ranges::RangeKind::Shared.within(&reader, block, Duration::ZERO).unwrap());
    assert_eq!(holders(&file).unwrap(), []);
    let _held = take(&file, permits(1, 1));
    assert_eq!(holders(&file).unwrap().len(), 1, "it takes the next block");
}

#[test]
fn a_command_holds_what_its_key_opens() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let (outer, inner, foreign) = (LockKey::draw(), LockKey::draw(), LockKey::draw());
    let taken_with = |key: &LockKey, kind| {
        let mut wanted = request(&[&file], kind);
        wanted.holder.key = key.clone();
        acquire(&wanted).unwrap().remove(0)
    };
    let reader = taken_with(&outer, LockKind::Shared);
    let permit = taken_with(&inner, permits(2, 1));
    let held = |keys: &[&LockKey]| {
        let keys: Vec<LockKey> = keys.iter().map(|&key| key.clone()).collect();
        held_by_key(&file, &keys).unwrap()
    };
    assert_eq!(held(&[]), None);
    assert_eq!(held(&[&foreign]), None);
    assert_eq!(held(&[&foreign, &inner]), Some((permits(2, 1), permit.token)));
    assert_eq!(held(&[&inner, &outer]), Some((LockKind::Shared, reader.token)), "the strongest");
    drop(reader);
    assert!(becomes(|| held(&[&outer]).is_none()), "its lock is gone");
}

#[test]
fn two_of_three_permits_twice_are_too_many() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let first = take(&file, permits(3, 2));
    assert!(is_busy(&file, permits(3, 2)));
    let second = taking(request(&[&file], permits(3, 2)));
    assert!(becomes(|| is_busy(&file, permits(3, 1))), "nobody overtakes the one who waits");
    assert!(is_waiting(&second));
    let third = taking(request(&[&file], permits(3, 1)));
    assert!(is_waiting(&third), "nobody overtakes the one who waits");
    drop(first);
    let (second, third) = (taken(&second), taken(&third));
    assert!(second.token < third.token);
    assert!(is_busy(&file, permits(3, 1)));
    drop(second);
    drop(take(&file, permits(3, 2)));
    drop(third);
    take(&file, permits(3, 3));
}

#[test]
fn permits_are_never_more_than_there_are() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let (used, done) = (Arc::new(AtomicU32::new(0)), mpsc::channel());
    for count in [1, 2, 3, 1, 2] {
        let (file, used, sender) = (file.clone(), Arc::clone(&used), done.0.clone());
        thread::spawn(move || {
            for _ in 0..20 {
                let held = take(&file, permits(3, count));
                assert!(used.fetch_add(count, Ordering::SeqCst) + count <= 3);
                thread::yield_now();
                used.fetch_sub(count, Ordering::SeqCst);
                drop(held);
            }
            sender.send(()).unwrap();
        });
    }
    for _ in 0..5 {
        done.1.recv_timeout(TIMEOUT).expect("nobody waits forever");
    }
}

#[test]
fn one_of_several_that_do_not_wait_gets_the_permits() {
    let folder = Folder::new();
    for round in 0..20 {
        let attempts = [(); 3].map(|()| {
            let file = folder.path(&round.to_string());
            thread::spawn(move || try_take(&file, permits(3, 2)).ok())
        });
        let results = attempts.map(|attempt| attempt.join().unwrap());
        assert_eq!(results.iter().flatten().count(), 1);
    }
}

#[test]
fn the_death_of_a_holder_frees_its_permits() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let mut other = Other::taking(&file, "permits");
    assert_eq!(holders(&file).unwrap()[0].pid, other.child.id());
    let waiter = taking(request(&[&file], permits(3, 2)));
    assert!(is_waiting(&waiter));
    other.child.kill().unwrap();
    let held = taken(&waiter);
    assert_eq!(holders(&file).unwrap().len(), 1);
    assert!(held.token > other.token());
}

#[test]
fn the_death_of_a_holder_frees_a_mutex() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let mut other = Other::taking(&file, "mutex");
    let waiter = taking(request(&[&file], LockKind::Mutex));
    assert!(is_waiting(&waiter) && holders(&file).unwrap().len() == 1);
    other.child.kill().unwrap();
    drop(taken(&waiter));
    assert!(loses_its_holders(&file));
}

#[test]
fn permits_exclude_a_mutex() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let permit = take(&file, permits(2, 1));
    assert!(is_busy(&file, LockKind::Mutex) && gets_free(&file, LockKind::Shared));
    drop(permit);
    let mutex = take(&file, LockKind::Mutex);
    assert!(is_busy(&file, permits(2, 1)));
    drop(mutex);
    take(&file, permits(2, 1));
}

#[test]
fn all_users_name_the_same_number_of_permits() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let held = take(&file, permits(3, 1));
    let other = request(&[&file], permits(4, 1));
    for waits in [true, false] {
        let refused = acquire(&FileLockRequest { waits, ..other.clone() }).unwrap_err();
        assert!(matches!(refused, FileLockError::OtherPermits { permits: 3, .. }), "{refused}");
    }
    drop(held);
    assert!(loses_its_holders(&file));
    acquire(&other).unwrap();
}

#[test]
fn more_permits_than_there_are_is_an_error() {
    let folder = Folder::new();
    let refused = acquire(&request(&[&folder.path("lock")], permits(2, 3))).unwrap_err();
    assert!(matches!(refused, FileLockError::Io { .. }), "{refused}");
}

#[test]
fn waiters_for_permits_survive_the_loss_of_the_sidecar() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let held = take(&file, permits(1, 1));
    let waiters = [(); 2].map(|()| taking(request(&[&file], permits(1, 1))));
    assert!(waiters.iter().all(is_waiting));
    fs::remove_file(sidecar(&file)).unwrap();
    // The permit of the unknown holder counts as free.
    let (sender, receiver) = mpsc::channel();
    for waiter in waiters {
        let sender = sender.clone();
        thread::spawn(move || sender.send(taken(&waiter)));
    }
    let first = receiver.recv_timeout(TIMEOUT).unwrap();
    assert!(matches!(receiver.recv_timeout(MOMENT), Err(RecvTimeoutError::Timeout)));
    assert!(first.token > held.token);
    drop(first);
    receiver.recv_timeout(TIMEOUT).unwrap();
}

#[test]
fn a_live_record_that_cannot_be_read_stops_permits_only() {
    let folder = Folder::new();
    let file = folder.path("lock");
    let held = take(&file, permits(3, 1));
    let open = fs::OpenOptions::new().write(true).open(sidecar(&file)).unwrap();
    open.write_all_at(b"{\"token\":\"of a newer version\"", BLOCK as u64).unwrap();
    assert_eq!(holders(&file).unwrap(), []);
    let refused = try_take(&file, permits(3, 1)).unwrap_err();
    assert!(matches!(refused, FileLockError::Unsafe { .. }), "{refused}");
    drop(take(&file, LockKind::Shared));
    drop(held);
    assert!(is_unlocked(&file) && loses_its_holders(&file));
    assert!(becomes(|| try_take(&file, permits(3, 1)).is_ok()));
}

#[test]
fn the_next_token_is_after_the_newest_and_the_clock() {
    let at = |micros| Timestamp::from_microsecond(micros).unwrap();
    assert_eq!(next_token(None, at(500)), Some(FencingToken(500)));
    assert_eq!(next_token(None, at(-500)), Some(FencingToken(1)));
    assert_eq!(next_token(Some(FencingToken(499)), at(500)), Some(FencingToken(500)));
    assert_eq!(next_token(Some(FencingToken(500)), at(500)), Some(FencingToken(501)));
    assert_eq!(next_token(Some(FencingToken(900)), at(500)), Some(FencingToken(901)));
    assert_eq!(next_token(Some(FencingToken(i64::MAX)), at(500)), None);
}

fn kind() -> impl Strategy<Value = LockKind> {
    let permits = (any::<u32>(), any::<u32>()).prop_map(|(of, count)| LockKind::Permits { of, count });
    prop_oneof![Just(LockKind::Mutex), Just(LockKind::Shared), Just(LockKind::Exclusive), permits]
}

fn holder() -> impl Strategy<Value = Holder> {
    let text = || prop::collection::vec(any::<char>(), 0..200).prop_map(String::from_iter);
    let control = || prop::collection::vec(Just('\u{1}'), 0..200).prop_map(String::from_iter);
    let texts = prop_oneof![(text(), text()), (control(), control())];
    let keys = any::<(u128, u128)>().prop_map(|(one, two)| LockKey::of(Uuid::from_u128(one), Uuid::from_u128(two)));
    (any::<u32>(), texts, keys).prop_map(|(pid, (user, program), key)| Holder { pid, user, program, key })
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]

    /// Whatever the names, a record fits its block, and what was written is read.
    #[test]
    fn a_record_is_read_as_it_was_written(
        holder in holder(),
        kind in kind(),
        token in any::<i64>(),
        since in Timestamp::MIN.as_second()..Timestamp::MAX.as_second(),
    ) {
        let since = Timestamp::new(since, 999_999_999).unwrap();
        let record = ListedHolder::new((1, u64::MAX), &holder, kind, FencingToken(token), since);
        let written = block(&record).unwrap();
        prop_assert_eq!(written.len(), BLOCK);
        prop_assert_eq!(written.iter().position(|byte| *byte == b'\n'), Some(BLOCK - 1));
        prop_assert!(holder.program.starts_with(&record.program) && holder.user.starts_with(&record.user));
        prop_assert_eq!(ListedHolder::parse(&written), Some(record));
        prop_assert_eq!(Start::parse(&written), Start::Foreign);
    }

    #[test]
    fn a_token_is_read_as_it_was_written(token in any::<i64>()) {
        let header = Header::new(FencingToken(token));
        prop_assert_eq!(Start::parse(&block(&header).unwrap()), Start::Header(header));
    }

    /// A write of the token that stopped anywhere leaves no smaller one.
    #[test]
    fn half_a_token_is_not_below_the_old_one(
        old in 1_000_000_000_000_000_i64..9_999_999_999_999_999,
        by in 1_i64..1_000_000_000_000_000,
        at in 0..BLOCK,
    ) {
        let new = (old + by).min(9_999_999_999_999_999);
        let [old, new] = [old, new].map(|token| Header::new(FencingToken(token)));
        let torn = [&block(&new).unwrap()[..at], &block(&old).unwrap()[at..]].concat();
        let Start::Header(read) = Start::parse(&torn) else { panic!("{torn:?}") };
        prop_assert!(read.token >= old.token);
    }

    #[test]
    fn no_text_panics(text in prop::collection::vec(any::<u8>(), 0..2 * BLOCK)) {
        let is_blank = text.iter().all(|byte| matches!(byte, 0 | b' ' | b'\n'));
        prop_assert_eq!(Start::parse(&text) == Start::Empty, is_blank);
        let _ = ListedHolder::parse(&text);
    }

    /// As [`no_text_panics`], near a record.
    #[test]
    fn no_damage_panics(holder in holder(), kind in kind(), at in 0..BLOCK, byte in any::<u8>()) {
        let record = ListedHolder::new((1, 2), &holder, kind, FencingToken(1), Timestamp::UNIX_EPOCH);
        let mut damaged = block(&record).unwrap();
        damaged[at] = byte;
        let _ = (ListedHolder::parse(&damaged), Start::parse(&damaged));
        damaged.truncate(at);
        let _ = ListedHolder::parse(&damaged);
    }
}
