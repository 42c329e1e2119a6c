//! How a channel's messages are delivered: exactly one kind, with the keys that belong to it.

use std::collections::BTreeMap;

use hyper::Uri;
use lettre::Address;

use super::ChannelCheck;
use crate::config::schema::{shown, shown_key};
use cronkeeper_core::job::{Target, Url};

/// The keys of which a channel has exactly one.
const KINDS: [&str; 5] = ["webhook", "webhook_file", "slack", "slack_file", "mail"];
/// The keys that each kind may have besides those of all.
const OF_WEBHOOK: &[&str] = &["headers", "headers_file", "secret_file", "ca_file"];
const OF_SLACK: &[&str] = &["ca_file"];
const OF_MAIL: &[&str] = &["from", "smtp", "user", "password_file", "ca_file"];
/// Most recipients of a mail.
pub(crate) const MOST_RECIPIENTS: usize = 50;
/// The mail server of this host.
const SMTP: &str = "smtp://localhost";
/// Headers that every request has.
const TAKEN: [&str; 6] = ["connection", "content-length", "content-type", "host", "transfer-encoding", "user-agent"];

impl ChannelCheck<'_> {
    /// `None`: what is wrong is reported.
    pub(super) fn target(&mut self) -> Option<Target> {
        let given: Vec<&str> = KINDS.into_iter().filter(|kind| self.has(kind)).collect();
        let [kind] = given.as_slice() else {
            let list = "`webhook`, `webhook_file`, `slack`, `slack_file`, `mail`";
            let why = match given.as_slice() {
                [] => format!("nothing says where to send its messages: add one of {list}"),
                several => format!("`{}`: a channel has exactly one of {list}", several.join("` and `")),
            };
            self.fault(self.at, why);
            return None;
        };
        let before = self.faults.len();
        let target = match *kind {
            "mail" => self.mail(),
            kind => self.http(kind),
        };
        target.filter(|_| self.faults.len() == before)
    }

    /// Reports keys of another kind.
    fn only(&mut self, kind: &str, keys: &[&str]) {
        let all = OF_WEBHOOK.iter().chain(OF_MAIL);
        for key in all.filter(|key| !keys.contains(key)) {
            if self.has(key) {
                let at = self.node.entry(key).map_or(self.at, |entry| entry.at);
                self.fault(at, format!("`{key}` cannot be used with `{kind}`; remove it"));
                return;
            }
        }
    }

    fn http(&mut self, kind: &str) -> Option<Target> {
        let is_webhook = kind.starts_with("webhook");
        self.only(kind, if is_webhook { OF_WEBHOOK } else { OF_SLACK });
        let ca_file = self.path("ca_file").ok()?;
        let headers_file = self.path("headers_file").ok()?;
        let secret_file = self.path("secret_file").ok()?;
        let url = match kind.ends_with("_file") {
            true => Url::File(self.path(kind).ok()??),
            false => Url::Text(self.text(kind)?.to_owned()),
        };
        if let Url::Text(text) = &url {
            let is_secret = !is_webhook || headers_file.is_some() || secret_file.is_some();
            if let Err(why) = address(text, is_secret) {
                self.wrong(kind, why);
            }
        }
        if !is_webhook {
            return Some(Target::Slack { url, ca_file });
        }
        let headers = self.headers();
        Some(Target::Webhook { url, headers, headers_file, secret_file, ca_file })
    }

    fn headers(&mut self) -> BTreeMap<String, String> {
        let entries = self.node.entry("headers").map_or(&[][..], |entry| entry.value.entries());
        let mut headers = BTreeMap::new();
        for entry in entries {
            let value = entry.value.text().unwrap_or_default();
            match header(&entry.key, value) {
                Ok(()) => _ = headers.insert(entry.key.clone(), value.to_owned()),
                Err(why) => self.fault(entry.at, format!("`headers`: `{}`: {why}", shown_key(&entry.key))),
            }
        }
        headers
    }

    fn mail(&mut self) -> Option<Target> {
        self.only("mail", OF_MAIL);
        let to = self.texts("mail");
        if to.is_empty() {
            self.wrong("mail", "needs at least one address");
        }
        if to.len() > MOST_RECIPIENTS {
            self.wrong("mail", format!("names more than {MOST_RECIPIENTS} recipients"));
        }
        for (at, address) in &to {
            if let Err(why) = mail_address(address) {
                self.fault(*at, format!("`mail`: {why}"));
            }
        }
        let from = self.text("from").map(str::to_owned);
        if let Some(why) = from.as_deref().and_then(|from| mail_address(from).err()) {
            self.wrong("from", why);
        }
        let smtp = self.text("smtp").unwrap_or(SMTP).to_owned();
        if let Err(why) = server(&smtp) {
            self.wrong("smtp", why);
        }
        let user = self.text("user").map(str::to_owned);
        if user.as_deref().is_some_and(|user| user.contains(char::is_control)) {
            self.wrong("user", "has control characters");
        }
        let password_file = self.path("password_file").ok()?;
        if user.is_some() != password_file.is_some() {
            let key = if user.is_some() { "user" } else { "password_file" };
            self.wrong(key, "set `user` and `password_file` together, or neither");
        }
        let to = to.into_iter().map(|(_, address)| address).collect();
        Some(Target::Mail { to, from, smtp, user, password_file, ca_file: self.path("ca_file").ok()? })
    }
}

