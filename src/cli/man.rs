//! `cronkeeper man`: the manual, as one page or as a directory of pages.
//!
//! The pages come from the definitions of the options and from [`guide`]. The page about the jobs file is written by
//! hand: `docs/man/jobs.yaml.5`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use super::guide::{self, GUIDES, Guide};
use super::{Error, Io};

const SECTION: &str = "8";
const JOBS_FILE: &str = include_str!("../../docs/man/jobs.yaml.5");

/// The exit codes of all commands, for the page of the program.
const EXITS: &[(&str, &str)] = &[
    guide::FINE,
    ("1", "failed"),
    guide::USAGE,
    ("69", "no node, or no coordination service, can be reached"),
    ("75", "the triggered run was skipped, or it took longer than --timeout"),
    ("78", "the configuration is invalid; a restart does not help"),
];

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write a page for the program, one for each command and jobs.yaml(5) into this directory, which must exist
    #[arg(long, value_name = "DIR")]
    all: Option<PathBuf>,
}

impl Args {
    /// Writes one page with everything, or a directory of pages.
    ///
    /// # Errors
    /// When the result cannot be written.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let mut program = guide::command();
        // Gives each command its full name, such as `cronkeeper run`.
        program.build();
        let Some(directory) = self.all else { return Ok(one_page(&program, io)?) };
        for (name, page) in pages(&program)? {
            let path = directory.join(name);
            std::fs::write(&path, page).map_err(|source| Error::Page { path, source })?;
        }
        Ok(())
    }
}

/// The commands with their guides, in the order of the help.
fn commands(program: &Command) -> impl Iterator<Item = (&Command, &'static Guide)> {
    GUIDES.iter().filter_map(|guide| Some((program.find_subcommand(guide.command)?, guide)))
}

/// First the program, then each command with its options.
fn one_page(program: &Command, io: &mut Io<'_>) -> std::io::Result<()> {
    let page = man(program.clone());
    io.out.write_all(title("cronkeeper").as_bytes())?;
    page.render_name_section(io.out)?;
    page.render_synopsis_section(io.out)?;
    page.render_description_section(io.out)?;
    page.render_options_section(io.out)?;
    for (command, guide) in commands(program) {
        writeln!(io.out, ".SH \"{}\"", command.get_bin_name().unwrap_or_default().to_uppercase())?;
        let mut text = Vec::new();
        let page = man(command.clone());
        page.render_description_section(&mut text)?;
        synopsis(command).to_writer(&mut text)?;
        page.render_options_section(&mut text)?;
        list("EXIT STATUS", guide.exits).to_writer(&mut text)?;
        examples(guide).to_writer(&mut text)?;
        io.out.write_all(&subsections(&text))?;
    }
    page.render_version_section(io.out)
}

/// Turns the sections of a command's page into subsections of the whole page.
fn subsections(text: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(text).replace(".SH ", ".SS ").into_bytes()
}

/// All pages with the names of their files.
fn pages(program: &Command) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = vec![(format!("cronkeeper.{SECTION}"), of_program(program)?)];
    for (command, guide) in commands(program) {
        pages.push((format!("cronkeeper-{}.{SECTION}", guide.command), of_command(command, guide)?));
    }
    pages.push(("jobs.yaml.5".to_owned(), JOBS_FILE.as_bytes().to_vec()));
    Ok(pages)
}

fn of_program(program: &Command) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let page = man(program.clone());
    text.extend(title("cronkeeper").as_bytes());
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    let names = commands(program).map(|(command, guide)| {
        (format!("cronkeeper-{}({SECTION})", guide.command), command.get_about().map(ToString::to_string))
    });
    let names: Vec<(String, String)> = names.map(|(name, about)| (name, about.unwrap_or_default())).collect();
    list("COMMANDS", &names).to_writer(&mut text)?;
    list("EXIT STATUS", EXITS).to_writer(&mut text)?;
    let files: BTreeSet<_> = GUIDES.iter().flat_map(|guide| guide.files.iter().copied()).collect();
    list("FILES", &files.into_iter().collect::<Vec<_>>()).to_writer(&mut text)?;
    let mut see_also: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
    see_also.extend(["jobs.yaml(5)", "crontab(5)", "systemd.service(5)"]);
    references(&see_also).to_writer(&mut text)?;
    Ok(tidied(&text))
}

fn of_command(command: &Command, guide: &Guide) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let name = format!("cronkeeper-{}", guide.command);
    let page = man(command.clone());
    text.extend(title(&name).as_bytes());
    page.render_name_section(&mut text)?;
    synopsis(command).to_writer(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    list("EXIT STATUS", guide.exits).to_writer(&mut text)?;
    let variables = environment(command);
    if !variables.is_empty() {
        list("ENVIRONMENT", &variables).to_writer(&mut text)?;
    }
    if !guide.files.is_empty() {
        list("FILES", guide.files).to_writer(&mut text)?;
    }
    examples(guide).to_writer(&mut text)?;
    references(&[&["cronkeeper(8)"], guide.see_also].concat()).to_writer(&mut text)?;
    Ok(tidied(&text))
}

fn man(command: Command) -> Man {
    Man::new(command).section(SECTION)
}

/// The first line of a page. Not that of `Man`, which leaves out the date, so that what follows is taken for it.
fn title(name: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(".TH {name} {SECTION} \"\" \"cronkeeper {version}\" \"System administration\"\n")
}

