//! The daemon and the locks on a real PostgreSQL.
//!
//! ```text
//! nodes      election, runs, takeover, locks
//! settings   how to log in, and what is refused
//! ```

mod failover;
mod nemesis;
mod pool;
mod settings;
