//! The real binary against a real server: each command, as users and scripts see it, and each wrong
//! input.

#![allow(clippy::expect_used, reason = "a test that cannot run its command has failed")]

mod access;
mod apply;
mod audit;
mod bench;
mod broadcast;
mod cancel;
mod cron;
mod dead;
mod delete;
mod erase;
mod export;
mod find;
mod grants;
mod groups;
mod import;
mod import_cut_off;
mod json_shapes;
mod messages;
mod observation;
mod own_server;
mod ready;
mod refusals;
mod run;
mod runbooks;
mod scheduled;
mod schema;
mod topics;
mod trace;
