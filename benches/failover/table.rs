//! The figures, one row as soon as it is there.

use std::time::Duration;

/// What a row should not be above.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// The middle one.
    Median(Duration),
    /// The largest one.
    Each(Duration),
}

/// Prints rows.
pub struct Table {
    word: Option<String>,
    is_begun: bool,
}

/// A row to be filled.
pub struct Row {
    name: &'static str,
    bounds: Vec<Bound>,
}

impl Table {
    /// With a word, of the rows whose name has it.
    pub fn new(word: Option<String>) -> Self {
        Self { word, is_begun: false }
    }

    /// A row, if it is wanted.
    pub fn row(&mut self, name: &'static str, bounds: &[Bound]) -> Option<Row> {
        if self.word.as_ref().is_some_and(|word| !name.contains(word.as_str())) {
            return None;
        }
        if !std::mem::replace(&mut self.is_begun, true) {
            println!(
                "{:<36} {:>3} {:>9} {:>9} {:>9} {:>9}  {:<36} load",
                "", "n", "min ms", "median", "p99", "max", "wanted"
            );
        }
        Some(Row { name, bounds: bounds.to_vec() })
    }
}

impl Row {
    /// Measures a time again and again.
    pub fn measure(self, rounds: usize, mut round: impl FnMut() -> Duration) {
        let mut took: Vec<Duration> = (0..rounds.max(1)).map(|_| round()).collect();
        took.sort_unstable();
        let figures = [took[0], rank(&took, 50), rank(&took, 99), took[took.len() - 1]];
        let [min, median, p99, max] = figures.map(|time| format!("{:.1}", time.as_secs_f64() * 1e3));
        let wanted: Vec<String> = self.bounds.iter().map(|bound| bound.judge(&took)).collect();
        let (name, wanted, load) = (self.name, wanted.join(", "), load());
        println!("{name:<36} {:>3} {min:>9} {median:>9} {p99:>9} {max:>9}  {wanted:<36} {load}", took.len());
    }

    /// Counts something again and again.
    pub fn count(self, rounds: usize, wanted: usize, round: impl FnMut(usize) -> usize) {
        let counts: Vec<usize> = (0..rounds.max(1)).map(round).collect();
        let verdict = if counts.iter().all(|&count| count == wanted) { "yes" } else { "NO" };
        let (name, sum, load) = (self.name, counts.iter().sum::<usize>(), load());
        let judged = format!("{wanted} each: {verdict}");
        println!("{name:<36} {:>3} {:>39}  {judged:<36} {load}", counts.len(), format!("{sum} in all"));
    }
}

impl Bound {
    fn judge(self, sorted: &[Duration]) -> String {
        let (word, is, bound) = match self {
            Self::Median(bound) => ("median", rank(sorted, 50), bound),
            Self::Each(bound) => ("each", sorted[sorted.len() - 1], bound),
        };
        format!("{word} < {}: {}", bound.as_millis(), if is < bound { "yes" } else { "NO" })
    }
}

/// The smallest value that so many percent do not exceed.
fn rank(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}

/// Of the machine, in the last minute.
fn load() -> String {
    let all = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    all.split(' ').next().unwrap_or_default().to_owned()
}
