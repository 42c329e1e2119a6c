//! `cronkeeper pause` and `cronkeeper resume`: stop and restart the scheduled runs of jobs.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::ask::{AskFailure, ClientArgs};
use super::effects::{Effect, Effects};
use super::{Io, wait};
use crate::api::client::Client;
use crate::api::pauses::{
    JobSelection, PauseBody, PauseManyBody, Paused, PausedMany, ResumeBody, ResumeManyBody, Resumed, ResumedMany,
};
use crate::status::Status;
use cronkeeper_core::clock::stamp;
use cronkeeper_core::duration;
use cronkeeper_core::escape;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::filter::JobPattern;
use cronkeeper_core::run::{Pause, RunId};
use cronkeeper_core::suggest::counted;

/// Most jobs that are named in the output; the others are counted.
const NAMED: usize = 20;

/// The jobs that a command is about.
#[derive(Clone, Debug, clap::Args)]
pub struct Jobs {
    /// A job, or a pattern such as 'backup-*'; may be given several times
    #[arg(value_name = "JOB", value_parser = JobPattern::parse, required_unless_present_any = ["all", "group"])]
    pub jobs: Vec<JobPattern>,
    /// All jobs
    #[arg(long, conflicts_with_all = ["jobs", "group"])]
    pub all: bool,
    /// The jobs of this concurrency group
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
}

#[derive(Clone, Debug, clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    pub jobs: Jobs,
    /// The reason, shown in the status
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Resume the jobs after this long, such as 2h [default: `cronkeeper resume` does]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    pub length: Option<std::time::Duration>,
    /// Wait until none of their runs is in flight
    #[arg(long)]
    pub wait: bool,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct ResumeArgs {
    #[command(flatten)]
    pub jobs: Jobs,
    /// Wait until a leader has resumed them
    #[arg(long)]
    pub wait: bool,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

impl Jobs {
    /// The only job, if one is named.
    fn one(&self) -> Option<JobName> {
        match (self.jobs.as_slice(), &self.group) {
            ([one], None) => one.as_name().and_then(|name| JobName::parse(name).ok()),
            _ => None,
        }
    }

    fn select(&self) -> JobSelection {
        let jobs = self.jobs.iter().map(|pattern| pattern.as_str().to_owned()).collect();
        JobSelection { all: self.all, jobs, group: self.group.clone() }
    }
}

/// # Errors
/// When no daemon answers, there is no such job, or the result cannot be written.
pub fn pause(args: &PauseArgs, io: &mut Io<'_>) -> Result<(), AskFailure> {
    let client = args.client.client()?;
    let (reason, length) = (args.reason.clone(), args.length.map(duration::format));
    let PausedMany { paused, jobs, replaced, failed } = match args.jobs.one() {
        Some(job) => {
            let request = PauseBody { reason, length };
            let Paused { paused, replaced } = client.post(&format!("/v1/jobs/{job}/pause"), &request)?;
            let replaced = replaced.map(|replaced| (job.clone(), replaced)).into_iter().collect();
            PausedMany { paused, jobs: vec![job], replaced, failed: Default::default() }
        }
        None => client.post("/v1/pause", &PauseManyBody { select: args.jobs.select(), reason, length })?,
    };
    if !args.json {
        let verb = if jobs.len() == 1 { "is" } else { "are" };
        writeln!(io.out, "{} {verb} paused by {}{}", named(&jobs), escape::plain(&paused.by), until(&paused))?;
        for (job, was) in replaced.iter().take(NAMED) {
            writeln!(io.out, "replaced the pause of {job} {}", escape::plain(&in_words(was)))?;
        }
        if replaced.len() > NAMED {
            writeln!(io.out, "and replaced {} more", counted(replaced.len() - NAMED, "pause"))?;
        }
        io.out.flush()?;
    }
    report_failed(failed.iter(), io)?;
    if args.wait {
        let mut paused_jobs = PausedJobs { jobs: &jobs, until: paused.until, seen: BTreeSet::new() };
        wait::until_done(&client, io.err, |status| paused_jobs.awaited(status))?;
    }
    if args.json {
        let mut replaced = replaced;
        let effect = |job: JobName| Effect {
            effect: "paused",
            replaced: replaced.remove(&job).map(Into::into),
            job: Some(job),
            asked: Some(paused.clone().into()),
            ..Effect::default()
        };
        let results = jobs.into_iter().map(effect).chain(failed.into_keys().map(not_done)).collect();
        Effects::of("pause", results).write(io.out)?;
    }
    Ok(())
}

/// Returns once the leader has resumed the jobs; without `--wait`, it waits some seconds for many jobs.
///
/// # Errors
/// When no daemon answers, no leader resumes the job in time, there is no such job, or the result cannot be written.
pub fn resume(args: &ResumeArgs, io: &mut Io<'_>) -> Result<(), AskFailure> {
    let client = args.client.client()?;
    let one = args.jobs.one();
    let ResumedMany { mut jobs, mut pending, failed } = match &one {
        Some(job) => resume_one(&client, job, args.wait)?,
        None => client.post("/v1/resume", &ResumeManyBody { select: args.jobs.select() })?,
    };
    if args.wait && !pending.is_empty() {
        wait::until(&client, io.err, |status| still_paused(status, &pending))?;
        jobs.append(&mut pending);
    }
    if args.json {
        let effect = |effect: &'static str| move |job| Effect { effect, job: Some(job), ..Effect::default() };
        let is_pending = !pending.is_empty();
        let unpaused = one.filter(|_| jobs.is_empty() && !is_pending).map(effect("not-paused"));
        let results = jobs.into_iter().map(effect("resumed")).chain(pending.into_iter().map(effect("requested")));
        let results = results.chain(failed.into_keys().map(not_done)).chain(unpaused);
        let effects = Effects::of("resume", results.collect());
        return Ok(if is_pending { effects.pending() } else { effects }.write(io.out)?);
    }
    match (jobs.as_slice(), &one) {
        ([], Some(job)) if pending.is_empty() => writeln!(io.out, "{job} was not paused")?,
        ([], None) if pending.is_empty() => writeln!(io.out, "none of these jobs was paused")?,
        ([], _) => {}
        ([job], _) => writeln!(io.out, "{job} has been resumed")?,
        (jobs, _) => writeln!(io.out, "{} have been resumed", named(jobs))?,
    }
    if !pending.is_empty() {
        writeln!(io.err, "cronkeeper: no leader has resumed {} yet; one will do so later", named(&pending))?;
    }
    report_failed(failed.iter(), io)
}

fn resume_one(client: &Client, job: &JobName, waits: bool) -> Result<ResumedMany, AskFailure> {
    let path = format!("/v1/jobs/{job}/resume");
    let send = || client.post(&path, &ResumeBody::default());
    let Resumed { was_paused } = if waits { wait::steadily(send)? } else { send()? };
    let jobs = was_paused.then(|| job.clone()).into_iter().collect();
    Ok(ResumedMany { jobs, pending: Vec::new(), failed: Default::default() })
}

fn not_done(job: JobName) -> Effect {
    Effect { effect: "failed", job: Some(job), ..Effect::default() }
}

fn report_failed<'f>(
    failed: impl Iterator<Item = (&'f JobName, &'f String)>,
    io: &mut Io<'_>,
) -> Result<(), AskFailure> {
    for (job, why) in failed {
        writeln!(io.err, "cronkeeper: {job} was not changed: {}", escape::plain(why))?;
    }
    Ok(())
}

