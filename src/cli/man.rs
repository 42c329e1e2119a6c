//! `cronkeeper man`: the manual page of the program and all its commands.

use clap::CommandFactory as _;
use clap_mangen::Man;

use super::{Cli, Error, Io};

#[derive(Debug, clap::Args)]
pub struct Args {}

impl Args {
    /// Writes the page: first the program, then each command with its options.
    ///
    /// # Errors
    /// When the result cannot be written.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let mut program = Cli::command();
        // Gives each command its full name, such as `cronkeeper run`.
        program.build();
        let page = Man::new(program.clone());
        page.render_title(io.out)?;
        page.render_name_section(io.out)?;
        page.render_synopsis_section(io.out)?;
        page.render_description_section(io.out)?;
        page.render_options_section(io.out)?;
        for command in program.get_subcommands() {
            writeln!(io.out, ".SH \"{}\"", command.get_bin_name().unwrap_or_default().to_uppercase())?;
            let page = Man::new(command.clone());
            for section in [Man::render_description_section, Man::render_synopsis_section, Man::render_options_section]
            {
                let mut text = Vec::new();
                section(&page, &mut text)?;
                io.out.write_all(&subsections(&text))?;
            }
        }
        page.render_version_section(io.out)?;
        Ok(())
    }
}

/// Turns the sections of a command's page into subsections of the whole page.
fn subsections(text: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(text).replace(".SH ", ".SS ").into_bytes()
}

#[cfg(test)]
mod tests {
    use crate::cli::Exit;
    use crate::cli::tests::typed;

    #[test]
    fn the_page_has_every_command_with_its_options() {
        let (exit, out, err) = typed(&["man"], &[]);
        assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
        assert!(out.contains(".TH cronkeeper 1"), "{out}");
        for words in
            [".SH \"CRONKEEPER RUN\"", ".SH \"CRONKEEPER IMPORT\"", "\\-\\-session\\-timeout", "CRONKEEPER_ZOOKEEPER"]
        {
            assert!(out.contains(words), "{words}: {out}");
        }
    }
}
