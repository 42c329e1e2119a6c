//! `cronkeeper import`: converts a crontab to jobs.yaml, on stdout.
//!
//! What cannot be converted, or only with a change, is reported on stderr, one line each. It does not make the import
//! fail: the jobs are valid without it, and comments in the result repeat each report.

mod host;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{Error, Io};
use crate::accounts;
use crate::crontab::{self, Kind, LARGEST, Origin};
use cronkeeper_core::job::RunAs;
use cronkeeper_core::schedule::{Dst, Schedule};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The crontab; `-` reads stdin, as in `crontab -l | cronkeeper import -`
    #[arg(value_name = "CRONTAB")]
    path: PathBuf,
    /// The sixth field of each entry is a user, as in /etc/crontab and /etc/cron.d
    #[arg(long)]
    system: bool,
    /// The time zone of the host that the crontab is from [default: this host's]
    #[arg(long, value_name = "TZ")]
    timezone: Option<String>,
}

impl Args {
    /// Reads the crontab and writes the jobs.
    ///
    /// # Errors
    /// When the file cannot be read or is not a crontab, or when the time zone is unknown.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let bytes = read(&self.path).map_err(|source| Error::CrontabFile { path: self.path.clone(), source })?;
        let name = if is_stdin(&self.path) { "stdin".to_owned() } else { self.path.display().to_string() };
        let zone = self.zone(io)?;
        let owner = owner(&self.path);
        let missing = |run_as: &RunAs| accounts::look_up(run_as).err().map(|unknown| unknown.to_string());
        let origin = Origin { name: &name, system: self.system, zone: &zone, owner: owner.as_deref(), missing };
        let imported =
            crontab::import(&bytes, &origin).map_err(|source| Error::NoCrontab { name: name.clone(), source })?;
        for note in &imported.notes {
            writeln!(io.err, "{name}:{}: {}", note.line, note.text)?;
        }
        let of_path = match self.system {
            false => is_system_crontab(&self.path).then_some(Kind::System),
            true => owner.as_ref().map(|_| Kind::User),
        };
        if let Some(kind) = of_path.or(imported.looks_like) {
            writeln!(io.err, "{name}: {}", kind.hint())?;
        }
        io.out.write_all(imported.yaml.as_bytes())?;
        Ok(())
    }

    fn zone(&self, io: &mut Io<'_>) -> Result<String, Error> {
        if let Some(name) = &self.timezone {
            // The expression is valid in every zone, so an error is about the zone.
            let schedule = Schedule::parse(&["0 0 * * *"], name, Dst::Once, "").map_err(Error::TimeZone)?;
            return Ok(schedule.zone_name().to_owned());
        }
        if let Some(zone) = host::zone(std::env::var("TZ").ok().as_deref(), Path::new("/etc")) {
            return Ok(zone);
        }
        writeln!(io.err, "the time zone of this host is unknown; using UTC. Set another with `--timezone`")?;
        Ok("UTC".to_owned())
    }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads at most one byte more than allowed, so that the import can reject a file that is too large.
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

/// The user whose crontab this is: cron's spool has one file per user, named after the user.
fn owner(path: &Path) -> Option<String> {
    let path = path.strip_prefix("/var/spool/cron").ok()?;
    path.file_name().and_then(|name| name.to_str()).map(str::to_owned)
}

