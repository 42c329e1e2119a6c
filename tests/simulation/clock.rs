//! The clocks of a simulated node: uptime is the world's, the time of day is the node's own.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use cronkeeper_core::clock::{Clock, Now, Uptime, Wake};

use super::world::Shared;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerId(u64);

/// All pending timers.
pub struct Timers {
    made: u64,
    timers: BTreeMap<TimerId, Timer>,
    /// The instant of the last sleep until an instant that had already come, and how many such sleeps there were.
    restless: (Uptime, u32),
}

/// More sleeps than this at one instant mean that a program spins without virtual time passing.
const RESTLESS: u32 = 1_000_000;

struct Timer {
    node: usize,
    wake: Wake,
    waker: Waker,
    fired: bool,
}

#[derive(Clone)]
pub struct NodeClock {
    pub world: Shared,
    pub node: usize,
}

/// Removes the timer when dropped.
struct Waiting {
    world: Shared,
    timer: TimerId,
}

impl Default for Timers {
    fn default() -> Self {
        Self { made: 0, timers: BTreeMap::new(), restless: (Uptime::ZERO, 0) }
    }
}

impl Timers {
    pub fn add(&mut self, node: usize, wake: Wake, waker: Waker) -> TimerId {
        self.made += 1;
        let id = TimerId(self.made);
        self.timers.insert(id, Timer { node, wake, waker, fired: false });
        id
    }

    fn does_not_sleep(&mut self, now: Uptime) {
        let (since, times) = self.restless;
        self.restless = if since == now { (now, times + 1) } else { (now, 0) };
        assert!(times < RESTLESS, "a program goes to sleep until now, again and again");
    }

    pub fn node(&self, id: TimerId) -> Option<usize> {
        self.timers.get(&id).map(|timer| timer.node)
    }

    pub fn fire(&mut self, id: TimerId) {
        if let Some(timer) = self.timers.get_mut(&id) {
            timer.fired = true;
            timer.waker.wake_by_ref();
        }
    }

    /// Returns the wakers to wake because the node's time of day was set.
    pub fn wake_wall(&mut self, node: usize) -> Vec<Waker> {
        let waiting = self.timers.values_mut().filter(|timer| timer.node == node && timer.wake.wall.is_some());
        waiting
            .map(|timer| {
                timer.fired = true;
                timer.waker.clone()
            })
            .collect()
    }

    pub fn forget(&mut self, node: usize) {
        self.timers.retain(|_, timer| timer.node != node);
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Now {
        self.world.lock().node_now(self.node)
    }

    async fn sleep_until(&self, wake: Wake) {
        let mut waiting: Option<Waiting> = None;
        poll_fn(|context| {
            let mut world = self.world.lock();
            let now = world.node_now(self.node);
            if wake.is_due(now) {
                world.timers.does_not_sleep(now.up);
                return Poll::Ready(());
            }
            match &waiting {
                None => {
                    let timer = world.sleep(self.node, wake, context.waker().clone());
                    waiting = Some(Waiting { world: self.world.clone(), timer });
                    Poll::Pending
                }
                Some(waiting) => match world.timers.timers.get_mut(&waiting.timer) {
                    Some(timer) if !timer.fired => {
                        timer.waker.clone_from(context.waker());
                        Poll::Pending
                    }
                    _ => Poll::Ready(()),
                },
            }
        })
        .await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.world.lock().timers.timers.remove(&self.timer);
    }
}
