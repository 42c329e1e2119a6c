//! The table of occurrences, with a note where a clock shift affects one.

use std::io::{self, Write};

use jiff::{Timestamp, Zoned};

use super::Occurrence;
use crate::api::next::LeftOutInstant;
use crate::cli::table::Table;
use cronkeeper_core::duration;

/// Writes the occurrences in the given order, without columns that would be empty.
pub(super) fn table(occurrences: &[Occurrence], from: Timestamp, out: &mut dyn Write) -> io::Result<()> {
    let has_jobs = occurrences.iter().any(|occurrence| occurrence.job.is_some());
    let has_notes = occurrences.iter().any(|occurrence| occurrence.clock_shift.is_some());
    let heading = ["LOCAL TIME", "ZONE", "TIME UNTIL"].into_iter();
    let heading = heading.chain(has_jobs.then_some("JOB")).chain(has_notes.then_some("CLOCK SHIFT"));
    let mut table = Table::new(&heading.collect::<Vec<_>>());
    for occurrence in occurrences {
        let Occurrence { instant, job, local, clock_shift, left_out: _ } = occurrence;
        let cells = [
            local.strftime("%a %Y-%m-%d %H:%M:%S").to_string(),
            zone(local),
            format!("in {}", briefly(*instant, from)),
        ];
        let note = has_notes.then(|| clock_shift.clone().unwrap_or_default());
        let name = has_jobs.then(|| job.as_ref().map(ToString::to_string).unwrap_or_default());
        table.row(cells.into_iter().chain(name).chain(note));
    }
    table.write(out)
}

/// Most instants that are shown as left out.
const MOST_LEFT_OUT: usize = 20;

/// Writes what calendars leave out before these occurrences, if anything.
pub(super) fn left_out(occurrences: &[Occurrence], out: &mut dyn Write) -> io::Result<()> {
    let has_jobs = occurrences.iter().any(|occurrence| occurrence.job.is_some());
    let of = |occurrence: &'_ Occurrence| occurrence.left_out.as_ref().map_or(0, |left_out| left_out.count);
    let count: u64 = occurrences.iter().map(of).sum();
    let mut all: Vec<_> = occurrences
        .iter()
        .flat_map(|occurrence| {
            occurrence.left_out.iter().flat_map(|left_out| &left_out.first).zip(std::iter::repeat(occurrence))
        })
        .collect();
    all.sort_by_key(|(left_out, occurrence)| (left_out.at, &occurrence.job));
    all.truncate(MOST_LEFT_OUT);
    if all.is_empty() {
        return Ok(());
    }
    let heading = ["LEFT OUT", "CALENDAR"].into_iter().chain(has_jobs.then_some("JOB"));
    let mut table = Table::new(&heading.collect::<Vec<_>>());
    for (LeftOutInstant { at, calendar }, Occurrence { local, job, .. }) in &all {
        let local = at.to_zoned(local.time_zone().clone());
        let name = has_jobs.then(|| job.as_ref().map(ToString::to_string).unwrap_or_default());
        table.row([local.strftime("%a %Y-%m-%d %H:%M:%S").to_string(), calendar.clone()].into_iter().chain(name));
    }
    writeln!(out)?;
    table.write(out)?;
    match count.saturating_sub(all.len() as u64) {
        0 => Ok(()),
        more => writeln!(out, "and {more} more"),
    }
}

/// Formats the zone as `Europe/Berlin CET`: the abbreviation distinguishes the two passes of a repeated hour.
fn zone(local: &Zoned) -> String {
    let name = local.time_zone().iana_name().unwrap_or_default();
    let abbreviation = local.strftime("%Z").to_string();
    if name == abbreviation { abbreviation } else { format!("{name} {abbreviation}") }
}

/// Formats the time until an occurrence in its two largest units.
fn briefly(instant: Timestamp, from: Timestamp) -> String {
    let seconds = instant.duration_since(from).unsigned_abs().as_secs();
    let unit = match seconds {
        86_400.. => 3600,
        3600.. => 60,
        _ => 1,
    };
    duration::format(std::time::Duration::from_secs(seconds / unit * unit))
}