fn is_system_crontab(path: &Path) -> bool {
    path == Path::new("/etc/crontab") || path.parent() == Some(Path::new("/etc/cron.d"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Exit;
    use crate::cli::tests::typed;

    fn imported(text: &[u8], more: &[&str]) -> (Exit, String, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crontab");
        std::fs::write(&path, text).unwrap();
        let line = [&["import", path.to_str().unwrap(), "--timezone", "europe/berlin"], more].concat();
        let (exit, out, err) = typed(&line, &[]);
        let short = |text: String| text.replace(dir.path().to_str().unwrap(), "dir");
        (exit, short(out), short(err))
    }

    #[test]
    fn a_line_that_cannot_be_converted_is_reported_and_the_import_succeeds() {
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
    fn a_crontab_of_the_other_kind_is_named() {
        let system = "this looks like a system crontab, with a user in each entry; if it is one, add --system";
        let user = "this looks like a user's crontab, without a user in each entry; if it is one, leave out --system";
        for (text, more, hint) in [
            ("17 * * * * www-data cd / && x\n*/7 * * * * nobody /bin/x\n", &[][..], Some(system)),
            ("MAILTO=x\n*/5 * * * * root:wheel/daemon /usr/libexec/atrun\n", &[], Some(system)),
            ("@daily root x\n0 5 * * * y\n", &[], Some(system)),
            ("0 5 * * * /usr/bin/backup --all\n@daily cd /x && make\n", &["--system"], Some(user)),
            ("@daily backup\n", &["--system"], Some(user)),
            ("0 5 * * * python3 /x.py\n", &["--system"], Some(user)),
            ("0 5 * * * backup /srv\n1 5 * * * /bin/x\n2 5 * * * mail -s x y\n", &[], None),
            ("0 5 * * * sync\n", &[], None),
            ("0 5 * * * root /bin/x\n1 5 * * * nobody cd /x\n", &["--system"], None),
            ("0 5 * * * root:wheel/daemon /bin/x\n", &["--system"], None),
            // One entry begins with a user's name.
            ("0 5 * * * /usr/bin/backup --all\n1 5 * * * daemon /srv\n", &["--system"], Some(user)),
            ("0 5 * * * backup /srv\n1 5 * * * /x\n2 5 * * * php x\n", &["--system"], Some(user)),
            ("0 5 * * * mail -s x y\n1 5 * * * backup --all\n", &["--system"], Some(user)),
            ("0 5 * * * tar czf /b /srv\n1 5 * * * daemon x\n", &["--system"], Some(user)),
            ("0 5 * * * root /bin/x\n1 5 * * * /bin/y\n2 5 * * * www-data cd /x\n", &["--system"], None),
            ("0 5 * * * deploy cd /srv && make\n", &[], Some(system)),
            ("0 5 * * * nohup sh x\n1 5 * * * ./deploy.sh cd\n", &[], None),
        ] {
            let (_, _, err) = imported(text.as_bytes(), more);
            let found = [system, user].into_iter().find(|hint| err.contains(hint));
            assert_eq!(found, hint, "{text}: {err}");
        }
        // Nothing is an entry: the hint is for the other kind only if it has some.
        let (exit, _, err) = imported(b"@daily backup\n", &["--system"]);
        assert!(exit == Exit::Config && !err.contains("add `--system`"), "{err}");
        let (_, _, err) = imported(b"jobs:\n  a: {}\n", &[]);
        assert!(!err.contains("--system"), "{err}");
    }

    #[test]
    fn another_kind_of_file_is_an_invalid_configuration() {
        let (exit, out, err) = imported(b"jobs:\n  a: {}\n", &[]);
        assert_eq!((exit, out.as_str()), (Exit::Config, ""));
        assert!(err.starts_with("cronkeeper: dir/crontab is not a crontab: none of its lines is an entry"), "{err}");
        assert_eq!(imported(b"\x7fELF\0\0", &[]).0, Exit::Config);
        let (exit, _, err) = typed(&["import", "/nowhere"], &[]);
        assert_eq!(exit, Exit::Config);
        assert!(err.starts_with("cronkeeper: cannot read /nowhere: No such file"), "{err}");
        let (exit, _, err) = typed(&["import", "/"], &[]);
        assert_eq!(exit, Exit::Config);
        assert!(err.contains("\nhint: import its files one by one"), "{err}");
        let (exit, _, err) = typed(&["import", "/dev/null", "--timezone", "berlin"], &[]);
        assert_eq!(exit, Exit::Usage);
        assert!(err.contains("did you mean `Europe/Berlin`?"), "{err}");
    }

    #[test]
    fn the_path_of_a_crontab_names_its_owner() {
        for (path, user) in [
            ("/var/spool/cron/crontabs/alice", Some("alice")),
            ("/var/spool/cron/alice", Some("alice")),
            ("/home/alice/crontab", None),
        ] {
            assert_eq!(owner(Path::new(path)).as_deref(), user, "{path}");
        }
        assert!(is_system_crontab(Path::new("/etc/crontab")) && is_system_crontab(Path::new("/etc/cron.d/php")));
    }
}
