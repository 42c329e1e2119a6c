//! The warden and jobs that misbehave. Every test ends by looking that no process of its run is left.

mod input;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cronkeeper::clock::Uptime;
use cronkeeper::clock::system::uptime;
use cronkeeper::warden::cgroup::estate::{self, Cgroups};
use cronkeeper::warden::handle::{Handle, Warden, WardenGone};
use cronkeeper::warden::recover::{Recorded, kill_leftovers, start_time};
use cronkeeper::warden::wire::{
    Cgroup, Deadline, EndedBy, Ending, Exit, Launch, Limits, Notice, Order, Slot, StartFailure, Step, Stream, User,
};

use crate::support::command::command;

/// Longer than anything takes on the slowest machine; only a failing test waits it out.
const PATIENCE: Duration = Duration::from_secs(60);

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A warden of its own and the processes of one run, which no other test has.
struct Bench {
    warden: Handle,
    run: String,
    directory: tempfile::TempDir,
    output: Vec<(Stream, String, bool)>,
    next: u64,
}

impl Bench {
    fn new() -> Self {
        let run = format!("torture-{}.20261120T023000Z", uuid::Uuid::new_v4());
        let warden = Warden::spawn_from(Path::new(env!("CARGO_BIN_EXE_cronkeeper"))).unwrap();
        let directory = tempfile::tempdir().unwrap();
        Self { warden: warden.into_async().unwrap(), run, directory, output: Vec::new(), next: 0 }
    }

    fn launch(&mut self, argv: &[&str]) -> Launch {
        self.next += 1;
        Launch {
            slot: Slot(self.next),
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            environment: vec![
                ("PATH".into(), PATH.into()),
                ("CRONKEEPER_RUN_ID".into(), self.run.clone()),
                ("CRONKEEPER_NODE".into(), "bench".into()),
            ],
            input: String::new(),
            directory: self.directory.path().to_str().unwrap().into(),
            umask: 0o027,
            or_root: false,
            user: None,
            nice: None,
            limits: Limits::default(),
            cgroup: None,
            not_after: Uptime::NEVER,
            deadline: Deadline::None,
            max_output: 1 << 20,
        }
    }

    fn sh(&mut self, script: &str) -> Launch {
        self.launch(&["/bin/sh", "-c", script])
    }

    fn order(&mut self, order: Order) {
        self.warden.send(&order).unwrap();
    }

    async fn notice(&mut self) -> Notice {
        tokio::time::timeout(PATIENCE, self.warden.notice()).await.expect("a notice in time").expect("a living warden")
    }

    async fn start(&mut self, launch: Launch) -> (Slot, i32) {
        self.order(Order::Start(Box::new(launch)));
        loop {
            match self.notice().await {
                Notice::Started { slot, pid, .. } => return (slot, pid),
                Notice::Output { stream, line, continues, .. } => self.output.push((stream, line, continues)),
                other => panic!("{other:?} instead of a start"),
            }
        }
    }

    async fn refused(&mut self, launch: Launch) -> StartFailure {
        self.order(Order::Start(Box::new(launch)));
        match self.notice().await {
            Notice::NotStarted { why, .. } => why,
            other => panic!("{other:?} instead of a refusal"),
        }
    }

    async fn end(&mut self) -> Ending {
        loop {
            match self.notice().await {
                Notice::Ended(ending) => return *ending,
                Notice::Output { stream, line, continues, .. } => self.output.push((stream, line, continues)),
                other => panic!("{other:?} instead of an end"),
            }
        }
    }

    async fn run(&mut self, launch: Launch) -> Ending {
        self.start(launch).await;
        self.end().await
    }

    /// Waits until the job has written this line.
    async fn line(&mut self, wanted: &str) {
        while !self.output.iter().any(|(_, line, _)| line == wanted) {
            match self.notice().await {
                Notice::Output { stream, line, continues, .. } => self.output.push((stream, line, continues)),
                other => panic!("{other:?} instead of the line {wanted}"),
            }
        }
    }

    fn lines(&self) -> Vec<&str> {
        self.output.iter().map(|(_, line, _)| line.as_str()).collect()
    }

