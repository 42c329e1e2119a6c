//! `cronkeeper recount`: counts a job from now on again, which a clock that was ahead has left silent.

use super::Io;
use super::ask::{AskFailure, ClientArgs, span};
use super::effects::{Effect, Effects};
use crate::api::recount::{RecountBody, Recounting};
use cronkeeper_core::clock::stamp;
use cronkeeper_core::job::JobName;
use cronkeeper_core::suggest::counted;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The job
    #[arg(value_name = "JOB", value_parser = JobName::parse)]
    pub job: JobName,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

impl Args {
    /// Returns once the job's record is written; the leader counts from it at once.
    ///
    /// # Errors
    /// When no daemon answers, there is no such job, it cannot be recounted, or the result cannot be written.
    pub fn run(&self, io: &mut Io<'_>) -> Result<(), AskFailure> {
        let client = self.client.client()?;
        let done: Recounting = client.post(&format!("/v1/jobs/{}/recount", self.job), &RecountBody::default())?;
        if self.json {
            let job = Some(self.job.clone());
            let effect = Effect { effect: "recounted", job, recounted: Some(done), ..Effect::default() };
            Effects::one("recount", effect, false).write(io.out)?;
            return Ok(());
        }
        writeln!(io.out, "{} {}", self.job, in_words(&done))?;
        for run in &done.in_flight {
            writeln!(
                io.err,
                "cronkeeper: {run} was begun while the clock was ahead and is still in flight; to end it: cronkeeper \
                 kill {run}"
            )?;
        }
        Ok(())
    }
}

/// `counts from now; next due in 12s; 4 occurrences until …`.
fn in_words(done: &Recounting) -> String {
    let Recounting { at, from, next, listed, listed_until, .. } = done;
    let from = if from == at { "now".to_owned() } else { format!("{}Z", stamp(*from)) };
    let next = match next {
        Some(next) => format!("next due in {}", span(*at, *next)),
        None => "not due again".to_owned(),
    };
    let listed = listed_until.map(|until| {
        let (verb, is) = if *listed == 1 { ("was", "is") } else { ("were", "are") };
        let count = counted(*listed, "occurrence");
        format!(
            "; {count} until {}Z {verb} run or skipped while the clock was ahead and {is} not run again",
            stamp(until)
        )
    });
    format!("counts from {from}; {next}{}", listed.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    #[test]
    fn the_answer_says_from_when_it_counts_and_what_is_not_run_again() {
        let at = sample::at("2026-11-20T03:00:00Z");
        let done = Recounting {
            at,
            from: at,
            next: Some(sample::at("2026-11-20T03:00:12Z")),
            listed: 0,
            listed_until: None,
            in_flight: Vec::new(),
        };
        assert_eq!(in_words(&done), "counts from now; next due in 12s");
        let until = sample::at("2027-11-20T03:00:00Z");
        let done = Recounting { next: None, listed: 1, listed_until: Some(until), ..done };
        assert_eq!(
            in_words(&done),
            "counts from now; not due again; 1 occurrence until 2027-11-20 03:00:00Z was run or skipped while the clock \
             was ahead and is not run again"
        );
        let done = Recounting { from: sample::at("2026-11-20T09:00:00Z"), listed: 100, ..done };
        assert_eq!(
            in_words(&done),
            "counts from 2026-11-20 09:00:00Z; not due again; 100 occurrences until 2027-11-20 03:00:00Z were run or \
             skipped while the clock was ahead and are not run again"
        );
    }
}
