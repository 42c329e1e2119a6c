//! `cronkeeper locks`: who holds which lock, and who waits.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use jiff::tz::TimeZone;

use super::lock::on_file;
use super::lock::on_service::runtime;
use super::lock_failure::LockFailure;
use super::service::{Connected, Reach, Service, ServiceArgs, on_service};
use super::table::Table;
use super::{Error, Io, host};
use cronkeeper_cluster::recipes::lock::listing::{Cut, EntryRole, ListedEntry, ListedLock, Listing, list};
use cronkeeper_cluster::recipes::lock::{LockClient, LockError};
use cronkeeper_cluster::solo::file_lock::{self, FileLockError, ListedHolder};
use cronkeeper_cluster::solo::lock_files::{self, LockFiles};
use cronkeeper_core::clock::Clock as _;
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::escape;
use cronkeeper_core::lock::{LockKind, LockPath};
use cronkeeper_core::suggest::counted;

/// Most characters of a foreign entry's name or data in the table.
const MOST_SHOWN: usize = 60;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only the lock at this path, and those below it
    #[arg(value_name = "PATH", value_parser = LockPath::parse)]
    path: Option<LockPath>,
    /// Print JSON, a lock per line
    #[arg(long)]
    json: bool,
    /// Only the lock of this file on this host
    #[arg(long, value_name = "FILE", conflicts_with = "path")]
    file: Option<PathBuf>,
    /// Without a service: the state directory whose locks to list, if it is not the default one
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    service: ServiceArgs,
}

impl Args {
    /// Lists the locks: those of the service, or of this host without one.
    ///
    /// # Errors
    /// When the servers cannot be reached, or `out` cannot be written.
    pub fn run(self, io: &mut Io<'_>) -> Result<(), Error> {
        let listing = match (&self.file, self.service.service()?) {
            (Some(file), _) => of_files(&[(file.display().to_string(), file.clone())])?,
            (None, Some(service)) => on_service!(&service, service => self.of_service(service)?),
            (None, None) => of_files(&self.files()?)?,
        };
        if let Some(Cut { left, first }) = &listing.cut {
            let remedy = match &self.path {
                None => "name the path of a lock, as in `cronkeeper locks /locks/orders`",
                Some(_) => "delete what does not belong to a lock, or name a path further down",
            };
            let left = counted(*left, "znode");
            writeln!(
                io.err,
                "cronkeeper: too many paths to search: {left} not looked at, the first is `{first}`; {remedy}"
            )?;
        }
        if self.json {
            json(&listing, io.out)?
        } else {
            table(&listing, io.out)?
        }
        Ok(())
    }

    fn of_service<C: Reach>(&self, service: &Service<C>) -> Result<Listing, Error> {
        runtime()?.block_on(async {
            let clock = SystemClock::default();
            let Connected { session, .. } = service.enter(&clock, clock.now().up + service.session_timeout).await?;
            let listing =
                list(&session, self.path.as_ref()).await.map_err(|error| service.failed(LockError::from(error)));
            service.close(session).await;
            listing
        })
    }

    /// The files of the locks on a host without a service, with the paths that name them.
    fn files(&self) -> Result<Vec<(String, PathBuf)>, Error> {
        let files = self.state_dir.as_deref().map_or_else(on_file::files, LockFiles::of);
        let directory = files.directory().to_owned();
        let files = match std::fs::read_dir(&directory) {
            Ok(files) => files,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(LockFailure::Directory { path: directory, source }.into()),
        };
        let files = files.flatten().map(|file| file.path());
        let mut named: Vec<_> = files.filter_map(|file| Some((lock_files::path_of(&file)?, file))).collect();
        named.retain(|(path, _)| self.path.as_ref().is_none_or(|wanted| wanted.as_str() == path));
        named.sort();
        Ok(named)
    }
}

/// The holders of files, as locks at these paths.
fn of_files(files: &[(String, PathBuf)]) -> Result<Listing, Error> {
    let mut listing = Listing::default();
    for (path, file) in files {
        let holders = file_lock::holders(file).map_err(|source| {
            LockFailure::File(FileLockError::Io { file: file.clone(), what: "read the holders of", source })
        })?;
        let entries: Vec<ListedEntry> = holders.into_iter().map(entry_of).collect();
        if !entries.is_empty() {
            listing.locks.push(ListedLock { path: path.clone(), entries, more: 0 });
        }
    }
    Ok(listing)
}

fn entry_of(holder: ListedHolder) -> ListedEntry {
    let ListedHolder { token, kind, pid, user, program, since, .. } = holder;
    let role = match kind {
        LockKind::Mutex | LockKind::Exclusive => EntryRole::Holds,
        LockKind::Shared => EntryRole::Reads,
        LockKind::Permits { .. } => EntryRole::HasPermit,
    };
    let client = Some(LockClient { host: host::name(), pid, user, program, revoked_at_ms: None });
    ListedEntry {
        name: token.to_string(),
        path: String::new(),
        is_persistent: false,
        role,
        since,
        client,
        data: String::new(),
        is_revoked: false,
    }
}

fn json(listing: &Listing, out: &mut dyn Write) -> io::Result<()> {
    for lock in &listing.locks {
        super::json::line(lock, out)?;
    }
    Ok(())
}

fn table(listing: &Listing, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&["LOCK", "", "SINCE", "HOST", "USER", "PID", "PROGRAM"]);
    for lock in &listing.locks {
        for entry in &lock.entries {
            table.row(row(&lock.path, entry));
        }
        if lock.more > 0 {
            table.row([lock.path.clone(), format!("and {}", counted(lock.more, "entry"))]);
        }
    }
    if !table.is_empty() {
        return table.write(out);
    }
    // An incomplete search does not know that there are none.
    let text = if listing.cut.is_some() { "nothing found in the part that was searched" } else { "no locks" };
    writeln!(out, "{text}")
}

fn row(path: &str, entry: &ListedEntry) -> [String; 7] {
    let role = match entry.role {
        EntryRole::Holds => "holds",
        EntryRole::Reads => "reads",
        EntryRole::HasPermit => "has a permit",
        EntryRole::Waits => "waits",
    };
    let role = if entry.is_revoked { format!("{role}, asked to release") } else { role.to_owned() };
    let since = entry.since.to_zoned(TimeZone::system()).strftime("%F %T").to_string();
    let (host, user, pid, program) = match &entry.client {
        Some(client) => (client.host.clone(), client.user.clone(), client.pid.to_string(), client.program.clone()),
        // Whoever made it, its name is what an operator needs to look at it or to delete it.
        None => {
            let stays = if entry.is_persistent { ", ends with no session" } else { "" };
            let name = format!("entry `{}`{stays}", escape::short(&entry.name, MOST_SHOWN));
            (escape::short(&entry.data, MOST_SHOWN), String::new(), String::new(), name)
        }
    };
    [path.to_owned(), role, since, host, user, pid, program]
}
