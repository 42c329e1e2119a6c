//! `cronkeeper lock`: runs a command while holding a lock.
//!
//! The warden starts the command, so that none of its processes outlives the lock: neither the end of the lease, nor
//! the death of this process, nor a process that the command left behind. It is started when the lock is held, so that
//! a waiting client stays small. The command has the standard streams of this process.

mod command;
pub(super) mod on_file;
pub(super) mod on_service;
mod signal;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use self::command::{CommandSettings, Stopped, say};
use self::signal::SignalName;
use super::lock_failure::LockFailure;
use super::service::{ServiceArgs, on_service};
use super::{Error, Exit, Io};
use cronkeeper_cluster::recipes::lock::Recipe;
use cronkeeper_core::duration;
use cronkeeper_core::environment_file::LONGEST_STRING;
use cronkeeper_core::lock::{LockKey, LockKind, LockPath, MOST};
use cronkeeper_core::term::FencingToken;

/// The keys of the locks that the command holds; see [`LockKey`].
pub(super) const KEYS: &str = "CRONKEEPER_LOCK_KEYS";
/// The paths of the locks, a line each.
pub(super) const PATH: &str = "CRONKEEPER_LOCK_PATH";
/// The fencing tokens of the locks, a line each.
const TOKEN: &str = "CRONKEEPER_FENCING_TOKEN";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The lock's path in the service, such as /locks/orders. Of several paths, the command holds all or none
    #[arg(value_name = "PATH", value_parser = path, required_unless_present = "file")]
    paths: Vec<LockPath>,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "revoke")]
    command: Vec<OsString>,
    /// Hold a read-write lock together with other readers
    #[arg(long, conflicts_with_all = ["exclusive", "permits"])]
    shared: bool,
    /// Hold a read-write lock alone
    #[arg(long, conflicts_with = "permits")]
    exclusive: bool,
    /// Hold permits of a semaphore that has this many. All its users must name the same number
    #[arg(long, value_name = "N", value_parser = number)]
    permits: Option<u32>,
    /// Permits to hold
    #[arg(long, value_name = "K", requires = "permits", default_value_t = 1, value_parser = number)]
    count: u32,
    /// Give up after waiting this long, with exit code 75. 0s: do not wait [default: wait forever]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Release the lock after this long at the latest: the command is stopped before that, with exit code 124
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    hold: Option<Duration>,
    /// Time between SIGTERM and SIGKILL when the command is stopped. Part of --hold
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    kill_grace: Duration,
    /// Signal for the command when somebody asks to release the lock, such as TERM. Without it, the request is only shown
    #[arg(long, value_name = "SIGNAL", value_parser = SignalName::parse)]
    on_revoke: Option<SignalName>,
    /// What happens to the command when the lock is about to be lost
    #[arg(long, value_name = "ACTION", value_enum, default_value_t)]
    on_lease_end: OnLeaseEnd,
    /// Names and layout of the znodes: those of the clients to share the lock with
    #[arg(long, value_name = "RECIPE", value_enum, default_value_t)]
    recipe: RecipeName,
    /// Ask the holders to release the lock instead of running a command
    #[arg(long, conflicts_with_all = ["command", "file", "timeout", "hold"])]
    revoke: bool,
    /// Lock this file on this host, as flock(1) does, instead of a path in the service. FILE.cronkeeper records the
    /// holders
    #[arg(long, value_name = "FILE", conflicts_with = "paths")]
    file: Vec<PathBuf>,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Takes a path. A command without `--` may come before it.
fn path(text: &str) -> Result<LockPath, String> {
    let hint = if text.starts_with('/') { "" } else { "; put `--` before the command" };
    LockPath::parse(text).map_err(|why| format!("{why}{hint}"))
}

/// Takes the numbers of permits, counts and parties.
pub(super) fn number(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if (1..=MOST).contains(&number) => Ok(number),
        _ => Err(format!("expected a number from 1 to {MOST}")),
    }
}

/// What happens to the command when its lease ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnLeaseEnd {
    /// It is killed with all its processes, before another client can hold the lock
    #[default]
    Kill,
    /// It gets SIGTERM, and may run at the same time as the next holder
    Warn,
}

/// Whose names and layout of znodes the lock uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RecipeName {
    /// Apache Curator's, for Java
    #[default]
    Curator,
    /// kazoo's, for Python
    Kazoo,
}

impl From<RecipeName> for Recipe {
    fn from(name: RecipeName) -> Self {
        match name {
            RecipeName::Curator => Self::Curator,
            RecipeName::Kazoo => Self::Kazoo,
        }
    }
}

/// A lock that was taken: what the command learns about it.
struct Taken {
    paths: Vec<String>,
    tokens: Vec<FencingToken>,
    key: LockKey,
}

