//! Tests of calendar files: where they are found, what is wrong with them, and what changes with them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use jiff::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::config::definition::Definitions;

/// A directory with these files, writable only by its owner, whatever the umask.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    files.iter().for_each(|(name, text)| write(&directory, name, text));
    directory
}

fn write(directory: &TempDir, name: &str, text: &str) {
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
}

/// The problems of the jobs in a directory, with `dir` in place of its name.
fn reported_for(directory: &TempDir) -> String {
    let reported = match load(directory.path()) {
        Ok(loaded) => lines(&loaded.warnings),
        Err(LoadError::Invalid { problems, .. }) => lines(&problems),
        Err(error) => panic!("{error}"),
    };
    reported.replace(&directory.path().display().to_string(), "dir")
}

fn jobs(calendar: &str) -> String {
    format!("jobs:\n  a:\n    schedule: '30 2 * * *'\n    command: x\n    calendar: {calendar}\n")
}

fn nexts(job: &Job, from: &str, count: usize) -> Vec<String> {
    let from: Timestamp = from.parse().unwrap();
    let schedule = job.schedule().unwrap();
    schedule.occurrences(from, Timestamp::MAX).take(count).map(|at| at.to_string()).collect()
}

#[test]
fn a_calendar_lies_beside_the_file_that_names_it() {
    let text = jobs("{exclude: [holidays.txt, more/closed.txt], only: ABSOLUTE}");
    let directory = directory(&[("holidays.txt", "12-25 Christmas Day\n"), ("dates", "2098-12-20..2098-12-31\n")]);
    fs::create_dir(directory.path().join("more")).unwrap();
    write(&directory, "more/closed.txt", "2098-12-26..2098-12-27\n");
    let absolute = directory.path().join("dates");
    write(&directory, "a.yaml", &text.replace("ABSOLUTE", absolute.to_str().unwrap()));
    let loaded = load(directory.path()).unwrap();
    assert_eq!(loaded.warnings, []);
    let found = nexts(loaded.set.jobs.values().next().unwrap(), "2098-01-01T00:00:00Z", 20);
    assert_eq!(found.len(), 9, "{found:?}");
    assert_eq!((found[0].as_str(), found[5].as_str()), ("2098-12-20T02:30:00Z", "2098-12-28T02:30:00Z"));
}

#[test]
fn the_calendar_of_the_defaults_holds_for_jobs_without_one() {
    let text = "defaults: {calendar: {exclude: a.txt, only: b.txt}}\njobs:\n  \
                as-is: {schedule: '@daily', command: x}\n  \
                own: {schedule: '@daily', command: x, calendar: {exclude: [c.txt]}}\n  \
                none: {schedule: '@daily', command: x, calendar: null}\n  \
                half: {schedule: '@daily', command: x, calendar: {exclude: null}}\n  \
                empty-list: {schedule: '@daily', command: x, calendar: {exclude: []}}\n  \
                empty: {schedule: '@daily', command: x, calendar: {}}\n";
    let directory = directory(&[("jobs.yaml", text), ("a.txt", "01-01\n"), ("b.txt", "01-02\n"), ("c.txt", "01-03\n")]);
    let set = load(directory.path()).unwrap().set;
    let calendar = |job: &str| {
        let calendar = set.jobs[&JobName::parse(job).unwrap()].schedule().unwrap().calendar().cloned();
        calendar.map(|calendar| (calendar.exclude().collect::<Vec<_>>().join(","), calendar.only().collect::<String>()))
    };
    let files = |exclude: &str, only: &str| Some((exclude.to_owned(), only.to_owned()));
    assert_eq!(calendar("as-is"), files("a.txt", "b.txt"));
    assert_eq!(calendar("own"), files("c.txt", "b.txt"));
    assert_eq!(calendar("half"), files("", "b.txt"));
    assert_eq!(calendar("empty-list"), files("", "b.txt"));
    assert_eq!(calendar("empty"), files("a.txt", "b.txt"), "it sets nothing");
    assert_eq!(calendar("none"), None);
}

