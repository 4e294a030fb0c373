//! The console as users see it: the real programs, on a real server, in a real browser.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests: what cannot be set up has failed"
)]

mod changes;
mod chromium;
mod fixture;
mod live;
mod looks;
