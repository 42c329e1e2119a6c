//! The outbox: notifications that the ledger has until they are delivered, and what is known of each channel.
//!
//! Commits add to it (see [`Change::notices`](super::Change::notices)). The leader reads it, sends, and removes.

use std::collections::{BTreeMap, BTreeSet};

use super::OperatorFuture;
use crate::job::ChannelName;
use crate::run::{ChannelRecord, Notice, NoticeKey, Version};

/// The record of a channel as read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelEntry {
    pub record: ChannelRecord,
    /// `None` if there is no record.
    pub at: Option<Version>,
    /// There is one that cannot be read, so that all that waits may have been sent.
    pub is_damaged: bool,
}

/// Reads and writes the outbox. The caller limits how long to wait. Each request may be repeated.
pub trait Outbox: Send + Sync {
    /// The keys of all notifications.
    fn keys(&self) -> OperatorFuture<'_, BTreeSet<NoticeKey>>;
    /// These notifications. Leaves out those that are gone; `Err` is the reason why one cannot be read.
    fn notices(&self, keys: BTreeSet<NoticeKey>) -> OperatorFuture<'_, BTreeMap<NoticeKey, Result<Notice, String>>>;
    /// Adds a notification, unless it is there.
    fn add(&self, notice: Notice) -> OperatorFuture<'_, ()>;
    /// Removes these notifications, as far as they are there.
    fn remove(&self, keys: BTreeSet<NoticeKey>) -> OperatorFuture<'_, ()>;
    /// What is known of a channel. A record that cannot be parsed says nothing, and is damaged.
    fn channel(&self, name: ChannelName) -> OperatorFuture<'_, ChannelEntry>;
    /// Replaces what is known of a channel, if nobody else has since `at`. Returns the new version; `None` if somebody
    /// has.
    fn put_channel(
        &self,
        name: ChannelName,
        record: ChannelRecord,
        at: Option<Version>,
    ) -> OperatorFuture<'_, Option<Version>>;
}
