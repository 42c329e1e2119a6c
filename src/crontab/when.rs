//! The times of an entry, converted to an expression with the same meaning.
//!
//! cronkeeper accepts more than cron: wrapped ranges, long names, and a step behind a single value. cron refuses an
//! entry with one of those, so the import refuses it, too, except for weekdays up to Sunday, such as `sat-sun`, which
//! cronie has taken since 2025. Steps longer than the range of their field, which cron
//! accepts, are reduced to it. The random `~` of cronie and OpenBSD becomes the hashed `H`.

use super::Remark;
use cronkeeper_core::escape;

/// The expression of an entry, with remarks about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EntryTimes {
    pub expression: String,
    pub remarks: Vec<Remark>,
}

struct TimeField {
    name: &'static str,
    low: u16,
    high: u16,
    names: &'static [&'static str],
}

const FIELDS: [TimeField; 5] = [
    TimeField { name: "minute", low: 0, high: 59, names: &[] },
    TimeField { name: "hour", low: 0, high: 23, names: &[] },
    TimeField { name: "day of month", low: 1, high: 31, names: &[] },
    TimeField {
        name: "month",
        low: 1,
        high: 12,
        names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    },
    TimeField { name: "day of week", low: 0, high: SUNDAY, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] },
];

/// The highest weekday; 0 is Sunday too.
const SUNDAY: u16 = 7;

const MACROS: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Parses the times at the beginning of an entry; also returns the rest of the entry.
pub(super) fn take(entry: &str) -> Result<(EntryTimes, &str), String> {
    if entry.starts_with('@') {
        let (word, rest) = word(entry);
        return Ok((macro_of(word)?, rest));
    }
    let mut rest = entry;
    let mut fields = Vec::new();
    let (mut is_random, mut remarks) = (false, Vec::new());
    for field in &FIELDS {
        let (text, behind) = word(rest);
        if text.is_empty() {
            return Err(format!("{} is missing", field.name));
        }
        fields.push(field.read(text)?);
        is_random |= text.contains('~');
        remarks.extend(text.split(',').filter(|item| field.ends_with_sunday(item)).map(up_to_sunday));
        rest = behind;
    }
    let expression = fields.join(" ");
    let random = "cron picks a random value for `~` at each start; `H` is a fixed value derived from the job's name";
    remarks.extend(is_random.then(|| Remark::loss(random)));
    Ok((EntryTimes { expression, remarks }, rest))
}

fn up_to_sunday(range: &str) -> Remark {
    let range = shown(range);
    Remark::loss(format!("`{range}`: ends with Sunday, as in cronie since 2025; other crons refuse the entry"))
}

/// Splits a text into its first word and the rest, without the blanks between them.
pub(super) fn word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_at(text.find([' ', '\t']).unwrap_or(text.len()));
    (word, rest.trim_start_matches([' ', '\t']))
}

fn macro_of(word: &str) -> Result<EntryTimes, String> {
    match word {
        "@reboot" => Err("`@reboot`: a cluster has no single boot; use a systemd unit on each host".to_owned()),
        // The next two are FreeBSD's.
        "@every_minute" => Ok(EntryTimes { expression: "* * * * *".to_owned(), remarks: Vec::new() }),
        "@every_second" => Ok(EntryTimes { expression: "* * * * * *".to_owned(), remarks: Vec::new() }),
        _ if MACROS.contains(&word) => Ok(EntryTimes { expression: word.to_owned(), remarks: Vec::new() }),
        _ => Err(format!("`{}` is not a time that cron knows", shown(word))),
    }
}

impl TimeField {
    fn read(&self, text: &str) -> Result<String, String> {
        let items: Result<Vec<String>, String> = text.split(',').map(|item| self.item(item)).collect();
        Ok(items.map_err(|why| format!("{}: {why}", self.name))?.join(","))
    }

    fn item(&self, item: &str) -> Result<String, String> {
        let (base, step) = match item.split_once('/') {
            Some((base, step)) => (base, Some(self.step(step)?)),
            None => (item, None),
        };
        let step = step.map(|step| format!("/{step}")).unwrap_or_default();
        if base == "*" {
            return Ok(format!("*{step}"));
        }
        if let Some((low, high)) = base.split_once('~') {
            return Ok(format!("{}{step}", self.random(low, high)?));
        }
        if let Some((low, high)) = base.split_once('-') {
            if low.is_empty() || high.is_empty() {
                return Err(format!("cron cannot read `{}`", shown(item)));
            }
            if !self.ends_with_sunday(item) {
                self.in_order(self.value(low)?, self.value(high)?, item)?;
            }
            return Ok(format!("{base}{step}"));
        }
        self.value(base)?;
        if !step.is_empty() {
            return Err(format!("cron refuses `{}`: a step must follow `*` or a range", shown(item)));
        }
        Ok(base.to_owned())
    }

    fn random(&self, low: &str, high: &str) -> Result<String, String> {
        if low.is_empty() && high.is_empty() {
            return Ok("H".to_owned());
        }
        let end = |text: &str, absent| if text.is_empty() { Ok(absent) } else { self.value(text) };
        let (first, last) = (end(low, self.low)?, end(high, self.high)?);
        self.in_order(first, last, &format!("{low}~{high}"))?;
        Ok(format!("H({first}-{last})"))
    }