/// Jobs that were paused, until none of their runs is in flight.
struct PausedJobs<'a> {
    /// Sorted.
    jobs: &'a [JobName],
    /// When the pause ends by itself.
    until: Option<Timestamp>,
    /// Those that a status has shown as paused.
    seen: BTreeSet<JobName>,
}

impl PausedJobs<'_> {
    /// What is awaited. Without the pause, the next run may be in flight at any moment, so it is in vain from then on.
    fn awaited(&mut self, status: &Status) -> Result<Option<String>, AskFailure> {
        if let Some(text) = wait::unread(status) {
            // The pause ends whether or not anybody can read how things are.
            let when = || format!("before {} could read the ledger again", status.node);
            return if self.is_ended(status) { Err(over(named(self.jobs), when())) } else { Ok(Some(text)) };
        }
        let runs = runs_in_flight(status, self.jobs);
        if let Some(job) = self.over(status) {
            let when = match runs.len() {
                0 => "before it was seen that no run was in flight".to_owned(),
                1 => "while 1 run was in flight".to_owned(),
                many => format!("while {many} runs were in flight"),
            };
            return Err(over(job.to_string(), when));
        }
        Ok((!runs.is_empty()).then(|| format!("{}: {}", counted(runs.len(), "run"), wait::listed(&runs))))
    }

    /// The pause has ended by itself.
    fn is_ended(&self, status: &Status) -> bool {
        self.until.is_some_and(|until| status.at >= until)
    }

    /// A job whose pause is over, by itself or because somebody resumed it.
    fn over(&mut self, status: &Status) -> Option<JobName> {
        let is_over = self.is_ended(status);
        let jobs = status.jobs.iter().filter(|job| self.jobs.binary_search(&job.name).is_ok());
        let (paused, others): (Vec<_>, Vec<_>) = jobs.partition(|job| job.paused.is_some());
        let over = others.iter().find(|job| is_over || self.seen.contains(&job.name)).map(|job| job.name.clone());
        self.seen.extend(paused.into_iter().map(|job| job.name.clone()));
        over
    }
}

