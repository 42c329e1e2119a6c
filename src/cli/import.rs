//! `cronkeeper import`: a crontab as jobs.yaml, on stdout.
//!
//! What is not carried over as it was is told on stderr, a line each, and does not make the import fail: the jobs are
//! right without it, and the comments in them say the same.

mod host;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{Error, Io};
use crate::crontab::{self, LARGEST, Origin};
use crate::schedule::{Dst, Schedule};

/// Write a crontab as jobs.yaml, on stdout; what cannot be carried over is told on stderr.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The crontab; - for stdin, as in `crontab -l | cronkeeper import -`
    #[arg(value_name = "CRONTAB")]
    path: PathBuf,
    /// The sixth word of an entry is a user, as in /etc/crontab and /etc/cron.d
    #[arg(long)]
    system: bool,
    /// The time zone of the host that the crontab is from; default this host's
    #[arg(long, value_name = "TZ")]
    timezone: Option<String>,
}

impl Args {
    /// Reads the crontab and writes the jobs.
    ///
    /// # Errors
    /// When it cannot be read, is no crontab, or the time zone is none.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let bytes = read(&self.path).map_err(|source| Error::CrontabFile { path: self.path.clone(), source })?;
        let name = if is_stdin(&self.path) { "stdin".to_owned() } else { self.path.display().to_string() };
        let zone = self.zone(io)?;
        let owner = owner(&self.path);
        let origin = Origin { name: &name, system: self.system, zone: &zone, owner: owner.as_deref() };
        let imported =
            crontab::import(&bytes, &origin).map_err(|source| Error::NoCrontab { name: name.clone(), source })?;
        for note in &imported.notes {
            writeln!(io.err, "{name}:{}: {}", note.line, note.text)?;
        }
        if !self.system && is_of_the_system(&self.path) {
            writeln!(io.err, "{name}: this looks like a system crontab, with a user in each entry: add --system")?;
        }
        io.out.write_all(imported.yaml.as_bytes())?;
        Ok(())
    }

    fn zone(&self, io: &mut Io<'_>) -> Result<String, Error> {
        if let Some(name) = &self.timezone {
            // An expression that is right in every zone: what can be wrong is the zone.
            let schedule = Schedule::parse(&["0 0 * * *"], name, Dst::Once, "").map_err(Error::TimeZone)?;
            return Ok(schedule.zone_name().to_owned());
        }
        if let Some(zone) = host::zone(std::env::var("TZ").ok().as_deref(), Path::new("/etc")) {
            return Ok(zone);
        }
        writeln!(io.err, "the time zone of this host is not known; UTC is written. `--timezone` names another")?;
        Ok("UTC".to_owned())
    }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// At most so much that it is seen to be too large.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let limit = LARGEST as u64 + 1;
    let mut bytes = Vec::new();
    if is_stdin(path) {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Cron keeps a user's crontab in a file of that user's name.
fn owner(path: &Path) -> Option<String> {
    let path = path.strip_prefix("/var/spool/cron").ok()?;
    path.file_name().and_then(|name| name.to_str()).map(str::to_owned)
}

fn is_of_the_system(path: &Path) -> bool {
    path == Path::new("/etc/crontab") || path.parent() == Some(Path::new("/etc/cron.d"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Exit;
    use crate::cli::tests::typed;

    fn imported(text: &[u8], more: &[&str]) -> (Exit, String, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crontab");
        std::fs::write(&path, text).unwrap();
        let line = [&["import", path.to_str().unwrap(), "--timezone", "europe/berlin"], more].concat();
        let (exit, out, err) = typed(&line, &[]);
        let short = |text: String| text.replace(folder.path().to_str().unwrap(), "dir");
        (exit, short(out), short(err))
    }

    #[test]
    fn what_is_lost_is_told_by_line_and_is_no_failure() {
        let (exit, out, err) = imported(b"# hello\n@reboot x\n30 2 * * * backup\n", &[]);
        assert_eq!(exit, Exit::Fine);
        assert_eq!(
            err,
            "dir/crontab:2: not carried over: `@reboot`: a cluster has no single boot; use a systemd unit on each host\n"
        );
        assert!(out.contains("  timezone: Europe/Berlin\n"), "{out}");
        assert!(out.contains("  backup:\n    schedule: \"30 2 * * *\"\n    command: backup\n"), "{out}");
    }

    #[test]
    fn what_is_no_crontab_is_an_invalid_configuration() {
        let (exit, out, err) = imported(b"jobs:\n  a: {}\n", &[]);
        assert_eq!((exit, out.as_str()), (Exit::Config, ""));
        assert!(err.starts_with("cronkeeper: dir/crontab is no crontab: none of its lines is an entry"), "{err}");
        assert_eq!(imported(b"\x7fELF\0\0", &[]).0, Exit::Config);
        let (exit, _, err) = typed(&["import", "/nowhere"], &[]);
        assert_eq!(exit, Exit::Config);
        assert!(err.starts_with("cronkeeper: cannot read /nowhere: No such file"), "{err}");
        let (exit, _, err) = typed(&["import", "/dev/null", "--timezone", "berlin"], &[]);
        assert_eq!(exit, Exit::Usage);
        assert!(err.contains("did you mean `Europe/Berlin`?"), "{err}");
    }

    #[test]
    fn whose_crontab_it_is_is_told_by_its_path() {
        for (path, whose) in [
            ("/var/spool/cron/crontabs/alice", Some("alice")),
            ("/var/spool/cron/alice", Some("alice")),
            ("/home/alice/crontab", None),
        ] {
            assert_eq!(owner(Path::new(path)).as_deref(), whose, "{path}");
        }
        assert!(is_of_the_system(Path::new("/etc/crontab")) && is_of_the_system(Path::new("/etc/cron.d/php")));
    }
}
