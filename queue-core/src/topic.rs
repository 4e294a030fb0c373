//! What is done with topics: changed, deleted, weighed.

mod change;
pub mod deletion;
mod weight;

pub use self::change::{change_access, change_settings};
pub use self::weight::{LogWeight, Weight, weigh};
