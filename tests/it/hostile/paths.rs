//! Files and directories through which another user could determine what root's daemon reads, writes or runs.
//!
//! `nobody` owns one of the directories, or has put files there before.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;

use crate::solo::fixture::{leading, node};
use crate::support::command::{command, run, texts};
use crate::support::node::Node;
use crate::support::process::Process;
use crate::support::scratch::Scratch;
use crate::support::tls::Certificates;
use crate::support::{Facility, LONG, skipped};

const NOBODY: u32 = 65_534;

/// An address that no server listens on.
const ZOOKEEPER: &str = "127.0.0.1:1";

/// Only root can change the owner of files, and only root's daemon runs jobs as other users.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped(Facility::Root, "only root can give files to another user");
    }
    is_root
}

/// A jobs file of root, and everything needed to run it, in directories of root.
struct JobsFolder(Scratch);

impl JobsFolder {
    fn new() -> Self {
        let context = Self(Scratch::new("paths"));
        context.0.write("open/jobs.yaml", "jobs: {}\n");
        context.0.write("jobs.yaml", "jobs: {}\n");
        context
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn folder(&self, name: &str, owner: u32, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        give(&path, owner, mode);
        path
    }

    /// The error output of a command that ends with 78. Each `@name` in its arguments is a file of the context.
    #[track_caller]
    fn refused(&self, line: &[&str]) -> String {
        let line: Vec<String> = line
            .iter()
            .map(|word| word.strip_prefix('@').map_or((*word).to_owned(), |name| self.path(name).display().to_string()))
            .collect();
        let command = command(&line.iter().map(String::as_str).collect::<Vec<_>>());
        // A command that is not refused would run forever.
        let mut process = Process::spawn("timeout", |timed| {
            timed.args(["--signal=KILL", "30"]).arg(command.get_program()).args(command.get_args());
            for (key, value) in command.get_envs() {
                match value {
                    Some(value) => timed.env(key, value),
                    None => timed.env_remove(key),
                };
            }
            timed.current_dir(self.0.path());
            timed.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        })
        .unwrap();
        let stderr = process.take(|child| child.stderr.take());
        let said = std::io::read_to_string(stderr).unwrap();
        let code = process.wait_exit(LONG).unwrap().code();
        assert_eq!(code, Some(78), "{line:?} said:\n{said}");
        // Messages contain resolved paths.
        said.replace(&self.0.path().canonicalize().unwrap().display().to_string(), "<scratch>")
    }
}

fn give(path: &Path, owner: u32, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    chown(path, Some(owner), None).unwrap();
}

fn assert_says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
}

/// As Kubernetes mounts a ConfigMap: links through `..data` in a directory that everybody may write to.
#[test]
fn a_folder_that_anybody_may_write_to_is_accepted_on_a_read_only_mount_alone() {
    if !is_root() {
        return;
    }
    let context = JobsFolder::new();
    context.0.write("open/..1/jobs.yaml", "jobs: {}\n");
    context.folder("open", 0, 0o777);
    fs::remove_file(context.path("open/jobs.yaml")).unwrap();
    symlink("..1", context.path("open/..data")).unwrap();
    symlink("..data/jobs.yaml", context.path("open/jobs.yaml")).unwrap();
    let said = context.refused(&["check", "@open/jobs.yaml"]);
    assert_says(&said, &["anybody may write to `<scratch>/open`", "`chmod go-w <scratch>/open`"]);
    context.folder("mounted", 0, 0o755);
    let check = |more: &str| {
        let script = format!(
            "mount --bind \"$1/open\" \"$1/mounted\" && mount -o remount,bind,ro \"$1/mounted\" && \
             {{ {more} exec \"$2\" check \"$1/mounted/jobs.yaml\"; }} || exit 99"
        );
        let scratch = context.0.path().to_str().unwrap();
        std::process::Command::new("unshare")
            .args(["--mount", "sh", "-c", &script, "sh", scratch, crate::support::command::CRONKEEPER])
            .output()
            .unwrap()
    };
    let (code, out, err) = texts(&check(""));
    if code == Some(99) || code == Some(1) && out.is_empty() {
        skipped(Facility::Namespaces, "namespaces of mounts are needed for a read-only mount");
        return;
    }
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("valid, 0 jobs"), "{out}");
    let (code, _, err) = texts(&check("mount -o remount,bind,rw \"$1/mounted\";"));
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("anybody may write to"), "{err}");
    give(&context.path("open/..1"), NOBODY, 0o755);
    let (code, _, err) = texts(&check(""));
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("belongs to user 65534") && err.contains("its mount is read-only"), "{err}");
}

