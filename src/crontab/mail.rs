//! cron's mail: MAILTO and MAILFROM become channels that get what runs print.
//!
//! cron mails what an entry writes, to the addresses in MAILTO. Without MAILTO it mails the owner of the crontab on each
//! host, which is not carried over: a remark at the head of the file says so.

use super::Remark;
use super::entry::CrontabEntry;
use super::environment::Environment;
use super::job::YamlKeys;
use super::setting::Setting;
use super::yaml::{comment, scalar};
use crate::config::{MOST_CHANNELS, MOST_RECIPIENTS, mail_address};

/// Who gets the mail of entries, and who it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mail {
    to: Vec<String>,
    from: Option<String>,
}

impl Mail {
    /// `None`: entries with these variables send no mail.
    fn of(environment: &Environment) -> Option<Self> {
        let to = recipients(environment.get("MAILTO")?)?;
        let from = environment.get("MAILFROM").filter(|from| mail_address(from).is_ok()).cloned();
        Some(Self { to, from })
    }
}

/// The addresses in a MAILTO; `None` if it is empty, or one of them is none that a channel takes.
fn recipients(mailto: &str) -> Option<Vec<String>> {
    let all: Vec<String> = mailto.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect();
    let is_usable = (1..=MOST_RECIPIENTS).contains(&all.len()) && all.iter().all(|one| mail_address(one).is_ok());
    is_usable.then_some(all)
}

/// The channels that the entries need, in the order in which they are first needed.
#[derive(Debug, Default)]
pub(super) struct MailChannels(Vec<Mail>);

impl MailChannels {
    /// The name of the channel for entries with these variables.
    ///
    /// # Errors
    /// A remark, if a file cannot have another channel.
    pub fn channel(&mut self, environment: &Environment) -> Result<Option<String>, Remark> {
        let Some(mail) = Mail::of(environment) else { return Ok(None) };
        let known = self.0.iter().position(|known| *known == mail);
        let index = known.unwrap_or(self.0.len());
        if index == MOST_CHANNELS {
            return Err(Remark::loss(format!("no mail: a jobs file has at most {MOST_CHANNELS} channels")));
        }
        if known.is_none() {
            self.0.push(mail);
        }
        Ok(Some(name(index)))
    }

    /// Writes the channels.
    pub fn write(&self, file: &mut YamlKeys) {
        if self.0.is_empty() {
            return;
        }
        file.line("notify:");
        for (index, Mail { to, from }) in self.0.iter().enumerate() {
            let to: Vec<String> = to.iter().map(|one| scalar(one)).collect();
            let to = if let [one] = &to[..] { one.clone() } else { format!("[{}]", to.join(", ")) };
            let from = from.as_ref().map(|from| format!(", from: {}", scalar(from))).unwrap_or_default();
            file.line(&format!("  {}: {{mail: {to}{from}, on: [output]}}", name(index)));
        }
        file.line("");
    }
}

fn name(index: usize) -> String {
    if index == 0 { "mail".to_owned() } else { format!("mail-{}", index + 1) }
}

/// The value of `notify` for a channel.
pub(super) fn notify(channel: Option<&str>, entry: Option<&CrontabEntry>) -> String {
    match channel {
        None => "none".to_owned(),
        Some(name) if entry.is_some_and(|entry| entry.mails_failures_only) => format!("{{{name}: [failure]}}"),
        Some(name) => format!("[{name}]"),
    }
}

/// Remarks on a setting of mail; `None` if it is another.
pub(super) fn remark(Setting { name, value }: &Setting) -> Option<Remark> {
    let shown = comment(value);
    Some(match name.as_str() {
        "MAILTO" if value.is_empty() => Remark::same("no mail, as in cron; output goes to the log"),
        "MAILTO" if recipients(value).is_some() => Remark::loss(format!(
            "MAILTO={shown}: a channel mails the end of the output (4 KiB, or 512 bytes after a success) through \
             port 25 of the leader's host; try `cronkeeper notify test`"
        )),
        "MAILTO" => Remark::loss(format!(
            "MAILTO={shown}: not addresses that cronkeeper sends mail to; add a channel in `notify`"
        )),
        "MAILFROM" if value.is_empty() || mail_address(value).is_ok() => return None,
        "MAILFROM" => Remark::loss(format!("MAILFROM={shown}: not an address, so it is ignored")),
        "CONTENT_TYPE" | "CONTENT_TRANSFER_ENCODING" => {
            Remark::loss(format!("{name}: ignored, because mail is plain text in UTF-8"))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn entries_with_the_same_recipients_and_sender_share_a_channel() {
        let mut channels = MailChannels::default();
        let mut channel = |variables: &[(&str, &str)]| channels.channel(&environment(variables)).unwrap();
        assert_eq!(channel(&[]), None);
        assert_eq!(channel(&[("MAILTO", "")]), None);
        assert_eq!(channel(&[("MAILTO", "a b")]), None);
        assert_eq!(channel(&[("MAILTO", "root")]).as_deref(), Some("mail"));
        assert_eq!(channel(&[("MAILTO", "a@x.example, b@x.example")]).as_deref(), Some("mail-2"));
        assert_eq!(channel(&[("MAILTO", "root"), ("MAILFROM", "c@x.example")]).as_deref(), Some("mail-3"));
        assert_eq!(channel(&[("MAILTO", "root"), ("MAILFROM", "no one")]).as_deref(), Some("mail"));
        let mut file = YamlKeys::new(0);
        channels.write(&mut file);
        assert_eq!(
            file.text,
            "notify:\n  mail: {mail: root, on: [output]}\n  \
             mail-2: {mail: [\"a@x.example\", \"b@x.example\"], on: [output]}\n  \
             mail-3: {mail: root, from: \"c@x.example\", on: [output]}\n\n"
        );
    }

    #[test]
    fn a_file_has_no_more_channels_than_it_may_have() {
        let mut channels = MailChannels::default();
        let mut channel = |number: usize| channels.channel(&environment(&[("MAILTO", &format!("user{number}"))]));
        assert!((0..MOST_CHANNELS).all(|number| channel(number).is_ok()));
        assert!(channel(MOST_CHANNELS).is_err() && channel(0).is_ok());
    }
}
