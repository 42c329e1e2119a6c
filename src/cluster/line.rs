//! A connection to a service that is opened when it is needed, and again when it is lost.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::tree::{ConnectError, Error};

/// An open connection.
pub trait Connection: Send + Sync + 'static {
    /// The service's name, for messages.
    const SERVICE: &'static str;

    fn is_closed(&self) -> bool;

    /// Closes it. What the service is still doing on it is cancelled only if that is wanted, and if the service can be
    /// asked to: a commit that is given up may be carried out.
    fn close(self: &Arc<Self>, is_cancelled: bool);
}

/// A task that ends when this value is dropped.
pub struct Beside(AbortHandle);

impl Beside {
    pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task).abort_handle())
    }

    pub fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    pub fn end(&self) {
        self.0.abort();
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.end();
    }
}

/// Why none of some servers can be used, each with its name.
pub fn none_of(failures: Vec<(String, ConnectError)>) -> ConnectError {
    // One that is only away may be the right one.
    let is_refused = !failures.is_empty() && failures.iter().all(|(_, it)| matches!(it, ConnectError::Refused(_)));
    // A refusal is reported together with the settings, which have the name.
    let is_named = !is_refused || failures.windows(2).any(|two| matches!(two, [(one, _), (other, _)] if one != other));
    let mut texts = Vec::new();
    for (server, failure) in &failures {
        let text = if is_named { format!("{server}: {failure}") } else { failure.to_string() };
        // A name may have several addresses.
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    let all = texts.join("; ");
    if is_refused { ConnectError::Refused(all) } else { ConnectError::Unreachable(all) }
}

/// Takes a revision that a service has hinted at.
pub fn hint(hinted: &watch::Sender<i64>, revision: i64) {
    hinted.send_if_modified(|newest| std::mem::replace(newest, revision) != revision);
}

/// Takes the newest revision as it was read. Its answer may come after a hint at a later one: `before` is what was known when
/// it was requested.
pub fn hint_as_read(hinted: &watch::Sender<i64>, before: i64, revision: i64) {
    hinted.send_if_modified(|newest| *newest == before && std::mem::replace(newest, revision) != revision);
}

/// An open connection of a [`Line`].
pub struct Live<C> {
    connection: Arc<C>,
    /// How often a connection of this client had been lost when it was opened.
    losses: u64,
}

impl<C> Deref for Live<C> {
    type Target = Arc<C>;

    fn deref(&self) -> &Arc<C> {
        &self.connection
    }
}

/// Counts the connections that were lost, of all lines of a client. Where the servers change their roles, one line may
/// still reach the old one: if one is opened again, all are.
#[derive(Clone, Default)]
pub struct Losses(Arc<watch::Sender<u64>>);

impl Losses {
    fn count(&self) -> u64 {
        *self.0.borrow()
    }

    /// Counts a loss, unless another was counted since the connection was opened.
    fn add<C>(&self, live: &Live<C>) {
        self.0.send_if_modified(|count| {
            let is_first = *count == live.losses;
            if is_first {
                *count += 1;
            }
            is_first
        });
    }
}

type Opening<C> = Shared<BoxFuture<'static, Result<Arc<Live<C>>, ConnectError>>>;
type Connect<C> = Box<dyn Fn() -> BoxFuture<'static, Result<C, ConnectError>> + Send + Sync>;

/// The one connection of its purpose.
pub struct Line<C> {
    connect: Connect<C>,
    open: Mutex<Option<Opening<C>>>,
    losses: Losses,
}

/// Why a request has no answer that counts.
pub struct Failed {
    pub error: Error,
    /// Another server is the one to ask.
    pub is_elsewhere: bool,
}

impl<C: Connection> Line<C> {
    pub fn new<F>(losses: Losses, connect: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<C, ConnectError>> + Send + 'static,
    {
        Self { connect: Box::new(move || connect().boxed()), open: Mutex::default(), losses }
    }

    /// True if no connection of this client was lost since this one was opened.
    pub fn is_current(&self, live: &Live<C>) -> bool {
        !live.is_closed() && live.losses == self.losses.count()
    }

    /// Resolves when a connection of this client is lost from now on.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut losses = self.losses.0.subscribe();
        // The sender may be gone together with the client.
        async move { drop(losses.changed().await) }
    }

    /// The open connection, or a new one.
    ///
    /// # Errors
    /// If none can be opened. Dropping the future leaves it to be opened for the next caller.
    pub async fn live(&self) -> Result<Arc<Live<C>>, ConnectError> {
        let live = self.opened().await?;
        // Others may have been lost while it was opened: then it may be one to a server that was replaced meanwhile.
        if self.is_current(&live) { Ok(live) } else { self.opened().await }
    }

    async fn opened(&self) -> Result<Arc<Live<C>>, ConnectError> {
        let mut open = self.open.lock().await;
        if let Some(opening) = &*open {
            match opening.peek() {
                Some(Ok(live)) if self.is_current(live) => return Ok(Arc::clone(live)),
                Some(Ok(live)) => {
                    self.losses.add(live);
                    *open = None;
                }
                Some(Err(_)) => *open = None,
                None => {}
            }
        }
        let opening = open.get_or_insert_with(|| {
            let (connecting, losses) = ((self.connect)(), self.losses.count());
            let live = move |connection| Arc::new(Live { connection: Arc::new(connection), losses });
            let opening = connecting.map(move |connected| connected.map(live)).boxed().shared();
            // Goes on if the caller gives up: with several hosts that are away, one caller's time is too short.
            tokio::spawn(opening.clone().map(drop));
            opening
        });
        let opening = opening.clone();
        drop(open);
        opening.await
    }

    /// Gives the connection up: a request on it has had no answer in time, or its server accepts no writes any more.
    pub async fn abandon(&self, live: &Arc<Live<C>>, is_cancelled: bool) {
        let is_it = |opening: &mut Opening<C>| matches!(opening.peek(), Some(Ok(known)) if Arc::ptr_eq(known, live));
        if self.open.lock().await.take_if(is_it).is_some() {
            self.losses.add(live);
            live.close(is_cancelled);
        }
    }

    /// Carries a request out, in bounded time.
    ///
    /// # Errors
    /// If it has no answer that counts.
    pub async fn carry_out<T, A: Future<Output = Result<T, Failed>>>(
        &self,
        patience: Duration,
        is_read: bool,
        request: impl FnOnce(Arc<C>) -> A,
    ) -> Result<T, Error> {
        let live = match timeout(patience, self.live()).await {
            Ok(Ok(live)) => live,
            // Only a new session finds out that it must be given up: a running one continues.
            Ok(Err(error)) => return Err(Error::Unanswered(error.to_string())),
            Err(_) => return Err(Error::Unanswered(format!("{} cannot be reached", C::SERVICE))),
        };
        match timeout(patience, request(Arc::clone(&live))).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Failed { error, is_elsewhere })) => {
                if is_elsewhere {
                    self.abandon(&live, false).await;
                }
                Err(error)
            }
            Err(_) => {
                self.abandon(&live, is_read).await;
                Err(Error::Unanswered(format!("{} does not answer", C::SERVICE)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_late_takes_no_hint_back() {
        let hinted = watch::Sender::new(4);
        // It was read before revision 6 was there, and answered after the hint at that.
        let before = *hinted.borrow();
        hint(&hinted, 6);
        hint_as_read(&hinted, before, 5);
        assert_eq!(*hinted.borrow(), 6);
        // A store that has lost commits may be behind what was hinted at.
        hint_as_read(&hinted, 6, 3);
        assert_eq!(*hinted.borrow(), 3);
    }

    #[test]
    fn a_server_is_named_where_the_settings_do_not_say_which_it_is() {
        let refused = |server: &str, why: &str| (server.to_owned(), ConnectError::Refused(why.to_owned()));
        let away = |server: &str, why: &str| (server.to_owned(), ConnectError::Unreachable(why.to_owned()));
        // Two addresses of one name are one server.
        assert_eq!(none_of(vec![refused("a:1", "no"), refused("a:1", "no")]), ConnectError::Refused("no".to_owned()));
        let both = none_of(vec![refused("a:1", "no"), refused("b:1", "never")]);
        assert_eq!(both, ConnectError::Refused("a:1: no; b:1: never".to_owned()));
        let mixed = none_of(vec![refused("a:1", "no"), away("b:1", "hung up")]);
        assert_eq!(mixed, ConnectError::Unreachable("a:1: no; b:1: hung up".to_owned()));
        assert_eq!(none_of(Vec::new()), ConnectError::Unreachable(String::new()));
    }
}
