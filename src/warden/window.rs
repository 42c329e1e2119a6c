//! How much output may be on its way from the warden to the daemon.
//!
//! All notices share one socket, so an end waits for the output before it. The daemon says how much output it has
//! taken, and the warden sends only a window's worth beyond that and leaves the rest in the jobs' pipes. So a start or
//! an end waits for little output, however much the jobs write and however slowly the daemon takes it. Output is counted
//! by its price, because a line takes the daemon time even if it is empty.

/// The price of the output that may be on its way.
const WINDOW: u64 = 64 << 10;
/// The daemon reports what it has taken in steps of this price: a job that writes little causes no orders.
const STEP: u64 = WINDOW / 4;

/// The warden's end.
#[derive(Debug, Default)]
pub(super) struct Window {
    on_its_way: u64,
}

/// The daemon's end.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    unreported: u64,
}

impl Window {
    pub(super) fn sent(&mut self, cost: u64) {
        self.on_its_way = self.on_its_way.saturating_add(cost);
    }

    pub(super) fn taken(&mut self, cost: u64) {
        self.on_its_way = self.on_its_way.saturating_sub(cost);
    }

    /// True while no more output should be sent.
    pub(super) fn is_full(&self) -> bool {
        self.on_its_way >= WINDOW
    }
}

impl Receipts {
    /// Records output that the daemon has taken. Returns what to report to the warden now, if anything.
    pub(super) fn take(&mut self, cost: u64) -> Option<u64> {
        self.unreported = self.unreported.saturating_add(cost);
        (self.unreported >= STEP).then(|| std::mem::take(&mut self.unreported))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn a_window_opens_when_all_that_was_sent_is_taken_and_bounds_what_is_not(
            costs in prop::collection::vec(1u64..40_000, 1..60),
        ) {
            let (mut window, mut receipts) = (Window::default(), Receipts::default());
            let mut on_its_way = Vec::new();
            for cost in costs {
                if window.is_full() {
                    prop_assert!(on_its_way.iter().sum::<u64>() + STEP > WINDOW);
                    on_its_way.drain(..).filter_map(|cost| receipts.take(cost)).for_each(|cost| window.taken(cost));
                }
                prop_assert!(!window.is_full());
                window.sent(cost);
                on_its_way.push(cost);
                prop_assert!(on_its_way.iter().sum::<u64>() < WINDOW + cost);
            }
        }
    }

    #[test]
    fn little_output_is_not_reported() {
        let mut receipts = Receipts::default();
        assert_eq!([STEP - 2, 1, 1, 1].map(|cost| receipts.take(cost)), [None, None, Some(STEP), None]);
    }
}
