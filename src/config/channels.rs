//! The channels of a file, under `notify:` at the top, and the channels that its jobs name.
//!
//! A channel is checked by itself; that jobs name channels which exist is checked over all files.

mod target;

pub(crate) use self::target::{MOST_RECIPIENTS, address, bare_host, is_own_header, is_this_host, mail_address};

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::raw::{Form, Key};
use super::schema::{self, shown, shown_key};
use super::spanned::{Fault, MapEntry, Node, Position, Value};
use cronkeeper_core::duration;
use cronkeeper_core::job::{Channel, ChannelName, NoticeKind, NoticeKinds, Notify};
use cronkeeper_core::suggest::{did_you_mean, nearest};

/// What a job writes that has no channel.
pub(super) const NOBODY: &str = "none";
/// Most channels of a file.
pub(crate) const MOST_CHANNELS: usize = 50;
/// The least time between two messages, unless a channel has its own.
const EVERY: Duration = Duration::from_secs(60);

/// The keys of a channel.
pub(super) const CHANNEL: &[Key] = &[
    Key { name: "webhook", form: Form::Text, about: "URL to which the channel's messages are sent as JSON." },
    Key { name: "webhook_file", form: Form::Text, about: "Absolute path of the file that has this URL." },
    Key { name: "slack", form: Form::Text, about: "URL of an incoming webhook of Slack or of a compatible service." },
    Key { name: "slack_file", form: Form::Text, about: "Absolute path of the file that has this URL." },
    Key { name: "mail", form: Form::TextOrTexts, about: "The mail addresses that get the channel's messages." },
    Key { name: "from", form: Form::Text, about: "The sender's address. Default: `cronkeeper@` and the host's name." },
    Key {
        name: "smtp",
        form: Form::Text,
        about: "The mail server: `smtps://HOST` for TLS, `smtp://HOST` for STARTTLS, which a server on this host does not \
                need. Default smtp://localhost.",
    },
    Key { name: "user", form: Form::Text, about: "The user name for the mail server." },
    Key { name: "password_file", form: Form::Text, about: "Absolute path of the file that has the user's password." },
    Key { name: "headers", form: Form::Texts, about: "Further headers of the webhook's requests." },
    Key {
        name: "headers_file",
        form: Form::Text,
        about: "Absolute path of a file with secret headers, one `NAME: VALUE` per line.",
    },
    Key {
        name: "secret_file",
        form: Form::Text,
        about: "Absolute path of the file with the key that signs the webhook's requests.",
    },
    Key {
        name: "ca_file",
        form: Form::Text,
        about: "Absolute path of a PEM file with the CA certificates to trust for the server's certificate. \
                Default: those of the system.",
    },
    Key {
        name: "on",
        form: Form::TextOrTexts,
        about: "The notifications that the channel gets, unless a job names others: `failure`, `recovery`, `missed`, \
                `late`, `long`, `stale`, `output`, and about the cluster `leader_changed`, `node_missing`, `node_back`. \
                Default: the first six.",
    },
    Key { name: "every", form: Form::Duration, about: "Minimum time between two messages. Default 1m." },
];

/// A channel as a file has it.
#[derive(Debug)]
pub(super) struct Defined {
    pub at: Position,
    pub name: ChannelName,
    pub channel: Channel,
}

/// A place where a job, or the defaults, names a channel.
#[derive(Debug)]
pub(super) struct Mention {
    pub at: Position,
    /// Who names it, for messages.
    pub by: String,
    pub name: String,
}

/// The channels of a file.
pub(super) fn defined(notify: &MapEntry, faults: &mut Vec<Fault>) -> Vec<Defined> {
    let Value::Map(entries) = &notify.value.value else {
        if !notify.value.is_null() {
            let at = schema::position_of(notify);
            faults
                .push(Fault::new(at, "`notify` is a map from names to channels; write `notify: {NAME: {mail: ...}}`"));
        }
        return Vec::new();
    };
    if let Some(entry) = entries.get(MOST_CHANNELS) {
        faults.push(Fault::new(entry.at, format!("`notify`: a file has at most {MOST_CHANNELS} channels")));
    }
    entries.iter().take(MOST_CHANNELS).filter_map(|entry| channel(entry, faults)).collect()
}

