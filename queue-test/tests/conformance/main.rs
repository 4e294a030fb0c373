//! The conformance suite: the queue's promises, checked on a real server. It runs on MariaDB and on
//! MySQL alike (`ROWMQ_URL` says where), against the public interface of `rowmq_core` only.
//!
//! A test that covers one of the known broken histories, or a defect of the documents the project
//! grew from, names it in its doc comment: `H1`, `S1`.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "tests: what cannot be set up has failed, and their numbers are small"
)]

mod access;
mod ack_and_claim;
mod audit;
mod autocommit;
mod backlog;
mod cancellation;
mod checkpoints;
mod claim;
mod connect;
mod dead;
mod dead_letter_topics;
mod dedupe;
mod delays;
mod deletion;
mod doctor;
mod doorbell;
mod effects;
mod enqueue;
mod faults;
mod find;
mod histories;
mod hosts;
mod inspect;
mod killed;
mod killed_lists;
mod lanes;
mod ledger;
mod limits;
mod locks;
mod lookup;
mod marks;
mod middleman;
mod model;
mod moves;
mod network;
mod plans;
mod prepared;
mod reading;
mod ready;
mod rescue;
mod scene;
mod schedules;
mod schema;
mod seeds;
mod sessions;
mod settle;
mod sql_checkpoints;
mod sql_consumer;
mod sql_contract;
mod sql_faults;
mod sql_forgotten;
mod sql_fuzz;
mod sql_limits;
mod sql_model;
mod sql_options;
mod sql_plans;
mod sql_send_all;
mod sql_settle_many;
mod sql_unique;
mod sql_verdicts;
mod sql_wait;
mod storm;
mod streams;
mod throughput;
mod topics;
mod trace;
mod traps;
mod unique;
mod verdicts;
mod watched;
mod wire;
mod worker;
