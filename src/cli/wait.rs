//! Waiting for an effect, with a line on stderr whenever what it waits for has changed.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use super::ask::AskFailure;
use crate::api::client::{AskError, Client};
use crate::status::{Status, shown};
use cronkeeper_core::escape;

/// Interval at which the status is read. There is no event that says only what is awaited.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest absence of the daemon while waiting; longer than a failover.
const ABSENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay between two attempts. Nothing notifies this command when the daemon is back.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Most names in a line.
const NAMED: usize = 10;

/// Reads the status until `awaited` returns nothing; it names what is awaited. Survives restarts of the daemon.
///
/// # Errors
/// When the daemon stays away, or refuses.
pub(super) fn until(
    client: &Client,
    err: &mut dyn Write,
    awaited: impl Fn(&Status) -> Option<String>,
) -> Result<Status, AskFailure> {
    until_done(client, err, |status| Ok(unread(status).or_else(|| awaited(status))))
}

/// Like [`until`], where waiting may turn out to be in vain. `awaited` must not rely on what is [`unread`].
///
/// # Errors
/// As [`until`], and what `awaited` returns.
pub(super) fn until_done(
    client: &Client,
    err: &mut dyn Write,
    mut awaited: impl FnMut(&Status) -> Result<Option<String>, AskFailure>,
) -> Result<Status, AskFailure> {
    let mut said = None;
    loop {
        let status: Status = steadily(|| client.get("/v1/status"))?;
        let Some(text) = awaited(&status)? else { return Ok(status) };
        if said.as_ref() != Some(&text) {
            writeln!(err, "cronkeeper: waiting for {}", escape::plain(&text))?;
            said = Some(text);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// What has to be done first if the status does not show how things are now: old or empty lists would say that nothing
/// is awaited any more.
pub(super) fn unread(status: &Status) -> Option<String> {
    let why = status.unread.as_deref()?;
    let why = shown(why).map(|why| format!(": {why}")).unwrap_or_default();
    Some(format!("{} to read the ledger again{why}", status.node))
}

fn is_away(error: &AskError) -> bool {
    error.is_unreachable() || is_transient(error)
}

/// Sends a GET request that may wait, again and again while the daemon is away.
pub(super) fn steadily<T>(send: impl Fn() -> Result<T, AskError>) -> Result<T, AskError> {
    retried(ABSENCE_TIMEOUT, is_away, |_| (), send)
}

/// True if the daemon exists and may answer the next time. If there is no daemon at all, the command fails at once.
pub(super) fn is_transient(error: &AskError) -> bool {
    matches!(error, AskError::Silent(_) | AskError::Away(_) | AskError::Garbled(_))
}

/// Repeats a request while its failure is transient, for this long. Tells the first such failure.
pub(super) fn retried<T>(
    timeout: Duration,
    is_transient: impl Fn(&AskError) -> bool,
    tell: impl FnOnce(&AskError),
    send: impl Fn() -> Result<T, AskError>,
) -> Result<T, AskError> {
    let until = Instant::now() + timeout;
    let mut tell = Some(tell);
    loop {
        match send() {
            Err(error) if is_transient(&error) && Instant::now() < until => {
                if let Some(tell) = tell.take() {
                    tell(&error);
                }
                thread::sleep(RETRY_DELAY);
            }
            answer => return answer,
        }
    }
}

/// The first few of some names, and how many more there are.
pub(super) fn listed<T: ToString>(names: &[T]) -> String {
    let mut text = names.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        text.push_str(&format!(" and {} more", names.len() - NAMED));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::api::client::Said;
    use crate::status::sample;

    #[test]
    fn nothing_is_done_as_long_as_it_cannot_be_read() {
        assert_eq!(unread(&sample::leader()), None);
        let expected = "host-a to read the ledger again: no answer within 3 s";
        assert_eq!(unread(&sample::cut_off()).as_deref(), Some(expected));
        assert_eq!(unread(&sample::cut_off().outlined()).as_deref(), Some("host-a to read the ledger again"));
    }

    #[test]
    fn a_request_that_is_repeated_tells_why_once() {
        let (sent, said) = (Cell::new(0), RefCell::new(Vec::new()));
        let send = || {
            sent.set(sent.get() + 1);
            if sent.get() < 3 {
                Err(AskError::Away(Said::of(format_args!("failure {}", sent.get()))))
            } else {
                Ok(sent.get())
            }
        };
        let tell = |error: &AskError| said.borrow_mut().push(error.to_string());
        assert_eq!(retried(ABSENCE_TIMEOUT, is_transient, tell, send).unwrap(), 3);
        assert_eq!(*said.borrow(), ["failure 1"]);
        let refused = || Err::<(), _>(AskError::Refused(Said::of("no")));
        let tell = |_: &AskError| panic!("it is not repeated");
        assert!(retried(ABSENCE_TIMEOUT, is_transient, tell, refused).is_err());
        let failing = || Err::<(), _>(AskError::Away(Said::of("away")));
        assert!(retried(Duration::ZERO, is_transient, tell, failing).is_err());
    }
}