    fn file(&self, name: &str, content: &str, mode: u32) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Ends the warden and looks that nothing is left.
    async fn close(self) {
        assert_eq!(living(&self.run), [0; 0]);
        assert_eq!(children(self.warden.pid()), [0; 0]);
        let status = tokio::time::timeout(PATIENCE, self.warden.close()).await.expect("an end in time").unwrap();
        assert!(status.success(), "{status}");
    }
}

/// All processes that carry the run in their environment, and are more than zombies.
fn living(run: &str) -> Vec<i32> {
    let entry = format!("CRONKEEPER_RUN_ID={run}");
    let carries = |pid: &i32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.split(|&byte| byte == 0).any(|variable| variable == entry.as_bytes()))
    };
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(carries).collect()
}

/// The children of the warden, zombies included.
fn children(warden: u32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{warden}/task/{warden}/children")).unwrap();
    list.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn memory_kib(warden: u32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{warden}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Waits until `gone` of processes that nobody here is told about.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = uptime();
    while !is_so() {
        assert!(uptime().since(started) < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_job_finds_its_directory_environment_umask_and_nothing_else() {
    let mut bench = Bench::new();
    let directory = bench.launch(&[]).directory;
    let launch = bench.sh("pwd; umask; env | sort; ls /proc/self/fd | wc -l; readlink /proc/self/fd/0; grep -E '^Sig(Blk|Ign)' /proc/self/status");
    let ending = bench.run(launch).await;
    assert_eq!(ending.exit, Exit::Code(0));
    let text = bench.lines().join("\n");
    assert!(text.starts_with(&format!("{directory}\n0027\n")), "{text}");
    let set_by_sh = ["PWD=", "OLDPWD=", "SHLVL=", "_="];
    let variables = bench
        .lines()
        .into_iter()
        .filter(|line| line.contains('=') && !set_by_sh.iter().any(|own| line.starts_with(own)));
    assert_eq!(variables.count(), 3, "{text}");
    // Standard streams and the folder that `ls` reads.
    assert!(text.contains("\n4\n/dev/null\nSigBlk:\t0000000000000000\n"), "{text}");
    let ignored = text.rsplit_once("SigIgn:\t").map(|(_, mask)| u64::from_str_radix(mask, 16).unwrap()).unwrap();
    // 32 and 33 belong to the C library, which lets nobody change them.
    assert_eq!(ignored & !(0b11 << 31), 0, "{text}");
    bench.close().await;
}

#[tokio::test]
async fn the_limit_of_open_files_is_the_daemons_unless_another_is_given_back() {
    let mut bench = Bench::new();
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
    let launch = bench.sh("ulimit -n");
    bench.run(launch).await;
    let mut launch = bench.sh("ulimit -n");
    launch.limits.open_files = Some((77, 99));
    bench.run(launch).await;
    assert_eq!(bench.lines(), [own.to_string(), "77".to_owned()]);
    bench.close().await;
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root becomes another user");
    }
    is_root
}

fn nobody() -> User {
    User { uid: 65_534, gid: 65_533, groups: vec![65_533, 7, 9] }
}

#[tokio::test]
async fn a_job_is_its_user_with_the_groups_of_that_user_and_nobody_else() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::new();
    let mut launch =
        bench.sh("id -ru; id -rg; id -G; grep -E '^(Uid|Gid|CapEff)' /proc/self/status; echo ready; sleep 1000");
    launch.user = Some(nobody());
    launch.directory = "/".into();
    let (slot, _) = bench.start(launch).await;
    bench.line("ready").await;
    let uid = "Uid:\t65534\t65534\t65534\t65534";
    let gid = "Gid:\t65533\t65533\t65533\t65533";
    assert_eq!(bench.lines(), ["65534", "65533", "65533 7 9", uid, gid, "CapEff:\t0000000000000000", "ready"]);
    bench.order(Order::Kill { slot });
    bench.end().await;
    bench.close().await;
}

#[tokio::test]
async fn a_job_of_another_user_dies_with_the_warden() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::new();
    let mut launch = bench.launch(&["sleep", "1000"]);
    launch.user = Some(nobody());
    launch.directory = "/".into();
    let (_, main) = bench.start(launch).await;
    let warden = rustix::process::Pid::from_raw(i32::try_from(bench.warden.pid()).unwrap()).unwrap();
    rustix::process::kill_process(warden, rustix::process::Signal::KILL).unwrap();
    eventually("it dies", || !living(&bench.run).contains(&main)).await;
    bench.warden.close().await.unwrap();
}

#[tokio::test]
async fn limits_and_nice_value_hold_for_the_job() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("nice; ulimit -d; ulimit -t; ulimit -Ht; cat /proc/self/limits | grep processes");
    launch.nice = Some(15);
    let memory = Some(512 << 20);
    launch.limits = Limits { memory, processes: Some(12_345), open_files: None, cpu_time: Some(60) };
    bench.run(launch).await;
    assert_eq!(bench.lines()[..4], ["15", "524288", "60", "65"]);
    assert!(bench.lines()[4].contains(" 12345 "), "{:?}", bench.lines());
    bench.close().await;
}

