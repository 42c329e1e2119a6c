//! The jobs of the nodes: one job for each policy that matters at a failover, on the leader, on any node and on every one,
//! all observed by one witness.

use cronkeeper::config;
use cronkeeper_core::job::{Job, JobSet, Misfire, Overlap};
use jiff::Timestamp;

use crate::failover::cluster::{job, jobs};
use crate::ledger::Schedules;
use crate::support::scratch::Scratch;
use crate::support::witness::Witness;

/// The jobs, and the witness of their runs.
pub struct Work {
    pub witness: Witness,
    pub yaml: String,
    pub jobs: JobSet,
}

impl Work {
    pub fn new() -> Self {
        let witness = Witness::new();
        let run_all = "misfire: run-all\nmisfire_window: 1h\nmisfire_limit: 1000";
        let sleeping = |seconds: &str| witness.command(&["sleep", seconds]);
        let each = [
            job("tick", "* * * * * *", &witness.command(&[]), run_all),
            job("rerun", "*/3 * * * * *", &sleeping("2"), "interrupted: rerun"),
            job("kill", "*/5 * * * * *", &sleeping("3"), "on_lease_end: kill"),
            job("keep", "*/11 * * * * *", &sleeping("6"), ""),
            job("long", "*/2 * * * * *", &sleeping("7"), ""),
            job("beside", "*/4 * * * * *", &sleeping("6"), "overlap: allow\nmisfire: skip"),
            job("queue", "*/6 * * * * *", &sleeping("5"), "overlap: queue"),
            job("replace", "*/7 * * * * *", &sleeping("10"), "overlap: replace\non_lease_end: kill\nkill_grace: 1s"),
            job("any-rerun", "*/2 * * * * *", &sleeping("1"), "run_on: any\ninterrupted: rerun"),
            job("any-keep", "*/5 * * * * *", &sleeping("4"), "run_on: any"),
            job("any-beside", "*/4 * * * * *", &sleeping("6"), "run_on: any\noverlap: allow\nmisfire: skip"),
            job("every", "*/3 * * * * *", &sleeping("1"), "run_on: every"),
            job("every-rerun", "*/7 * * * * *", &sleeping("3"), "run_on: every\ninterrupted: rerun"),
            job(
                "every-group",
                "*/9 * * * * *",
                &sleeping("1"),
                "run_on: every\nconcurrency_group: {name: g, limit: 1}",
            ),
        ];
        let yaml = jobs(&each);
        Self { jobs: parsed(&yaml), witness, yaml }
    }

    /// By job and digest, as in the ledger.
    pub fn schedules(&self) -> Schedules {
        // None has a calendar, so its digest is the same at any mark.
        let digest = |job: &Job| job.schedule_digest(Timestamp::UNIX_EPOCH);
        let each = self.jobs.jobs.values();
        each.filter_map(|job| Some(((job.name.to_string(), digest(job)), job.schedule()?.clone()))).collect()
    }

    /// True if the leader places the job's attempts: they are begun by their nodes, and need no term.
    pub fn is_placed(&self, job: &str) -> bool {
        self.jobs.jobs.values().any(|known| known.name.as_str() == job && known.run_on.is_placed())
    }

    /// Jobs of which several runs may be alive at the same time.
    pub fn may_overlap(&self) -> Vec<&str> {
        let each = self.jobs.jobs.values().filter(|job| job.overlap == Overlap::Allow);
        each.map(|job| job.name.as_str()).collect()
    }

    /// Jobs of which no occurrence may be missed, however long nobody led.
    pub fn make_up_for_all(&self) -> Vec<&str> {
        let each = self.jobs.jobs.values().filter(|job| job.misfire == Misfire::RunAll);
        each.map(|job| job.name.as_str()).collect()
    }
}

fn parsed(yaml: &str) -> JobSet {
    let dir = Scratch::new("work");
    config::load_for_any_host(&dir.write("jobs.yaml", yaml)).expect("the jobs are valid").set
}
