//! What the host that jobs are read on has to say about them: whom it knows, and what it may do for them.

use std::collections::BTreeMap;

use super::schema::shown;
use super::spanned::Position;
use super::validate::{Placed, merged};
use crate::accounts::{self, Unknown};
use crate::job::RunAs;

/// A host, asked about each user once.
pub(super) struct Host {
    /// None: a host of which nothing is known, to which no job is foreign.
    rights: Option<Rights>,
    known: BTreeMap<RunAs, Verdict>,
}

/// What a process may do on its host.
#[derive(Clone, Copy)]
pub(super) struct Rights {
    /// It may become any user.
    pub is_root: bool,
    /// Finds out whether a user is known, and this process's own.
    pub look_up: fn(&RunAs) -> Result<bool, Unknown>,
}

type Verdict = Result<bool, Unknown>;

/// What is wrong: in words, and whether the jobs are refused for it.
pub(super) struct Objection {
    pub at: Position,
    /// It stands in the defaults.
    pub is_default: bool,
    pub message: String,
    pub is_error: bool,
}

impl Host {
    /// The host of this process.
    pub fn this() -> Self {
        let look_up = |run_as: &RunAs| accounts::look_up(run_as).map(|account| account.is_own());
        Self::with(Rights { is_root: accounts::is_root(), look_up })
    }

    /// Any host.
    pub fn any() -> Self {
        Self { rights: None, known: BTreeMap::new() }
    }

    pub(super) fn with(rights: Rights) -> Self {
        Self { rights: Some(rights), known: BTreeMap::new() }
    }

    /// What this host objects to in a job.
    pub fn objections(&mut self, own: &Placed, defaults: &Placed) -> Vec<Objection> {
        let Some(rights) = self.rights else { return Vec::new() };
        let mut objections = Vec::new();
        let nice = merged(&own.settings.nice, &defaults.settings.nice);
        if let Some(nice) = nice.filter(|&nice| nice < 0 && !rights.is_root) {
            let message = format!("`nice: {nice}` needs root, and cronkeeper does not run as root");
            objections.extend(objection(own, defaults, &["nice"], message, true));
        }
        let user = merged(&own.settings.user, &defaults.settings.user);
        let run_as = RunAs { user, group: merged(&own.settings.group, &defaults.settings.group) };
        if run_as == RunAs::default() {
            return objections;
        }
        let verdict = self.known.entry(run_as.clone()).or_insert_with(|| (rights.look_up)(&run_as));
        let keys: &[&str] = match verdict {
            Err(Unknown::Group(_)) => &["group"],
            _ => &["user", "group"],
        };
        let (message, is_error) = match verdict {
            Ok(true) => return objections,
            Ok(false) if rights.is_root => return objections,
            Err(unknown) if rights.is_root => (format!("{unknown}: its runs will fail with `no-user`"), false),
            _ => {
                let whom = run_as.user.map(|user| format!("user: {user}"));
                let whom = whom.or(run_as.group.map(|group| format!("group: {group}"))).unwrap_or_default();
                (format!("`{}` needs root, and cronkeeper does not run as root", shown(&whom)), true)
            }
        };
        objections.extend(objection(own, defaults, keys, message, is_error));
        objections
    }
}

/// At the first of these keys that the job has, else at that of the defaults.
fn objection(own: &Placed, defaults: &Placed, keys: &[&str], message: String, is_error: bool) -> Option<Objection> {
    let in_own = keys.iter().find_map(|key| own.place(key));
    let at = in_own.or_else(|| keys.iter().find_map(|key| defaults.place(key)))?;
    Some(Objection { at, is_default: in_own.is_none(), message, is_error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_for;

    /// Of a host that knows `own`, whose processes these are, and `backup`.
    fn said(is_root: bool, defaults: &str, keys: &str) -> String {
        let look_up = |run_as: &RunAs| match (run_as.user.as_deref(), run_as.group.as_deref()) {
            (_, Some("nobodies")) => Err(Unknown::Group("nobodies".into())),
            (Some("own"), None) => Ok(true),
            (Some("backup") | None, _) => Ok(false),
            (Some(user), _) => Err(Unknown::User(user.into())),
        };
        let text = format!("defaults: {{{defaults}}}\njobs: {{a: {{schedule: \"0 0 * * *\", command: x, {keys}}}}}");
        let problems = match parse_for("j", text.as_bytes(), Host::with(Rights { is_root, look_up })) {
            Ok((_, warnings)) => warnings.into_iter().map(|problem| format!("warning: {problem}")).collect(),
            Err(problems) => problems.into_iter().map(|problem| problem.to_string()).collect::<Vec<_>>(),
        };
        problems.join("\n")
    }

    #[test]
    fn another_user_or_a_lower_nice_value_needs_root() {
        let refused = "needs root, and cronkeeper does not run as root";
        assert_eq!(said(false, "", "user: backup"), format!("j:2:53: job `a`: `user: backup` {refused}"));
        assert_eq!(said(false, "", "group: backup"), format!("j:2:54: job `a`: `group: backup` {refused}"));
        assert_eq!(said(false, "user: stranger", ""), format!("j:1:18: defaults: `user: stranger` {refused}"));
        assert_eq!(said(false, "", "nice: -1"), format!("j:2:53: job `a`: `nice: -1` {refused}"));
        for keys in ["user: own", "nice: 19"] {
            assert_eq!(said(false, "", keys), "", "{keys}");
        }
        for keys in ["user: backup", "nice: -20"] {
            assert_eq!(said(true, "", keys), "", "{keys}");
        }
    }

    #[test]
    fn a_name_that_root_does_not_find_is_a_warning() {
        let fails = "on this host: its runs will fail with `no-user`";
        assert_eq!(said(true, "", "user: stranger"), format!("warning: j:2:53: job `a`: no user `stranger` {fails}"));
        let group = "user: backup, group: nobodies";
        assert_eq!(said(true, "", group), format!("warning: j:2:68: job `a`: no group `nobodies` {fails}"));
    }
}