#[tokio::test]
async fn a_limit_of_memory_or_time_that_is_passed_ends_the_job() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("x=x; while :; do x=$x$x; done");
    launch.limits.memory = Some(64 << 20);
    assert_ne!(bench.run(launch).await.exit, Exit::Code(0));
    let mut launch = bench.sh("while :; do :; done");
    launch.limits.cpu_time = Some(1);
    let ending = bench.run(launch).await;
    assert!(matches!(ending.exit, Exit::Signal { signal: 24, .. }), "{ending:?}");
    bench.close().await;
}

#[tokio::test]
async fn a_home_that_cannot_be_entered_is_the_root_directory() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("pwd");
    (launch.directory, launch.or_root) = ("/no/such/home".into(), true);
    bench.run(launch).await;
    assert_eq!(bench.lines(), ["/"]);
    bench.close().await;
}

/// Where the cgroups of these tests are; the next daemon that starts removes what is left there. One that is never used keeps
/// the first warden that ends from removing it.
static CGROUPS: LazyLock<Option<Cgroups>> = LazyLock::new(|| {
    Cgroups::make(false).inspect(|cgroups| fs::create_dir(cgroups.path().join("free/unused")).unwrap())
});

/// A cgroup for a run; `None`, and said, where there is none to be had.
fn cgroup() -> Option<Cgroup> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let slot = Slot(COUNT.fetch_add(1, Ordering::Relaxed));
    if CGROUPS.is_none() {
        eprintln!("skipped: no cgroup v2 that can be written to");
    }
    Some(CGROUPS.as_ref()?.place(slot, &Limits::default()))
}

#[tokio::test]
async fn a_run_has_a_cgroup_of_its_own_which_goes_with_it() {
    let (Some(wanted), Some(unused)) = (cgroup(), cgroup()) else { return };
    let mut bench = Bench::new();
    // Born there: the first thing it reads is its cgroup.
    let mut launch = bench.launch(&["grep", "^0::", "/proc/self/cgroup"]);
    launch.cgroup = Some(wanted.clone());
    let ending = bench.run(launch).await;
    assert_eq!((ending.exit, ending.leftovers), (Exit::Code(0), 0));
    let (_, named) = wanted.path.split_once("/cronkeeper.").unwrap();
    assert!(bench.lines()[0].ends_with(named), "{:?} in {named}", bench.lines());
    assert!(!Path::new(&wanted.path).exists());
    // A program that is missing leaves none behind either.
    let mut launch = bench.launch(&["no-such-program"]);
    launch.cgroup = Some(unused.clone());
    bench.refused(launch).await;
    assert!(!Path::new(&unused.path).exists());
    bench.close().await;
}

#[tokio::test]
async fn whatever_a_process_does_to_be_forgotten_its_cgroup_knows_it() {
    let Some(wanted) = cgroup() else { return };
    let mut bench = Bench::new();
    // Another run, so that nothing but the cgroup says whose the escaped process is.
    let other = bench.sh("echo ready; sleep 1000");
    let (other, _) = bench.start(other).await;
    bench.line("ready").await;
    let mut launch = bench.sh("sleep 0.05; (setsid env -i sleep 1000 >/dev/null 2>&1 & echo $! >pid); exit 3");
    launch.cgroup = Some(wanted);
    let ending = bench.run(launch).await;
    let pid: i32 = fs::read_to_string(bench.directory.path().join("pid")).unwrap().trim().parse().unwrap();
    assert_eq!((ending.exit, ending.leftovers, start_time(pid)), (Exit::Code(3), 1, None));
    bench.order(Order::Kill { slot: other });
    bench.end().await;
    bench.close().await;
}

