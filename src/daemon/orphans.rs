//! As pid 1 of a container: whoever loses its parent there becomes a child of this process, which nobody else reaps.
//!
//! What jobs leave behind goes to the warden, and is reaped there. Nothing is waited for blindly: the warden, for which the
//! daemon waits itself, is passed over.

use std::io;

use futures_util::StreamExt as _;
use signal_hook::consts::SIGCHLD;
use signal_hook_tokio::Signals;

use crate::warden::reap_children_but;

/// Reaps, for as long as it is polled, all children that end, but for `spared`. Cancel safe.
///
/// # Errors
/// When the kernel lets no signal be caught.
pub async fn reap(spared: u32) -> io::Result<()> {
    let mut ends = Signals::new([SIGCHLD])?;
    // Some may have come before the signal was caught.
    reap_children_but(spared);
    while ends.next().await.is_some() {
        reap_children_but(spared);
    }
    Ok(())
}
