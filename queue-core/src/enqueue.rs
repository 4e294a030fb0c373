//! Enqueueing over any connection, so that a message joins the caller's transaction.

mod admission;

pub use self::admission::{Enqueued, enqueue_in_transaction, is_plain};

use crate::connection::{Connection, begin, end};
use crate::model::{Error, NewMessage, Priority, Result, Topic, TopicName};
use crate::store;
use crate::store::enqueue::{ROWS_PER_INSERT, packet_limit, packet_share};
use crate::store::lookup::{self, Placed};
use crate::store::trace;
use crate::telemetry;

/// The most bytes in one INSERT, unless a single message needs more. It is far below either
/// server's packet limit (16 and 64 MiB), and a larger value adds no throughput.
const BYTES_PER_INSERT: usize = 4 * 1024 * 1024;

/// Up to this many bytes are sent without asking for the server's packet limit: asking costs a
/// round trip, and the smallest default there has ever been is 1 MiB.
const SURELY_TAKEN: usize = 1024 * 1024;

const OPERATION: &str = "enqueue";

/// Enqueues one message in the caller's transaction, or by itself on a connection in autocommit.
/// Returns its outcome. A message with a unique key, or with a sender's id in a topic with a dedupe
/// window, needs a transaction.
///
/// # Errors
/// [`Error::NeedsTransaction`]; [`Error::UnknownTopic`], [`Error::TopicPaused`],
/// [`Error::TopicFull`] (even where producers wait: an open transaction must not wait),
/// [`Error::BodyTooLarge`] and the like, found before anything is sent; a database failure. The
/// caller's transaction is left as it is.
pub async fn enqueue(
    conn: &mut impl Connection,
    topic: &TopicName,
    message: &NewMessage,
) -> Result<Enqueued> {
    tracing::trace!(step = "enqueue");
    let mut enqueued = enqueue_all(conn, topic, std::slice::from_ref(message)).await?;
    Ok(enqueued.pop().unwrap_or(Enqueued::Stored(message.msg_id)))
}

/// Enqueues messages, in order. Returns the outcome of each. All of them are enqueued or none: if
/// no transaction is open and one statement is not enough, it runs its own.
///
/// # Errors
/// As [`enqueue`]; nothing is sent if any message is refused.
pub async fn enqueue_all(
    conn: &mut impl Connection,
    topic: &TopicName,
    messages: &[NewMessage],
) -> Result<Vec<Enqueued>> {
    tracing::trace!(step = "enqueue_all");
    let topic = store::topic::existing(conn, topic).await?;
    enqueue_to(conn, &topic, messages).await
}

/// Enqueues messages to a topic that the caller has looked up, saving a round trip. It trusts that
/// look-up, also for whether the topic is paused or full: look the topic up again for the next
/// transaction.
///
/// # Errors
/// As [`enqueue_all`].
pub async fn enqueue_to(
    conn: &mut impl Connection,
    topic: &Topic,
    messages: &[NewMessage],
) -> Result<Vec<Enqueued>> {
    tracing::trace!(step = "enqueue_to");
    let is_plain = is_plain(topic, messages);
    if is_plain && is_one_statement(topic, messages) {
        return store_plain(conn, topic, messages).await;
    }
    check(topic, messages)?;
    match store::savepoint::set(conn).await {
        Err(Error::NeedsTransaction) if is_plain => {
            begin(conn, OPERATION).await?;
            let stored = store_plain(conn, topic, messages).await;
            return end(conn, OPERATION, stored).await;
        }
        other => other?,
    }
    let enqueued = if is_plain {
        store_plain(conn, topic, messages).await
    } else {
        enqueue_in_transaction(conn, topic, messages).await
    };
    if enqueued.is_err() {
        store::savepoint::roll_back(conn).await;
    }
    enqueued
}

/// Stores messages that no unique key and no dedupe window can refuse.
async fn store_plain(
    conn: &mut impl Connection,
    topic: &Topic,
    messages: &[NewMessage],
) -> Result<Vec<Enqueued>> {
    for part in statements(conn, topic, messages).await? {
        part.insert(conn, topic).await?;
    }
    trace::enqueued(conn, topic.id, topic.settings.trace, messages).await?;
    Ok(messages.iter().map(|message| Enqueued::Stored(message.msg_id)).collect())
}

/// Whether one INSERT stores all of these, without lookup entries or traces.
fn is_one_statement(topic: &Topic, messages: &[NewMessage]) -> bool {
    let traced = messages.iter().any(|message| topic.settings.trace.takes(message.msg_id));
    topic.settings.searchable.is_none()
        && !traced
        && chunks(messages, SURELY_TAKEN).nth(1).is_none()
}

/// Messages that one statement stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'m> {
    /// They are ready at once.
    Ready(&'m [NewMessage]),
    /// They become ready later.
    Later(&'m [NewMessage]),
}

impl Part<'_> {
    /// Inserts them; a searchable topic takes one more statement.
    pub async fn insert(self, conn: &mut impl Connection, topic: &Topic) -> Result<()> {
        let (messages, placed) = match self {
            Self::Ready(messages) => {
                store::enqueue::insert(conn, topic.id, messages).await?;
                (messages, Placed::Ready)
            }
            Self::Later(messages) => {
                store::scheduled::insert(conn, topic.id, messages).await?;
                (messages, Placed::Later)
            }
        };
        if topic.settings.searchable.is_some() {
            lookup::insert(conn, topic.id, messages, placed).await?;
        }
        Ok(())
    }
}

