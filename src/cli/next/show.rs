//! The table of occurrences, with a note where a clock shift affects one.

use std::io::{self, Write};

use jiff::{Timestamp, Zoned};

use super::Occurrence;
use crate::cli::table::Table;
use crate::duration;

/// Writes the occurrences in the given order, without columns that would be empty.
pub(super) fn table(occurrences: &[Occurrence], from: Timestamp, out: &mut dyn Write) -> io::Result<()> {
    let has_jobs = occurrences.iter().any(|occurrence| occurrence.job.is_some());
    let has_notes = occurrences.iter().any(|occurrence| occurrence.clock_shift.is_some());
    let heading = ["LOCAL TIME", "ZONE", "TIME UNTIL"].into_iter();
    let heading = heading.chain(has_jobs.then_some("JOB")).chain(has_notes.then_some("CLOCK SHIFT"));
    let mut table = Table::new(&heading.collect::<Vec<_>>());
    for occurrence in occurrences {
        let Occurrence { instant, job, local, clock_shift } = occurrence;
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
