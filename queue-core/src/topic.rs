//! A topic, its settings and its retry policy.

mod access;
mod backlog;
mod change;
pub mod deletion;
mod limits;
mod name;
mod retry;
mod sampling;
mod settings;
mod weight;

pub use self::access::{Access, ClosedBy};
pub use self::backlog::{Backlog, Fill, WhenFull};
pub use self::change::{change_access, change_settings};
pub use self::limits::{Limits, Rate};
pub use self::name::TopicName;
pub use self::retry::RetryPolicy;
pub use self::sampling::Sampling;
pub use self::settings::{
    LIMITED_TOPIC_KNOWN_FOR, OnDone, Retention, TOPIC_KNOWN_FOR, Topic, TopicId, TopicKind,
    TopicSettings,
};
pub use self::weight::{LogWeight, Weight, weigh};
