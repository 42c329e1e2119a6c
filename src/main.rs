//! The program: the warden if asked to be one, else the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    // First of all: the warden stays small and single-threaded.
    cronkeeper::warden::main_if_asked().unwrap_or_else(cronkeeper::cli::main)
}
