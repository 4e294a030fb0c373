//! The real binaries as a fleet: killed, frozen, stopped, and with their server restarted.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that cannot be set up has failed"
)]

mod broadcast;
mod effects;
mod fleet;
mod freeze;
mod groups;
mod kill;
mod limits;
mod load;
mod poison;
mod pool;
mod restart;
mod stop;