/// Checks a URL of HTTP. `is_secret`: the URL, or what is sent there, must not be read on the way.
pub(crate) fn address(text: &str, is_secret: bool) -> Result<(), String> {
    let uri: Uri = text.parse().map_err(|_| "is not a URL such as `https://host/path`".to_owned())?;
    let (scheme, host) = (uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default());
    if !matches!(scheme, "http" | "https") || host.is_empty() {
        return Err("is not a URL such as `https://host/path`".to_owned());
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("has a user or password in it, which everybody can read; put an `Authorization` header into a \
                    `headers_file`"
            .to_owned());
    }
    if scheme == "http" && is_secret && !is_this_host(host) {
        return Err("would send a secret without encryption; write `https://`".to_owned());
    }
    Ok(())
}

/// The host of a URL without the brackets of an IPv6 address.
pub(crate) fn bare_host(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// True for names and addresses of this host.
pub(crate) fn is_this_host(host: &str) -> bool {
    let host = bare_host(host);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// True for the headers that cronkeeper sets itself.
pub(crate) fn is_own_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    TAKEN.contains(&lower.as_str()) || lower.starts_with("x-cronkeeper-") || lower == "idempotency-key"
}

fn header(name: &str, value: &str) -> Result<(), &'static str> {
    if hyper::header::HeaderName::try_from(name).is_err() {
        return Err("is not the name of a header");
    }
    if is_own_header(name) {
        return Err("cronkeeper sets this header itself");
    }
    if matches!(name.to_ascii_lowercase().as_str(), "authorization" | "proxy-authorization" | "cookie") {
        return Err("is a secret, which everybody could read here; put it into a `headers_file`");
    }
    hyper::header::HeaderValue::try_from(value).map(drop).map_err(|_| "its value has characters that are not allowed")
}

/// An address of mail. Without a domain, as cron takes it, it is a user of the mail server's host.
pub(crate) fn mail_address(text: &str) -> Result<Address, String> {
    let parsed = match text.contains('@') {
        true => text.parse(),
        false => Address::new(text, "localhost"),
    };
    // A mail server takes others only if it has SMTPUTF8.
    let usable = parsed.ok().filter(|_| text.is_ascii());
    usable.ok_or_else(|| format!("`{}` is not an address such as `ops@example.com`", shown(text)))
}

/// Checks the URL of a mail server.
fn server(text: &str) -> Result<(), &'static str> {
    let right = "is not a URL such as `smtps://mail.example.com` or `smtp://mail.example.com:587`";
    let uri: Uri = text.parse().map_err(|_| right)?;
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    if !matches!(uri.scheme_str(), Some("smtp" | "smtps")) || !has_host || uri.path().len() > 1 {
        return Err(right);
    }
    match uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        true => Err("has a user or password in it; write `user` and `password_file`"),
        false => Ok(()),
    }
}