#[tokio::test]
async fn a_fork_storm_in_a_cgroup_ends_at_one_word() {
    let Some(wanted) = cgroup() else { return };
    let mut bench = Bench::new();
    // Each leaves session and parent behind at once, and is followed by one: some dozens live at a time.
    let storm = bench.file("storm", "echo 1 >>count\nsetsid -f \"$0\" >/dev/null 2>&1\nsleep 0.05\n", 0o755);
    let mut launch = bench.sh("for i in 1 2 3; do setsid -f ./storm >/dev/null 2>&1; done; echo ready; sleep 1000");
    launch.cgroup = Some(wanted.clone());
    let count = bench.directory.path().join("count");
    let (slot, _) = bench.start(launch).await;
    bench.line("ready").await;
    eventually("the storm rages", || fs::metadata(&count).is_ok_and(|count| count.len() > 200)).await;
    bench.order(Order::Kill { slot });
    bench.end().await;
    assert!(!Path::new(&wanted.path).exists());
    drop(storm);
    bench.close().await;
}

#[tokio::test]
async fn a_cgroup_that_the_job_made_below_its_own_goes_too() {
    let Some(wanted) = cgroup() else { return };
    let mut bench = Bench::new();
    let mut launch =
        bench.sh(&format!("mkdir -p {0}/a/b && sleep 1000 & sleep 0.1; echo $! >{0}/a/b/cgroup.procs", wanted.path));
    launch.cgroup = Some(wanted.clone());
    let ending = bench.run(launch).await;
    assert_eq!((ending.exit, ending.leftovers), (Exit::Code(0), 1));
    assert!(!Path::new(&wanted.path).exists());
    bench.close().await;
}

#[test]
fn what_lives_in_the_cgroup_of_a_dead_daemon_is_ended_and_that_of_a_living_one_is_not() {
    let (Some(cgroups), Some(own)) = (CGROUPS.as_ref(), cgroup()) else { return };
    let start = |path: &Path| {
        fs::create_dir_all(path).unwrap();
        let mut command = std::process::Command::new("sh");
        let child = command.arg("-c").arg(format!("echo $$ >{}/cgroup.procs; echo; exec sleep 1000", path.display()));
        let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        child
    };
    // As if another process had had this one's pid.
    let dead = PathBuf::from(format!("{}0", cgroups.path().display()));
    let (mut left, mut kept) = (start(&dead.join("free/1/deeper")), start(Path::new(&own.path)));
    assert_eq!(estate::bury(PATIENCE), [0; 0]);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&left.wait().unwrap()), Some(9));
    assert!(!dead.exists());
    assert!(kept.try_wait().unwrap().is_none() && Path::new(&own.path).exists());
    kept.kill().unwrap();
    kept.wait().unwrap();
}

#[tokio::test]
async fn a_cgroup_that_cannot_be_made_stops_no_job() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("ulimit -d");
    launch.limits.memory = Some(512 << 20);
    launch.cgroup = Some(Cgroup { path: "/no/such/cgroup".into(), memory: Some(512 << 20), processes: None });
    assert_eq!(bench.run(launch).await.exit, Exit::Code(0));
    assert_eq!(bench.lines(), ["524288"]);
    bench.close().await;
}

#[tokio::test]
async fn exit_codes_and_signals_are_told_apart() {
    let mut bench = Bench::new();
    let launch = bench.sh("exit 7");
    assert_eq!(bench.run(launch).await.exit, Exit::Code(7));
    let launch = bench.sh("kill -9 $$");
    let ending = bench.run(launch).await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, None));
    let launch = bench.sh("kill -40 $$");
    assert!(matches!(bench.run(launch).await.exit, Exit::Signal { signal: 40, .. }));
    bench.close().await;
}

#[tokio::test]
async fn each_step_that_can_fail_is_named() {
    let mut bench = Bench::new();
    let plain = bench.file("plain", "exit 0\n", 0o644);
    let step = |step, errno| StartFailure::Step { step, errno };
    let launch = bench.launch(&["no-such-program-anywhere"]);
    assert_eq!(bench.refused(launch).await, step(Step::Exec, 2));
    let launch = bench.launch(&[plain.to_str().unwrap()]);
    assert_eq!(bench.refused(launch).await, step(Step::Exec, 13));
    let launch = bench.launch(&["a\0b"]);
    assert_eq!(bench.refused(launch).await, step(Step::Exec, 22));
    let mut launch = bench.launch(&["true"]);
    launch.directory = "/no/such/folder".into();
    assert_eq!(bench.refused(launch).await, step(Step::Directory, 2));
    bench.close().await;
}

