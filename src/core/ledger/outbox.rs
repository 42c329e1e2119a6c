//! The outbox: notifications that the ledger has until they are delivered, and what is known of each channel.
//!
//! Commits add to it (see [`Change::notices`](super::Change::notices)). The leader reads it, sends, and removes.

use std::collections::{BTreeMap, BTreeSet};

use super::OperatorFuture;
use crate::job::ChannelName;
use crate::run::{ChannelRecord, Notice, NoticeSeq, Version};

/// The record of a channel as read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelEntry {
    pub record: ChannelRecord,
    /// `None` if there is no record.
    pub at: Option<Version>,
}

/// Reads and writes the outbox. The caller limits how long to wait. Each request may be repeated.
pub trait Outbox: Send + Sync {
    /// The numbers of all notifications.
    fn numbers(&self) -> OperatorFuture<'_, BTreeSet<NoticeSeq>>;
    /// These notifications. Leaves out those that are gone; `Err` is the reason why one cannot be read.
    fn notices(&self, numbers: BTreeSet<NoticeSeq>) -> OperatorFuture<'_, BTreeMap<NoticeSeq, Result<Notice, String>>>;
    /// Adds a notification.
    fn add(&self, notice: Notice) -> OperatorFuture<'_, ()>;
    /// Removes these notifications, as far as they are there.
    fn remove(&self, numbers: BTreeSet<NoticeSeq>) -> OperatorFuture<'_, ()>;
    /// What is known of a channel. A record that cannot be read counts as one that says nothing.
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
