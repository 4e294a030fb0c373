//! Chance: jitter and random names. A simulation draws both from its seed, so that a history can be
//! replayed.

use std::ops::RangeInclusive;

use rand::Rng;
use uuid::Uuid;

/// What a simulation draws its numbers from.
#[cfg(feature = "simulation")]
pub(crate) type Source = std::rc::Rc<dyn Fn() -> u64>;

#[cfg(feature = "simulation")]
thread_local! {
    static SOURCE: std::cell::RefCell<Option<Source>> = const { std::cell::RefCell::new(None) };
}

/// Draws this thread's numbers from `source` from now on; `None`: they are unpredictable.
#[cfg(feature = "simulation")]
pub(crate) fn draw_from(source: Option<Source>) {
    SOURCE.set(source);
}

/// A number of this thread's source, if it has one.
fn drawn() -> Option<u64> {
    #[cfg(feature = "simulation")]
    return SOURCE.with_borrow(Clone::clone).map(|source| source());
    #[cfg(not(feature = "simulation"))]
    None
}

/// A number in `range`, for jitter.
#[must_use]
pub fn between(range: RangeInclusive<f64>) -> f64 {
    if let Some(bits) = drawn() {
        let share = f64::from(u32::try_from(bits >> 32).unwrap_or(0)) / f64::from(u32::MAX);
        return range.start() + (range.end() - range.start()) * share;
    }
    rand::rng().random_range(range)
}

/// Returns a number that cannot be guessed.
pub(crate) fn number() -> u64 {
    drawn().unwrap_or_else(|| rand::rng().random())
}

/// Returns a name that no other process has.
#[must_use]
pub fn name() -> Uuid {
    if let (Some(high), Some(low)) = (drawn(), drawn()) {
        let bytes = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        return uuid::Builder::from_random_bytes(bytes).into_uuid();
    }
    Uuid::new_v4()
}
