//! Many jobs that are all due at the same time, or at a few, and checks of how they ran.
//!
//! Each job creates a directory of its own, which is the cheapest way to detect a second run: it cannot create it again
//! and fails. The directory's time shows when the program ran, independent of what the daemon reports, but only to a
//! tick of the kernel (4 ms at 250 Hz); where that is too coarse, each job prints the time instead. Besides, one
//! rerunnable job starts earlier and runs until it is released; it must not be started again. Optionally all jobs are
//! in one concurrency group with one place: then the others wait for that job, and for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use cronkeeper_core::job::Splay;
use jiff::{SignedDuration, Timestamp, ToSpan as _};

use super::node::{Event, Node};
use super::scratch::Scratch;
use super::{LONG, until};

/// The job that runs until it is released.
const HELD: &str = "held";
/// How much earlier that job is due.
const AHEAD: SignedDuration = SignedDuration::from_secs(3);
/// The program that creates the directories.
pub const MARKER: &str = "/bin/mkdir";
/// The program that prints the time, in nanoseconds since 1970.
pub const DATE: [&str; 2] = ["/bin/date", "+%s%N"];

/// Jobs due every second besides a group, each with its own offset within the second.
const TICKS: usize = 5;

/// The jobs and the directories they create.
#[derive(Debug)]
pub struct Burst {
    marks: Scratch,
    gate: Scratch,
    jobs: usize,
    at: Timestamp,
    /// The seconds over which the jobs are spread, the same number in each.
    seconds: usize,
    is_group: bool,
    /// The jobs print the time and create nothing.
    is_timed: bool,
    /// The longest delay by which the start of a job is put off.
    splay: Option<Duration>,
    /// The jobs run on any node.
    is_placed: bool,
}

impl Burst {
    /// This many jobs, due in this many seconds.
    pub fn new(jobs: usize, seconds: i64) -> Self {
        let now = Timestamp::now();
        let at = now - SignedDuration::new(0, now.subsec_nanosecond()) + seconds.seconds();
        Self {
            marks: Scratch::new("burst"),
            gate: Scratch::new("gate"),
            jobs,
            at,
            seconds: 1,
            is_group: false,
            is_timed: false,
            splay: None,
            is_placed: false,
        }
    }

    /// Spreads the jobs over this many seconds.
    pub fn over(self, seconds: usize) -> Self {
        Self { seconds, ..self }
    }

    /// Has the jobs print the time.
    pub fn timed(self) -> Self {
        Self { is_timed: true, ..self }
    }

    /// Spreads the jobs of one second over that second.
    pub fn spread(self) -> Self {
        Self { splay: Some(Duration::from_secs(1)), ..self }
    }

    /// Has the leader place the jobs on any node.
    pub fn placed(self) -> Self {
        Self { is_placed: true, ..self }
    }

    /// Puts the jobs into one group, and adds jobs due every second outside of it.
    pub fn grouped(self) -> Self {
        Self { is_group: true, ..self }
    }

    pub fn names(&self) -> impl Iterator<Item = String> {
        (0..self.jobs).map(|n| format!("j{n:05}"))
    }

    /// When a job is due, with its splay.
    pub fn due(&self, name: &str) -> Timestamp {
        self.scheduled(name) + self.splay.map_or(Duration::ZERO, |longest| Splay::new(longest, name).delay())
    }

    /// When a job is due by its schedule.
    fn scheduled(&self, name: &str) -> Timestamp {
        let number: usize = name[1..].parse().expect("a job has a number");
        self.at + SignedDuration::from_secs((number * self.seconds / self.jobs) as i64)
    }

    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// The jobs file.
    pub fn yaml(&self) -> String {
        let group = if self.is_group { ", concurrency_group: {name: one, limit: 1}" } else { "" };
        let once = |name: &str, at: Timestamp, command: &str, more: &str| {
            format!("  {name}: {{schedule: '@at {at}', command: {command}{group}{more}}}\n")
        };
        let waits = format!("'until [ -e {}/open ]; do sleep 0.05; done'", self.gate.path().display());
        let held = once(HELD, self.at - AHEAD, &waits, ", interrupted: rerun");
        let command = |name: &str| match self.is_timed {
            true => format!("[{}, '{}']", DATE[0], DATE[1]),
            false => format!("[{MARKER}, {}]", self.mark(name).display()),
        };
        let splay = self.splay.map_or(String::new(), |longest| format!(", splay: {}s", longest.as_secs()));
        let more = splay + if self.is_placed { ", run_on: any" } else { "" };
        let job = |name: String| once(&name, self.scheduled(&name), &command(&name), &more);
        let ticks = if self.is_group { TICKS } else { 0 };
        let tick = |n| format!("  tick-{n}: {{schedule: '* * * * * *', splay: 1s, command: [/bin/true]}}\n");
        let all = (0..ticks).map(tick).fold(format!("jobs:\n{held}"), |all, job| all + &job);
        self.names().map(job).fold(all, |all, job| all + &job)
    }

