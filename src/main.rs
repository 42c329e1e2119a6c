//! cronkeeper: cron that survives the loss of a host.

fn main() -> std::process::ExitCode {
    cronkeeper::cli::main()
}
