//! Histories of the real protocol, played from a seed: queue-core's workers, the janitor's duties
//! and the producer's lanes run against a model of the server, on one thread and a paused clock, so
//! that no wait takes real time. Every run of a seed is the same, so a history that breaks a
//! promise can be replayed as often as needed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "test support: what the model does not know stops the run"
)]

mod alone;
mod canceller;
mod chaos;
mod consumer;
mod effects;
mod history;
mod model;
mod naive;
mod notebook;
mod operator;
mod process;
mod receiver;
mod recorder;
mod rules;
mod sender;
mod server;
mod settings;
mod sql;
mod stage;
mod stream;
mod troupe;

pub use self::alone::Model;
pub use self::history::{Cast, Played, phases_around, play};
pub use self::recorder::Cancelled;
pub use self::rules::{Rule, Subject};
pub use self::server::WakeUps;
pub use self::settings::Weather;
