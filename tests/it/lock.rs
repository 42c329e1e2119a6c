//! The commands around locks, on real servers, with real commands and real signals.
//!
//! ```text
//! orders    the classic: nobody sells more than there is, whatever dies      kinds     what each kind means
//! peers     one queue with the real Curator and kazoo                        safety    the end of the lease, of processes
//! jobs      jobs with `lock` on real nodes
//! waiting   many clients in one queue                                        gates     latches and barriers
//! listing   what makes a lock wait is shown                                  servers   the way to the servers
//! ```

mod fixture;
mod gates;
mod jobs;
mod kinds;
mod listing;
pub mod orders;
mod peers;
mod safety;
mod servers;
mod waiting;