#[test]
fn a_jobs_file_in_a_folder_of_somebody_else_is_refused_whoever_owns_the_file() {
    if !is_root() {
        return;
    }
    let context = JobsFolder::new();
    context.folder("open", NOBODY, 0o755);
    context.folder("open/below", 0, 0o755);
    context.0.write("open/below/jobs.yaml", "jobs: {}\n");
    symlink(context.path("open/jobs.yaml"), context.path("by-link.yaml")).unwrap();
    let owner = ["`<scratch>/open` belongs to user 65534", "`chown 0 <scratch>/open`"];
    for line in [
        &["check", "@open/jobs.yaml"][..],
        &["check", "open/jobs.yaml"],
        &["check", "@open/below/jobs.yaml"],
        &["check", "@open/below"],
        &["check", "@by-link.yaml"],
        &["run", "--jobs", "@open/jobs.yaml", "--state-dir", "@state"],
    ] {
        assert_says(&context.refused(line), &owner);
    }
    context.folder("open", 0, 0o777);
    assert_says(
        &context.refused(&["check", "@open/jobs.yaml"]),
        &["anybody may write to `<scratch>/open` (mode 0777)", "`chmod go-w <scratch>/open`"],
    );
    context.folder("open", 0, 0o775);
    assert_says(
        &context.refused(&["check", "@open/jobs.yaml"]),
        &["group 0 may write to `<scratch>/open` (mode 0775)", "`chmod g-w <scratch>/open`"],
    );
    // As in /tmp: others cannot replace files of root.
    context.folder("open", 0, 0o1777);
    assert_eq!(run(&["check", context.path("open/jobs.yaml").to_str().unwrap()]).status.code(), Some(0));
    // Files that others may have put there are still refused.
    fs::hard_link(context.path("jobs.yaml"), context.path("open/linked.yaml")).unwrap();
    assert_says(&context.refused(&["check", "@open/linked.yaml"]), &["`<scratch>/open/linked.yaml` has 2 hard links"]);
    symlink(context.path("jobs.yaml"), context.path("open/link.yaml")).unwrap();
    rustix::fs::chownat(
        rustix::fs::CWD,
        context.path("open/link.yaml"),
        Some(rustix::fs::Uid::from_raw(NOBODY)),
        None,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
    assert_says(
        &context.refused(&["check", "@open/link.yaml"]),
        &["the link `<scratch>/open/link.yaml` belongs to user 65534"],
    );
}

#[test]
fn what_a_process_says_of_itself_is_no_jobs_file() {
    let context = JobsFolder::new();
    symlink(format!("/proc/{}/cmdline", std::process::id()), context.path("open/link.yaml")).unwrap();
    for line in [&["check", "@open/link.yaml"][..], &["check", "/proc/self/environ"]] {
        assert_says(&context.refused(line), &["`/proc` is in a virtual file system of the kernel"]);
    }
}

/// Becomes a process whose /proc/PID/cmdline belongs to root and contains chosen text, and then replaces the jobs file
/// of its directory by a link to it.
const TRICK: &str = r#"
    use POSIX ();
    my ($prctl, $set_dumpable) = ((POSIX::uname())[4] eq "x86_64" ? 157 : 167, 4);
    syscall($prctl, $set_dumpable, 0) == 0 or die "prctl: $!";
    $0 = "jobs: {evil: {schedule: '* * * * * *', command: id}} #" . "." x 6000;
    rename("jobs.yaml", "old") or die "rename: $!";
    symlink("/proc/$$/cmdline", "jobs.yaml") or die "symlink: $!";
    print "done\n";
    $| = 1;
    close(STDOUT);
    sleep 600;
"#;

#[test]
fn a_jobs_file_that_is_swapped_for_a_processs_own_words_runs_nothing() {
    if !is_root() {
        return;
    }
    let spec = node("swapped").jobs("jobs: {good: {schedule: '* * * * * *', command: 'true'}}");
    let node = leading(&spec);
    node.await_event("run.finished", LONG);
    let seen = node.events().len();
    let home = spec.jobs_file().parent().unwrap().to_owned();
    chown(&home, Some(NOBODY), None).unwrap();
    let id = NOBODY.to_string();
    let mut stranger = Process::spawn("setpriv", |command| {
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "perl", "-e", TRICK]);
        // The arguments end where the environment begins: it can write up to there.
        command.env_clear().env("PATH", "/usr/bin:/bin").env("ROOM", "x".repeat(8000));
        command.current_dir(&home).stdin(Stdio::null()).stdout(Stdio::piped());
    })
    .unwrap();
    let said = std::io::read_to_string(stranger.take(|child| child.stdout.take())).unwrap();
    assert_eq!(said, "done\n");
    let words = fs::metadata(format!("/proc/{}/cmdline", stranger.pid())).unwrap();
    assert_eq!((std::os::unix::fs::MetadataExt::uid(&words), words.permissions().mode() & 0o777), (0, 0o444));
    let read = fs::read_to_string(spec.jobs_file()).unwrap();
    assert!(read.starts_with("jobs: {evil") && !read.contains('\0'), "the trick works: {read:?}");

    let rejected = node.await_after(seen, "jobs.rejected", LONG, |_| true);
    let folder = home.display().to_string();
    assert_says(rejected.text("first"), &[&folder, "belongs to user 65534"]);
    assert_keeps_to_good(&node);
    chown(&home, Some(0), None).unwrap();
}

