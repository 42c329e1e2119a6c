//! Implementation of `zookeeper::client` on the model.
//!
//! Values whose drop locks the world must not be dropped while the world is locked. Results are therefore built here
//! from plain values, by the task that waits for them.

use std::sync::Arc;
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::{
    Client, Connect, ConnectError, Done, Error, Mode, MultiError, Op, Read, Stat, State, Watch,
};
use cronkeeper_core::term::SessionId;
use tokio::sync::oneshot;

use super::super::world::Shared;
use super::client::{Answered, ClientId, WatchId};
use super::states::States;
use super::tree::CLOSED;
use super::wire::{Answer, Request, Watching};

/// Creates sessions for a node.
#[derive(Clone)]
pub struct Connector {
    pub world: Shared,
    pub node: usize,
}

/// A session.
#[derive(Clone)]
pub struct SimClient {
    held: Arc<Held>,
    states: States,
    session: i64,
    timeout: Duration,
}

/// Shared by all clones of a client. When the last one is dropped, the client may close.
struct Held {
    world: Shared,
    id: ClientId,
}

pub struct SimWatch {
    held: Arc<Held>,
    id: WatchId,
    fired: Option<oneshot::Receiver<()>>,
}

/// A znode, if it exists, and a watch on it, if one was requested.
type Seen = (Option<(Vec<u8>, Stat)>, Option<SimWatch>);

/// Abandons the client if dropped before the first connection is open.
struct Dialing(Option<Held>);

impl Connect for Connector {
    type Client = SimClient;

    async fn connect(&self) -> Result<SimClient, ConnectError> {
        let (id, connected, states, timeout) = {
            let mut world = self.world.lock();
            let (id, connected, states) = world.connect(self.node);
            (id, connected, states, world.env.timing.session_timeout)
        };
        // Taken out before the guard's own drop runs.
        let mut dialing = Dialing(Some(Held { world: self.world.clone(), id }));
        connected.await.unwrap_or_else(|_| Err(ConnectError::Unreachable("the node is gone".into())))?;
        let session = self.world.lock().clients.session(id);
        match dialing.0.take() {
            Some(held) => Ok(SimClient { held: Arc::new(held), states, session, timeout }),
            None => Err(ConnectError::Unreachable("given up".into())),
        }
    }
}

impl Drop for Dialing {
    fn drop(&mut self) {
        if let Some(held) = &self.0 {
            held.world.lock().abandon(held.id);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.world.lock().release(self.id);
    }
}

impl Drop for SimWatch {
    fn drop(&mut self) {
        if self.fired.is_some() {
            self.held.world.lock().clients.unwatch(self.held.id, self.id);
        }
    }
}

impl Watch for SimWatch {
    async fn fired(mut self) {
        if let Some(fired) = &mut self.fired {
            let _ = fired.await;
        }
        self.fired = None;
    }
}

impl SimClient {
    fn request(&self, request: Request) -> oneshot::Receiver<Answered> {
        if let Some(path) = request.paths().into_iter().find(|path| !is_path(path)) {
            let (answer, answered) = oneshot::channel();
            drop(answer.send(Err(Error::Refused(format!("`{path}` is no path")))));
            return answered;
        }
        self.held.world.lock().request(self.held.id, request)
    }

    fn write(&self, ops: Vec<Op>) -> impl Future<Output = Result<Vec<(Done, Stat)>, MultiError>> + Send + use<> {
        let answered = self.request(Request::Write(ops));
        async move {
            let lone = |error| MultiError { index: None, error };
            match settled(answered).await.map_err(lone)? {
                (Answer::Written(result), _) => result,
                _ => Err(lone(Error::Refused("another answer than asked for".into()))),
            }
        }
    }