#[tokio::test]
async fn the_program_is_searched_in_the_jobs_own_path() {
    let mut bench = Bench::new();
    let script = bench.file("hello-there", "#!/bin/sh\necho found $1\n", 0o755);
    let mut launch = bench.launch(&["hello-there", "me"]);
    launch.environment[0].1 = format!("/nowhere:{}", script.parent().unwrap().display());
    launch.environment.push(("HOME".into(), "/".into()));
    bench.run(launch).await;
    assert_eq!(bench.lines(), ["found me"]);
    bench.close().await;
}

#[tokio::test]
async fn a_script_without_a_shebang_is_run_by_sh() {
    let mut bench = Bench::new();
    let script = bench.file("script", "echo \"$1 of $0\"\n", 0o755);
    let launch = bench.launch(&[script.to_str().unwrap(), "one"]);
    assert_eq!(bench.run(launch).await.exit, Exit::Code(0));
    assert_eq!(bench.lines(), [format!("one of {}", script.display())]);
    bench.close().await;
}

#[tokio::test]
async fn nothing_starts_when_it_is_too_late() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("echo started");
    launch.not_after = uptime();
    assert_eq!(bench.refused(launch).await, StartFailure::TooLate);
    // No lease was ever given.
    let mut launch = bench.sh("echo started");
    launch.deadline = Deadline::Lease;
    assert_eq!(bench.refused(launch).await, StartFailure::TooLate);
    bench.close().await;
}

#[tokio::test]
async fn a_tree_that_ignores_sigterm_is_killed_after_its_grace() {
    let mut bench = Bench::new();
    let launch = bench
        .sh("trap '' TERM; (trap '' TERM; sleep 1000; sleep 1000) & sleep 1000 & echo ready; wait; wait; sleep 1000");
    let (slot, _) = bench.start(launch).await;
    bench.line("ready").await;
    bench.order(Order::Stop { slot, grace_ms: 200 });
    let ending = bench.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order)));
    bench.close().await;
}

#[tokio::test]
async fn a_stop_is_heard_by_the_whole_tree_also_where_it_is_stopped() {
    let mut bench = Bench::new();
    let launch = bench.sh("setsid sh -c 'trap \"echo child; exit\" TERM; echo ready; kill -STOP $$; while :; do sleep 0.01; done' & trap 'wait; exit 3' TERM; wait");
    let (slot, pid) = bench.start(launch).await;
    bench.line("ready").await;
    eventually("the child stops", || living(&bench.run).iter().any(|&it| it != pid && state(it) == Some('T'))).await;
    bench.order(Order::Stop { slot, grace_ms: 60_000 });
    let ending = bench.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Code(3), Some(EndedBy::Order)));
    assert!(bench.lines().contains(&"child"));
    bench.close().await;
}

fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[tokio::test]
async fn a_daemon_that_forked_twice_and_left_the_session_dies_with_its_run() {
    let mut bench = Bench::new();
    let launch = bench.sh("(setsid sh -c 'sleep 1000 & sleep 1000' >/dev/null 2>&1 &); exit 0");
    let ending = bench.run(launch).await;
    assert_eq!(ending.exit, Exit::Code(0));
    assert!(ending.leftovers >= 1, "{ending:?}");
    bench.close().await;
}

#[tokio::test]
async fn one_that_also_cleared_its_environment_dies_with_its_run() {
    let mut bench = Bench::new();
    let launch = bench.sh("(setsid env -i sleep 1000 >/dev/null 2>&1 & echo $! >pid); exit 0");
    let ending = bench.run(launch).await;
    let pid: i32 = fs::read_to_string(bench.directory.path().join("pid")).unwrap().trim().parse().unwrap();
    assert_eq!((ending.exit, start_time(pid)), (Exit::Code(0), None));
    bench.close().await;
}

