//! Waking this process's own consumers: a message that was enqueued here, or reported by the
//! [doorbell](crate::doorbell), is claimed without waiting for the next poll.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use tokio::sync::watch;

use crate::connection::ServerUrl;
use crate::model::TopicName;

/// How often the consumers of each topic were woken.
static TOPICS: LazyLock<Mutex<HashMap<String, watch::Sender<u64>>>> = LazyLock::new(Mutex::default);

/// What a consumer of a topic waits on besides its poll timer. Each consumer has its own, so that
/// each of several in a process is woken.
#[derive(Debug, Clone)]
pub struct Wakes {
    topic: watch::Receiver<u64>,
    /// For a group: the wakes of its stream.
    stream: Option<watch::Receiver<u64>>,
}

impl Wakes {
    /// Returns once the topic's consumers have been woken since the last call.
    pub async fn next(&mut self) {
        let of_stream = async {
            match &mut self.stream {
                Some(stream) => stream.changed().await,
                None => std::future::pending().await,
            }
        };
        let woken = tokio::select! {
            woken = self.topic.changed() => woken,
            woken = of_stream => woken,
        };
        if woken.is_err() {
            // This never happens: the senders are never removed.
            std::future::pending::<()>().await;
        }
    }
}

/// Returns the wakes of `topic` from now on; for a group also those of its stream.
#[must_use]
pub fn listen(url: &ServerUrl, topic: &TopicName) -> Wakes {
    let subscribe = |topic: &TopicName| of_topic(url, topic, watch::Sender::subscribe);
    Wakes { topic: subscribe(topic), stream: topic.stream().as_ref().map(subscribe) }
}

/// Wakes the consumers of `topic` in this process. The producer does it by itself; call it after
/// you commit your own transaction that enqueued.
pub fn wake(url: &ServerUrl, topic: &TopicName) {
    of_topic(url, topic, |woken| woken.send_modify(|count| *count = count.wrapping_add(1)));
}

fn of_topic<T>(url: &ServerUrl, topic: &TopicName, f: impl FnOnce(&watch::Sender<u64>) -> T) -> T {
    let place = format!("{}/{}/{topic}", url.server(), url.database());
    let mut topics = TOPICS.lock().unwrap_or_else(PoisonError::into_inner);
    f(topics.entry(place).or_insert_with(|| watch::Sender::new(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_consumer_of_the_topic_is_woken_also_if_it_was_not_waiting() {
        let url: ServerUrl = "mysql://u:p@127.0.0.1/wakes".parse().expect("a URL");
        let topic = TopicName::new("mail").expect("a name");
        let mut both = [listen(&url, &topic), listen(&url, &topic)];
        wake(&url, &topic);
        for wakes in &mut both {
            wakes.next().await;
        }
    }
}
