//! Where a cluster's etcd is, and how to log in: the URLs of its members, a prefix, and parameters.

use std::fmt;
use std::str::FromStr;

use crate::url::{self, Access, Form, Server, UrlError, Urls};

/// Where the keys are if the settings name no prefix.
const PREFIX: &str = "/cronkeeper";
const FORM: Form = Form {
    plain: "http",
    encrypted: "https",
    port: 2379,
    example: "https://e1:2379,https://e2:2379/prefix",
    parameters: &[],
    has_default_user: false,
};

/// How to reach etcd. What it names is not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub members: Vec<Server>,
    /// Of all keys; begins with a slash, and does not end with one.
    pub prefix: String,
    pub access: Access,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Urls(#[from] UrlError),
    #[error("`{0}` is not a prefix: it has an empty part, or spaces")]
    Prefix(String),
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let Urls { servers, path, access, .. } = Urls::parse(text, &FORM)?;
        let prefix = if path.is_empty() { PREFIX.to_owned() } else { format!("/{path}") };
        let is_bad = |part: &str| part.is_empty() || part.chars().any(|char| char.is_whitespace() || char.is_control());
        if prefix.split('/').skip(1).any(is_bad) {
            return Err(SettingsError::Prefix(prefix));
        }
        Ok(Self { members: servers, prefix, access })
    }
}

/// The servers and the prefix.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", url::shown(&self.members), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_prefix_are_read() {
        for (text, shown) in [
            ("http://e1", "e1:2379/cronkeeper"),
            ("http://e1:1,http://[::1]:2/", "e1:1,[::1]:2/cronkeeper"),
            ("https://e1,https://e2:5/ops/cron?cacert=/etc/ca.pem", "e1:2379,e2:5/ops/cron"),
        ] {
            assert_eq!(text.parse::<Settings>().expect(text).to_string(), shown);
        }
        let error = "http://e1/a//b".parse::<Settings>().expect_err("a part is empty").to_string();
        assert!(error.contains("`/a//b` is not a prefix"), "{error}");
    }
}
