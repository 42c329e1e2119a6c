//! What the daemon tells systemd: ready, reloading, stopping, status in words, and that its loop turns.
//!
//! Without NOTIFY_SOCKET every call does nothing. The socket is ours and non-blocking (that of `sd-notify` waits when
//! systemd does not read, and would hold the loop that renews the lease); the words are the crate's. What systemd does
//! not take at once is kept, and goes with the next message: there is always a next one, the watchdog's.
//!
//! Relies on `NotifyAccess=main`, so nothing that a job sends counts. The environment cannot be changed once threads
//! run; processes are started with [`VARIABLES`] left out instead.

mod watchdog;

use std::collections::VecDeque;
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

pub use watchdog::Watchdog;

/// What no process that the daemon starts should find in its environment.
pub const VARIABLES: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// The way to systemd, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    waiting: VecDeque<String>,
    status: String,
}

impl Notifier {
    /// The way that NOTIFY_SOCKET names.
    ///
    /// # Errors
    /// Where there is such a name but no way: then systemd would wait for a word in vain.
    pub fn from_environment() -> io::Result<Self> {
        match env::var_os("NOTIFY_SOCKET") {
            Some(name) => Self::to(&name),
            None => Ok(Self::default()),
        }
    }

    fn to(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            // Containers are given abstract names.
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Some(socket), ..Self::default() })
    }

    /// The jobs are loaded and the loop turns; also the end of a reload, good or bad.
    pub fn ready(&mut self) {
        self.send(&[NotifyState::Ready]);
    }

    /// A reload begins; [`Notifier::ready`] ends it.
    pub fn reloading(&mut self) {
        // systemd 253 and later count the reload from here.
        let since = NotifyState::monotonic_usec_now().unwrap_or(NotifyState::MonotonicUsec(0));
        self.send(&[NotifyState::Reloading, since]);
    }

    /// The end begins.
    pub fn stopping(&mut self) {
        self.send(&[NotifyState::Stopping]);
    }

    /// Stopping may take so much longer, from now. To be said again before it is over, if that is not enough.
    pub fn extend_timeout(&mut self, by: Duration) {
        // The crate's number ends at 71 minutes; drain timeouts need not.
        self.send(&[NotifyState::Custom(&format!("EXTEND_TIMEOUT_USEC={}", by.as_micros()))]);
    }

    /// What `systemctl status` shows: the role, and who leads. Said only when it changed.
    pub fn status(&mut self, text: &str) {
        let text = crate::telemetry::escape::plain(text);
        if self.status != text {
            self.send(&[NotifyState::Status(&text)]);
            self.status = text.into_owned();
        }
    }

    fn send(&mut self, states: &[NotifyState<'_>]) {
        if self.socket.is_none() {
            return;
        }
        let message: String = states.iter().map(|state| format!("{state}\n")).collect();
        // What counts is how things stand: of each kind the newest, so that no flood of one drives out another.
        self.waiting.retain(|older| kind(older) != kind(&message));
        self.waiting.push_back(message);
        self.flush();
    }

    fn flush(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Some(message) = self.waiting.front() {
            match socket.send(message.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // systemd restarted itself, or is gone: the next message tells. Nothing rests on it.
                Ok(_) | Err(_) => drop(self.waiting.pop_front()),
            }
        }
    }
}

fn kind(message: &str) -> Option<&str> {
    message.split('=').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A notifier, and the systemd that hears it.
    pub(super) fn pair() -> (Notifier, UnixDatagram, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        (Notifier::to(path.as_os_str()).unwrap(), systemd, directory)
    }

    pub(super) fn heard(systemd: &UnixDatagram) -> String {
        let mut text = [0; 4096];
        let n = systemd.recv(&mut text).unwrap();
        String::from_utf8(text[..n].to_vec()).unwrap()
    }

    #[test]
    fn a_life_is_told_in_systemds_words() {
        let (mut notifier, systemd, _directory) = pair();
        notifier.ready();
        notifier.status("leading,\ntoken 42");
        notifier.status("leading,\ntoken 42");
        notifier.reloading();
        notifier.stopping();
        notifier.extend_timeout(Duration::from_secs(2 * 3_600));
        assert_eq!(heard(&systemd), "READY=1\n");
        assert_eq!(heard(&systemd), "STATUS=leading,\\ntoken 42\n");
        let reloading = heard(&systemd);
        let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(since.trim_end().parse::<u64>().unwrap() > 0);
        assert_eq!(heard(&systemd), "STOPPING=1\n");
        assert_eq!(heard(&systemd), "EXTEND_TIMEOUT_USEC=7200000000\n");
    }

    #[test]
    fn a_systemd_that_does_not_read_holds_nobody_and_hears_the_newest() {
        let (mut notifier, systemd, _directory) = pair();
        for turn in 0..1_000 {
            notifier.status(&format!("turn {turn}"));
        }
        notifier.stopping();
        assert_eq!(notifier.waiting.len(), 2);
        systemd.set_nonblocking(true).unwrap();
        let mut all = String::new();
        let mut text = [0; 4096];
        while !notifier.waiting.is_empty() {
            while let Ok(n) = systemd.recv(&mut text) {
                all.push_str(std::str::from_utf8(&text[..n]).unwrap());
            }
            notifier.flush();
        }
        while let Ok(n) = systemd.recv(&mut text) {
            all.push_str(std::str::from_utf8(&text[..n]).unwrap());
        }
        assert!(all.ends_with("STATUS=turn 999\nSTOPPING=1\n"), "{all}");
    }

    #[test]
    fn without_systemd_nothing_is_done_and_without_its_ear_nothing_breaks() {
        let mut nobody = Notifier::default();
        nobody.ready();
        assert!(nobody.waiting.is_empty());
        let (mut notifier, systemd, _directory) = pair();
        drop(systemd);
        notifier.ready();
        assert!(notifier.waiting.is_empty());
    }

    #[test]
    fn an_abstract_name_is_understood() {
        let name = format!("cronkeeper-test-{}", uuid::Uuid::new_v4());
        let systemd = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Notifier::to(OsStr::new(&format!("@{name}"))).unwrap().ready();
        assert_eq!(heard(&systemd), "READY=1\n");
    }
}
