//! `rowmq-consumer forward` as a process, with real receivers.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot be set up has failed"
)]

mod redis_stream;
mod sending;
mod stdout;
mod webhook;