/// Checks the messages, and splits them into parts of one statement each: at most a thousand
/// messages, and 4 MiB. Asks for the server's packet limit only if a part might exceed it.
///
/// # Errors
/// As [`enqueue_all`]; nothing has been inserted.
pub async fn statements<'m>(
    conn: &mut impl Connection,
    topic: &Topic,
    messages: &'m [NewMessage],
) -> Result<Vec<Part<'m>>> {
    tracing::trace!(step = "statements");
    check(topic, messages)?;
    let limit = statement_limit(conn, messages).await?;
    Ok(chunks(messages, limit).collect())
}

fn check(topic: &Topic, messages: &[NewMessage]) -> Result<()> {
    tracing::trace!(step = "check");
    if let Some(by) = topic.closed_by() {
        return Err(Error::TopicPaused { topic: topic.name.clone(), by });
    }
    if let Some(fill) = topic.backlog.and_then(|backlog| backlog.fill(&topic.settings)) {
        telemetry::found_full(topic.name.as_str());
        let when_full = topic.settings.when_full;
        return Err(Error::TopicFull { topic: topic.name.clone(), fill, when_full });
    }
    messages.iter().try_for_each(|message| check_for(topic, message))
}

/// Checks whether the topic would take the message if it were not paused.
pub(crate) fn check_for(topic: &Topic, message: &NewMessage) -> Result<()> {
    message.check()?;
    if topic.is_stream() && message.priority != Priority::default() {
        return Err(Error::NoPriorities { topic: topic.name.clone() });
    }
    if topic.is_stream() && message.key_until_done().is_some() {
        // The log keeps the message: no group's ack ends it.
        let reason = "a message of a stream is never done: hold the key for a time";
        return Err(Error::InvalidUnique { reason });
    }
    let (len, limit) = (message.body.len(), topic.settings.body_limit as usize);
    if len > limit {
        return Err(Error::BodyTooLarge { topic: topic.name.clone(), len, limit });
    }
    Ok(())
}

/// The most bytes of one statement: a packet that is too large breaks the connection without a
/// clear error, which would look like a network fault.
async fn statement_limit(conn: &mut impl Connection, messages: &[NewMessage]) -> Result<usize> {
    if messages.iter().map(packet_share).sum::<usize>() <= SURELY_TAKEN {
        return Ok(BYTES_PER_INSERT);
    }
    let limit = packet_limit(conn).await?;
    match messages.iter().map(packet_share).max() {
        Some(len) if len > limit => Err(Error::PacketTooLarge { what: "A message", len, limit }),
        _ => Ok(BYTES_PER_INSERT.min(limit)),
    }
}

/// Splits the messages into statements of bounded rows and at most `limit` bytes.
fn chunks(mut messages: &[NewMessage], limit: usize) -> impl Iterator<Item = Part<'_>> {
    std::iter::from_fn(move || {
        let waits = messages.first()?.deliver.is_some();
        let mut bytes = 0;
        let fitting = messages.iter().take(ROWS_PER_INSERT).take_while(|message| {
            bytes += packet_share(message);
            bytes <= limit && message.deliver.is_some() == waits
        });
        // A single message is always sent: the topic's body limit has bounded it.
        let n = fitting.count().max(1).min(messages.len());
        let (chunk, rest) = messages.split_at(n);
        messages = rest;
        Some(if waits { Part::Later(chunk) } else { Part::Ready(chunk) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(lens: &[usize]) -> Vec<usize> {
        let messages: Vec<_> = lens.iter().map(|len| NewMessage::new(vec![0; *len])).collect();
        let parts = chunks(&messages, BYTES_PER_INSERT);
        parts.map(len).collect()
    }

    fn len(part: Part<'_>) -> usize {
        match part {
            Part::Ready(messages) | Part::Later(messages) => messages.len(),
        }
    }

    #[test]
    fn delayed_messages_have_statements_of_their_own() {
        let now = NewMessage::new("now");
        let later = NewMessage::new("later").with_delay(std::time::Duration::from_secs(1));
        let messages = [now.clone(), later.clone(), later, now];
        let parts: Vec<_> = chunks(&messages, BYTES_PER_INSERT).collect();
        let (ready, late) = (Part::Ready(&messages[..1]), Part::Later(&messages[1..3]));
        assert_eq!(parts, [ready, late, Part::Ready(&messages[3..])]);
    }

    #[test]
    fn statements_are_bounded_in_rows_and_bytes() {
        assert_eq!(sizes(&[]), Vec::<usize>::new());
        assert_eq!(sizes(&vec![10; 2500]), [1000, 1000, 500]);
        assert_eq!(sizes(&[3 << 20, 3 << 20, 10]), [1, 2]);
        assert_eq!(sizes(&[9 << 20, 1]), [1, 1]);
    }
}
