//! The child's report on the status pipe: that its program begins, or which step failed.
//!
//! A byte for the step, the system's error number and, for a step about a file, what is wrong with the file. A begin has
//! its time instead; the failure of exec may follow it. The pipe closes by itself when exec succeeds.

use rustix::io::Errno as Error;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::environment_file::{BadLine, LineFault};
use cronkeeper_core::process::{FileFault, FileProblem, InterpreterFault, StartFailure, StartStep, UnusableFile};

/// How a start has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartOutcome {
    /// The program began at this time.
    Began(Uptime),
    Failed(StartFailure),
    /// The child ended before its program, without a report: it was killed.
    Died,
}

/// Most files that a report can name: a job has at most 32 of each kind.
const MOST_FILES: usize = 64;

/// Bytes of the report about a file.
const OF_FILE: usize = 1 + 4 + 6;

/// Longest report on the status pipe, in bytes: the files that the process is started without, the begin, and the failure
/// to execute the program. That of a file is shorter than these two, as it comes alone.
pub(super) const REPORT: usize = MOST_FILES * (1 + OF_FILE) + 1 + 8 + 5;

/// Decodes the bytes on the status pipe, read to its end: the files that the process is started without, and how its
/// start has ended.
pub(super) fn decode(report: &[u8]) -> (Vec<UnusableFile>, StartOutcome) {
    let (mut files, mut rest) = (Vec::new(), report);
    while let Some((&[WITHOUT, step, ref of_file @ ..], after)) = rest.split_first_chunk::<{ 1 + OF_FILE }>() {
        if let StartFailure::Step { step, errno } = failure_of(step, of_file) {
            files.push(UnusableFile { step, errno });
        }
        rest = after;
    }
    (files, outcome(rest))
}

fn outcome(report: &[u8]) -> StartOutcome {
    match report.split_first() {
        None => StartOutcome::Died,
        Some((&BEGAN, rest)) => {
            let (at, failure) =
                rest.split_first_chunk().map_or((0, rest), |(at, rest)| (u64::from_le_bytes(*at), rest));
            let began = StartOutcome::Began(Uptime::from_nanos(at));
            failure.split_first().map_or(began, |(&step, errno)| StartOutcome::Failed(failure_of(step, errno)))
        }
        Some((&step, errno)) => StartOutcome::Failed(failure_of(step, errno)),
    }
}

fn failure_of(step: u8, rest: &[u8]) -> StartFailure {
    let (errno, rest) = rest.split_first_chunk().map_or((0, rest), |(bytes, rest)| (i32::from_le_bytes(*bytes), rest));
    let interpreter = |fault| StartFailure::Step { step: StartStep::Interpreter(fault), errno };
    match step {
        ENVIRONMENT => StartFailure::Step { step: StartStep::Environment(file_problem(rest)), errno },
        SECRET => StartFailure::Step { step: StartStep::Secret(file_problem(rest)), errno },
        TOO_LATE => StartFailure::TooLate,
        LIMITS => StartFailure::Step { step: StartStep::Limits, errno },
        USER => StartFailure::Step { step: StartStep::User, errno },
        DIRECTORY => StartFailure::Step { step: StartStep::Directory, errno },
        EXEC => StartFailure::Step { step: StartStep::Exec, errno },
        CARRIAGE_RETURN => interpreter(InterpreterFault::CarriageReturn),
        NO_INTERPRETER => interpreter(InterpreterFault::Missing),
        NO_LOADER => interpreter(InterpreterFault::Loader),
        _ => StartFailure::Step { step: StartStep::Prepare, errno },
    }
}

const TOO_LATE: u8 = 0;
const PREPARE: u8 = 1;
const DIRECTORY: u8 = 2;
const EXEC: u8 = 3;
const LIMITS: u8 = 4;
const USER: u8 = 5;
const BEGAN: u8 = 6;
const ENVIRONMENT: u8 = 7;
const SECRET: u8 = 8;
const WITHOUT: u8 = 9;
const CARRIAGE_RETURN: u8 = 10;
const NO_INTERPRETER: u8 = 11;
const NO_LOADER: u8 = 12;

/// The report about a file: its place, the fault, and the number that belongs to the fault.
fn report_of_file(FileProblem { index, fault }: FileProblem) -> Vec<u8> {
    let (code, number) = match fault {
        FileFault::System => (0, 0),
        FileFault::Unsafe => (1, 0),
        FileFault::Open => (2, 0),
        FileFault::NoFile => (3, 0),
        FileFault::TooLarge(most) => (4, most),
        FileFault::Line(BadLine { line, fault: LineFault::Name }) => (5, line),
        FileFault::Line(BadLine { line, fault: LineFault::Nul }) => (6, line),
        FileFault::Line(BadLine { line, fault: LineFault::Unclosed }) => (7, line),
        FileFault::Line(BadLine { line, fault: LineFault::TooLong }) => (8, line),
        FileFault::Line(BadLine { line, fault: LineFault::Export }) => (9, line),
    };
    [&[index, code][..], &u32::to_le_bytes(number)].concat()
}

fn file_problem(report: &[u8]) -> FileProblem {
    let &[index, code, a, b, c, d] = report else { return FileProblem { index: 0, fault: FileFault::System } };
    let number = u32::from_le_bytes([a, b, c, d]);
    let line = |fault| FileFault::Line(BadLine { line: number, fault });
    let fault = match code {
        1 => FileFault::Unsafe,
        2 => FileFault::Open,
        3 => FileFault::NoFile,
        4 => FileFault::TooLarge(number),
        5 => line(LineFault::Name),
        6 => line(LineFault::Nul),
        7 => line(LineFault::Unclosed),
        8 => line(LineFault::TooLong),
        9 => line(LineFault::Export),
        _ => FileFault::System,
    };
    FileProblem { index, fault }
}

