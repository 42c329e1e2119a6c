//! Entry point: runs the warden if started as one, else the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else, so that the warden stays small and single-threaded.
    cronkeeper::warden::main_if_asked().unwrap_or_else(cronkeeper::cli::main)
}
