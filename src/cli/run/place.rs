//! The options that say what a node is as a place to run jobs: its labels and its weight.

use std::thread;

use super::Error;
use cronkeeper_core::election::Place;
use cronkeeper_core::job::{BadLabel, Label, Labels, MOST_LABELS};

#[derive(Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// A label of this node, for jobs that name it in `run_where`: `gpu`, or `zone=eu`. Repeat the option or separate
    /// labels by commas, at most 32. Every node has the label `node=NAME`
    #[arg(id = "label", long = "label", value_name = "NAME[=VALUE]", env = "CRONKEEPER_LABEL", value_delimiter = ',', value_parser = label)]
    labels: Vec<Label>,
    /// This node's share of the jobs with `run_on: any`, in proportion to the weights of the others; 0: it gets none of
    /// them [default: the number of its processors]
    #[arg(long, value_name = "N", env = "CRONKEEPER_WEIGHT", value_parser = weight)]
    weight: Option<u32>,
}

/// The greatest weight of a node.
const MOST_WEIGHT: u32 = 1_000_000;

fn label(text: &str) -> Result<Label, BadLabel> {
    Label::parse_own(text.trim())
}

fn weight(text: &str) -> Result<u32, String> {
    let weight = text.trim().parse().ok().filter(|weight| *weight <= MOST_WEIGHT);
    weight.ok_or_else(|| {
        format!(
            "expected a whole number from 0 to {MOST_WEIGHT}, such as the number of processors; 0: only jobs with `run_on: \
             every` run there"
        )
    })
}

impl PlaceArgs {
    /// What the node is as a place to run jobs.
    ///
    /// # Errors
    /// If it has too many labels.
    pub(super) fn place(&self) -> Result<Place, Error> {
        let labels: Labels = self.labels.iter().cloned().collect();
        if labels.len() > MOST_LABELS {
            return Err(Error::TooManyLabels { given: labels.len() });
        }
        let weight = self.weight.unwrap_or_else(processors);
        Ok(Place { labels, weight, ..Place::default() })
    }
}

/// The processors that this process may use.
fn processors() -> u32 {
    thread::available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        place: PlaceArgs,
    }

    fn place(line: &[&str]) -> Result<Place, String> {
        let line = Line::try_parse_from([&["run"], line].concat()).map_err(|error| error.to_string())?;
        line.place.place().map_err(|error| error.to_string())
    }

    #[test]
    fn labels_are_repeated_or_separated_by_commas() {
        let texts = |line: &[&str]| place(line).unwrap().labels.iter().map(Label::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&["--label", "gpu", "--label", "zone=eu,disk=ssd, gpu"]), ["disk=ssd", "gpu", "zone=eu"]);
        assert!(texts(&[]).is_empty());
        let weights = [&["--weight", "0"][..], &["--weight", "3"], &[]].map(|line| place(line).unwrap().weight);
        assert_eq!(weights, [0, 3, processors()]);
    }

    #[test]
    fn what_is_no_label_or_weight_is_refused_with_the_reason() {
        let many: Vec<String> = (0..33).map(|n| format!("l{n}")).collect();
        for (line, why) in [
            (["--label", "GPU!"], "`GPU!` is not a label"),
            (["--label", "gpu,,db"], "a label is empty: expected NAME or NAME=VALUE"),
            (["--label", "!old"], "`!old`: a node has a label or not"),
            (["--weight", "much"], "expected a whole number from 0 to 1000000"),
            (["--label", "node=host-b"], "the label `node` cannot be given: it is the node's name"),
            (["--weight", "-1"], "-1"),
            (["--weight", "4000000000"], "1000000"),
            (["--label", &many.join(",")], "33 labels are given; a node has at most 32"),
        ] {
            let said = place(&line).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
