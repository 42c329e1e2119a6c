//! `cronkeeper barrier`: a number of processes wait for each other.

use std::time::Duration;

use super::lock::number;
use super::lock::on_service::{client_data, runtime};
use super::lock_failure::LockFailure;
use super::progress::announced;
use super::service::{self, Connected, Reach, Service, ServiceArgs, on_service};
use super::{Error, Exit};
use cronkeeper_cluster::recipes::SessionError;
use cronkeeper_cluster::recipes::lock::barrier::Visit;
use cronkeeper_cluster::recipes::lock::{LockError, data};
use cronkeeper_cluster::tree::Session;
use cronkeeper_core::clock::Clock as _;
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::duration;
use cronkeeper_core::lock::LockPath;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The barrier's path in the service, such as /barriers/nightly
    #[arg(value_name = "PATH", value_parser = LockPath::parse)]
    path: LockPath,
    /// How many processes must arrive before all continue. All must name the same number
    #[arg(long, value_name = "N", value_parser = number)]
    parties: u32,
    /// Give up after waiting this long, with exit code 75
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    service: ServiceArgs,
}

impl Args {
    /// Waits until all have arrived.
    ///
    /// # Errors
    /// When the servers cannot be reached, or the others do not come in time.
    pub fn run(self) -> Result<Exit, Error> {
        let service = self.service.required_service("barrier")?;
        runtime()?.block_on(async { on_service!(&service, service => self.meet(service).await) })?;
        Ok(Exit::Fine)
    }

    async fn meet<C: Reach>(&self, service: &Service<C>) -> Result<(), Error> {
        let clock = SystemClock::default();
        let give_up_at = service::give_up_at(clock.now().up, self.timeout);
        let mut until = (clock.now().up + service.session_timeout).min(give_up_at);
        loop {
            let Connected { session, .. } = service.enter(&clock, until).await?;
            let left = give_up_at.since(clock.now().up);
            let visited = tokio::time::timeout(left, self.visit(session.clone(), &clock)).await;
            // Removes what a visit that was given up has left.
            service.close(session).await;
            match visited {
                Err(_) => {
                    let waited = self.timeout.unwrap_or_default();
                    return Err(Error::from(LockFailure::NotOpen { path: self.path.clone(), waited }));
                }
                Ok(Err(SessionError::SessionOver)) => until = give_up_at,
                Ok(visited) => return visited.map_err(|error| service.failed(LockError::from(error))),
            }
        }
    }

    async fn visit<S: Session>(&self, session: S, clock: &SystemClock) -> Result<(), SessionError> {
        let own = data(&client_data(&[]));
        let mut visit = Visit::new(session, clock.clone(), self.path.clone(), self.parties, own);
        let awaited = format!("all {} parties at {}", self.parties, self.path);
        announced(&awaited, visit.enter()).await?;
        match visit.leave().await {
            // All have arrived: that this client cannot say goodbye changes nothing.
            Err(SessionError::SessionOver) => Ok(()),
            left => left,
        }
    }
}
