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
    let mut steps = Vec::new();
    // Kills are the faults to measure most: three to each freeze.
    let slots = time.mul_f64(ALONE_PART).as_secs_f64() / (CALM.as_secs_f64() * 1.25);
    let mut spent = 0.0;
    while spent < slots && !alone.is_empty() {
        let first = alone[0];
        let fault =
            if rng.random_ratio(3, 4) { first } else { alone[rng.random_range(0..alone.len())] };
        spent += if fault.name == first.name { 1.0 } else { 2.0 };
        steps.push(Step::Alone(fault));
    }
    let storm_time = if alone.is_empty() { time } else { time.mul_f64(1.0 - ALONE_PART) };
    for storm in storms(faults, storm_time, rng) {
        steps.push(Step::Storm(storm));
    }
    steps.shuffle(rng);
    steps
}

/// Storms of some faults each. Every fault comes up once before any comes up again.
fn storms(
    faults: &[&'static Fault],
    time: Duration,
    rng: &mut SmallRng,
) -> Vec<Vec<(Duration, &'static Fault)>> {
    let mut storms = Vec::new();
    let mut deck = Vec::new();
    let mut spent = Duration::ZERO;
    while spent < time && !faults.is_empty() {
        let mut storm = Vec::new();
        for _ in 0..rng.random_range(3..=6) {
            if deck.is_empty() {
                deck = faults.to_vec();
                deck.shuffle(rng);
            }
            let wait = GAP.mul_f64(rng.random_range(0.0..1.0));
            spent += wait;
            storm.extend(deck.pop().map(|fault| (wait, fault)));
        }
        // The calm that follows.
        spent += CALM;
        storms.push(storm);
    }
    storms
}
