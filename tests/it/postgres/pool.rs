//! A pool of connections between the nodes and the server.

use rustix::process::Signal;

use crate::support::command::CRONKEEPER;
use crate::support::node::Spec;
use crate::support::postgres::{Pool, shared};
use crate::support::witness::Witness;
use crate::support::{LONG, until};

#[test]
fn a_pool_that_gives_each_transaction_another_connection_does_no_harm() {
    let (database, witness) = (shared().database(), Witness::new());
    let pool = Pool::of(shared());
    let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
    let node = |name| {
        let spec = Spec::new(CRONKEEPER, name).postgres(&pool.connect_string(&database)).jobs(&jobs);
        spec.option("--session-timeout", "4s").start()
    };
    let a = node("a");
    a.await_event("leader.elected", LONG);
    let b = node("b");
    b.await_event("election.following", LONG);
    until("the first leader's jobs run", || witness.entries().len() > 2);
    a.signal(Signal::TERM);
    b.await_event("leader.elected", LONG);
    let seen = witness.entries().len();
    until("the next leader's jobs run", || witness.entries().len() > seen + 2);
    witness.assert_fine(&[]);
}