fn channel(entry: &MapEntry, faults: &mut Vec<Fault>) -> Option<Defined> {
    let title = format!("channel `{}`", shown_key(&entry.key));
    let name = match ChannelName::parse(&entry.key) {
        Ok(name) if name.as_str() != NOBODY => Some(name),
        Ok(_) => {
            faults.push(Fault::new(entry.at, "a channel cannot be called `none`, which means no channel"));
            None
        }
        Err(bad) => {
            faults.push(Fault::new(entry.at, bad.to_string().replace(&entry.key, &shown_key(&entry.key))));
            None
        }
    };
    let Value::Map(keys) = &entry.value.value else {
        let message = format!("{title}: must be a map of keys, such as `{{mail: ops@example.com}}`");
        faults.push(Fault::new(schema::position_of(entry), message));
        return None;
    };
    let mut check = ChannelCheck { title, node: &entry.value, at: entry.at, faults };
    keys.iter().for_each(|key| check.form(key));
    let (on, every) = (check.on(), check.every());
    let target = check.target();
    Some(Defined { at: entry.at, name: name?, channel: Channel { target: target?, on: on?, every: every? } })
}

/// The check of one channel. Faults are reported, and what they are about is left out.
struct ChannelCheck<'a> {
    title: String,
    node: &'a Node,
    at: Position,
    faults: &'a mut Vec<Fault>,
}

impl ChannelCheck<'_> {
    fn fault(&mut self, at: Position, message: impl std::fmt::Display) {
        self.faults.push(Fault::new(at, format!("{}: {message}", self.title)));
    }

    /// Reports a fault of a key's value.
    fn wrong(&mut self, key: &str, why: impl std::fmt::Display) {
        let at = self.node.entry(key).map_or(self.at, schema::position_of);
        self.fault(at, format!("`{key}`: {why}"));
    }

    fn form(&mut self, entry: &MapEntry) {
        let Some(Key { form, .. }) = CHANNEL.iter().find(|key| key.name == entry.key) else {
            let hint = did_you_mean(nearest(&entry.key, CHANNEL.iter().map(|key| key.name)));
            return self.fault(entry.at, format!("`{}` is not a key of a channel{hint}", shown_key(&entry.key)));
        };
        for (at, why) in schema::wrong_form(*form, entry) {
            self.fault(at, why);
        }
    }

    /// The value of a key that is there and not null.
    fn text(&self, key: &str) -> Option<&str> {
        self.node.entry(key).filter(|entry| !entry.value.is_null())?.value.text()
    }

    fn has(&self, key: &str) -> bool {
        self.node.entry(key).is_some_and(|entry| !entry.value.is_null())
    }

    /// A text, or the items of a list.
    fn texts(&self, key: &str) -> Vec<(Position, String)> {
        self.node.entry(key).map(|entry| texts_of(&entry.value)).unwrap_or_default()
    }

    /// The path in a key that may be missing. `Err`: it is reported.
    fn path(&mut self, key: &str) -> Result<Option<PathBuf>, ()> {
        match self.text(key).map(PathBuf::from) {
            Some(path) if !path.is_absolute() => {
                // What is no path may be the secret itself, so it is not quoted.
                self.wrong(key, "must be the absolute path of a file");
                Err(())
            }
            path => Ok(path),
        }
    }

    fn on(&mut self) -> Option<NoticeKinds> {
        if !self.has("on") {
            return Some(NoticeKind::by_default());
        }
        let title = format!("{}: `on`", self.title);
        kinds(&self.texts("on"), &title, true, self.faults)
    }

    fn every(&mut self) -> Option<Duration> {
        let Some(text) = self.text("every").map(str::to_owned) else { return Some(EVERY) };
        match duration::parse(&text) {
            Ok(every) if every >= Duration::from_secs(1) => Some(every),
            Ok(_) => {
                self.wrong("every", "must be at least 1s");
                None
            }
            Err(bad) => {
                self.wrong("every", bad);
                None
            }
        }
    }
}

