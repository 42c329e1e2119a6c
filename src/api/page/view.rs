//! The overview as it was rendered last. All open pages share it, so that many cost hardly more than one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use maud::{Markup, PreEscaped, html};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;

use super::bar_cache::Wanted;
use super::headline::Headline;
use super::jobs::Selection;
use super::timeline::Timeline;
use super::times::{self, Clock, Zone};
use super::{attention, cluster, jobs, running};
use crate::api::ApiState;
use crate::api::caller::Caller;
use crate::api::network::Visibility;
use crate::api::roles::{Role, role_of};
use crate::status::{JobStatus, LedgerPart, Status};
use cronkeeper_core::clock::{Uptime, system};

/// Age up to which a view is shown although the daemon has published another status.
const SHORTEST: Duration = Duration::from_millis(250);
/// Age up to which a view is shown while the daemon has published nothing. The ledger may say more by then.
const LONGEST: Duration = Duration::from_secs(1);

/// Most zones of visitors for which views are kept. The first of more makes the others go.
const MOST_ZONES: usize = 8;

/// The content of the overview.
#[derive(Debug)]
pub(super) struct View {
    /// What is most important in it.
    pub title: String,
    pub main: Markup,
    /// Changes whenever the content does.
    pub tag: String,
    /// What an event says about it.
    pub summary: String,
}

/// What an event says.
#[derive(Serialize)]
struct Summary<'a> {
    version: &'a str,
    leader: Option<&'a str>,
    state: &'a str,
    /// Absent while it is not known.
    running: Option<usize>,
    /// Absent while it is not known.
    failing: Option<usize>,
}

/// What a visitor is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) struct Sight {
    pub visibility: Visibility,
    /// Also the buttons.
    pub may_act: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Sight {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let extensions = &parts.extensions;
        let caller = extensions.get().copied().unwrap_or(Caller::Unknown);
        let may_act = role_of(caller, extensions.get()).is_some_and(|role| role >= Role::Operate);
        Ok(Self { visibility: extensions.get().copied().unwrap_or(Visibility::Outline), may_act })
    }
}

/// The views of those who see the same, by what they may see and do and in which zone.
#[derive(Default)]
pub(super) struct Views(std::sync::Mutex<BTreeMap<(bool, bool, String), Shared>>);

/// A view. Held while it is rendered.
type Shared = Arc<Mutex<Option<Rendered>>>;

impl Views {
    fn of(&self, sight: Sight, zone: &Zone) -> Shared {
        let mut views = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (sight.visibility == Visibility::All, sight.may_act, zone.name().to_owned());
        if views.len() >= MOST_ZONES && !views.contains_key(&key) {
            views.clear();
        }
        Arc::clone(views.entry(key).or_default())
    }
}

struct Rendered {
    view: Arc<View>,
    at: Uptime,
    /// The published status at that time.
    of: Arc<Status>,
    /// The operators' requests that it shows.
    change: u64,
}

impl Rendered {
    fn is_fresh(&self, current: &Arc<Status>, change: u64) -> bool {
        let age = system::uptime().since(self.at);
        self.change == change && (age < SHORTEST || (age < LONGEST && Arc::ptr_eq(&self.of, current)))
    }
}

impl ApiState {
    /// The overview of all jobs. Concurrent callers wait for one to render it.
    ///
    /// If this future is dropped, the next caller renders.
    pub(super) async fn view(self: &Arc<Self>, sight: Sight, zone: &Zone) -> Arc<View> {
        let shared = self.page.views.of(sight, zone);
        let mut rendered = shared.lock().await;
        let (current, change) = (Arc::clone(&self.sources.status.borrow()), self.reads.change());
        if let Some(rendered) = &*rendered
            && rendered.is_fresh(&current, change)
        {
            return Arc::clone(&rendered.view);
        }
        let view = Arc::new(self.render(sight, zone, &Selection::default()).await);
        *rendered = Some(Rendered { view: Arc::clone(&view), at: system::uptime(), of: current, change });
        view
    }

    /// Renders the overview of the selected jobs.
    pub(super) async fn render(self: &Arc<Self>, sight: Sight, zone: &Zone, selection: &Selection) -> View {
        let Sight { visibility, may_act } = sight;
        let wanted: Wanted = {
            let status = self.full_status(visibility).await;
            let last = |job: &JobStatus| job.last.as_ref().map(|last| last.run.clone());
            // Those that need attention first: what is not read in time is shown by the next request.
            let (attention, _) = attention::listed(&status);
            let shown = attention.into_iter().chain(selection.of(&status).jobs);
            shown.map(|job| (job.name.clone(), last(job))).collect()
        };
        let mut recents = self.recent_runs(wanted).await;
        if visibility == Visibility::Outline {
            recents.values_mut().for_each(|recent| recent.last_lines.clear());
        }
        // No await from here on, so that at most one handler holds what is not counted against limits.
        let status = self.full_status(visibility).await;
        let set = Arc::clone(&self.sources.jobs.borrow());
        let clock = Clock::new(status.at, zone.clone());
        let headline = Headline::of(&status, &clock);
        let main = html! {
            (headline.markup())
            (cluster::problems(&status, &clock))
            (attention::section(&status, &recents, &clock))
            div.columns {
                (cluster::queue(&status, may_act, &clock))
                (running::section(&status, &clock))
            }
            (jobs::table(&status, selection, &selection.of(&status), &recents, &clock))
            (Timeline::of(&status, &set).markup(&clock))
        };
        View::new(headline.title(), main, &status)
    }
}

impl View {
    fn new(title: String, main: Markup, status: &Status) -> Self {
        let tag = tag(&main);
        let summary = Summary {
            version: &tag,
            leader: status.role.leader_node.as_ref().map(|leader| leader.as_str()),
            state: status.state.as_str(),
            running: status.knows(LedgerPart::Runs).then(|| status.running()),
            failing: status.knows_who_fails().then(|| status.jobs.iter().filter(|job| job.is_failing()).count()),
        };
        // A structure of texts and numbers can always be written.
        let summary = serde_json::to_string(&summary).unwrap_or_default();
        Self { title, main, tag, summary }
    }
}

/// A tag that changes with the content, and not just because time passes.
pub(super) fn tag(PreEscaped(main): &Markup) -> String {
    let digest = times::without_distances(main).fold(Sha256::new(), |digest, part| digest.chain_update(part));
    digest.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visitors_who_see_the_same_share_a_view_and_their_number_is_bounded() {
        let views = Views::default();
        let zone = |name: &str| Zone::parse(name).expect("a zone");
        let of = |visibility, name: &str| views.of(Sight { visibility, may_act: true }, &zone(name));
        let first = of(Visibility::All, "UTC");
        assert!(Arc::ptr_eq(&first, &of(Visibility::All, "utc")));
        assert!(!Arc::ptr_eq(&first, &of(Visibility::Outline, "UTC")), "they see less");
        assert!(!Arc::ptr_eq(&first, &of(Visibility::All, "Asia/Tokyo")));
        let reader = Sight { visibility: Visibility::All, may_act: false };
        assert!(!Arc::ptr_eq(&first, &views.of(reader, &zone("UTC"))), "they have no buttons");
        for hours in 1..=12 {
            of(Visibility::All, &format!("Etc/GMT+{hours}"));
        }
        assert!(views.0.lock().expect("nobody has failed").len() <= MOST_ZONES);
    }
}
