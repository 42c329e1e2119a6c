//! Notifications to systemd: ready, reloading, stopping, status, watchdog.
//!
//! Without NOTIFY_SOCKET, every call does nothing. The socket is our own and non-blocking: that of `sd-notify` blocks
//! when systemd does not read, and so would block the loop that renews the lease. The messages are those of the crate.
//! A message that systemd does not accept at once is kept and sent with the next one: the watchdog guarantees that
//! there is a next one.
//!
//! The unit must have `NotifyAccess=main`, so that systemd ignores messages from jobs. The environment must not be
//! changed once threads run; instead, processes are started without [`VARIABLES`].

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

/// Variables that the daemon must remove from the environment of processes it starts.
pub const VARIABLES: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// The connection to systemd; without a socket if there is none.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    waiting: VecDeque<String>,
    status: String,
}

impl Notifier {
    /// Connects to the socket in NOTIFY_SOCKET.
    ///
    /// # Errors
    /// If the variable is set but the socket cannot be used: systemd would wait for a message in vain.
    pub fn from_environment() -> io::Result<Self> {
        match env::var_os("NOTIFY_SOCKET") {
            Some(name) => Self::to(&name),
            None => Ok(Self::default()),
        }
    }

    fn to(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            // An abstract socket name, as used in containers.
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Some(socket), ..Self::default() })
    }

    /// Reports that the jobs are loaded and the loop is running. Also ends a reload, whether successful or not.
    pub fn ready(&mut self) {
        self.send(&[NotifyState::Ready]);
    }

    /// Reports that a reload begins; [`Notifier::ready`] ends it.
    pub fn reloading(&mut self) {
        // systemd 253 and later measure the reload from this time.
        let since = NotifyState::monotonic_usec_now().unwrap_or(NotifyState::MonotonicUsec(0));
        self.send(&[NotifyState::Reloading, since]);
    }

    /// Reports that the daemon is stopping.
    pub fn stopping(&mut self) {
        self.send(&[NotifyState::Stopping]);
    }

    /// Extends the time that stopping may take, from now. Call it again before that is over, if necessary.
    pub fn extend_timeout(&mut self, by: Duration) {
        // `sd-notify` has a u32 for it, which ends at 71 minutes; a drain timeout may be longer.
        self.send(&[NotifyState::Custom(&format!("EXTEND_TIMEOUT_USEC={}", by.as_micros()))]);
    }

    /// Sets the text in `systemctl status`: the role and the leader. Sends it only if it has changed.
    pub fn status(&mut self, text: &str) {
        let text = cronkeeper_core::escape::plain(text);
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
        // Only the current state matters: keep the newest message of each kind, so that many of one kind do not
        // displace another.
        self.waiting.retain(|older| message_kind(older) != message_kind(&message));
        self.waiting.push_back(message);
        self.flush();
    }

    fn flush(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Some(message) = self.waiting.front() {
            match socket.send(message.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // systemd is restarting or gone. The next message will reach it; nothing depends on this one.
                Ok(_) | Err(_) => drop(self.waiting.pop_front()),
            }
        }
    }
}

fn message_kind(message: &str) -> Option<&str> {
    message.split('=').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A notifier, and the socket that receives its messages.
    pub(super) fn pair() -> (Notifier, UnixDatagram, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        (Notifier::to(path.as_os_str()).unwrap(), systemd, directory)
    }

    pub(super) fn receive(systemd: &UnixDatagram) -> String {
        let mut text = [0; 4096];
        let n = systemd.recv(&mut text).unwrap();
        String::from_utf8(text[..n].to_vec()).unwrap()
    }

    #[test]
    fn all_states_are_sent_in_the_format_of_systemd() {
        let (mut notifier, systemd, _directory) = pair();
        notifier.ready();
        notifier.status("leading,\ntoken 42");
        notifier.status("leading,\ntoken 42");
        notifier.reloading();
        notifier.stopping();
        notifier.extend_timeout(Duration::from_secs(2 * 3_600));
        assert_eq!(receive(&systemd), "READY=1\n");
        assert_eq!(receive(&systemd), "STATUS=leading,\\ntoken 42\n");
        let reloading = receive(&systemd);
        let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(since.trim_end().parse::<u64>().unwrap() > 0);
        assert_eq!(receive(&systemd), "STOPPING=1\n");
        assert_eq!(receive(&systemd), "EXTEND_TIMEOUT_USEC=7200000000\n");
    }

    #[test]
    fn a_systemd_that_does_not_read_blocks_nothing_and_receives_the_newest() {
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
    fn without_systemd_or_with_a_dead_one_nothing_fails() {
        let mut unconnected = Notifier::default();
        unconnected.ready();
        assert!(unconnected.waiting.is_empty());
        let (mut notifier, systemd, _directory) = pair();
        drop(systemd);
        notifier.ready();
        assert!(notifier.waiting.is_empty());
    }

    #[test]
    fn an_abstract_socket_name_works() {
        let name = format!("cronkeeper-test-{}", uuid::Uuid::new_v4());
        let systemd = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Notifier::to(OsStr::new(&format!("@{name}"))).unwrap().ready();
        assert_eq!(receive(&systemd), "READY=1\n");
    }
}
