//! Signal handling of `cronkeeper run`.
//!
//! SIGTERM and SIGINT drain the node, and a second one stops it at once; SIGHUP reloads the jobs file; SIGUSR1 logs the
//! state; SIGUSR2 hands leadership over.

use futures_util::StreamExt as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook_tokio::Signals;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::Control;
use super::reload::Trigger;

/// Catches the signals. From now on none of them ends the process by default.
///
/// # Errors
/// When the kernel refuses to let a signal be caught.
pub fn catch() -> std::io::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2])
}

/// Passes the requests of signals to the daemon until it is gone. `reloads` counts the SIGHUPs.
pub async fn forward(
    mut signals: Signals,
    controls: UnboundedSender<Control>,
    reload: Trigger,
    reloads: watch::Sender<u64>,
) {
    let mut is_ending = false;
    while let Some(signal) = signals.next().await {
        let control = match signal {
            SIGTERM | SIGINT if is_ending => Control::Stop,
            SIGTERM | SIGINT => {
                is_ending = true;
                Control::Drain
            }
            SIGHUP => {
                reload.now();
                reloads.send_modify(|count| *count += 1);
                continue;
            }
            SIGUSR1 => Control::LogState,
            SIGUSR2 => Control::HandOver { to: None, answer: None },
            _ => continue,
        };
        if controls.send(control).is_err() {
            return;
        }
    }
}