fn texts_of(node: &Node) -> Vec<(Position, String)> {
    match node.text() {
        Some(text) if !node.is_null() => vec![(node.at, text.to_owned())],
        _ => node.items().iter().filter_map(|item| Some((item.at, item.text()?.to_owned()))).collect(),
    }
}

/// Kinds of notifications by their words; `None` if one is wrong. A job's cannot be about the cluster.
fn kinds(
    words: &[(Position, String)],
    title: &str,
    takes_cluster: bool,
    faults: &mut Vec<Fault>,
) -> Option<NoticeKinds> {
    let known = || NoticeKind::ALL.into_iter().filter(|kind| takes_cluster || !kind.is_of_cluster());
    let mut kinds = BTreeSet::new();
    let before = faults.len();
    for (at, word) in words {
        match NoticeKind::parse(word) {
            Some(kind) if takes_cluster || !kind.is_of_cluster() => _ = kinds.insert(kind),
            Some(kind) => {
                let why =
                    format!("`{}` is about the cluster, not about a job; add it to the channel's `on`", kind.as_str());
                faults.push(Fault::new(*at, format!("{title}: {why}")));
            }
            None => {
                let list: Vec<String> = known().map(|kind| format!("`{}`", kind.as_str())).collect();
                let hint = did_you_mean(nearest(word, known().map(NoticeKind::as_str)));
                let why = format!("`{}` is not one of {}{hint}", shown(word), list.join(", "));
                faults.push(Fault::new(*at, format!("{title}: {why}")));
            }
        }
    }
    (faults.len() == before).then_some(kinds)
}

/// The value of a job's `notify`; `None` if something is wrong with it, which is reported.
pub(super) fn of_block(node: &Node, title: &str, faults: &mut Vec<Fault>) -> Option<Notify> {
    let before = faults.len();
    let mut notify = BTreeMap::new();
    let title = format!("{title}: `notify`");
    for (at, name, words) in named(node) {
        let kinds = words.map(|words| {
            let title = format!("{title}: `{}`", shown_key(&name));
            kinds(&words, &title, false, faults).unwrap_or_default()
        });
        match ChannelName::parse(&name) {
            Ok(parsed) => _ = notify.insert(parsed, kinds),
            Err(_) => faults.push(Fault::new(at, format!("{title}: `{}` is not a channel name", shown_key(&name)))),
        }
    }
    (faults.len() == before).then_some(Notify(notify))
}

/// The places where a block names channels.
pub(super) fn mentions(node: &Node, title: &str) -> Vec<Mention> {
    let mention = |(at, name, _)| Mention { at, by: title.to_owned(), name };
    named(node).into_iter().filter(|(_, name, _)| ChannelName::parse(name).is_ok()).map(mention).collect()
}

/// The words of events, where they are.
type Words = Vec<(Position, String)>;

/// The channels that a block names, each with the events that it gets, if they are named too.
fn named(node: &Node) -> Vec<(Position, String, Option<Words>)> {
    let Some(entry) = node.entry("notify") else { return Vec::new() };
    let own = |entry: &MapEntry| {
        let words = (!entry.value.is_null()).then(|| texts_of(&entry.value));
        (entry.at, entry.key.clone(), words)
    };
    if let Value::Map(entries) = &entry.value.value {
        return entries.iter().map(own).collect();
    }
    match texts_of(&entry.value) {
        nobody if nobody.len() == 1 && nobody[0].1 == NOBODY => Vec::new(),
        names => names.into_iter().map(|(at, name)| (at, name, None)).collect(),
    }
}

/// Why a channel that a job names does not exist.
pub(super) fn unknown(mention: &Mention, known: &BTreeMap<ChannelName, Channel>) -> Option<Fault> {
    let is_known = known.keys().any(|name| name.as_str() == mention.name);
    (!is_known).then(|| {
        let hint = match known.is_empty() {
            true => "; no file defines channels: add them under `notify` at the top".to_owned(),
            false => did_you_mean(nearest(&mention.name, known.keys().map(ChannelName::as_str))),
        };
        let Mention { at, by, name } = mention;
        Fault::new(*at, format!("{by}: `notify`: there is no channel `{}`{hint}", shown_key(name)))
    })
}
