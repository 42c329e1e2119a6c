//! Times as a visitor sees them: how far away, and in which zone.
//!
//! The words of a distance change every second, so the script counts them on in an open page, by the same rules as here
//! (`distance` in page.js), and they are no part of a page's tag. Every `<time>` of the page is such a distance; the
//! instant itself is shown when it is pointed at or focused.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{Markup, html};

/// A time zone, chosen by the visitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Zone {
    name: String,
    rules: TimeZone,
}

impl Zone {
    /// The zone of a visitor who has chosen none.
    pub fn utc() -> Self {
        Self { name: "UTC".to_owned(), rules: TimeZone::UTC }
    }

    /// The zone of this name in the time zone database; `None` if there is none.
    pub fn parse(name: &str) -> Option<Self> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "/_+-".contains(c);
        if name.is_empty() || name.len() > 40 || !name.chars().all(is_name) {
            return None;
        }
        if name.eq_ignore_ascii_case("utc") {
            return Some(Self::utc());
        }
        let rules = TimeZone::get(name).ok()?;
        let name = rules.iana_name().unwrap_or(name).to_owned();
        Some(Self { name, rules })
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A moment, and the zone in which times are shown at it.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    pub now: Timestamp,
    pub zone: Zone,
}

impl Clock {
    pub fn new(now: Timestamp, zone: Zone) -> Self {
        Self { now, zone }
    }

    /// How far away: `in 4 s`, `12 s ago`.
    pub fn distance(&self, at: Timestamp) -> Markup {
        self.time(at, None, distance(at, self.now))
    }

    /// When something is due: `in 4 s`, and once that is over `due 12 s ago`.
    pub fn due(&self, at: Timestamp) -> Markup {
        self.time(at, Some("due"), due(at, self.now))
    }

    /// How long something that began then has lasted: `12 s`.
    pub fn since(&self, at: Timestamp) -> Markup {
        self.time(at, Some("since"), amount(self.now.as_second() - at.as_second()))
    }

    /// The words of what is further away than a day are its date, which no script counts on.
    fn time(&self, at: Timestamp, kind: Option<&str>, words: String) -> Markup {
        let machine = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let is_near = self.is_near(at) || kind == Some("since");
        html! {
            time tabindex="-1" datetime=(machine) title=(self.full(at)) data-kind=[kind] {
                @if is_near { (words) } @else { (self.short(at)) }
            }
        }
    }

    /// True if it is less than a day away.
    fn is_near(&self, at: Timestamp) -> bool {
        (at.as_second() - self.now.as_second()).abs() < DAY
    }

    /// The instant in full: `2026-11-20 02:30:00 UTC`.
    pub fn full(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.rules.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
    }

    /// The time of day, with the date unless it is today: `02:30:00`, `Nov 19 02:30:00`.
    pub fn short(&self, at: Timestamp) -> String {
        let [at, now] = [at, self.now].map(|at| at.to_zoned(self.zone.rules.clone()));
        let format = if at.date() == now.date() {
            "%H:%M:%S"
        } else if at.year() == now.year() {
            "%b %-d %H:%M:%S"
        } else {
            "%Y-%m-%d %H:%M:%S"
        };
        at.strftime(format).to_string()
    }

    /// The time of day and how far away that is.
    pub fn both(&self, at: Timestamp) -> Markup {
        html! {
            span.at { (self.short(at)) }
            @if self.is_near(at) { " " span.quiet { (self.distance(at)) } }
        }
    }

    /// As a form's field of date and time has it: `2026-11-20T02:30:00`.
    pub fn field(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.rules.clone()).strftime("%Y-%m-%dT%H:%M:%S").to_string()
    }

    /// The instant that such a field means; `None` for other texts.
    pub fn of_field(&self, text: &str) -> Option<Timestamp> {
        let civil: jiff::civil::DateTime = text.parse().ok()?;
        civil.to_zoned(self.zone.rules.clone()).ok().map(|at| at.timestamp())
    }

    /// The time of day without seconds, for the axis of a picture.
    pub fn minute(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.rules.clone()).strftime("%H:%M").to_string()
    }

    /// Seconds by which the zone is ahead of UTC then.
    pub fn offset(&self, at: Timestamp) -> i64 {
        i64::from(self.zone.rules.to_offset(at).seconds())
    }
}

const DAY: i64 = 86_400;

