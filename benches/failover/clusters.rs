//! Repeats a case: on one cluster, or on several side by side if a trial is mostly waiting.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::TICK;
use crate::cases::Case;
use crate::replicas::Replicas;
use crate::service::Service;
use crate::support::zookeeper::Ensemble;
use crate::table::Table;

/// Clusters at once. More would wait for each other's commits.
const BESIDE: usize = 10;

/// The backend of the clusters.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// Each cluster in one state directory.
    OneHost,
    /// Each cluster under a path of its own.
    ZooKeeper(&'a Ensemble),
    /// Each cluster in a place of its own.
    Service(&'a Service),
}

/// The times of each row, and the violations.
type Brought = (Vec<Vec<Duration>>, Vec<String>);

/// Measures the rows of a case.
pub fn measure(case: &Case, trials: usize, place: Place<'_>, table: &mut Table) {
    if !case.rows.iter().any(|(name, _)| table.wants(name)) {
        return;
    }
    let beside = if case.is_long { BESIDE.min(trials) } else { 1 };
    let (trial_times, faults) = side_by_side(case, trials, beside, place);
    for (i, (name, bounds)) in case.rows.iter().enumerate() {
        let took = trial_times.iter().map(|times| times[i]).collect();
        // A violation is reported only once.
        table.times(name, took, bounds, if i == 0 { &faults } else { &[] });
    }
}

fn side_by_side(case: &Case, trials: usize, beside: usize, place: Place<'_>) -> Brought {
    let (bring, brought) = channel::<Brought>();
    thread::scope(|scope| {
        for i in 0..beside {
            let bring = bring.clone();
            let share = trials / beside + usize::from(i < trials % beside);
            scope.spawn(move || {
                let mut replicas = settled(case, place);
                // Not all in the same part of a tick.
                thread::sleep(TICK * i as u32 / beside as u32);
                let times = (0..share).map(|_| (case.trial)(&mut replicas)).collect();
                bring.send((times, replicas.faults())).expect("the table waits for it");
            });
        }
        drop(bring);
    });
    let (times, faults): (Vec<_>, Vec<_>) = brought.into_iter().unzip();
    (times.concat(), faults.concat())
}

fn settled(case: &Case, place: Place<'_>) -> Replicas {
    match place {
        Place::OneHost => Replicas::on_one_host(),
        Place::ZooKeeper(ensemble) if case.has_lines => Replicas::behind_lines(ensemble, case.session),
        Place::ZooKeeper(ensemble) => Replicas::on_zookeeper(ensemble, case.session),
        Place::Service(servers) => Replicas::on(&servers.place(), case.session),
    }
}