    /// Lets the earlier job end.
    pub fn release(&self) {
        self.gate.write("open", "");
    }

    /// Waits for the leader and for the earlier job to start. Returns false if a job was due before that.
    pub fn await_held(&self, nodes: &[Node]) -> bool {
        until("a node leads", || nodes.iter().any(|node| node.events().count("takeover.done") > 0));
        if Timestamp::now() > self.at - AHEAD {
            return false;
        }
        until("the job that goes on has begun", || !of_held(nodes).is_empty());
        Timestamp::now() < self.at
    }

    /// Waits until each job's run has ended or was skipped, as long as some still do. [`Self::faults`] reports those that
    /// did not.
    pub fn await_ends(&self, nodes: &[Node]) {
        let last = self.at + SignedDuration::from_secs(self.seconds as i64 - 1);
        let early = last.duration_since(Timestamp::now());
        std::thread::sleep(Duration::try_from(early).unwrap_or_default());
        let is_end = |event: &Event| ["run.finished", "run.skipped"].contains(&event.name()) && is_of_burst(event);
        let (mut ends, mut until) = (0, Instant::now() + LONG);
        while ends < self.jobs && Instant::now() < until {
            // Polls rarely, because polling takes CPU time from the nodes.
            std::thread::sleep(Duration::from_millis(500));
            let now = nodes.iter().map(|node| node.events().count_where(is_end)).sum();
            if now > ends {
                (ends, until) = (now, Instant::now() + LONG);
            }
        }
    }

    /// The lateness of the runs due every second that began after the first time and before the second.
    pub fn lateness_of_ticks(&self, nodes: &[Node], from: Timestamp, until: Timestamp) -> Vec<Duration> {
        let starts = nodes.iter().flat_map(|node| node.events().named("run.started"));
        let of_tick = starts.filter(|start| start.text("job").starts_with("tick"));
        let begun =
            |start: &Event| start.text("timestamp").parse::<Timestamp>().is_ok_and(|at| from <= at && at < until);
        let late = |start: Event| start.number("lateness_ms").and_then(|ms| u64::try_from(ms).ok());
        of_tick.filter(begun).filter_map(late).map(Duration::from_millis).collect()
    }

    /// The number of skipped occurrences of the jobs due every second.
    pub fn skipped_ticks(&self, nodes: &[Node]) -> Vec<String> {
        let skips = nodes.iter().flat_map(|node| node.events().named("run.skipped"));
        let of_tick = skips.filter(|skip| skip.text("job").starts_with("tick"));
        of_tick.map(|skip| format!("a job of every second was skipped: {}", skip.json())).collect()
    }

    /// How long after the due time each job's program ran, for those that ran.
    pub fn lateness(&self, nodes: &[Node]) -> Vec<Duration> {
        // The kernel's time stamp may be a tick old.
        let late = |(name, ran): (String, SystemTime)| ran.duration_since(SystemTime::from(self.due(&name)));
        self.ran(nodes).into_iter().map(|ran| late(ran).unwrap_or_default()).collect()
    }

    /// The programs that ran earlier than they were due, as printed by themselves.
    pub fn early(&self, nodes: &[Node]) -> Vec<String> {
        let is_early = |(name, ran): &(String, SystemTime)| *ran < SystemTime::from(self.due(name));
        let early = self.ran(nodes).into_iter().filter(|_| self.is_timed).filter(is_early);
        early.map(|(name, ran)| format!("{name} ran early, at {ran:?}")).collect()
    }

