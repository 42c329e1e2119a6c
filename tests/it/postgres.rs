//! The daemon and the locks on a real PostgreSQL.
//!
//! ```text
//! nodes      election, runs, takeover, locks
//! settings   how to log in, and what is refused
//! failover   servers that take over, and what commits are worth
//! waits      commits whose wait for a standby is ended
//! restored   a backup
//! pool       through PgBouncer
//! nemesis    whether the promises hold while nodes and servers fail at random
//! ```

mod failover;
mod nemesis;
mod pool;
mod restored;
mod settings;
mod waits;
