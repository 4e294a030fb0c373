//! The endpoint and the signals of a service.

mod endpoint;
mod signals;