/// The report that the program begins now.
pub(super) fn begin(now: Uptime) -> [u8; 9] {
    let [a, b, c, d, e, f, g, h] = now.as_nanos().to_le_bytes();
    [BEGAN, a, b, c, d, e, f, g, h]
}

/// The report of a failure.
pub(super) fn report(failure: StartFailure) -> Vec<u8> {
    let (step, errno) = match failure {
        StartFailure::TooLate => (TOO_LATE, 0),
        StartFailure::Step { step: StartStep::Environment(_), errno } => (ENVIRONMENT, errno),
        StartFailure::Step { step: StartStep::Secret(_), errno } => (SECRET, errno),
        StartFailure::Step { step: StartStep::Limits, errno } => (LIMITS, errno),
        StartFailure::Step { step: StartStep::User, errno } => (USER, errno),
        StartFailure::Step { step: StartStep::Directory, errno } => (DIRECTORY, errno),
        StartFailure::Step { step: StartStep::Exec, errno } => (EXEC, errno),
        StartFailure::Step { step: StartStep::Interpreter(fault), errno } => {
            let code = match fault {
                InterpreterFault::CarriageReturn => CARRIAGE_RETURN,
                InterpreterFault::Missing => NO_INTERPRETER,
                InterpreterFault::Loader => NO_LOADER,
            };
            (code, errno)
        }
        StartFailure::Step { step: StartStep::Fork | StartStep::Prepare, errno } => (PREPARE, errno),
    };
    let of_file = match failure {
        StartFailure::Step { step: StartStep::Environment(problem) | StartStep::Secret(problem), .. } => {
            report_of_file(problem)
        }
        _ => Vec::new(),
    };
    [&[step][..], &errno.to_le_bytes(), &of_file].concat()
}

/// The report that the process is started without these files.
pub(super) fn without(files: &[UnusableFile]) -> Vec<u8> {
    let of_file = |&UnusableFile { step, errno }: &UnusableFile| {
        [&[WITHOUT][..], &report(StartFailure::Step { step, errno })].concat()
    };
    files.iter().take(MOST_FILES).flat_map(of_file).collect()
}

/// A step that failed with an error of the system.
pub(super) fn failed(step: StartStep, error: Error) -> StartFailure {
    StartFailure::Step { step, errno: error.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warden_decodes_what_the_child_reports() {
        let steps = [StartStep::Prepare, StartStep::Limits, StartStep::User, StartStep::Directory, StartStep::Exec];
        let faults = [InterpreterFault::CarriageReturn, InterpreterFault::Missing, InterpreterFault::Loader];
        for step in steps.into_iter().chain(faults.map(StartStep::Interpreter)) {
            let failure = StartFailure::Step { step, errno: 13 };
            assert_eq!(outcome(&report(failure)), StartOutcome::Failed(failure));
        }
        let lines = [LineFault::Name, LineFault::Export, LineFault::Nul, LineFault::Unclosed, LineFault::TooLong];
        let lines = lines.map(|fault| FileFault::Line(BadLine { line: 70_000, fault }));
        let faults = [FileFault::System, FileFault::Unsafe, FileFault::Open, FileFault::NoFile, FileFault::TooLarge(9)];
        for fault in faults.into_iter().chain(lines) {
            for step in [StartStep::Environment, StartStep::Secret] {
                let failure = StartFailure::Step { step: step(FileProblem { index: 31, fault }), errno: 2 };
                assert_eq!(outcome(&report(failure)), StartOutcome::Failed(failure));
                assert!(report(failure).len() <= REPORT);
            }
        }
        assert_eq!(outcome(&report(StartFailure::TooLate)), StartOutcome::Failed(StartFailure::TooLate));
        let at = Uptime::from_nanos(0x0102_0304_0506_0708);
        assert_eq!(outcome(&begin(at)), StartOutcome::Began(at));
        let failure = StartFailure::Step { step: StartStep::Exec, errno: 2 };
        let both = [&begin(at)[..], &report(failure)].concat();
        assert_eq!(outcome(&both), StartOutcome::Failed(failure));
        assert_eq!(outcome(&[]), StartOutcome::Died);
    }

    #[test]
    fn files_that_a_process_is_started_without_come_before_its_begin_or_failure() {
        let step = |index| StartStep::Secret(FileProblem { index, fault: FileFault::TooLarge(9) });
        let files: Vec<UnusableFile> = (0..64).map(|index| UnusableFile { step: step(index), errno: 2 }).collect();
        let begun = begin(Uptime::ZERO);
        let failure = StartFailure::Step { step: StartStep::Exec, errno: 2 };
        let whole = [&without(&files)[..], &begun, &report(failure)].concat();
        assert_eq!((decode(&whole), whole.len()), ((files.clone(), StartOutcome::Failed(failure)), REPORT));
        assert_eq!(decode(&[&without(&files[..1])[..], &begun].concat()).0, files[..1]);
        assert_eq!(decode(&without(&files[..1])), (files[..1].to_vec(), StartOutcome::Died));
        assert_eq!(decode(&begun), (vec![], StartOutcome::Began(Uptime::ZERO)));
    }
}