#[test]
fn a_name_without_a_file_is_an_error_of_the_jobs_file() {
    let directory = directory(&[("a.yaml", &jobs("{exclude: [here.txt, missing.txt], only: []}"))]);
    write(&directory, "here.txt", "12-25\n");
    fs::create_dir(directory.path().join("folder")).unwrap();
    same(
        &reported_for(&directory),
        "dir/a.yaml:5:36: job `a`: `calendar`: `missing.txt`: cannot read dir/missing.txt: No such file or directory (os error 2)
         dir/a.yaml:5:56: job `a`: `calendar`: `only`: the list is empty",
    );
    write(&directory, "a.yaml", &jobs("{exclude: folder}"));
    assert!(reported_for(&directory).starts_with("dir/a.yaml:5:25: job `a`: `calendar`: `folder`: "));
    same(
        &reported_for_keys("calendar: {exclude: x.txt}"),
        "j:5:25: job `a`: `calendar`: `x.txt`: no files can be read here",
    );
}

#[test]
fn the_form_of_a_calendar_is_checked() {
    let found = reported_for_keys("calendar: holidays.txt");
    assert!(
        found.ends_with("must be a map of exclude, only, not a text; write `calendar: {exclude: holidays.txt}`"),
        "{found}"
    );
    let found = reported_for_keys("calendar: {exlude: x.txt}");
    same(&found, "j:5:16: job `a`: `calendar`: `exlude` is not one of its keys, did you mean `exclude`?");
    let found = reported_for_keys("calendar: {exclude: {a: b}}");
    same(&found, "j:5:25: job `a`: `calendar`: `exclude` must be a text or a list of texts, not a map");
    let found = reported_for_keys("calendar: {exclude: [[a]]}");
    same(&found, "j:5:26: job `a`: `calendar`: an item of `exclude` must be a text, not a list");
    let found = reported_for_keys("holidays: [x.txt]");
    same(&found, "j:5:5: job `a`: `holidays` is not a key of a job, did you mean `calendar`?");
}

/// A wrong name can be that of any file, so nothing of it is shown.
#[test]
fn an_error_in_a_calendar_has_its_position_and_quotes_nothing() {
    let directory =
        directory(&[("a.yaml", &jobs("{exclude: [x.txt]}")), ("x.txt", "12-25\n\n  hunter2 x\n2026-02-30\n")]);
    let expected = "expected a date such as `2026-12-25`, a range such as `2026-12-24..2027-01-06`, or a day of every \
                    year such as `12-25`";
    same(&reported_for(&directory), &format!("dir/x.txt:3:3: {expected}\ndir/x.txt:4:1: there is no such day"));
    fs::write(directory.path().join("x.txt"), b"12-25\n\xff\n").unwrap();
    same(
        &reported_for(&directory),
        "dir/x.txt:2:1: the file is not UTF-8 from here on; if it is Latin-1, convert it with `iconv -f ISO-8859-1 -t UTF-8 FILE`",
    );
    write(&directory, "x.txt", &"#".repeat((1 << 20) + 1));
    same(&reported_for(&directory), "dir/x.txt:1:1: the calendar is larger than 1 MiB");
}

#[test]
fn a_calendar_that_is_empty_or_half_written_is_refused() {
    let directory = directory(&[("a.yaml", &jobs("{exclude: [x.txt]}")), ("x.txt", "")]);
    let expected = "dir/x.txt:1:1: the calendar has no entries; write at least one date, or remove the file from the \
                    `calendar` of all jobs";
    same(&reported_for(&directory), expected);
    write(&directory, "x.txt", "12-25\n12-2");
    assert!(reported_for(&directory).contains("dir/x.txt:2:5: the last line has no line end: is the file complete?"));
}

#[test]
fn a_calendar_that_others_may_write_is_not_read() {
    let directory = directory(&[("a.yaml", &jobs("{exclude: [x.txt]}")), ("x.txt", "12-25\n")]);
    fs::set_permissions(directory.path().join("x.txt"), fs::Permissions::from_mode(0o666)).unwrap();
    let found = reported_for(&directory);
    assert!(found.starts_with("dir/a.yaml:5:26: job `a`: `calendar`: `x.txt`: "), "{found}");
    let content = Content::read_untrusted(directory.path()).unwrap();
    assert!(content.load_for_any_host().is_ok());
}

