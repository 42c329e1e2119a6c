//! Signals of `run`, as what the operator wants: SIGTERM and SIGINT end (a second one at once), SIGHUP reloads, SIGUSR1
//! logs the state, SIGUSR2 hands leadership over.

use futures_util::StreamExt as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook_tokio::Signals;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::Control;
use super::reload::Trigger;

/// Catches the signals; from now on none of them ends the process by itself.
///
/// # Errors
/// When the kernel refuses.
pub fn catch() -> std::io::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2])
}

/// Hands on what signals ask for, until the daemon or the reloader is gone. `reloads` counts how often SIGHUP came.
pub async fn hand_on(
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
