//! Reaper of orphans for a daemon that runs as PID 1 of a container.
//!
//! There the kernel makes every orphan a child of this process, and nobody else reaps it. Orphans of jobs are not among
//! them: they become children of the warden, which reaps them. The warden's parent is spared, because the daemon waits
//! for it elsewhere.

use std::io;

use futures_util::StreamExt as _;
use signal_hook::consts::SIGCHLD;
use signal_hook_tokio::Signals;

use crate::warden::reap_children_but;

/// Reaps all children that end, except `spared`, for as long as it is polled. Cancel safe.
///
/// # Errors
/// When the kernel refuses to let SIGCHLD be caught.
pub async fn reap(spared: u32) -> io::Result<()> {
    let mut ends = Signals::new([SIGCHLD])?;
    // Some children may have ended before the signal was caught.
    reap_children_but(spared);
    while ends.next().await.is_some() {
        reap_children_but(spared);
    }
    Ok(())
}