    /// Each program that ran, and when.
    fn ran(&self, nodes: &[Node]) -> Vec<(String, SystemTime)> {
        if !self.is_timed {
            return self.marks().collect();
        }
        let lines = nodes.iter().flat_map(|node| node.events().named("run.output"));
        let time = |line: &Event| printed_time(line.text("line"));
        lines.filter(is_of_burst).map(|line| (line.text("job").to_owned(), time(&line))).collect()
    }

    /// The promises that were broken.
    pub fn faults(&self, nodes: &[Node]) -> Vec<String> {
        let events: Vec<Event> = nodes.iter().flat_map(|node| node.events().all()).collect();
        let held: Vec<_> = events.iter().filter(|event| event.text("job") == HELD).collect();
        let burst: Vec<_> = events.iter().filter(|event| is_of_burst(event)).collect();
        let named = |name: &'static str| burst.iter().filter(move |event| event.name() == name);
        let mut faults = Vec::new();

        let ran: BTreeSet<String> = self.ran(nodes).into_iter().map(|(name, _)| name).collect();
        let never: Vec<String> = self.names().filter(|name| !ran.contains(name)).collect();
        faults.extend(self.early(nodes).into_iter().take(3));
        if let Some(first) = never.first() {
            faults.push(format!("{} of {} never ran, the first of them {first}", never.len(), self.jobs));
        }
        let mut starts = BTreeMap::<&str, usize>::new();
        named("run.started").for_each(|start| *starts.entry(start.text("run")).or_default() += 1);
        let twice = starts.iter().filter(|(_, count)| **count > 1).map(|(run, _)| format!("{run} was started twice"));
        faults.extend(twice);
        let mut ends = BTreeMap::<(String, bool), usize>::new();
        for end in named("run.finished").filter(|end| end.text("outcome") != "success") {
            let how = format!("{} {}", end.text("outcome"), end.text("reason"));
            *ends.entry((how, starts.contains_key(end.text("run")))).or_default() += 1;
        }
        faults.extend(ends.iter().map(|((how, was_started), count)| {
            format!("{count} ended {how}, {}", if *was_started { "started" } else { "never started" })
        }));
        faults.extend(named("run.skipped").take(1).map(|skip| format!("skipped: {}", skip.json())));

        let terms = events.iter().filter(|event| event.name() == "leader.elected").count();
        if terms != 1 {
            faults.push(format!("{terms} terms instead of one"));
        }
        let of_held = |name: &str| held.iter().filter(|event| event.name() == name).collect::<Vec<_>>();
        match (&of_held("run.started")[..], &of_held("run.finished")[..]) {
            ([one], []) if one.number("pid").is_some_and(is_alive) => {}
            ([_], [end]) if end.text("outcome") == "success" => {}
            ([_], ends) => faults.push(format!("the run that was to go on is gone: {ends:?}")),
            (many, _) => faults.push(format!("the run that was to go on was started {} times", many.len())),
        }
        faults
    }

    fn mark(&self, name: &str) -> PathBuf {
        self.marks.path().join(name)
    }

    fn marks(&self) -> impl Iterator<Item = (String, SystemTime)> {
        marks(self.marks.path())
    }
}

/// The time that [`DATE`] printed.
pub fn printed_time(line: &str) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(line.trim().parse().expect("the program prints the time"))
}

/// The directories below a directory, each with the time of its creation.
pub fn marks(folder: &Path) -> impl Iterator<Item = (String, SystemTime)> + use<> {
    let all = std::fs::read_dir(folder).expect("a folder can be read").flatten();
    all.map(|mark| {
        let made = mark.metadata().and_then(|mark| mark.modified()).expect("a mark has a time");
        (mark.file_name().to_string_lossy().into_owned(), made)
    })
}

fn of_held(nodes: &[Node]) -> Vec<Event> {
    let starts = nodes.iter().flat_map(|node| node.events().named("run.started"));
    starts.filter(|event| event.text("job") == HELD).collect()
}

fn is_of_burst(event: &Event) -> bool {
    event.text("job").starts_with('j')
}

/// A PID that was reused would belong to a process started later; no test here runs that long.
fn is_alive(pid: i64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| stat.contains("(sh)") && !stat.contains(") Z "))
}
