//! The janitor as a command, and SQL consumers from which it takes messages back.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

mod backlog;
mod janitor;
mod metrics;
mod notify;
mod rescue;
mod settings;
mod sql_consumers;
mod stand_in;
mod ticks;