    /// True for a range of weekdays up to Sunday, the 0. With a step, cronie reads no day at all from it.
    fn ends_with_sunday(&self, item: &str) -> bool {
        let ends = item.split_once('-').filter(|_| self.high == SUNDAY);
        let values = ends.and_then(|(low, high)| Some((self.value(low).ok()?, self.value(high).ok()?)));
        values.is_some_and(|(low, high)| low > high && high == 0)
    }

    fn in_order(&self, low: u16, high: u16, range: &str) -> Result<(), String> {
        if low <= high {
            return Ok(());
        }
        let instead = if self.high == SUNDAY && high == 0 { "; write 7 for Sunday" } else { "" };
        Err(format!("cron refuses the range `{}`, which goes backwards{instead}", shown(range)))
    }

    fn value(&self, text: &str) -> Result<u16, String> {
        let named = || self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let value = match digits(text) {
            Some(value) => Some(value),
            None => named().and_then(|index| u16::try_from(index).ok()).map(|index| self.low + index),
        };
        let value = value.ok_or_else(|| format!("cron cannot read `{}`", shown(text)))?;
        if (self.low..=self.high).contains(&value) {
            return Ok(value);
        }
        Err(format!("`{}` is out of range: {} to {}", shown(text), self.low, self.high))
    }

    /// Parses a step. One that is longer than the field has the same effect as the field's length, which replaces it.
    fn step(&self, text: &str) -> Result<u16, String> {
        let longest = if self.high == SUNDAY { 7 } else { self.high - self.low + 1 };
        match digits(text) {
            Some(step) if step > 0 => Ok(step.min(longest)),
            _ => Err(format!("`{}` is not a valid step", shown(text))),
        }
    }
}

/// Parses a number; one that is too large becomes `u16::MAX`.
fn digits(text: &str) -> Option<u16> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().unwrap_or(u16::MAX))
}

/// Escapes and cuts a word of the crontab for a message.
pub(super) fn shown(text: &str) -> String {
    escape::short(text, 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(entry: &str) -> Result<String, String> {
        take(entry).map(|(when, rest)| format!("{} | {rest}", when.expression))
    }

    #[test]
    fn fields_with_the_same_meaning_are_unchanged() {
        for (entry, expression) in [
            ("*/5\t1-3,7  * jan-MAR mon x  y ", "*/5 1-3,7 * jan-MAR mon | x  y "),
            ("05 04 * * 7 x", "05 04 * * 7 | x"),
            ("*/90 0-23/99 */40 */13 */9 x", "*/60 0-23/24 */31 */12 */7 | x"),
            ("@daily x", "@daily | x"),
            ("@every_minute x", "* * * * * | x"),
            ("~ 1~5 ~10 * fri~ x", "H H(1-5) H(1-10) * H(5-7) | x"),
            ("0~59/15 * * * * x", "H(0-59)/15 * * * * | x"),
            ("0 0 * * sat-sun x", "0 0 * * sat-sun | x"),
            ("0 0 * * wed,Fri-SUN x", "0 0 * * wed,Fri-SUN | x"),
            ("0 0 * * 6-0,1-sun,7-0 x", "0 0 * * 6-0,1-sun,7-0 | x"),
        ] {
            assert_eq!(taken(entry).as_deref(), Ok(expression), "{entry}");
        }
    }

    #[test]
    fn only_what_differs_among_crons_gets_a_remark() {
        let remarks = |entry| take(entry).unwrap().0.remarks.len();
        assert_eq!((remarks("0 0 * MAR THU x"), remarks("0 0~5 * * * x"), remarks("@daily x")), (0, 1, 0));
        assert_eq!((remarks("0 0 * * sat-sun x"), remarks("0 0 * * 6-7,sun-mon x")), (1, 0));
    }

    #[test]
    fn an_entry_that_cron_refuses_is_refused() {
        for (entry, why) in [
            ("60 * * * * x", "minute: `60` is out of range: 0 to 59"),
            ("0 22-2 * * * x", "hour: cron refuses the range `22-2`, which goes backwards"),
            ("5/20 * * * * x", "minute: cron refuses `5/20`: a step must follow `*` or a range"),
            ("0 22-0 * * * x", "hour: cron refuses the range `22-0`, which goes backwards"),
            ("0 0 * * fri-mon x", "day of week: cron refuses the range `fri-mon`, which goes backwards"),
            (
                "0 0 * * fri-sun/2 x",
                "day of week: cron refuses the range `fri-sun/2`, which goes backwards; write 7 for Sunday",
            ),
            (
                "0 0 * * sun~sat,sat~sun x",
                "day of week: cron refuses the range `sat~sun`, which goes backwards; write 7 for Sunday",
            ),
            ("--all", "minute: cron cannot read `--all`"),
            ("0 1- * * * x", "hour: cron cannot read `1-`"),
            ("0 0 * * monday x", "day of week: cron cannot read `monday`"),
            ("0 0 * * 1, x", "day of week: cron cannot read ``"),
            ("0 0 * * */0 x", "day of week: `0` is not a valid step"),
            ("0 0 * *", "day of week is missing"),
            ("@Daily x", "`@Daily` is not a time that cron knows"),
            ("99999999999 * * * * x", "minute: `99999999999` is out of range: 0 to 59"),
        ] {
            assert_eq!(taken(entry), Err(why.to_owned()), "{entry}");
        }
        assert!(taken("@reboot x").unwrap_err().contains("systemd unit"));
    }
}
