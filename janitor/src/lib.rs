//! The janitor: the recurring work besides producing and consuming, one [`Duty`] each, driven by a
//! [`Driver`]. Any number of drivers may run; one sweeps at a time, the others stand ready.
//!
//! Consumers drive the same duties when no janitor does.

mod driver;
pub mod duties;
mod duty;
mod gauges;
mod shift;

pub use self::driver::{Driver, DriverOptions, Role};
pub use self::duty::{Duty, Sweep};
