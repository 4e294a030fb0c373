//! The janitor as a command, and SQL consumers that it takes messages back from.

mod backlog;
mod janitor;
mod metrics;
mod notify;
mod rescue;
mod settings;
mod sql_consumers;
mod ticks;
