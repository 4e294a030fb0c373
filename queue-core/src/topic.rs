//! Operations on topics: ensure, change, delete, weigh.

mod change;
pub mod deletion;
mod ensure;
mod weight;

pub use self::change::{change_access, change_settings};
pub use self::ensure::ensure;
pub use self::weight::{LogWeight, Weight, weigh};
