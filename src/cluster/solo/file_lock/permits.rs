//! Permits: many holders at a time, as long as their permits are not more than there are.
//!
//! Only the first in line looks for free permits, so a request for many is not overtaken by those for few, and two
//! requests never wait for each other. The others wait in the kernel to become the first. The first has to wait for
//! *any* holder, which no lock can express. But a holder's end closes its descriptor of the sidecar, and inotify
//! reports that.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::{Errno, read};

use super::sidecar::{Sidecar, Turn};
use super::{FileLockError, FileLockRequest};
use cronkeeper_core::lock::LockKind;
use cronkeeper_core::term::FencingToken;

/// Pause before the second look after an event. The kernel reports that a file is closed just before it releases the
/// locks.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause between two looks, for what causes no event on this host.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The same if there are no events, because this user already watches too much, or /proc is not mounted.
const LONGEST_WITHOUT_EVENTS: Duration = Duration::from_millis(100);

/// Takes `count` of `of` permits; none if the sidecar was removed meanwhile.
pub(super) fn claim(
    sidecar: &Sidecar,
    request: &FileLockRequest,
    of: u32,
    count: u32,
) -> Result<Option<FencingToken>, FileLockError> {
    if count > of {
        let never = io::Error::new(io::ErrorKind::InvalidInput, format!("{count} permits of {of} are never free"));
        return Err(FileLockError::io(&sidecar.locked_file(), "lock", never));
    }
    let wanted = Wanted { sidecar, request, of, count };
    match wanted.try_claim()? {
        FirstLook::Gone => Ok(None),
        FirstLook::Claimed(token) => Ok(Some(token)),
        FirstLook::TooFew if request.waits => wanted.wait(),
        FirstLook::TooFew => Err(FileLockError::Busy { file: sidecar.locked_file() }),
    }
}

struct Wanted<'a> {
    sidecar: &'a Sidecar,
    request: &'a FileLockRequest,
    of: u32,
    count: u32,
}

enum FirstLook {
    /// The sidecar was removed.
    Gone,
    Claimed(FencingToken),
    /// Or somebody waits already.
    TooFew,
}

impl Wanted<'_> {
    /// Looks once. A request that waits keeps its place if it is the first.
    ///
    /// All is done in one turn, so of several requests that do not wait, one gets what is free.
    fn try_claim(&self) -> Result<FirstLook, FileLockError> {
        let Some(turn) = self.sidecar.turn()? else { return Ok(FirstLook::Gone) };
        let free = self.free(&turn)?;
        if !self.sidecar.try_lead_line()? {
            return Ok(FirstLook::TooFew);
        }
        if free < u64::from(self.count) {
            if !self.request.waits {
                self.sidecar.leave_line()?; // in this turn, so that nobody finds a line that has no meaning
            }
            return Ok(FirstLook::TooFew);
        }
        let token = turn.claim(self.request)?;
        self.sidecar.leave_line()?;
        Ok(FirstLook::Claimed(token))
    }

    fn wait(&self) -> Result<Option<FencingToken>, FileLockError> {
        self.sidecar.lead_line()?;
        let events = Events::of(self.sidecar.file());
        let mut pause = SHORTEST_PAUSE;
        loop {
            let Some(turn) = self.sidecar.turn()? else { return Ok(None) };
            if self.free(&turn)? >= u64::from(self.count) {
                let token = turn.claim(self.request)?;
                self.sidecar.leave_line()?;
                return Ok(Some(token));
            }
            drop(turn);
            let happened = events.wait(pause).map_err(|errno| self.sidecar.failed("watch", errno))?;
            pause = if happened { SHORTEST_PAUSE } else { (pause * 2).min(events.longest_pause()) };
        }
    }

    fn free(&self, turn: &Turn<'_>) -> Result<u64, FileLockError> {
        let mut taken = 0;
        for holder in turn.live()? {
            match holder.map(|holder| holder.kind) {
                None => return Err(self.sidecar.refused("has a holder that this version cannot read")),
                Some(LockKind::Permits { of, .. }) if of != self.of => {
                    let file = self.sidecar.locked_file();
                    return Err(FileLockError::OtherPermits { file, permits: of, wanted: self.of });
                }
                Some(LockKind::Permits { count, .. }) => taken += u64::from(count),
                Some(LockKind::Mutex | LockKind::Shared | LockKind::Exclusive) => {}
            }
        }
        Ok(u64::from(self.of).saturating_sub(taken))
    }
}

/// Reports when a descriptor of the sidecar is closed, or the sidecar is removed.
struct Events(Option<OwnedFd>);

impl Events {
    fn of(file: &File) -> Self {
        let watch = || {
            let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            // By its descriptor: the path may name another file by now.
            let file = format!("/proc/self/fd/{}", file.as_raw_fd());
            inotify::add_watch(&events, file, WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB | WatchFlags::MOVE_SELF)?;
            Ok::<_, Errno>(events)
        };
        Self(watch().ok())
    }

    fn longest_pause(&self) -> Duration {
        if self.0.is_some() { LONGEST_PAUSE } else { LONGEST_WITHOUT_EVENTS }
    }

    /// False if nothing happened in that time.
    fn wait(&self, at_most: Duration) -> Result<bool, Errno> {
        let timeout = Timespec { tv_sec: at_most.as_secs().cast_signed(), tv_nsec: at_most.subsec_nanos().into() };
        let mut polled: Vec<PollFd<'_>> = self.0.iter().map(|events| PollFd::new(events, PollFlags::IN)).collect();
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            other => drop(other?),
        }
        if let Some(events) = &self.0 {
            drain(events)?;
        }
        Ok(true)
    }
}

/// That something happened is enough.
fn drain(events: &OwnedFd) -> Result<(), Errno> {
    let mut bytes = [0; 4096];
    loop {
        match read(events, &mut bytes) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn the_end_of_a_holder_is_an_event() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sidecar");
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let (own, holder) = (open(), open());
        let events = Events::of(&own);
        assert_eq!(events.longest_pause(), LONGEST_PAUSE);
        assert!(!events.wait(SHORTEST_PAUSE).unwrap());
        drop(File::open(&path).unwrap());
        assert!(!events.wait(SHORTEST_PAUSE).unwrap(), "a listing changes nothing");
        drop(holder);
        assert!(events.wait(Duration::from_secs(60)).unwrap());
        assert!(!events.wait(SHORTEST_PAUSE).unwrap(), "events are read once");
        std::fs::remove_file(&path).unwrap();
        assert!(events.wait(Duration::from_secs(60)).unwrap());
    }
}
