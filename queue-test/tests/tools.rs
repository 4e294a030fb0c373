//! The queue with third-party programs (browser, `HAProxy`, Prometheus), the examples, the guides,
//! the harness itself, and the server that tests run on.

mod autoscaler;
mod browser;
mod clients;
mod compose;
mod dev_server;
mod examples;
mod guides;
mod haproxy;
mod harness;
mod prometheus;
mod tool;