#[tokio::test]
async fn one_of_which_it_is_unclear_whose_it_is_dies_with_the_last_that_could_own_it() {
    let mut bench = Bench::new();
    let launch = bench.sh("echo ready; sleep 1000");
    let (slot, _) = bench.start(launch).await;
    bench.line("ready").await;
    // Start times count in hundredths of a second: it must be younger than both by more than that.
    let launch = bench.sh("sleep 0.05; (setsid env -i sleep 1000 >/dev/null 2>&1 & echo $! >pid); until grep -q sleep /proc/$(cat pid)/comm; do :; done");
    bench.run(launch).await;
    let pid: i32 = fs::read_to_string(bench.directory.path().join("pid")).unwrap().trim().parse().unwrap();
    assert!(start_time(pid).is_some());
    bench.order(Order::Kill { slot });
    assert_eq!(bench.end().await.slot, slot);
    assert_eq!(start_time(pid), None);
    bench.close().await;
}

#[tokio::test]
async fn an_orphan_of_one_run_outlives_the_end_of_another() {
    let mut bench = Bench::new();
    let launch = bench.sh("(setsid sh -c 'echo orphan; sleep 1000' &); echo ready; read never </dev/zero");
    let (slot, _) = bench.start(launch).await;
    bench.line("ready").await;
    bench.line("orphan").await;
    let mut launch = bench.sh("exit 0");
    launch.environment[1].1 = format!("another-{}", bench.run);
    let other = bench.run(launch).await;
    assert_eq!((other.exit, other.leftovers), (Exit::Code(0), 0));
    assert!(living(&bench.run).len() >= 2);
    bench.order(Order::Kill { slot });
    assert_eq!(bench.end().await.slot, slot);
    bench.close().await;
}

#[tokio::test]
async fn a_grandchild_that_holds_the_pipe_delays_nothing_and_loses_nothing() {
    let mut bench = Bench::new();
    let launch = bench.sh("(while :; do echo more; sleep 0.01; done) & echo last words; printf unfinished >&2");
    let ending = bench.run(launch).await;
    assert_eq!(ending.exit, Exit::Code(0));
    assert!(ending.leftovers >= 1);
    assert!(bench.lines().contains(&"last words") && bench.lines().contains(&"unfinished"));
    bench.close().await;
}

#[tokio::test]
async fn a_job_that_closes_its_output_still_runs_to_its_end() {
    let mut bench = Bench::new();
    let launch = bench.sh("exec >&- 2>&-; sleep 0.1; exit 5");
    assert_eq!(bench.run(launch).await.exit, Exit::Code(5));
    bench.close().await;
}

#[tokio::test]
async fn a_hundred_megabytes_without_an_end_of_line_keep_the_warden_small() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("head -c 100000000 /dev/zero | tr '\\0' x");
    launch.max_output = 10_000_000;
    let ending = bench.run(launch).await;
    let handed_on: usize = bench.lines().iter().map(|line| line.len()).sum();
    assert_eq!((handed_on, ending.dropped_bytes, ending.tail.len()), (10_000_000, 90_000_000, 4_096));
    assert!(bench.output.iter().all(|(_, line, _)| line.len() <= 64 << 10));
    let peak = memory_kib(bench.warden.pid(), "VmHWM:");
    assert!(peak < 32 << 10, "{peak} KiB");
    bench.close().await;
}

#[tokio::test]
async fn a_daemon_that_does_not_read_holds_up_the_job_and_not_the_wardens_memory() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("yes | head -c 50000000; echo done >finished");
    launch.max_output = u64::MAX;
    let (slot, _) = bench.start(launch).await;
    let pid = bench.warden.pid();
    let mut launch = bench.sh("exec sleep 1000");
    launch.deadline = Deadline::LeaseAnd(uptime() + Duration::from_secs(3));
    bench.order(Order::Start(Box::new(launch)));
    // Nothing is read here until the deadline of the second tree has passed.
    eventually("the other tree is killed", || living(&bench.run).len() <= 3).await;
    assert!(!bench.directory.path().join("finished").exists());
    assert!(memory_kib(pid, "VmHWM:") < 32 << 10);
    bench.order(Order::Kill { slot });
    let mut ended = 0;
    while ended < 2 {
        ended += usize::from(matches!(bench.notice().await, Notice::Ended(_)));
    }
    bench.close().await;
}