/// How to call a command. Not that of `Man`, which leaves out the values of options.
fn synopsis(command: &Command) -> Roff {
    let mut words = vec![bold(command.get_bin_name().unwrap_or_else(|| command.get_name()))];
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) = command.get_arguments().partition(|arg| arg.is_positional());
    for option in options {
        let name = match (option.get_long(), option.get_short()) {
            (Some(long), _) => format!("--{long}"),
            (None, Some(short)) => format!("-{short}"),
            (None, None) => continue,
        };
        let repeated = if matches!(option.get_action(), ArgAction::Append) { "..." } else { "" };
        let values = match option.get_action().takes_values() {
            true => option.get_value_names().unwrap_or_default().iter().map(|value| format!(" {value}")).collect(),
            false => String::new(),
        };
        let (before, after) = if option.is_required_set() { (" ", "") } else { (" [", "]") };
        words.extend([roman(before), bold(name), italic(values), roman(format!("{after}{repeated}"))]);
    }
    words.extend(positional.into_iter().map(|value| roman(format!(" {}", positional_in_usage(value)))));
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text(words);
    roff
}

/// A positional argument as clap writes it in a line of usage: `<JOB>`, `[JOB]...`.
fn positional_in_usage(value: &Arg) -> String {
    let text = value.to_string();
    match (value.is_last_set(), value.is_required_set()) {
        (true, _) => format!("-- {text}"),
        (false, true) => text,
        (false, false) => text.replace('<', "[").replace('>', "]"),
    }
}

/// The variables that set options.
fn environment(command: &Command) -> Vec<(String, String)> {
    let variables = command.get_arguments().filter_map(|argument| {
        let name = argument.get_env()?.to_string_lossy().into_owned();
        let stands_for = match argument.get_long() {
            Some(option) => format!("--{option}"),
            None => argument.get_id().as_str().to_uppercase(),
        };
        Some((name, format!("Used where {stands_for} is not given.")))
    });
    variables.collect()
}

fn list<T: AsRef<str>, U: AsRef<str>>(title: &str, entries: &[(T, U)]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (name, meaning) in entries {
        roff.control("TP", []);
        roff.text([bold(name.as_ref())]);
        roff.text([roman(meaning.as_ref())]);
    }
    roff
}

fn examples(guide: &Guide) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for (at, (line, what)) in guide.examples.iter().enumerate() {
        if at > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(format!("{what}:"))]);
        roff.control("PP", []).control("RS", ["4"]).control("nf", []);
        roff.text([bold(*line)]);
        roff.control("fi", []).control("RE", []);
    }
    roff
}

fn references(names: &[&str]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    let last = names.len().saturating_sub(1);
    for (at, name) in names.iter().enumerate() {
        let (page, section) = name.split_once('(').unwrap_or((name, ""));
        let end = if at == last { "" } else { "," };
        roff.control("BR", [page, format!("({section}{end}").as_str()]);
    }
    roff
}

/// Writes the preamble that defines an apostrophe once, not before each section.
fn tidied(text: &[u8]) -> Vec<u8> {
    const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";
    format!("{PREAMBLE}{}", String::from_utf8_lossy(text).replace(PREAMBLE, "")).into_bytes()
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use super::*;
    use crate::cli::Exit;
    use crate::cli::tests::typed;

    #[test]
    fn the_page_has_every_command_with_its_options() {
        let (exit, out, err) = typed(&["man"], &[]);
        assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
        assert!(out.contains(".TH cronkeeper 8"), "{out}");
        for words in
            [".SH \"CRONKEEPER RUN\"", ".SH \"CRONKEEPER IMPORT\"", "\\-\\-session\\-timeout", "CRONKEEPER_ZOOKEEPER"]
        {
            assert!(out.contains(words), "{words}: {out}");
        }
    }

    #[test]
    fn each_command_has_a_page_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let (exit, out, err) = typed(&["man", "--all", path], &[]);
        assert_eq!((exit, out.as_str(), err.as_str()), (Exit::Fine, "", ""));
        let page = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        for guide in GUIDES {
            let text = page(&format!("cronkeeper-{}.8", guide.command));
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
                let heading = [format!(".SH {section}\n"), format!(".SH \"{section}\"\n")];
                assert!(heading.iter().any(|heading| text.contains(heading)), "{}: {section}", guide.command);
            }
        }
        assert!(page("cronkeeper.8").contains("cronkeeper\\-history(8)"), "{}", page("cronkeeper.8"));
        assert!(page("cronkeeper-run.8").contains("CRONKEEPER_ZOOKEEPER"));
        let synopsis = |name: &str| {
            let page = page(name).replace("\\fB", "").replace("\\fI", "").replace("\\fR", "").replace("\\-", "-");
            page.split(".SH ").find(|section| section.starts_with("SYNOPSIS")).unwrap_or_default().to_owned()
        };
        for (name, words) in [
            ("cronkeeper-next.8", "[-n N]"),
            ("cronkeeper-trigger.8", "[--env NAME=VALUE]..."),
            ("cronkeeper-lock.8", " -- "),
        ] {
            assert!(synopsis(name).contains(words), "{name}: {}", synopsis(name));
        }
        let (exit, _, err) = typed(&["man", "--all", "/nonexistent"], &[]);
        assert_eq!(exit, Exit::Failed);
        assert!(err.contains("/nonexistent/cronkeeper.8"), "{err}");
    }

    #[test]
    fn the_pages_are_well_formed() {
        let mut program = guide::command();
        program.build();
        let directory = tempfile::tempdir().unwrap();
        for (name, page) in pages(&program).unwrap() {
            let path = directory.path().join(&name);
            std::fs::write(&path, page).unwrap();
            let Ok(output) = Process::new("man").args(["--warnings", "--local-file"]).arg(&path).output() else {
                eprintln!("skipped: man is not installed here");
                return;
            };
            assert_eq!(
                (output.status.success(), String::from_utf8_lossy(&output.stderr).as_ref()),
                (true, ""),
                "{name}"
            );
        }
    }
}
