//! The table of figures, printed row by row, and the violations.
#![allow(dead_code, reason = "each bench that includes the table uses a part of it")]

use std::process::ExitCode;
use std::time::Duration;

/// The goal of a row, which its values should not exceed.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// The median.
    Median(Duration),
    /// Exceeded by one in a hundred.
    P99(Duration),
    /// The largest value.
    Each(Duration),
}

/// In milliseconds.
pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Prints rows.
pub struct Table {
    word: Option<String>,
    is_begun: bool,
    faults: Vec<String>,
}

impl Table {
    /// With a word, prints only the rows whose name contains it.
    pub fn new(word: Option<String>) -> Self {
        Self { word, is_begun: false, faults: Vec::new() }
    }

    /// True if a row is to be measured.
    pub fn wants(&self, name: &str) -> bool {
        self.word.as_ref().is_none_or(|word| name.contains(word.as_str()))
    }

    /// A row of times, and the violations in its trials.
    pub fn times(&mut self, name: &str, mut took: Vec<Duration>, bounds: &[Bound], faults: &[String]) {
        took.sort_unstable();
        let figures = [rank(&took, 0), rank(&took, 50), rank(&took, 99), rank(&took, 100)];
        let [min, median, p99, max] = figures.map(|time| format!("{:.1}", time.as_secs_f64() * 1e3));
        let wanted: Vec<String> = bounds.iter().map(|bound| bound.judge(&took)).collect();
        self.print(name, took.len(), &format!("{min:>9} {median:>9} {p99:>9} {max:>9}"), &wanted.join(", "), faults);
    }

    /// A row of counts, and the violations in its trials.
    pub fn counts(&mut self, name: &str, counts: Vec<usize>, wanted: usize, faults: &[String]) {
        let verdict = verdict(counts.iter().all(|&count| count == wanted));
        let sum = format!("{} in all", counts.iter().sum::<usize>());
        self.print(name, counts.len(), &format!("{sum:>39}"), &format!("{wanted} each: {verdict}"), faults);
    }

    fn print(&mut self, name: &str, n: usize, figures: &str, wanted: &str, faults: &[String]) {
        if !std::mem::replace(&mut self.is_begun, true) {
            let [min, median, p99, max, target] = ["min ms", "median", "p99", "max", "wanted"];
            println!("{:<46} {:>3} {min:>9} {median:>9} {p99:>9} {max:>9}  {target:<38} broken  load", "", "n");
        }
        let never = if faults.is_empty() { "never" } else { "BROKEN" };
        println!("{name:<46} {n:>3} {figures}  {wanted:<38} {never:<6}  {}", load());
        self.faults.extend(faults.iter().map(|fault| format!("{name}: {fault}")));
    }

    /// Failure if there was a violation.
    pub fn verdict(self) -> ExitCode {
        self.faults.iter().for_each(|fault| eprintln!("BROKEN {fault}"));
        if self.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Bound {
    fn judge(self, sorted: &[Duration]) -> String {
        let (word, is, bound) = match self {
            Self::Median(bound) => ("median", rank(sorted, 50), bound),
            Self::P99(bound) => ("p99", rank(sorted, 99), bound),
            Self::Each(bound) => ("each", rank(sorted, 100), bound),
        };
        format!("{word} < {}: {}", bound.as_millis(), verdict(is < bound))
    }
}

fn verdict(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "NO" }
}

/// The smallest value that this many percent do not exceed; zero if there is none.
fn rank(sorted: &[Duration], percent: usize) -> Duration {
    let place = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(place).copied().unwrap_or_default()
}

/// The machine's load over the last minute.
fn load() -> String {
    let all = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    all.split(' ').next().unwrap_or_default().to_owned()
}