#[tokio::test]
async fn a_flood_of_one_job_does_not_silence_another() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("yes flood");
    launch.max_output = u64::MAX;
    bench.start(launch).await;
    let launch = bench.sh("echo heard");
    bench.order(Order::Start(Box::new(launch)));
    while !matches!(bench.notice().await, Notice::Output { line, .. } if line == "heard") {}
    bench.order(Order::Kill { slot: Slot(1) });
    let mut ended = 0;
    while ended < 2 {
        ended += usize::from(matches!(bench.notice().await, Notice::Ended(_)));
    }
    bench.close().await;
}

#[tokio::test]
async fn nonsense_from_the_daemon_ends_all() {
    let (daemon, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let warden = command(&["warden"]).stdin(std::os::fd::OwnedFd::from(theirs)).spawn();
    std::io::Write::write_all(&mut &daemon, &[3, 0, 0, 0, b'{', b'"', b'x']).unwrap();
    assert!(warden.unwrap().wait().unwrap().success());
}

#[tokio::test]
async fn bytes_that_are_no_text_arrive_replaced() {
    let mut bench = Bench::new();
    let launch = bench.sh("printf 'a\\377\\000b\\n'; head -c 3000 /dev/urandom; printf '\\344'");
    let ending = bench.run(launch).await;
    assert_eq!(bench.lines()[0], "a\u{fffd}\0b");
    assert!(ending.tail.starts_with("a\u{fffd}\0b\n"));
    bench.close().await;
}

#[tokio::test]
async fn a_tree_that_stopped_itself_can_be_killed() {
    let mut bench = Bench::new();
    let launch = bench.sh("sleep 1000 & echo ready; kill -STOP 0");
    let (slot, pid) = bench.start(launch).await;
    bench.line("ready").await;
    eventually("it stops", || state(pid) == Some('T')).await;
    bench.order(Order::Kill { slot });
    let ending = bench.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order)));
    bench.close().await;
}

#[tokio::test]
async fn a_fork_storm_is_outrun() {
    let mut bench = Bench::new();
    // Each leaves session and parent behind at once; at most some dozens live at a time.
    let storm =
        bench.file("storm", "echo 1 >>\"$COUNT\"\n[ -e stop ] || setsid -f \"$0\" >/dev/null 2>&1\nsleep 0.2\n", 0o755);
    let mut launch = bench.sh("for i in 1 2 3 4 5; do setsid -f ./storm >/dev/null 2>&1; done; echo ready; sleep 1000");
    let count = bench.directory.path().join("count");
    launch.environment.push(("COUNT".into(), count.to_str().unwrap().into()));
    let (slot, _) = bench.start(launch).await;
    bench.line("ready").await;
    eventually("the storm rages", || fs::metadata(&count).is_ok_and(|count| count.len() > 100)).await;
    bench.order(Order::Kill { slot });
    bench.end().await;
    // Also what is in no session and no memory of the warden would have written this on.
    let size = fs::metadata(&count).unwrap().len();
    assert_eq!(living(&bench.run), [0; 0]);
    assert_eq!(fs::metadata(&count).unwrap().len(), size);
    drop(storm);
    bench.close().await;
}

#[tokio::test]
async fn the_lease_kills_while_the_daemon_is_silent() {
    let mut bench = Bench::new();
    bench.order(Order::Lease { until: uptime() + Duration::from_secs(3) });
    let mut launch = bench.sh("trap '' TERM; setsid sleep 1000 & sleep 1000");
    launch.deadline = Deadline::Lease;
    bench.start(launch).await;
    let ending = bench.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Deadline)));
    bench.close().await;
}

#[tokio::test]
async fn a_renewed_lease_keeps_and_an_ended_one_kills_at_once() {
    let mut bench = Bench::new();
    bench.order(Order::Lease { until: Uptime::NEVER });
    let mut launch = bench.sh("echo ready; sleep 1000");
    launch.deadline = Deadline::Lease;
    bench.start(launch).await;
    bench.line("ready").await;
    bench.order(Order::Lease { until: Uptime::ZERO });
    assert_eq!(bench.end().await.ended_by, Some(EndedBy::Deadline));
    bench.close().await;
}

