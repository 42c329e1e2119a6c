//! Why a program that is there cannot be found: the system means the interpreter that it names.
//!
//! The kernel reports the same error for a missing program, for a script whose `#!` names no file, and for a program
//! whose loader is missing. A look into the file tells them apart. Called between fork and exec, so it allocates nothing.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use cronkeeper_core::process::InterpreterFault;

/// The kernel reads as much of a script to find its interpreter.
const FIRST: usize = 256;

/// What is wrong with a program for which exec reported that there is no such file; `None` if the file is missing, or
/// this user may not read it.
pub(super) fn fault_of(program: &CStr) -> Option<InterpreterFault> {
    let (first, length) = first_bytes(program)?;
    fault_in(&first[..length])
}

/// What is wrong with the interpreter of a script, before anybody executes it; `None` also if this user may not read
/// the script, or it names no absolute path.
pub fn missing(program: &Path) -> Option<InterpreterFault> {
    let (first, length) = first_bytes(program)?;
    let name = Path::new(OsStr::from_bytes(name_in(&first[..length])?));
    (name.is_absolute() && !name.exists()).then(|| fault_in(&first[..length])).flatten()
}

/// True if the first line of a script ends with a carriage return. Where that belongs to an argument of the interpreter,
/// as in `#!/usr/bin/env bash`, exec succeeds and only the interpreter fails, so nothing else names it.
pub fn has_carriage_return(program: &Path) -> bool {
    first_bytes(program).is_some_and(|(first, length)| is_carriage_return_in(&first[..length]))
}

fn first_bytes(program: impl rustix::path::Arg) -> Option<([u8; FIRST], usize)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(program, flags, Mode::empty()).ok()?;
    let mut first = [0; FIRST];
    let length = rustix::io::read(&file, &mut first).ok()?;
    Some((first, length))
}

/// The same by the first bytes of the file.
fn fault_in(first: &[u8]) -> Option<InterpreterFault> {
    if first.starts_with(b"\x7fELF") {
        return Some(InterpreterFault::Loader);
    }
    match name_in(first)?.last() {
        Some(b'\r') => Some(InterpreterFault::CarriageReturn),
        _ => Some(InterpreterFault::Missing),
    }
}

fn is_carriage_return_in(first: &[u8]) -> bool {
    line_in(first).is_some_and(|line| line.ends_with(b"\r"))
}

/// What follows `#!` in the first line of a script.
fn line_in(first: &[u8]) -> Option<&[u8]> {
    first.strip_prefix(b"#!")?.split(|byte| matches!(byte, b'\n' | 0)).next()
}

/// The interpreter's name in the first line of a script.
fn name_in(first: &[u8]) -> Option<&[u8]> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = line_in(first)?;
    Some(line.split(is_blank).find(|word| !word.is_empty()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_script_names_its_interpreter() {
        for (first, fault) in [
            (&b"#!/bin/sh\r\necho x\r\n"[..], Some(InterpreterFault::CarriageReturn)),
            (b"#! \t/bin/sh\r", Some(InterpreterFault::CarriageReturn)),
            (b"#!/bin/sh\r -e\n", Some(InterpreterFault::CarriageReturn)),
            (b"#!/bin/bsh -e\r\n", Some(InterpreterFault::Missing)),
            (b"#!/bin/bsh\necho x\r\n", Some(InterpreterFault::Missing)),
            (b"#!\n", Some(InterpreterFault::Missing)),
            (b"\x7fELF\x02", Some(InterpreterFault::Loader)),
            (b"echo x\r\n", None),
            (b"", None),
        ] {
            assert_eq!(fault_in(first), fault, "{}", String::from_utf8_lossy(first));
        }
    }

    #[test]
    fn a_carriage_return_is_seen_at_the_end_of_the_first_line_alone() {
        for (first, is_there) in [
            (&b"#!/usr/bin/env bash\r\necho x\r\n"[..], true),
            (b"#!/bin/sh -e\r", true),
            (b"#!/bin/sh\r\n", true),
            (b"#!/bin/sh -e\necho x\r\n", false),
            (b"#!/bin/sh\r -e\n", false),
            (b"echo x\r\n", false),
            (b"", false),
        ] {
            assert_eq!(is_carriage_return_in(first), is_there, "{}", String::from_utf8_lossy(first));
        }
    }

    #[test]
    fn a_file_that_is_not_there_has_no_interpreter() {
        assert_eq!(fault_of(c"/no/such/file"), None);
        assert_eq!(fault_of(c"/"), None);
    }
}
