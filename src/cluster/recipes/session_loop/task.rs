//! The requests that a node sends to the servers, by what they are for.

/// A request that a node sends to the servers, and retries when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    Prepare,
    Enter,
    SettleLeft,
    Join,
    Look,
    Open,
    WriteOpening,
    Withdraw,
    HandOver,
    Clear,
    Leave,
    Find,
    Verify,
    ReadWanted,
    Publish,
    Survey,
    LookForFirst,
    Renumber,
    Read,
    Listen,
    Watch,
    Offers,
    Place,
    Renew,
}

impl Task {
    /// The task as it appears in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "creating its paths",
            Self::Enter => "becoming a member",
            Self::SettleLeft => "settling the runs of its earlier processes",
            Self::Join => "joining the queue",
            Self::Look => "reading its position in the queue",
            Self::Open => "taking over",
            Self::WriteOpening => "recording that it leads",
            Self::Withdraw | Self::Clear => "leaving the queue",
            Self::HandOver => "handing leadership over",
            Self::Leave => "leaving",
            Self::Find => "looking up the node to hand leadership to",
            Self::Verify => "verifying its own entries",
            Self::ReadWanted => "reading whether it is drained",
            Self::Publish => "publishing its member record",
            Self::Survey => "reading the queue and the members",
            Self::LookForFirst => "looking for the first entry of the queue",
            Self::Renumber => "restarting the sequence numbers of triggers",
            Self::Read => "reading the ledger",
            Self::Listen => "reading the requests of operators",
            Self::Watch => "watching runs",
            Self::Offers => "reading what is placed here",
            Self::Place => "recording its labels",
            Self::Renew => "renewing its lease",
        }
    }

    /// True for the tasks of a node's start, without which it cannot take part at all.
    pub fn is_of_the_start(self) -> bool {
        matches!(self, Self::Prepare | Self::Enter | Self::Join)
    }

    /// True for a step of the election. Once one of them succeeds, the failures of all others are over.
    pub fn is_step(self) -> bool {
        match self {
            Self::Prepare
            | Self::Enter
            | Self::Join
            | Self::Look
            | Self::Open
            | Self::WriteOpening
            | Self::Withdraw
            | Self::HandOver
            | Self::Clear
            | Self::Leave => true,
            Self::Find
            | Self::SettleLeft
            | Self::Verify
            | Self::ReadWanted
            | Self::Publish
            | Self::Survey
            | Self::LookForFirst
            | Self::Renumber
            | Self::Read
            | Self::Listen
            | Self::Watch
            | Self::Offers
            | Self::Place
            | Self::Renew => false,
        }
    }
}