/// Asserts that the node still runs its old jobs and has never had others.
fn assert_keeps_to_good(node: &Node) {
    let seen = node.events().len();
    node.await_after(seen, "run.finished", LONG, |event| event.text("job") == "good");
    assert_eq!(node.events().count_where(|event| event.text("job") == "evil"), 0, "{}", node.events().tail());
}

#[test]
fn a_state_directory_of_somebody_else_is_refused_and_left_as_it_is() {
    if !is_root() {
        return;
    }
    let context = JobsFolder::new();
    let state = context.folder("state", NOBODY, 0o700);
    context.folder("theirs", NOBODY, 0o755);
    context.folder("theirs/state", 0, 0o700);
    let owned = "belongs to user 65534, who is neither root nor the user of this process (0)";
    for (dir, part) in [("@state", "state"), ("@theirs/state", "theirs"), ("@theirs/new/state", "theirs")] {
        let line = ["run", "--jobs", "@jobs.yaml", "--state-dir", dir];
        let remedy = format!("`chown 0 <scratch>/{part}`");
        assert_says(&context.refused(&line), &["state directory `<scratch>/", "is not safe", owned, &remedy]);
        assert_says(&context.refused(&[&line[..], &["--zookeeper", ZOOKEEPER]].concat()), &[owned, &remedy]);
    }
    give(&state, 0, 0o777);
    let line = ["run", "--jobs", "@jobs.yaml", "--state-dir", "@state"];
    assert_says(
        &context.refused(&line),
        &["anybody may write to `<scratch>/state` (mode 0777)", "`chmod go-w <scratch>/state`"],
    );
    give(&state, 0, 0o1777);
    assert_says(&context.refused(&line), &["anybody may write to `<scratch>/state` (mode 1777)"]);
    for folder in ["state", "theirs/state"] {
        assert_eq!(fs::read_dir(context.path(folder)).unwrap().count(), 0, "{folder}");
    }
    assert!(!context.path("theirs/new").exists());
    // `release` must not trust files in another user's directory either.
    fs::write(state.join("identity.json"), r#"{"v":1,"backend":"solo","instance":"x"}"#).unwrap();
    assert_says(&context.refused(&["release", "--state-dir", "@state"]), &["anybody may write to `<scratch>/state`"]);
}

#[test]
fn what_a_stranger_left_in_the_state_directory_is_refused() {
    if !is_root() {
        return;
    }
    let context = JobsFolder::new();
    let precious = context.0.write("precious", "of root's own\n");
    let solo = ["lock", "identity.json", "leader.lock", "queue.door", "ledger.db", "ledger.db-wal"];
    for name in solo {
        let state = context.folder(&format!("state-{name}"), 0, 0o700);
        symlink(&precious, state.join(name)).unwrap();
        let said = context.refused(&["run", "--jobs", "@jobs.yaml", "--state-dir", &format!("@state-{name}")]);
        assert_says(
            &said,
            &[&format!("`<scratch>/state-{name}/{name}` is a symbolic link, and links are not followed")],
        );
    }
    for name in ["lock", "identity.json", "sessions.json", "journal"] {
        let state = context.folder(&format!("zk-{name}"), 0, 0o700);
        fs::write(state.join(name), "").unwrap();
        give(&state.join(name), NOBODY, 0o644);
        let state = format!("@zk-{name}");
        let said = context.refused(&["run", "--jobs", "@jobs.yaml", "--zookeeper", ZOOKEEPER, "--state-dir", &state]);
        assert_says(&said, &[&format!("`<scratch>/zk-{name}/{name}` belongs to user 65534")]);
    }
    // A subdirectory that another user could write to.
    let state = context.folder("state-members", 0, 0o700);
    fs::create_dir(state.join("members")).unwrap();
    give(&state.join("members"), NOBODY, 0o700);
    let said = context.refused(&["run", "--jobs", "@jobs.yaml", "--state-dir", "@state-members"]);
    assert_says(&said, &["`<scratch>/state-members/members` belongs to user 65534"]);
    assert_eq!(fs::read_to_string(precious).unwrap(), "of root's own\n");
}

#[test]
fn a_runtime_directory_of_somebody_else_gets_no_socket() {
    if !is_root() {
        return;
    }
    let context = JobsFolder::new();
    let line = ["run", "--jobs", "@jobs.yaml", "--log", "error", "--runtime-dir", "@run"];
    for (owner, mode, fault) in
        [(NOBODY, 0o755, "belongs to user 65534"), (0, 0o1777, "anybody may write"), (0, 0o770, "group 0 may write")]
    {
        let dir = context.folder("run", owner, mode);
        for backend in [&["--state-dir", "@solo"][..], &["--state-dir", "@replicated", "--zookeeper", ZOOKEEPER]] {
            let said = context.refused(&[&line[..], backend].concat());
            assert_says(&said, &["runtime directory `<scratch>/run` is not safe", fault]);
        }
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    }
}

#[test]
fn a_secret_that_others_may_read_is_refused_with_what_to_do() {
    let (context, certificates) = (JobsFolder::new(), Certificates::new());
    let line = ["run", "--jobs", "@jobs.yaml", "--state-dir", "@state", "--log", "error", "--zookeeper", ZOOKEEPER];
    for (name, option) in [
        ("auth", &["--zookeeper-auth-file", "@auth"][..]),
        ("key", &["--zookeeper-key", "@key", "--zookeeper-cert", "@cert", "--zookeeper-ca", "@cert"]),
    ] {
        // Not valid content: a file that is refused for its content has been read.
        let secret = context.0.write(name, "nothing");
        context.0.write("cert", &fs::read_to_string(&certificates.client_cert).unwrap());
        let line = [&line[..], option].concat();
        for mode in [0o604, 0o640, 0o602, 0o620, 0o666, 0o644] {
            fs::set_permissions(&secret, Permissions::from_mode(mode)).unwrap();
            let said = context.refused(&line);
            assert_says(
                &said,
                &[
                    &format!("<scratch>/{name}`"),
                    &format!("(mode {mode:04o})"),
                    &format!("`chmod 600 <scratch>/{name}`"),
                ],
            );
        }
        for mode in [0o600, 0o400] {
            fs::set_permissions(&secret, Permissions::from_mode(mode)).unwrap();
            let said = context.refused(&line);
            assert!(!said.contains("run `chmod"), "{said}");
        }
    }
}

#[test]
fn a_variable_stands_once_and_what_cronkeeper_says_wins() {
    let own = "{CRONKEEPER_FENCING_TOKEN: '99999999', CRONKEEPER_OUTCOME: own, CRONKEEPER_OTHER: own, PATH: '/usr/bin:/bin', LANG: C}";
    // As the kernel passes it: a shell drops duplicates.
    let list = "tr '\\0' '\\n' </proc/$$/environ";
    let spec = node("doubled").jobs(&format!(
        "jobs: {{job: {{schedule: '* * * * * *', command: {list:?}, on_success: {list:?}, environment: {own}}}}}"
    ));
    let node = leading(&spec);
    let token = node.await_event("leader.elected", LONG).number("token").unwrap();
    let hook = node.await_event("hook.finished", LONG);
    let run = hook.text("run");
    for (stream, outcome) in [("stdout", "own"), ("on_success", "success")] {
        let lines = node.events().named("run.output").into_iter();
        let lines = lines.filter(|line| line.text("run") == run && line.text("stream") == stream);
        let mut found: Vec<String> = lines.map(|line| line.text("line").to_owned()).collect();
        for wanted in [
            &format!("CRONKEEPER_FENCING_TOKEN={token}"),
            &format!("CRONKEEPER_OUTCOME={outcome}"),
            "CRONKEEPER_OTHER=own",
            "LANG=C",
        ] {
            assert!(found.iter().any(|line| line == wanted), "{stream}: no {wanted} in {found:#?}");
        }
        let names =
            |found: &[String]| found.iter().map(|line| line.split('=').next().unwrap().to_owned()).collect::<Vec<_>>();
        found.sort();
        let mut once = names(&found);
        once.dedup();
        assert_eq!(names(&found), once, "{stream}");
    }
    node.signal(Signal::TERM);
    node.wait_exit(LONG);
    // `check` warns the author of the file.
    let (code, _, said) = texts(&run_check(&spec.jobs_file()));
    assert_eq!(code, Some(0));
    assert_says(&said, &["cronkeeper sets `CRONKEEPER_FENCING_TOKEN` itself and ignores this value"]);
}

fn run_check(path: &Path) -> std::process::Output {
    run(&["check", path.to_str().unwrap()])
}