    fn node(&self, path: &str, watch: Watching) -> impl Future<Output = Result<Seen, Error>> + Send + use<> {
        let answered = self.request(Request::Get { path: path.to_owned(), watch });
        let held = self.held.clone();
        async move {
            match settled(answered).await? {
                (Answer::Node(node), watch) => {
                    Ok((node, watch.map(|(id, fired)| SimWatch { held, id, fired: Some(fired) })))
                }
                _ => Err(Error::Refused("another answer than asked for".into())),
            }
        }
    }
}

/// The data of an existing znode, if this client may read it.
fn readable(node: Option<(Vec<u8>, Stat)>) -> Read {
    let (data, stat) = node.ok_or(Error::NoNode)?;
    if data == CLOSED { Err(Error::NoAuth) } else { Ok((data, stat)) }
}

/// True for the paths that the client crate accepts. A sequential znode's name may be empty, because the server makes
/// it.
fn is_path(path: &str) -> bool {
    let Some(names) = path.strip_prefix('/') else { return false };
    let names = names.strip_suffix('/').unwrap_or(names);
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains(char::is_control);
    path == "/" || names.split('/').all(is_name)
}

async fn settled(answered: oneshot::Receiver<Answered>) -> Answered {
    answered.await.unwrap_or(Err(Error::SessionOver))
}

impl Client for SimClient {
    type Watch = SimWatch;

    fn id(&self) -> SessionId {
        SessionId(format!("{:#x}", self.session))
    }

    fn owner_id(&self) -> i64 {
        self.session
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn state(&self) -> State {
        self.states.state()
    }

    async fn state_changed(&mut self) -> State {
        self.states.changed().await
    }

    fn multi(&self, ops: Vec<Op>) -> impl Future<Output = Result<Vec<Done>, MultiError>> + Send + 'static {
        let written = self.write(ops);
        async move { Ok(written.await?.into_iter().map(|(done, _)| done).collect()) }
    }

    fn create(
        &self,
        path: &str,
        data: Vec<u8>,
        mode: Mode,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static {
        let written = self.write(vec![Op::Create { path: path.to_owned(), data, mode }]);
        async move {
            match written.await.map_err(|multi| multi.error)?.pop() {
                Some((Done::Created(path), stat)) => Ok((path, stat)),
                _ => Err(Error::Refused("another answer than asked for".into())),
            }
        }
    }

    fn delete(&self, path: &str, version: i32) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let written = self.write(vec![Op::Delete { path: path.to_owned(), version }]);
        async move { written.await.map(|_| ()).map_err(|multi| multi.error) }
    }

    fn get(&self, path: &str) -> impl Future<Output = Result<(Vec<u8>, Stat), Error>> + Send + 'static {
        let node = self.node(path, Watching::No);
        async move { readable(node.await?.0) }
    }

    fn stat(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, Error>> + Send + 'static {
        let node = self.node(path, Watching::No);
        async move { Ok(node.await?.0.map(|(_, stat)| stat)) }
    }

    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, SimWatch), Error>> + Send + 'static {
        let node = self.node(path, Watching::Always);
        async move {
            let (node, watch) = node.await?;
            let watch = watch.ok_or_else(|| Error::Refused("no watch".into()))?;
            Ok((node.map(|(_, stat)| stat), watch))
        }
    }

    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, SimWatch), Error>> + Send + 'static {
        let node = self.node(path, Watching::IfThere);
        async move {
            let (node, watch) = node.await?;
            let (data, stat) = readable(node)?;
            Ok((data, stat, watch.ok_or_else(|| Error::Refused("no watch".into()))?))
        }
    }

    fn children(&self, path: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        let answered = self.request(Request::Children(path.to_owned()));
        async move {
            match settled(answered).await? {
                (Answer::Children(Some(children)), _) => Ok(children),
                _ => Err(Error::NoNode),
            }
        }
    }

    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static {
        let answered = self.request(Request::GetMany(paths));
        async move {
            match settled(answered).await? {
                (Answer::Nodes(nodes), _) => Ok(nodes.into_iter().map(readable).collect()),
                _ => Err(Error::Refused("another answer than asked for".into())),
            }
        }
    }
}
