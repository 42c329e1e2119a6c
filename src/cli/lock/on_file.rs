//! A lock on this host: a file that the kernel locks, as for flock(1).
//!
//! The thread that waits for the kernel cannot be interrupted. If waiting ends early, the process simply ends.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::thread;
use std::time::Duration;

use futures_util::StreamExt as _;
use nix::libc::{SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook_tokio::Signals;
use tokio::sync::oneshot;

use super::command::{CommandSettings, NoLease, not_started, run_command, say, signals};
use super::{Args, Taken, command_environment, conclude, outer_keys};
use crate::accounts::Account;
use crate::api::client::SocketSearch;
use crate::cli::lock_failure::LockFailure;
use crate::cli::progress::announced;
use crate::cli::wait;
use crate::cli::{Error, Exit, Io};
use crate::warden::handle::HeldDescriptors;
use cronkeeper_cluster::safe_path::Refusal;
use cronkeeper_cluster::solo::file_lock::{FileLockError, FileLockRequest, HeldFileLock, Holder, acquire, held_by_key};
use cronkeeper_cluster::solo::lock_files::LockFiles;
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::clock::{Clock as _, Uptime, Wake};
use cronkeeper_core::lock::{LockKey, LockPath};
use cronkeeper_core::term::FencingToken;

/// The file for the lock at `path` on a host without ZooKeeper.
pub(in crate::cli) fn file_of(path: &LockPath) -> Result<PathBuf, Error> {
    let files = files();
    files.file_of(path).map_err(|refusal| match refusal {
        Refusal::Unsafe(found) => Error::UnsafeFile(found),
        Refusal::Io(source) => LockFailure::Directory { path: files.directory().to_owned(), source }.into(),
    })
}

/// The files of such locks.
pub(in crate::cli) fn files() -> LockFiles {
    LockFiles::of(SocketSearch::new(None, None).state_dir())
}

/// Runs the command while it holds these files. `names`: what the command learns that it holds.
pub(super) fn run(
    args: &Args,
    settings: &CommandSettings,
    files: Vec<PathBuf>,
    names: Vec<String>,
    io: &mut Io<'_>,
) -> Result<Exit, Error> {
    super::on_service::runtime()?.block_on(async {
        let mut signals = signals()?;
        let (outer, key) = (outer_keys(), LockKey::draw());
        let mut tokens = held_outside(args, &files, &outer)?;
        let free = files.iter().zip(&tokens).filter(|(_, token)| token.is_none());
        let request = FileLockRequest {
            files: free.map(|(file, _)| file.clone()).collect(),
            kind: args.kind(),
            waits: args.timeout != Some(Duration::ZERO),
            holder: Holder {
                pid: std::process::id(),
                user: Account::own().name,
                program: settings.argv.first().cloned().unwrap_or_default(),
                key: key.clone(),
            },
        };
        let held = match wait(args, request, &mut signals).await? {
            Waited::Held(held) => held,
            Waited::Interrupted(signal) => return Ok(Exit::Command(u8::try_from(128 + signal).unwrap_or(u8::MAX))),
        };
        held.iter().for_each(tell_unrecorded);
        for (file, token) in files.iter().zip(&mut tokens) {
            // A file that another name has locked already was not locked twice.
            let own = held.iter().find(|held| held.file == *file).or(held.first());
            *token = token.or(own.map(|held| held.token));
        }
        let tokens: Vec<FencingToken> = tokens.into_iter().flatten().collect();
        let environment = command_environment(&Taken { paths: names, tokens, key }, &outer);
        let held_from = SystemClock::default().now().up;
        let descriptors = HeldDescriptors {
            by_warden: held.iter().flat_map(HeldFileLock::descriptors).collect(),
            by_trees: held.iter().filter_map(HeldFileLock::inheritable).collect(),
        };
        let ended =
            run_command(settings, &mut signals, NoLease, environment, held_from, Uptime::NEVER, &descriptors).await;
        drop(held);
        match ended? {
            Ok((stopped, ending)) => Ok(conclude(stopped, &ending, settings, io)?),
            Err(why) => Err(not_started(settings, why)),
        }
    })
}

/// Says what a holder without a record cannot rely on.
fn tell_unrecorded(held: &HeldFileLock) {
    let Some(why) = &held.unrecorded else { return };
    let cause = why.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    say(&format!(
        "{why}{cause}; `cronkeeper locks` does not show the lock, a lock of the same file inside the command waits for it, \
         and its token may be used again if this host's clock is set back"
    ));
}

/// The token of each file that a process around this one holds.
fn held_outside(args: &Args, files: &[PathBuf], outer: &[LockKey]) -> Result<Vec<Option<FencingToken>>, Error> {
    let of = |file: &PathBuf| match held_by_key(file, outer) {
        Ok(Some((kind, token))) if kind.covers(args.kind()) => Ok(Some(token)),
        Ok(Some((kind, _))) if !matches!(kind, cronkeeper_core::lock::LockKind::Permits { .. }) => {
            Err(LockFailure::Upgrade { path: file.display().to_string() }.into())
        }
        Ok(_) => Ok(None),
        Err(source) => {
            Err(LockFailure::File(FileLockError::Io { file: file.clone(), what: "read the holders of", source }).into())
        }
    };
    files.iter().map(of).collect()
}

/// How waiting for the files ended.
enum Waited {
    Held(Vec<HeldFileLock>),
    /// A signal asked this process to end.
    Interrupted(i32),
}

async fn wait(args: &Args, request: FileLockRequest, signals: &mut Signals) -> Result<Waited, Error> {
    let clock = SystemClock::default();
    let give_up_at = args.timeout.filter(|timeout| !timeout.is_zero()).map(|timeout| clock.now().up + timeout);
    let wake = Wake { wall: None, up: give_up_at };
    let waited = args.timeout.unwrap_or_default();
    let busy = |file: &Path| Error::from(LockFailure::Busy { path: file.display().to_string(), waited });
    let first = request.files.first().cloned().unwrap_or_default();
    let (sender, answer) = oneshot::channel();
    let named: Vec<_> = request.files.iter().map(|file| file.display()).collect();
    let awaited = format!("{}; `cronkeeper locks` shows who holds what", wait::listed(&named));
    // Ends with its answer or with the process.
    thread::spawn(move || sender.send(acquire(&request)));
    let mut answer = pin!(announced(&awaited, answer));
    loop {
        // Cancellation safe: signals not taken stay in the stream, the sleep is recreated, and the answer is kept.
        tokio::select! {
            biased;
            Some(signal) = signals.next() => if ![SIGUSR1, SIGUSR2, SIGTSTP].contains(&signal) {
                return Ok(Waited::Interrupted(signal));
            },
            answer = &mut answer => return match answer {
                Ok(Ok(held)) => Ok(Waited::Held(held)),
                Ok(Err(FileLockError::Busy { file })) => Err(busy(&file)),
                Ok(Err(error)) => Err(LockFailure::File(error).into()),
                Err(_) => Err(Error::Panicked),
            },
            () = clock.sleep_until(wake), if wake.up.is_some() => if wake.is_due(clock.now()) {
                return Err(busy(&first));
            },
        }
    }
}
