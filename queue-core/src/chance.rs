//! Chance: jitter and random names. In a simulation both come from its seed, so that a history can
//! be played again.

use std::ops::RangeInclusive;

use rand::Rng;
use uuid::Uuid;

/// A number in `range`, for jitter.
pub(crate) fn between(range: RangeInclusive<f64>) -> f64 {
    #[cfg(feature = "simulation")]
    if let Some(bits) = crate::simulation::random() {
        let share = f64::from(u32::try_from(bits >> 32).unwrap_or(0)) / f64::from(u32::MAX);
        return range.start() + (range.end() - range.start()) * share;
    }
    rand::rng().random_range(range)
}

/// A number that nobody can guess.
pub(crate) fn number() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(bits) = crate::simulation::random() {
        return bits;
    }
    rand::rng().random()
}

/// A name that nobody else has.
#[must_use]
pub fn name() -> Uuid {
    #[cfg(feature = "simulation")]
    if let (Some(high), Some(low)) = (crate::simulation::random(), crate::simulation::random()) {
        return uuid::Builder::from_random_bytes(
            (u128::from(high) << 64 | u128::from(low)).to_be_bytes(),
        )
        .into_uuid();
    }
    Uuid::new_v4()
}
