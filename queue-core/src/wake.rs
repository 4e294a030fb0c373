//! Waking this process's own consumers: a message enqueued here is claimed without waiting for
//! the next poll.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::connection::ServerUrl;
use crate::topic::TopicName;

static NOTIFIERS: LazyLock<Mutex<HashMap<String, Arc<Notify>>>> = LazyLock::new(Mutex::default);

/// What a consumer of `topic` waits on beside its poll timer.
#[must_use]
pub fn notifier(url: &ServerUrl, topic: &TopicName) -> Arc<Notify> {
    let place = format!("{}/{}/{topic}", url.server(), url.database());
    let mut notifiers = NOTIFIERS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(notifiers.entry(place).or_default())
}

/// Wakes the consumers of `topic` in this process. The producer does it by itself; call it after
/// the commit of a transaction of your own that enqueued.
pub fn wake(url: &ServerUrl, topic: &TopicName) {
    notifier(url, topic).notify_one();
}