#[tokio::test]
async fn a_kept_tree_outlives_the_lease_until_its_own_instant() {
    let mut bench = Bench::new();
    let keep_until = uptime() + Duration::from_secs(3);
    let mut launch = bench.sh("sleep 1000");
    launch.deadline = Deadline::LeaseAnd(keep_until);
    bench.start(launch).await;
    let ending = bench.end().await;
    assert!(ending.at >= keep_until);
    assert_eq!(ending.ended_by, Some(EndedBy::Deadline));
    bench.close().await;
}

#[tokio::test]
async fn all_dies_with_the_daemon() {
    let mut bench = Bench::new();
    for script in [
        "trap '' TERM HUP; setsid sleep 1000 & echo ready; sleep 1000",
        "(setsid sleep 1000 &); echo ready; sleep 1000",
    ] {
        let launch = bench.sh(script);
        bench.start(launch).await;
        bench.line("ready").await;
        bench.output.clear();
    }
    let status = tokio::time::timeout(PATIENCE, bench.warden.close()).await.expect("an end in time").unwrap();
    assert!(status.success());
    assert_eq!(living(&bench.run), [0; 0]);
}

#[tokio::test]
async fn signals_from_a_terminal_or_a_shutdown_do_not_end_it() {
    let mut bench = Bench::new();
    let warden = rustix::process::Pid::from_raw(i32::try_from(bench.warden.pid()).unwrap()).unwrap();
    for signal in [
        rustix::process::Signal::INT,
        rustix::process::Signal::TERM,
        rustix::process::Signal::HUP,
        rustix::process::Signal::QUIT,
    ] {
        rustix::process::kill_process(warden, signal).unwrap();
    }
    let launch = bench.sh("exit 0");
    assert_eq!(bench.run(launch).await.exit, Exit::Code(0));
    bench.close().await;
}

#[tokio::test]
async fn when_the_warden_is_killed_the_main_processes_die_and_the_rest_is_found() {
    let mut bench = Bench::new();
    let launch = bench.sh("setsid sleep 1000 & (setsid sh -c 'sleep 1000 & wait' &); echo ready; sleep 1000");
    let (_, main) = bench.start(launch).await;
    bench.line("ready").await;
    let started = start_time(main);
    let warden = rustix::process::Pid::from_raw(i32::try_from(bench.warden.pid()).unwrap()).unwrap();
    rustix::process::kill_process(warden, rustix::process::Signal::KILL).unwrap();
    loop {
        match tokio::time::timeout(PATIENCE, bench.warden.notice()).await.expect("news in time") {
            Ok(_) => {}
            Err(WardenGone::Closed) => break,
            Err(other) => panic!("{other}"),
        }
    }
    eventually("the main process dies", || !living(&bench.run).contains(&main)).await;
    let recorded = [Recorded { run: bench.run.clone(), main: Some((main, started)) }];
    assert_eq!(kill_leftovers(&recorded, "another node", PATIENCE).unwrap(), []);
    assert!(!living(&bench.run).is_empty());
    assert_eq!(kill_leftovers(&recorded, "bench", PATIENCE).unwrap(), []);
    assert_eq!(living(&bench.run), [0; 0]);
    bench.warden.close().await.unwrap();
}

#[tokio::test]
async fn a_recorded_process_whose_pid_is_used_again_is_left_alone() {
    let mut bench = Bench::new();
    let launch = bench.sh("echo ready; sleep 1000");
    let (slot, main) = bench.start(launch).await;
    bench.line("ready").await;
    let other = |start| [Recorded { run: "other.20261120T023000Z".into(), main: Some((main, start)) }];
    let wrong = start_time(main).map(|start| start - 1);
    assert_eq!(kill_leftovers(&other(wrong), "bench", PATIENCE).unwrap(), []);
    assert!(start_time(main).is_some());
    assert_eq!(kill_leftovers(&other(start_time(main)), "bench", PATIENCE).unwrap(), []);
    assert_eq!(bench.end().await.slot, slot);
    bench.close().await;
}

#[tokio::test]
async fn many_short_jobs_leave_nothing_behind() {
    let mut bench = Bench::new();
    for _ in 0..200 {
        let launch = bench.launch(&["true"]);
        bench.order(Order::Start(Box::new(launch)));
    }
    let mut ended = 0;
    while ended < 200 {
        match bench.notice().await {
            Notice::Ended(ending) => {
                assert_eq!((ending.exit, ending.leftovers), (Exit::Code(0), 0));
                ended += 1;
            }
            Notice::Started { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    bench.close().await;
}
