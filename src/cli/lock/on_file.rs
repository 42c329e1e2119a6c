//! A lock on this host: a file that the kernel locks, as for flock(1).
//!
//! The thread that waits for the kernel cannot be interrupted. If waiting ends early, the process simply ends.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use futures_util::StreamExt as _;
use nix::libc::{SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook_tokio::Signals;
use tokio::sync::oneshot;

use super::command::{CommandSettings, NoLease, not_started, run_command, signals};
use super::{Args, Taken, command_environment, conclude, outer_keys};
use crate::accounts::Account;
use crate::api::client::SocketSearch;
use crate::cli::lock_failure::LockFailure;
use crate::cli::{Error, Exit, Io};
use crate::clock::system::SystemClock;
use crate::clock::{Clock as _, Uptime, Wake};
use crate::lock::{LockKey, LockPath};
use crate::safe_path::{self, Refusal};
use crate::solo::file_lock::{FileLockError, FileLockRequest, HeldFileLock, Holder, acquire, held_by_key};
use crate::term::FencingToken;

/// Directory of the files of locks that are named by paths, below the state directory.
const DIRECTORY: &str = "locks";

/// The file for the lock at `path` on a host without ZooKeeper.
///
/// It is in the state directory, so processes of one user share it: others could not even open it.
pub(in crate::cli) fn file_of(path: &LockPath) -> Result<PathBuf, Error> {
    let directory = directory();
    safe_path::make_folder(&directory).map_err(|refusal| match refusal {
        Refusal::Unsafe(found) => Error::UnsafeFile(found),
        Refusal::Io(source) => LockFailure::Directory { path: directory.clone(), source }.into(),
    })?;
    Ok(directory.join(file_name(path)))
}

/// The directory of those files.
pub(in crate::cli) fn directory() -> PathBuf {
    SocketSearch::new(None, None).state_dir().join(DIRECTORY)
}

fn file_name(path: &LockPath) -> String {
    path.as_str().trim_start_matches('/').replace('%', "%25").replace('/', "%2F")
}

/// The path of the lock in the file with this name; `None` for other files.
pub(in crate::cli) fn path_of(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str().filter(|name| !name.ends_with(".cronkeeper"))?;
    Some(format!("/{}", name.replace("%2F", "/").replace("%25", "%")))
}

/// Runs the command while it holds these files. `names`: what the command is told that it holds.
pub(super) fn run(
    args: &Args,
    settings: &CommandSettings,
    files: Vec<PathBuf>,
    names: Vec<String>,
    io: &mut Io<'_>,
) -> Result<Exit, Error> {
    super::on_zookeeper::runtime()?.block_on(async {
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
                key: key.uuid(),
            },
        };
        let held = match wait(args, request, &mut signals).await? {
            Waited::Held(held) => held,
            Waited::Interrupted(signal) => return Ok(Exit::Command(u8::try_from(128 + signal).unwrap_or(u8::MAX))),
        };
        for (file, token) in files.iter().zip(&mut tokens) {
            // A file that another name has locked already was not locked twice.
            let own = held.iter().find(|held| held.file == *file).or(held.first());
            *token = token.or(own.map(|held| held.token));
        }
        let tokens: Vec<FencingToken> = tokens.into_iter().flatten().collect();
        let environment = command_environment(&Taken { paths: names, tokens, key }, &outer);
        let held_from = SystemClock::default().now().up;
        let descriptors: Vec<_> = held.iter().flat_map(HeldFileLock::descriptors).collect();
        let descriptors: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        let ended =
            run_command(settings, &mut signals, NoLease, environment, held_from, Uptime::NEVER, &descriptors).await;
        drop(held);
        match ended? {
            Ok((stopped, ending)) => Ok(conclude(stopped, &ending, settings, io)?),
            Err(why) => Err(not_started(settings, why)),
        }
    })
}

/// The token of each file that a process around this one holds.
fn held_outside(args: &Args, files: &[PathBuf], outer: &[LockKey]) -> Result<Vec<Option<FencingToken>>, Error> {
    let of = |file: &PathBuf| match held_by_key(file, outer) {
        Ok(Some((kind, token))) if kind.covers(args.kind()) => Ok(Some(token)),
        Ok(Some((kind, _))) if !matches!(kind, crate::lock::LockKind::Permits { .. }) => {
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
    let (sender, mut answer) = oneshot::channel();
    // Ends with its answer or with the process.
    thread::spawn(move || sender.send(acquire(&request)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_file_of_its_own() {
        for path in ["/locks/orders", "/a%2Fb", "/a/b", "/%", "/ä b"] {
            let path = LockPath::parse(path).unwrap();
            let name = file_name(&path);
            assert!(!name.contains('/'), "{name}");
            assert_eq!(path_of(Path::new(&name)).as_deref(), Some(path.as_str()));
        }
        assert_eq!(path_of(Path::new("locks%2Forders.cronkeeper")), None);
    }
}
