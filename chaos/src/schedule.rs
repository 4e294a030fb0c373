//! Which fault strikes when, drawn from the seed before anything happens.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::check::CALM;
use crate::fault::{Fault, Setting};

/// One consumer is killed alone in each such period: eight in the 280 seconds of faults in a run of
/// five minutes, enough for a percentile.
const KILL_EVERY: Duration = Duration::from_secs(35);

/// One consumer is frozen or cut off alone in each such period: four in a run of five minutes.
const SILENCE_EVERY: Duration = Duration::from_secs(70);

/// The time of a freeze or a cut, with the calm after it.
const SILENCE: Duration = Duration::from_secs(23);

/// The longest wait between the starts of a storm's faults.
const GAP: Duration = Duration::from_secs(3);

/// The time of a storm with the calm after it, for counting storms: its gaps, and a fault that
/// lasts beyond the lease.
const STORM: Duration = Duration::from_secs(30);

/// The most faults of a storm.
const LARGEST_STORM: usize = 16;

/// A step of the schedule.
pub(crate) enum Step {
    /// One fault, and calm after it.
    Alone(&'static Fault),
    /// Faults that overlap: each with the wait before it.
    Storm(Vec<(Duration, &'static Fault)>),
}

/// Draws the steps that fill about `time`. A kill takes only the calm after it, a freeze also its
/// own time, so `time` is a guide: no storm begins after it, and the measured faults come before
/// the last storm.
pub(crate) fn draw(faults: &[&'static Fault], time: Duration, rng: &mut SmallRng) -> Vec<Step> {
    let mut alone = strikes_alone(faults, time, rng);
    let spent = alone.iter().map(|fault| if fault.kills() { CALM } else { SILENCE }).sum();
    let storms = storms(faults, time.saturating_sub(spent), rng);
    let between = alone.len().div_ceil(storms.len().max(1));
    let mut steps = Vec::new();
    for storm in storms {
        let last = between.min(alone.len());
        steps.extend(alone.drain(..last).map(Step::Alone));
        steps.push(Step::Storm(storm));
    }
    steps.extend(alone.into_iter().map(Step::Alone));
    steps
}

/// Draws the measured faults, in the order in which they strike; each kind at least once.
fn strikes_alone(
    faults: &[&'static Fault],
    time: Duration,
    rng: &mut SmallRng,
) -> Vec<&'static Fault> {
    let alone = faults.iter().copied().filter(|fault| fault.setting == Setting::Alone);
    let (kills, silences): (Vec<_>, Vec<_>) = alone.partition(|fault| fault.kills());
    let mut strikes = Vec::new();
    for (kinds, every) in [(kills, KILL_EVERY), (silences, SILENCE_EVERY)] {
        let n = usize::try_from(time.as_secs() / every.as_secs()).unwrap_or(usize::MAX).max(1);
        strikes.extend(kinds.iter().copied().cycle().take(if kinds.is_empty() { 0 } else { n }));
    }
    strikes.shuffle(rng);
    strikes
}

/// Draws storms of a few faults each, and adds the faults of every storm. Each fault comes up once
/// before any comes up again; every fault comes up if the time allows that with storms of a
/// sensible size.
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
            let alone = |wanted: fn(&Fault) -> bool| {
                steps.iter().filter(|s| matches!(s, Step::Alone(f) if wanted(f))).count()
            };
            assert_eq!(alone(Fault::kills), 8, "seed {seed}");
            assert_eq!(alone(|fault| !fault.kills()), 4, "seed {seed}");
            // All measured faults are over before the last storm.
            assert!(matches!(steps.last(), Some(Step::Storm(_))), "seed {seed}");
        }
    }
}