fn over(jobs: String, when: String) -> AskFailure {
    AskFailure::PauseOver { jobs, when }
}

fn named(jobs: &[JobName]) -> String {
    match jobs.len() {
        1..=NAMED => jobs.iter().map(JobName::as_str).collect::<Vec<_>>().join(", "),
        many => counted(many, "job"),
    }
}

/// `by alice, since 2026-11-20 03:00:00Z: disks`.
fn in_words(pause: &Pause) -> String {
    let reason = pause.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let since = pause.since().map_or_else(|| "at an unknown time".to_owned(), |at| format!("since {}Z", stamp(at)));
    format!("by {}, {since}{}{reason}", pause.by, until(pause))
}

fn until(pause: &Pause) -> String {
    pause.until.map(|until| format!(" until {}Z", stamp(until))).unwrap_or_default()
}

/// The runs in flight of these jobs, which must be sorted.
fn runs_in_flight<'a>(status: &'a Status, jobs: &[JobName]) -> Vec<&'a RunId> {
    let runs = status.runs.iter().filter(|run| run.state.has_process() && run.ended.is_none());
    runs.map(|run| &run.run).filter(|run| jobs.binary_search(run.job()).is_ok()).collect()
}

/// Those of these jobs that are still paused; they must be sorted.
fn still_paused(status: &Status, jobs: &[JobName]) -> Option<String> {
    let left = status.jobs.iter().filter(|job| job.paused.is_some() && jobs.binary_search(&job.name).is_ok());
    let left: Vec<_> = left.map(|job| &job.name).collect();
    (!left.is_empty()).then(|| format!("a leader to resume {}: {}", counted(left.len(), "job"), wait::listed(&left)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);

    /// A status in which a run of `load` is in flight, and the job is paused or not.
    fn status(is_paused: bool, at: &str) -> Status {
        let mut status = sample::leader();
        status.at = sample::at(at);
        let pause = Pause { by: "alice".into(), reason: None, at: sample::at("2026-11-20T03:00:00Z"), until: None };
        for job in status.jobs.iter_mut().filter(|job| job.name.as_str() == "load") {
            job.paused = is_paused.then(|| Box::new(pause.clone()));
        }
        status
    }

    #[test]
    fn waiting_for_runs_ends_in_vain_once_the_pause_is_over() {
        let jobs = [sample::job("load")];
        let until = sample::at("2026-11-20T03:00:00Z") + MINUTE;
        let waiting = || PausedJobs { jobs: &jobs, until: Some(until), seen: BTreeSet::new() };
        let over = |result: Result<_, AskFailure>| matches!(result, Err(AskFailure::PauseOver { .. }));
        let (before, after) = ("2026-11-20T03:00:30Z", "2026-11-20T03:01:00Z");
        let mut unread = waiting();
        assert!(unread.awaited(&status(false, before)).unwrap().is_some(), "the pause is not read yet");
        assert!(unread.awaited(&status(true, before)).unwrap().is_some());
        assert!(over(unread.awaited(&status(false, before))), "somebody resumed it");
        assert!(waiting().awaited(&status(true, after)).unwrap().is_some(), "it is paused again");
        let failed = waiting().awaited(&status(false, after));
        assert_eq!(
            failed.unwrap_err().to_string(),
            "the pause of load ended while 1 run was in flight; pause for longer, or without `--for`"
        );
        let ended = |at| Status { runs: Vec::new(), ..status(at == before, at) };
        assert_eq!(waiting().awaited(&ended(before)).unwrap(), None);
        assert!(over(waiting().awaited(&ended(after))), "another run may have begun since");
    }

    /// What was read before says nothing, and neither does what is read after the end of the pause.
    #[test]
    fn waiting_ends_with_the_pause_though_nobody_can_read_the_ledger() {
        let jobs = [sample::job("load")];
        let at = |at| Status { at: sample::at(at), ..sample::cut_off() };
        let until = sample::at("2026-11-20T03:00:00Z") + MINUTE;
        let mut waiting = PausedJobs { jobs: &jobs, until: Some(until), seen: BTreeSet::new() };
        assert!(waiting.awaited(&at("2026-11-20T03:00:59Z")).unwrap().is_some());
        assert_eq!(
            waiting.awaited(&at("2026-11-20T03:01:00Z")).unwrap_err().to_string(),
            "the pause of load ended before host-a could read the ledger again; pause for longer, or without `--for`"
        );
        let mut unlimited = PausedJobs { jobs: &jobs, until: None, seen: BTreeSet::new() };
        assert!(unlimited.awaited(&at("2026-11-20T03:01:00Z")).unwrap().is_some());
    }
}
