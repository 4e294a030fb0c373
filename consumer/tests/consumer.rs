//! The consumer as a library and as a command. The tests of many processes are in `fleet`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod check;
mod doorbell;
mod exec;
mod forward;
mod handling;
mod message;
mod metrics;
mod notify;
mod pool;
mod service;
mod start;
mod traces;
mod webhook;
