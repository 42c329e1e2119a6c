//! A node, or the leader, dies around the time at which many placed runs are due.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::service::Service;
use crate::short::pick;
use crate::support::burst::{DATE, printed_time};
use crate::support::command::CRONKEEPER;
use crate::support::node::{Event, Node};
use crate::support::{LONG, until};
use crate::table::{Bound, Table, ms};
use crate::{in_line, in_seconds};

/// How many runs are offered to each node when one of them dies.
fn each() -> usize {
    pick(100, 4)
}

/// Jobs of a cluster whose leader dies: so few that they do not wait for the processors.
const FEW: usize = 12;
const NODES: [&str; 3] = ["a", "b", "c"];
/// In how many seconds the jobs are due: more, if the nodes were in the queue too late.
const SOON: [i64; 3] = [6, 20, 60];

/// Nodes of a cluster, and jobs that run on any of them, all due at one instant.
struct Trial {
    nodes: Vec<Node>,
    jobs: usize,
    due: Timestamp,
}

/// From the time at which the runs are due, those that were placed on the dead node and begin elsewhere when its answer is
/// overdue. It dies when the first of them are placed there.
pub fn of_a_node(servers: &Service, trials: usize, table: &mut Table) {
    let row = "a node dies: placed on it, and not accepted";
    if !table.wants(row) {
        return;
    }
    let (mut late, mut faults) = (Vec::new(), Vec::new());
    for _ in 0..trials {
        let trial = Trial::start(servers, each() * NODES.len());
        let (leader, victim) = (&trial.nodes[0], trial.nodes[1].name().to_owned());
        leader.await_where("run.placed", LONG, |placed| placed.text("to") == victim);
        trial.nodes[1].kill9();
        // What began there runs again elsewhere.
        let had_begun = Timestamp::now() >= trial.due;
        trial.await_ends();
        let was_moved = |event: &Event| event.text("from") == victim && event.text("reason") == "overdue";
        let moves: Vec<Event> = leader.events().named("run.moved").into_iter().filter(was_moved).collect();
        late.extend(trial.lateness_of(&moves));
        faults.extend(trial.faults().into_iter().filter(|_| !had_begun));
        faults.extend(placed_after_the_first(&moves, leader, &victim));
    }
    table.times(row, late, &[Bound::Each(ms(700))], &faults);
}

/// What the leader placed on a node after it found that the node does not answer.
fn placed_after_the_first(moves: &[Event], leader: &Node, victim: &str) -> Option<String> {
    let all = leader.events().all();
    let first = all.iter().position(|event| Some(event) == moves.first())?;
    let later = all[first..].iter().filter(|event| event.name() == "run.placed" && event.text("to") == victim).count();
    (later > 0).then(|| format!("{later} runs were placed on a node that does not answer"))
}

/// From the time at which the runs are due, with the leader and without: those that other nodes had accepted, or had been
/// asked to.
pub fn of_the_leader(servers: &Service, trials: usize, table: &mut Table) {
    for (row, dies) in [("nobody dies: placed on others", false), ("the leader dies: placed on others", true)] {
        if !table.wants(row) {
            continue;
        }
        let (mut late, mut faults) = (Vec::new(), Vec::new());
        for _ in 0..trials {
            let trial = Trial::start(servers, FEW);
            let leader = &trial.nodes[0];
            until("half of the runs are placed", || leader.events().count("run.placed") >= FEW / 2);
            if dies {
                leader.kill9();
            }
            trial.await_ends();
            // Its log ends with it: what it had placed by then is there.
            let mut elsewhere = leader.events().named("run.placed");
            elsewhere.retain(|placed| placed.text("to") != leader.name());
            late.extend(trial.lateness_of(&elsewhere));
            faults.extend(trial.faults());
        }
        table.times(row, late, &[Bound::P99(ms(10))], &faults);
    }
}

impl Trial {
    fn start(servers: &Service, jobs: usize) -> Self {
        let in_time = SOON.iter().find_map(|&seconds| Self::due_in(seconds, servers, jobs));
        in_time.unwrap_or_else(|| panic!("the nodes need more than {} s to start", SOON[2]))
    }

    fn due_in(seconds: i64, servers: &Service, jobs: usize) -> Option<Self> {
        let due = in_seconds(seconds);
        let job = |n: usize| {
            let command = format!("[{}, '{}']", DATE[0], DATE[1]);
            format!("  {}: {{schedule: '@at {due}', command: {command}, run_on: any, interrupted: rerun}}\n", name(n))
        };
        let file = once("jobs:\n".to_owned()).chain((0..jobs).map(job)).collect::<String>();
        let nodes = in_line(servers.nodes(CRONKEEPER, NODES).map(|spec| spec.jobs(&file)));
        (in_seconds(1) < due).then_some(Self { nodes, jobs, due })
    }

    /// Waits until each job has run, or a node has said why not.
    fn await_ends(&self) {
        let early = Duration::try_from(self.due.duration_since(Timestamp::now())).unwrap_or_default();
        sleep(early);
        until("each job runs or is skipped", || self.silent().is_empty());
    }

    /// The jobs that have neither run nor been skipped.
    fn silent(&self) -> Vec<String> {
        let spoken: BTreeSet<String> = self.named("run.output").chain(self.named("run.skipped")).map(job_of).collect();
        (0..self.jobs).map(name).filter(|job| !spoken.contains(job)).collect()
    }

    fn named(&self, name: &'static str) -> impl Iterator<Item = Event> {
        self.nodes.iter().flat_map(move |node| node.events().named(name))
    }

    /// How late the programs of the jobs of these events ran.
    fn lateness_of(&self, events: &[Event]) -> Vec<Duration> {
        let jobs: BTreeSet<&str> = events.iter().map(|event| event.text("job")).collect();
        let due = SystemTime::from(self.due);
        let late = |line: Event| printed_time(line.text("line")).duration_since(due).unwrap_or_default();
        self.named("run.output").filter(|line| jobs.contains(line.text("job"))).map(late).collect()
    }

    /// The jobs that ran more than once.
    fn faults(&self) -> Vec<String> {
        let mut ran = BTreeMap::<String, usize>::new();
        self.named("run.output").for_each(|line| *ran.entry(job_of(line)).or_default() += 1);
        ran.into_iter().filter(|&(_, times)| times > 1).map(|(job, times)| format!("{job} ran {times} times")).collect()
    }
}

fn name(number: usize) -> String {
    format!("j{number:04}")
}

fn job_of(event: Event) -> String {
    event.text("job").to_owned()
}
