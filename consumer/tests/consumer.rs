//! The consumer as a library and as a command. `fleet` has the tests of many processes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod check;
mod doorbell;
mod exec;
mod forward;
mod handling;
mod message;
mod metrics;
mod notify;
mod service;
mod traces;
mod webhook;
