//! Filter that logs a library's repeated warning only once a minute.
//!
//! The ZooKeeper client logs every failed attempt to connect, twice a second for each server while ZooKeeper is away.
//! The first line gives the reason; the others would hide more important lines. Our own lines always pass, and so do
//! lines below the level of a warning.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::line::{Line, is_ours};
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;

/// A line is not logged again for this long.
const QUIET: Duration = Duration::from_secs(60);
/// Maximum number of lines to remember. Beyond it the oldest is forgotten and may be repeated.
const REMEMBERED: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Repeated {
    logged: Mutex<BTreeMap<String, Uptime>>,
}

impl Repeated {
    fn is_news(&self, text: String, now: Uptime) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.retain(|_, at| now < *at + QUIET);
        if logged.contains_key(&text) {
            return false;
        }
        let oldest = logged.iter().min_by_key(|(_, at)| **at).map(|(text, _)| text.clone());
        if let Some(oldest) = oldest.filter(|_| logged.len() >= REMEMBERED) {
            logged.remove(&oldest);
        }
        logged.insert(text, now);
        true
    }
}

impl<S: Subscriber> Layer<S> for Repeated {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN || is_ours(metadata.target()) {
            return true;
        }
        let Line { source, message, fields, .. } = Line::of(event);
        self.is_news(format!("{source:?} {message:?} {fields:?}"), uptime())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Uptime {
        Uptime::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_same_line_is_news_once_a_minute_and_a_different_one_at_once() {
        let repeated = Repeated::default();
        let is_news = |text: &str, seconds| repeated.is_news(text.into(), at(seconds));
        assert!(is_news("zk1 is away", 0));
        assert!(!is_news("zk1 is away", 59));
        assert!(is_news("zk2 is away", 59));
        assert!(is_news("zk1 is away", 60), "a suppressed line does not extend the minute");
        assert!(!is_news("zk2 is away", 118));
    }

    #[test]
    fn a_flood_of_different_lines_does_not_use_up_memory() {
        let repeated = Repeated::default();
        assert!((0..1_000).all(|line| repeated.is_news(line.to_string(), at(0))));
        assert_eq!(repeated.logged.lock().unwrap().len(), REMEMBERED);
    }

    #[test]
    fn our_own_events_and_lines_below_a_warning_always_pass() {
        use tracing_subscriber::layer::SubscriberExt as _;
        let lines = std::sync::Arc::new(Mutex::new(0));
        let counter = lines.clone();
        let subscriber = tracing_subscriber::registry().with(Repeated::default()).with(Count(counter));
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..3 {
                tracing::warn!(target: "cronkeeper", event = "run.skipped");
                tracing::error!(target: "cronkeeper::output", "without a name");
                tracing::warn!(target: "library", "away");
                tracing::info!(target: "library", "asked for");
            }
        });
        assert_eq!(*lines.lock().unwrap(), 3 + 3 + 1 + 3);
    }

    struct Count(std::sync::Arc<Mutex<u32>>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            *self.0.lock().unwrap() += 1;
        }
    }
}