impl Args {
    /// Runs the command, or asks the holders to release.
    ///
    /// # Errors
    /// When the lock cannot be had, or the command cannot be started.
    pub fn run(mut self, io: &mut Io<'_>) -> Result<Exit, Error> {
        let mut seen = BTreeSet::new();
        self.paths.retain(|path| seen.insert(path.clone()));
        if let LockKind::Permits { of, count } = self.kind() {
            if self.paths.len() + self.file.len() > 1 {
                return Err(LockFailure::Usage("a semaphore has one path").into());
            }
            if count > of {
                return Err(LockFailure::Usage("--count is larger than --permits").into());
            }
        }
        if self.revoke {
            return on_service::revoke(&self, io);
        }
        let settings = self.settings()?;
        if !self.file.is_empty() {
            let names: Vec<String> = self.file.iter().map(|file| file.display().to_string()).collect();
            check_length(&names)?;
            return on_file::run(&self, &settings, self.file.clone(), names, io);
        }
        check_length(&self.paths)?;
        match self.service.service()? {
            Some(service) => on_service!(&service, service => on_service::run(&self, settings, service, io)),
            None => {
                say("no coordination service is configured: the lock holds on this host only");
                let files = self.paths.iter().map(on_file::file_of).collect::<Result<_, _>>()?;
                let names = self.paths.iter().map(ToString::to_string).collect();
                on_file::run(&self, &settings, files, names, io)
            }
        }
    }

    fn kind(&self) -> LockKind {
        match (self.permits, self.shared, self.exclusive) {
            (Some(of), ..) => LockKind::Permits { of, count: self.count },
            (None, true, _) => LockKind::Shared,
            (None, false, true) => LockKind::Exclusive,
            (None, false, false) => LockKind::Mutex,
        }
    }

    fn settings(&self) -> Result<CommandSettings, Error> {
        let text =
            |word: &OsString| word.to_str().map(str::to_owned).ok_or(LockFailure::Usage("the command is not UTF-8"));
        Ok(CommandSettings {
            argv: self.command.iter().map(text).collect::<Result<_, _>>()?,
            hold: self.hold,
            kill_grace: self.kill_grace,
            on_revoke: self.on_revoke,
            on_lease_end: self.on_lease_end,
        })
    }
}

/// Refuses names that together are longer than one variable may be, before anything is locked.
fn check_length(names: &[impl ToString]) -> Result<(), LockFailure> {
    // Each has a line break behind it, or the zero that ends the variable.
    let bytes = PATH.len() + 1 + names.iter().map(|name| name.to_string().len() + 1).sum::<usize>();
    match bytes > LONGEST_STRING {
        true => Err(LockFailure::TooLong { names: names.len(), bytes }),
        false => Ok(()),
    }
}

/// The keys of the locks around this process.
fn outer_keys() -> Vec<LockKey> {
    std::env::var(KEYS).map(|text| LockKey::in_text(&text)).unwrap_or_default()
}

/// The environment of the command: that of this process, and what it must know about the lock.
///
/// Variables that are not UTF-8 are left out, with a message.
fn command_environment(taken: &Taken, outer: &[LockKey]) -> Vec<(String, String)> {
    let lines = |lines: Vec<String>| lines.join("\n");
    let own = [
        (PATH, taken.paths.join("\n")),
        (TOKEN, lines(taken.tokens.iter().map(ToString::to_string).collect())),
        (KEYS, taken.key.with(outer)),
    ];
    let mut all = Vec::new();
    for (name, value) in std::env::vars_os() {
        match (name.to_str(), value.to_str()) {
            (Some(name), _) if own.iter().any(|(own, _)| *own == name) => {}
            (Some(name), Some(value)) => all.push((name.to_owned(), value.to_owned())),
            _ => say(&format!("the variable `{}` is not UTF-8; the command does not get it", name.to_string_lossy())),
        }
    }
    all.extend(own.map(|(name, value)| (name.to_owned(), value)));
    all
}

/// The exit code of an ended command, with a message about what the code does not show.
fn conclude(
    stopped: Option<Stopped>,
    ending: &cronkeeper_core::process::Ending,
    settings: &CommandSettings,
    io: &mut Io<'_>,
) -> io::Result<Exit> {
    if ending.leftovers > 0 {
        let count = ending.leftovers;
        writeln!(io.err, "cronkeeper: {count} of its processes outlived the command and were killed")?;
    }
    match stopped {
        Some(Stopped::Hold) => {
            let hold = duration::format(settings.hold.unwrap_or_default());
            writeln!(io.err, "cronkeeper: the command was stopped, because its `--hold` of {hold} is over")?;
            return Ok(Exit::Command(super::exec::TIMED_OUT));
        }
        Some(Stopped::LockLost) => writeln!(io.err, "cronkeeper: the lock is lost, so the command was killed")?,
        Some(Stopped::Signal) | None => {}
    }
    let code = match ending.exit {
        cronkeeper_core::process::Exit::Code(code) => code,
        cronkeeper_core::process::Exit::Signal { signal, .. } => 128 + signal,
    };
    Ok(Exit::Command(u8::try_from(code).unwrap_or(u8::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_be_as_long_as_one_variable() {
        let longest = LONGEST_STRING - PATH.len() - 2;
        assert!(check_length(&["x".repeat(longest)]).is_ok());
        assert!(check_length(&["x".repeat(longest + 1)]).is_err());
        assert!(check_length(&["x".repeat(longest - 2), "y".to_owned()]).is_ok());
        assert!(check_length(&["x".repeat(longest - 1), "y".to_owned()]).is_err());
        // The kernel has the same limit.
        let start = |value: String| std::process::Command::new("true").env(PATH, value).status();
        assert!(start("x".repeat(longest)).is_ok());
        assert_eq!(start("x".repeat(longest + 1)).unwrap_err().raw_os_error(), Some(nix::errno::Errno::E2BIG as i32));
    }
}