fn distance(at: Timestamp, now: Timestamp) -> String {
    match at.as_second() - now.as_second() {
        0 => "just now".to_owned(),
        ahead @ 1.. => format!("in {}", amount(ahead)),
        past => format!("{} ago", amount(-past)),
    }
}

/// A leader needs a moment for what is due.
fn due(at: Timestamp, now: Timestamp) -> String {
    match at.as_second() - now.as_second() {
        -2..=0 => "now".to_owned(),
        ahead @ 1.. => format!("in {}", amount(ahead)),
        past => format!("due {} ago", amount(-past)),
    }
}

/// `4 s`, `12 min`, `3 h 20 min`, `14 h`, `3 days`.
pub(super) fn amount(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds @ 3_600..36_000 if seconds % 3_600 >= 60 => {
            format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60)
        }
        seconds @ 3_600..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / DAY),
    }
}

/// A page without what changes by itself as time passes: the words of distances.
pub(super) fn without_distances(page: &str) -> impl Iterator<Item = &str> {
    // The parts of a text between ends of times begin with what is not one. No text of others has a `<`.
    page.split("</time>").flat_map(|part| match part.rsplit_once("<time ") {
        None => [part, ""],
        Some((before, time)) => [before, time.split('>').next().unwrap_or_default()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample::at;

    fn clock(zone: &str) -> Clock {
        Clock::new(at("2026-11-20T03:00:00Z"), Zone::parse(zone).unwrap())
    }

    #[test]
    fn distances_read_naturally() {
        let now = at("2026-11-20T03:00:00Z");
        let later = |seconds| now + jiff::SignedDuration::from_secs(seconds);
        let shown = [0, 4, -12, 61, -7_300, 50_000, 3 * DAY].map(|seconds| distance(later(seconds), now));
        assert_eq!(shown, ["just now", "in 4 s", "12 s ago", "in 1 min", "2 h 1 min ago", "in 13 h", "in 3 days"]);
        assert_eq!([4, -2, -12].map(|seconds| due(later(seconds), now)), ["in 4 s", "now", "due 12 s ago"]);
    }

    #[test]
    fn a_date_is_shown_only_where_it_is_not_that_of_today_in_the_zone() {
        let utc = clock("UTC");
        assert_eq!(utc.short(at("2026-11-20T00:30:00Z")), "00:30:00");
        assert_eq!(utc.short(at("2026-11-19T23:30:00Z")), "Nov 19 23:30:00");
        assert_eq!(clock("Europe/Berlin").short(at("2026-11-19T23:30:00Z")), "00:30:00");
        assert_eq!(utc.short(at("2025-11-19T23:30:00Z")), "2025-11-19 23:30:00");
        assert_eq!(clock("Europe/Berlin").full(at("2026-11-19T23:30:00Z")), "2026-11-20 00:30:00 CET");
        let far = utc.distance(at("2026-11-18T23:30:00Z")).into_string();
        assert!(far.contains(">Nov 18 23:30:00<"), "{far}");
    }

    #[test]
    fn a_field_of_a_form_is_read_back_in_the_zone() {
        let clock = clock("Europe/Berlin");
        let instant = at("2026-11-19T23:30:00Z");
        assert_eq!(clock.field(instant), "2026-11-20T00:30:00");
        assert_eq!(clock.of_field(&clock.field(instant)), Some(instant));
        assert_eq!((clock.of_field("2026-11-20T00:30"), clock.of_field("2h")), (Some(instant), None));
    }

    #[test]
    fn only_names_of_zones_are_zones() {
        assert_eq!(Zone::parse("europe/berlin").map(|zone| zone.name().to_owned()).as_deref(), Some("Europe/Berlin"));
        for bad in ["", "Europe/Nowhere", "../../etc/passwd", "<b>", "a;b"] {
            assert!(Zone::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_tag_does_not_depend_on_distances() {
        let of = |second: &str, what: &str| {
            let clock = Clock::new(at(&format!("2026-11-20T03:00:{second}Z")), Zone::utc());
            let (soon, later) = (at("2026-11-20T03:01:00Z"), at("2026-11-20T04:01:00Z"));
            let page = html! { p { (what) (clock.distance(soon)) " x " (clock.due(later)) } b { "y" } };
            without_distances(&page.into_string()).collect::<Vec<_>>().concat()
        };
        assert_eq!(of("01", "a"), of("02", "a"));
        assert_ne!(of("01", "a"), of("01", "b"));
        assert!(of("01", "a").contains(" x ") && of("01", "a").contains("<b>y</b>"), "{}", of("01", "a"));
    }
}
