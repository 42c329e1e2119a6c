//! The output of the runs of this node, kept in its state directory.
//!
//! ```text
//!  daemon ── lines ──▶ queue ──▶ store (a thread of its own) ──▶ output/live/<writer>/<run>.a<attempt>.jsonl
//!                                  │ at the attempt's end
//!                                  └──────────▶ output/ended/<job>/<run>.a<attempt>.jsonl, or .jsonl.gz
//!  API ── Reader ── both
//! ```
//!
//! Each attempt has a file of its own, because it has one writer and one end: a file is written once, compressed once,
//! and never opened for writing again. An attempt without output has no file. On solo, where several daemons share the
//! directory, each writes in a directory of its own, which it holds locked; the next store finishes what a dead daemon
//! left there.
//!
//! Nothing waits for the store. The daemon's loop adds lines to a bounded queue, and what does not fit is counted and
//! noted in the kept output. So is what a full disk refuses: no run depends on it. Nothing is synced, so a crash of the
//! host may cost the last lines; a crash of the daemon costs what was in the queue.

mod attempt_file;
mod failures;
mod frames;
mod keeper;
mod layout;
mod line;
mod live_files;
mod queue;
mod reader;
mod retention;
mod store;
mod sweep;

pub use self::layout::OutputKey;
pub(crate) use self::line::grouped;
pub use self::line::{Line, Lines, Source};
pub use self::queue::OutputQueue;
pub use self::reader::{LocalPage, PageEnd, Reader, Wanted};
pub use self::retention::{BadRetention, OutputRetention};
pub use self::store::{OutputStore, open};
