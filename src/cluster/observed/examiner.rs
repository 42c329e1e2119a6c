//! Finds out again and again what the store's commits are worth.
//!
//! That changes while a session lasts: another server takes over, a standby connects or goes away, somebody changes a
//! setting. It has its own task, apart from the driver's, so that no commit and no read waits for it.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::driver::Contact;
use crate::store::Store;
use crate::tree::State;
use cronkeeper_core::clock::{Clock, Wake};
use cronkeeper_core::election::Worth;
use cronkeeper_core::log;

/// Between two examinations.
pub const EVERY: Duration = Duration::from_secs(60);
/// After a reconnect. By then a new server may have its standbys, and what comes and goes is not examined each time.
pub const AFTER_RECONNECT: Duration = Duration::from_secs(1);
/// So many failures in a row are reported: one may be due to a server that is restarted.
const MOST_FAILURES: u32 = 3;

/// Runs until the session is over.
pub async fn keep<S: Store, K: Clock>(
    store: S,
    clock: K,
    mut contact: watch::Receiver<Contact>,
    worth: watch::Sender<Option<Worth>>,
) {
    let (mut next, mut failures) = (clock.now().up + EVERY, 0);
    let mut reconnected: BoxFuture<'static, ()> = Box::pin(store.reconnected());
    loop {
        let wake = Wake { wall: None, up: Some(next) };
        // Cancellation safe: the changes of the contact are coalesced, what the store says is kept, and the clock loses
        // nothing.
        tokio::select! {
            biased;
            changed = contact.changed() => {
                if changed.is_err() {
                    return;
                }
                if contact.borrow_and_update().state == State::Connected {
                    next = next.min(clock.now().up + AFTER_RECONNECT);
                }
            }
            () = &mut reconnected => {
                next = next.min(clock.now().up + AFTER_RECONNECT);
                reconnected = Box::pin(store.reconnected());
            }
            () = clock.sleep_until(wake) => {}
        }
        if clock.now().up < next {
            continue;
        }
        // While nobody answers, that is reported already.
        if contact.borrow().state == State::Connected {
            match store.worth().await {
                Ok(found) => {
                    failures = 0;
                    worth.send_if_modified(|known| {
                        let is_news = found.is_some() && *known != found;
                        if is_news {
                            *known = found;
                        }
                        is_news
                    });
                }
                Err(error) => {
                    failures += 1;
                    if failures == MOST_FAILURES {
                        log!(COORDINATION_UNEXAMINED, service = S::SERVICE, %error);
                    }
                }
            }
        }
        next = clock.now().up + EVERY;
    }
}
