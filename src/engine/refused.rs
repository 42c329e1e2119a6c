//! Writes that the service refuses for now, because of rights or of a record that stands in the way.
//!
//! Such a write is tried again, and what else is asked for about its job waits behind it. So nothing more is decided about that job
//! until it is answered: what is due waits undecided, as it does where too many runs are being started, and takes no place from others.

use super::Engine;
use super::Turn;
use crate::job::JobName;
use crate::ledger::CommitId;

impl Engine {
    /// The service refuses this commit. The takeover does not wait for it, nor for what waits behind it.
    pub(super) fn on_refused(&mut self, id: CommitId) {
        let Some(asked) = self.commits.get(&id) else { return };
        let job = asked.job.clone();
        let (commits, takeover) = (&self.commits, self.leading.as_mut().and_then(|leading| leading.takeover.as_mut()));
        if let Some(takeover) = takeover {
            takeover.open.retain(|open| commits.get(open).is_some_and(|asked| asked.job != job));
        }
        if self.refused.insert(job.clone(), id).is_none() {
            self.flights.refuse(&job, true);
            // Their places in a group are free.
            self.stir_job(&job);
        }
    }

    /// True while a write about the job is refused.
    pub(super) fn is_refused(&self, job: &JobName) -> bool {
        self.refused.contains_key(job)
    }

    /// A commit was answered. Where it was the one that was refused, its job is decided on again.
    pub(super) fn on_no_longer_refused(&mut self, t: &Turn, job: &JobName, id: CommitId) {
        if self.refused.get(job) == Some(&id) {
            self.refused.remove(job);
            self.flights.refuse(job, false);
            self.look_at_waiting(t, job);
        }
    }
}
