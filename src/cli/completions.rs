//! `cronkeeper completions`: completion scripts for bash, zsh, fish and others.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, Error, Io};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell to print the script for
    shell: Shell,
}

impl Args {
    /// Writes the script.
    ///
    /// # Errors
    /// When the result cannot be written.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        // The generator panics when a write fails, so it writes into memory.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "cronkeeper", &mut script);
        io.out.write_all(&script)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Exit;
    use crate::cli::tests::typed;

    #[test]
    fn the_script_of_every_shell_has_every_command() {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let (exit, out, err) = typed(&["completions", shell], &[]);
            assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
            for word in ["import", "history", "completions", "--session-timeout", "--runtime-dir"] {
                assert!(out.contains(word) || out.contains(word.trim_start_matches('-')), "{shell}: {word}");
            }
        }
        assert_eq!(typed(&["completions", "cmd.exe"], &[]).0, Exit::Usage);
    }
}
