//! The console as its users get it: the real program, on a real server, over HTTP.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests: what cannot be set up has failed"
)]

mod api;
mod changing;
mod content;
mod contract;
mod fixture;
mod reading;
mod security;
