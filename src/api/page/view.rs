//! The overview as it was rendered last. All open pages share it, so that many cost hardly more than one.

use std::sync::Arc;
use std::time::Duration;

use maud::{Markup, PreEscaped, html};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;

use super::bar_cache::Wanted;
use super::jobs::Selection;
use super::timeline::Timeline;
use super::{cluster, jobs};
use crate::api::ApiState;
use crate::api::network::Visibility;
use crate::status::{LedgerPart, Status};
use cronkeeper_core::clock::{Uptime, system};

/// Age up to which a view is shown although the daemon has published another status.
const SHORTEST: Duration = Duration::from_millis(250);
/// Age up to which a view is shown while the daemon has published nothing. The ledger may say more by then.
const LONGEST: Duration = Duration::from_secs(1);

/// The content of the overview.
#[derive(Debug)]
pub(super) struct View {
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

/// The views of those who see everything, and of those who see the outline.
#[derive(Default)]
pub(super) struct Views {
    all: Mutex<Option<Rendered>>,
    outline: Mutex<Option<Rendered>>,
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
    pub(super) async fn view(&self, visibility: Visibility) -> Arc<View> {
        let rendered = match visibility {
            Visibility::All => &self.page.views.all,
            Visibility::Outline => &self.page.views.outline,
        };
        let mut rendered = rendered.lock().await;
        let (current, change) = (Arc::clone(&self.sources.status.borrow()), self.reads.change());
        if let Some(rendered) = &*rendered
            && rendered.is_fresh(&current, change)
        {
            return Arc::clone(&rendered.view);
        }
        let view = Arc::new(self.render(visibility, &Selection::default()).await);
        *rendered = Some(Rendered { view: Arc::clone(&view), at: system::uptime(), of: current, change });
        view
    }

    /// Renders the overview of the selected jobs.
    pub(super) async fn render(&self, visibility: Visibility, selection: &Selection) -> View {
        let wanted: Wanted = {
            let status = self.full_status(visibility).await;
            let last = |job: &crate::status::JobStatus| job.last.as_ref().map(|last| last.run.clone());
            selection.of(&status).jobs.into_iter().map(|job| (job.name.clone(), last(job))).collect()
        };
        let bars = self.page.bars.of(&self.reads, wanted).await;
        // No await from here on, so that at most one handler holds what is not counted against limits.
        let status = self.full_status(visibility).await;
        let set = Arc::clone(&self.sources.jobs.borrow());
        let main = html! {
            h1.unseen { "Overview" }
            (cluster::problems(&status))
            (cluster::queue(&status, visibility == Visibility::All))
            div.columns {
                (jobs::running(&status))
                (Timeline::of(&status, &set).markup())
            }
            (jobs::table(&status, selection, &selection.of(&status), &bars))
        };
        View::new(main, &status)
    }
}

impl View {
    fn new(main: Markup, status: &Status) -> Self {
        let tag = tag(&main);
        let summary = Summary {
            version: &tag,
            leader: status.role.leader_node.as_ref().map(|leader| leader.as_str()),
            state: status.state.as_str(),
            running: status.knows(LedgerPart::Runs).then_some(status.runs.len()),
            failing: status.knows_who_fails().then(|| status.jobs.iter().filter(|job| job.is_failing()).count()),
        };
        // A structure of texts and numbers can always be written.
        let summary = serde_json::to_string(&summary).unwrap_or_default();
        Self { main, tag, summary }
    }
}

/// A tag that changes with the content.
pub(super) fn tag(PreEscaped(main): &Markup) -> String {
    Sha256::digest(main).iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}
