//! When which fault strikes, drawn from the seed before anything happens.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::fault::{Fault, Setting};

/// No other fault strikes so long before and after one that is measured.
pub(crate) const CALM: Duration = Duration::from_secs(10);

/// The part of the time in which faults strike alone.
const ALONE_PART: f64 = 0.55;

/// How long apart the faults of a storm begin, at most.
const GAP: Duration = Duration::from_secs(3);

/// What a storm takes with the calm after it, for the count of storms: its gaps, and a fault that
/// lasts beyond the lease.
const STORM: Duration = Duration::from_secs(30);

/// The most faults of a storm.
const LARGEST_STORM: usize = 10;

/// A step of the schedule.
pub(crate) enum Step {
    /// One fault, and calm after it.
    Alone(&'static Fault),
    /// Faults that overlap: each with the wait before it.
    Storm(Vec<(Duration, &'static Fault)>),
}

/// The steps that fill about `time`. A kill alone takes the calm, a freeze its own time besides, so
/// `time` is a guide: the run stops striking when it is over.
pub(crate) fn draw(faults: &[&'static Fault], time: Duration, rng: &mut SmallRng) -> Vec<Step> {
    let alone: Vec<_> = faults.iter().filter(|fault| fault.setting == Setting::Alone).collect();
    let mut lone = Vec::new();
    // Kills are the faults to measure most: three to each freeze.
    let slots = time.mul_f64(ALONE_PART).as_secs_f64() / (CALM.as_secs_f64() * 1.25);
    let mut spent = 0.0;
    while spent < slots && !alone.is_empty() {
        let first = alone[0];
        let fault =
            if rng.random_ratio(3, 4) { first } else { alone[rng.random_range(0..alone.len())] };
        spent += if fault.name == first.name { 1.0 } else { 2.0 };
        lone.push(Step::Alone(fault));
    }
    let storm_time = if alone.is_empty() { time } else { time.mul_f64(1.0 - ALONE_PART) };
    // Storms come early: what no time is left for is one more fault alone.
    let mut lone = lone.into_iter();
    let mut steps = Vec::new();
    for storm in storms(faults, storm_time, rng) {
        steps.extend(lone.next());
        steps.push(Step::Storm(storm));
    }
    steps.extend(lone);
    steps
}

/// Storms of some faults each, beside those of every storm. Every fault comes up once before any
/// comes up again; where the time allows it with storms of a sensible size, every fault comes up.
fn storms(
    faults: &[&'static Fault],
    time: Duration,
    rng: &mut SmallRng,
) -> Vec<Vec<(Duration, &'static Fault)>> {
    let mut storms = Vec::new();
    let mut deck = Vec::new();
    if faults.is_empty() {
        return storms;
    }
    let n = (time.as_secs() / STORM.as_secs()).max(1);
    let (always, faults): (Vec<_>, Vec<_>) =
        faults.iter().partition(|fault| fault.setting == Setting::EveryStorm);
    let enough = faults.len().div_ceil(usize::try_from(n).unwrap_or(usize::MAX));
    for _ in 0..n {
        let mut storm = Vec::new();
        let usual = rng.random_range(3..=6);
        let size = if enough <= LARGEST_STORM { enough.max(usual) } else { usual };
        let mut chosen: Vec<&'static Fault> = always.clone();
        for _ in 0..size {
            if deck.is_empty() {
                deck.clone_from(&faults);
                deck.shuffle(rng);
            }
            chosen.extend(deck.pop());
        }
        chosen.shuffle(rng);
        let mut waits = || GAP.mul_f64(rng.random_range(0.0..1.0));
        storm.extend(chosen.into_iter().map(|fault| (waits(), fault)));
        storms.push(storm);
    }
    storms
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::SeedableRng;

    use super::*;

    #[test]
    fn five_minutes_have_every_fault() {
        let faults = Fault::named(&[]).expect("all of them");
        for seed in 0..20 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let steps = draw(&faults, Duration::from_secs(280), &mut rng);
            let storms: Vec<_> = steps
                .iter()
                .filter_map(|step| match step {
                    Step::Storm(storm) => Some(storm),
                    Step::Alone(_) => None,
                })
                .collect();
            let struck: HashSet<_> =
                storms.iter().flat_map(|s| s.iter().map(|f| f.1.name)).collect();
            assert_eq!(struck.len(), faults.len(), "seed {seed}");
            // Each storm follows a fault alone, and there is time for these pairs.
            assert!(steps.len() >= storms.len() * 2, "seed {seed}");
            assert!(
                STORM * 2 * u32::try_from(storms.len()).expect("few") <= Duration::from_secs(280)
            );
        }
    }
}
