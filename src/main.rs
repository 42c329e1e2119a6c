//! The program: the warden if asked to be one, else the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = cronkeeper::warden::main_if_asked() {
        return code;
    }
    ExitCode::SUCCESS
}
