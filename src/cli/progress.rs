//! A line for the person at the terminal when a command waits for long.
//!
//! Scripts get none: cron would mail it each time.

use std::io::{self, IsTerminal as _, Write as _};
use std::pin::pin;
use std::time::Duration;

/// A wait for longer than this is announced.
const LONG: Duration = Duration::from_secs(2);

/// Awaits a future. If that takes long, a line on stderr says what it waits for.
pub(super) async fn announced<F: Future>(what: &str, future: F) -> F::Output {
    let announce = || {
        if io::stderr().is_terminal() {
            // Without stderr, nobody wants to know.
            let _ = writeln!(io::stderr(), "cronkeeper: waiting for {what}");
        }
    };
    with_notice(LONG, announce, future).await
}

async fn with_notice<F: Future>(after: Duration, notice: impl FnOnce(), future: F) -> F::Output {
    let mut future = pin!(future);
    match tokio::time::timeout(after, &mut future).await {
        Ok(done) => done,
        Err(_) => {
            notice();
            future.await
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_long_wait_is_announced_and_goes_on() {
        let (announced, is_announced) = oneshot::channel();
        let notice = || announced.send("announced").expect("it is awaited");
        assert_eq!(with_notice(Duration::ZERO, notice, is_announced).await, Ok("announced"));
    }

    #[tokio::test]
    async fn a_short_wait_is_not() {
        let notice = || panic!("an hour has not passed");
        assert_eq!(with_notice(Duration::from_secs(3_600), notice, async { 1 }).await, 1);
    }
}
