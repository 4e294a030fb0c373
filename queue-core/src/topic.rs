//! A topic, its settings and its retry policy.

mod name;
mod retry;
mod settings;

pub use self::name::TopicName;
pub(crate) use self::name::is_name;
pub use self::retry::RetryPolicy;
pub use self::settings::{
    OnDone, Retention, TOPIC_KNOWN_FOR, Topic, TopicId, TopicKind, TopicSettings, TopicState,
};
