//! Handlers in a consumer within the test: verdicts, panics, run time, order, batches, the pull
//! API.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that cannot be set up has failed"
)]

mod broadcast;
mod cancellation;
mod checkpoints;
mod codecs;
mod effects;
mod erasure;
mod groups;
mod ledger;
mod middleware;
mod pausing;
mod polling;
pub(crate) mod running;
mod runs;
mod spans;
mod suspects;
mod throughput;
mod upgrade;
mod verdicts;
mod weights;
