//! Operations on topics: change, delete, weigh.

mod change;
pub mod deletion;
mod weight;

pub use self::change::{change_access, change_settings};
pub use self::weight::{LogWeight, Weight, weigh};
