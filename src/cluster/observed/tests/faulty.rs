//! A store whose requests and answers get lost on the way, or come late.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::store::{Done, Found, Head, NotDone, Op, Store, Then, Wanted};
use crate::tree::{Error, Limits, Revision};

/// What happens to a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    AnswerLost,
    RequestLost,
    /// It has no answer and is on its way until others have been carried out.
    Late,
}

#[derive(Clone)]
pub struct Faulty<S> {
    inner: S,
    way: Arc<Mutex<Way>>,
}

#[derive(Default)]
struct Way {
    fates: VecDeque<Fate>,
    late: VecDeque<Vec<Op>>,
    is_cut: bool,
    delays_removals: bool,
}

/// Commits on their way at the same time.
const MOST_LATE: usize = 3;

impl<S: Store> Faulty<S> {
    pub fn new(inner: S) -> Self {
        Self { inner, way: Arc::default() }
    }

    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The fates of the next commits.
    pub fn fates(&self, fates: impl IntoIterator<Item = Fate>) {
        self.way.lock().unwrap().fates.extend(fates);
    }

    /// While it is cut, nothing gets through.
    pub fn cut(&self, is_cut: bool) {
        self.way.lock().unwrap().is_cut = is_cut;
    }

    /// From now on commits that remove something have no answer, and are on their way until they are delivered.
    pub fn delay_removals(&self) {
        self.way.lock().unwrap().delays_removals = true;
    }

    pub fn has_late(&self) -> bool {
        !self.way.lock().unwrap().late.is_empty()
    }

    /// What was on its way arrives now.
    pub fn deliver_late(&self) {
        let late = std::mem::take(&mut self.way.lock().unwrap().late);
        late.into_iter().for_each(|ops| drop(self.inner.commit(ops)));
    }

    fn unanswered() -> Error {
        Error::Unanswered("nothing came back".into())
    }
}

impl<S: Store> Store for Faulty<S> {
    const SERVICE: &'static str = S::SERVICE;

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn commit(&self, ops: Vec<Op>) -> impl Future<Output = Result<Done, NotDone>> + Send + 'static {
        let mut way = self.way.lock().unwrap();
        let removes = ops.iter().any(|op| op.then == Then::Delete);
        let fate = if way.delays_removals && removes {
            Fate::Late
        } else if way.is_cut {
            Fate::RequestLost
        } else {
            way.fates.pop_front().unwrap_or(Fate::Answered)
        };
        if way.late.len() > MOST_LATE
            && let Some(late) = way.late.pop_front()
        {
            drop(self.inner.commit(late));
        }
        let done = match fate {
            Fate::Answered => Some(self.inner.commit(ops)),
            Fate::AnswerLost => {
                drop(self.inner.commit(ops));
                None
            }
            Fate::RequestLost => None,
            Fate::Late => {
                way.late.push_back(ops);
                None
            }
        };
        async move {
            match done {
                Some(done) => done.await,
                None => Err(NotDone::Failed(Self::unanswered())),
            }
        }
    }

    fn read(&self, wanted: Vec<Wanted>) -> impl Future<Output = Result<(Head, Vec<Found>), Error>> + Send + 'static {
        let is_cut = self.way.lock().unwrap().is_cut;
        let found = self.inner.read(wanted);
        async move { if is_cut { Err(Self::unanswered()) } else { found.await } }
    }

    fn changed(&self, since: Revision) -> impl Future<Output = ()> + Send + 'static {
        self.inner.changed(since)
    }
}
