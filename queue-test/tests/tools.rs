//! The queue with third-party programs (browser, `HAProxy`, Prometheus), the examples, and the
//! harness itself.

mod autoscaler;
mod browser;
mod examples;
mod haproxy;
mod harness;
mod prometheus;
mod tool;