#[test]
fn a_date_that_changes_changes_the_set_and_the_job_that_has_the_calendar() {
    let text = format!("{}  b: {{schedule: '@daily', command: x}}\n", jobs("{exclude: [x.txt]}"));
    let directory = directory(&[("a.yaml", &text)]);
    let missing = fingerprint(directory.path());
    write(&directory, "x.txt", "12-25\n");
    let (old, first) = (load(directory.path()).unwrap().set, fingerprint(directory.path()));
    write(&directory, "x.txt", "12-26\n");
    let (new, second) = (load(directory.path()).unwrap().set, fingerprint(directory.path()));
    assert!(missing != first && first != second);
    assert_eq!((&old.digest, &new.digest), (&first, &second));
    let changed = old.difference(&new).changed;
    assert_eq!(changed.iter().map(JobName::as_str).collect::<Vec<_>>(), ["a"]);
    let mark = "2026-12-24T12:00:00Z".parse().unwrap();
    let digest = |set: &JobSet, job: &str| set.jobs[&JobName::parse(job).unwrap()].schedule_digest(mark);
    assert_ne!(digest(&old, "a"), digest(&new, "a"));
    assert_eq!(digest(&old, "b"), digest(&new, "b"));
    let definitions = [&old, &new].map(|set| Definitions::of(set, "salt"));
    let definition = &definitions[0].jobs[&JobName::parse("a").unwrap()];
    assert_eq!(definition.keys["calendar.exclude"], "[\"x.txt\"]");
    assert_eq!(definition.coming(&JobName::parse("a").unwrap(), Timestamp::UNIX_EPOCH, 1), None);
    assert_ne!(definitions[0].jobs, definitions[1].jobs);
}

#[test]
fn dates_that_end_are_a_warning() {
    let directory = directory(&[
        ("a.yaml", &jobs("{exclude: [past.txt], only: [past.txt, yearly.txt]}")),
        ("past.txt", "# old\n2020-12-25\n2019-12-25\n"),
        ("yearly.txt", "12-26\n"),
    ]);
    same(
        &reported_for(&directory),
        "dir/past.txt:2:1: the calendar's last date with a year, 2020-12-25, is past; add the dates that follow it",
    );
    write(&directory, "a.yaml", &jobs("{only: [past.txt]}"));
    same(
        &reported_for(&directory),
        "dir/a.yaml:3:15: job `a`: `schedule` with its `calendar` has no occurrence from now on, so the job never runs by itself
         dir/past.txt:2:1: the calendar's last date with a year, 2020-12-25, is past; add the dates that follow it",
    );
    let soon = cronkeeper_core::clock::system::now().wall + jiff::SignedDuration::from_hours(10 * 24);
    let soon = soon.to_zoned(jiff::tz::TimeZone::UTC).date();
    write(&directory, "past.txt", &format!("{soon}\n"));
    assert!(reported_for(&directory).contains("is less than 30 days ahead"));
}

/// The log of a node that runs for months must say so too.
#[test]
fn dates_that_end_after_the_load_become_a_warning() {
    let directory = directory(&[("a.yaml", &jobs("{exclude: [x.txt]}")), ("x.txt", "2098-12-25\n")]);
    let content = Content::read(directory.path()).unwrap();
    assert_eq!(content.load().unwrap().warnings, []);
    let warnings = |now: &str| lines(&content.warnings_of_time(now.parse().unwrap()));
    assert_eq!(warnings("2098-11-24T12:00:00Z"), "");
    assert!(
        warnings("2098-11-26T12:00:00Z").contains("x.txt:1:1: the calendar's last date with a year, 2098-12-25, is")
    );
    assert!(warnings("2098-12-26T12:00:00Z").contains("is past"));
}

#[test]
fn a_calendar_has_no_effect_on_a_job_that_runs_after_others() {
    let text = "jobs:\n  a: {schedule: '@daily', command: x}\n  b: {after: {a: success}, command: x, calendar: {exclude: x.txt}}\n";
    let directory = directory(&[("a.yaml", text), ("x.txt", "12-25\n")]);
    same(&reported_for(&directory), "dir/a.yaml:3:50: job `b`: `calendar` has no effect with `after`");
}
