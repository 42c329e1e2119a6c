//! Notifications: the leader sends what the ledger's outbox has, to the channels of its jobs file.
//!
//! ```text
//!   outbox ─ read ─► Sender ─ plan ─► channels/<name> marked ─► deliver ─► answer ─► channels/<name>, outbox
//!                       ▲                                        webhook, Slack, mail
//!            jobs file, status of the node
//! ```
//!
//! A task of its own, beside the daemon's loop, which never waits for it. What must be sent is in the ledger, so a
//! leader that dies loses nothing, and its successor goes on. Only a node that leads sends, and each message is marked in
//! the ledger first, at the version that was read: if two nodes think they lead, only one can set its mark.

mod cluster;
mod deliver;
mod http;
mod message;
mod plan;
mod sender;
mod smtp;
mod trouble;

use cronkeeper_core::clock::system;
use cronkeeper_core::job::{ChannelName, NoticeKind, Target};
use cronkeeper_core::run::{Notice, NoticeKey};
use cronkeeper_core::term::NodeName;

use tokio::time::Instant;

use self::deliver::Answer;
use self::message::Message;
use self::plan::Batch;
pub use self::sender::Sender;

/// Sends a test to a channel, from this host. Returns what the service answered.
///
/// # Errors
/// Why it was not delivered; has no secret.
pub async fn test(name: &ChannelName, target: Target, node: &NodeName) -> Result<String, String> {
    let now = system::now().wall;
    let id = format!("test/{node}/{}", uuid::Uuid::new_v4());
    let notice = Notice { node: Some(node.clone()), ..Notice::new(NoticeKind::Test, id.clone(), now) };
    let batch = Batch {
        notices: [NoticeKey::of(&notice)].into(),
        id: uuid::Uuid::new_v4().simple().to_string(),
        is_again: false,
        is_output: false,
    };
    let message = Message::of(name, &batch, &[&notice], node, now);
    match deliver::deliver(target, message, now, Instant::now() + deliver::LONGEST).await {
        // A test is for all recipients.
        Ok(Answer { refused: Some(refused), text }) => Err(format!("{refused}; the others: {text}")),
        Ok(answer) => Ok(answer.text),
        Err(failed) => Err(failed.answer.unwrap_or(failed.why)),
    }
}
