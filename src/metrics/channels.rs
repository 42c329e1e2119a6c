//! What each channel of notifications got.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::status::FailingChannel;
use cronkeeper_core::job::ChannelName;

/// What a channel got from this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelHealth {
    /// Messages that were delivered.
    pub sent: u64,
    /// Tries that failed.
    pub failed: u64,
    /// Notifications that were given up.
    pub given_up: u64,
    /// Notifications that wait, while this node leads.
    pub pending: u64,
    /// Since when no message was delivered, and why, while tries fail.
    pub failing: Option<(Timestamp, String)>,
}

impl ChannelHealth {
    /// Notes that nothing can be delivered now, and why; since when, if that is not known yet.
    pub fn fails(&mut self, now: Timestamp, why: String) {
        let since = self.failing.as_ref().map_or(now, |(since, _)| *since);
        self.failing = Some((since, why));
    }
}

/// What the channels got, shared between the task that sends and those that show it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<ChannelName, ChannelHealth>>>);

impl Health {
    /// All channels that this process has sent to, or is to send to.
    pub fn channels(&self) -> BTreeMap<ChannelName, ChannelHealth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The channels to which no attempt succeeds.
    pub fn failing(&self) -> Vec<FailingChannel> {
        let failing = self.channels().into_iter().filter_map(|(channel, health)| {
            let (since, error) = health.failing?;
            Some(FailingChannel { channel, since, waiting: health.pending, error })
        });
        failing.collect()
    }

    /// Notes something about a channel.
    pub fn change(&self, name: &ChannelName, change: impl FnOnce(&mut ChannelHealth)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(name.clone()).or_default());
    }

    /// Forgets the channels that are not among these.
    pub fn keep(&self, is_known: impl Fn(&ChannelName) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| is_known(name));
    }
}
