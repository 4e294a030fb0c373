//! Enqueueing over any connection, so that a message joins the caller's transaction.

use diesel_async::AsyncMysqlConnection;

use crate::error::{Error, Result};
use crate::message::{MsgId, NewMessage};
use crate::store;
use crate::store::enqueue::{ROWS_PER_INSERT, packet_share};
use crate::topic::{Topic, TopicName};

/// The most bytes in one INSERT, unless a single message needs more. Far below the packet of
/// either server (16 and 64 MiB), and throughput gains nothing above it.
const BYTES_PER_INSERT: usize = 4 * 1024 * 1024;

/// Enqueues one message in the caller's transaction, or by itself on a connection in autocommit.
///
/// # Errors
/// [`Error::UnknownTopic`], [`Error::TopicPaused`], [`Error::BodyTooLarge`] and the like, found
/// before anything is sent; a database failure. The caller's transaction is left as it is.
pub async fn enqueue(
    conn: &mut AsyncMysqlConnection,
    topic: &TopicName,
    message: &NewMessage,
) -> Result<MsgId> {
    enqueue_all(conn, topic, std::slice::from_ref(message)).await?;
    Ok(message.msg_id)
}

/// Enqueues messages, in order. More than a thousand, or than 4 MiB, are several statements: run
/// it in a transaction to have all or none.
///
/// # Errors
/// As [`enqueue`]; nothing is sent if any message is refused.
pub async fn enqueue_all(
    conn: &mut AsyncMysqlConnection,
    topic: &TopicName,
    messages: &[NewMessage],
) -> Result<()> {
    let found = store::topic::find(conn, topic).await?;
    let topic = found.ok_or_else(|| Error::UnknownTopic { topic: topic.clone() })?;
    enqueue_to(conn, &topic, messages).await
}

/// Enqueues messages to a topic that the caller has looked up, saving a round trip.
///
/// # Errors
/// As [`enqueue_all`].
pub async fn enqueue_to(
    conn: &mut AsyncMysqlConnection,
    topic: &Topic,
    messages: &[NewMessage],
) -> Result<()> {
    check(topic, messages)?;
    for chunk in chunks(messages) {
        store::enqueue::insert(conn, topic.id, chunk).await?;
    }
    Ok(())
}

fn check(topic: &Topic, messages: &[NewMessage]) -> Result<()> {
    if topic.state.enqueue_paused {
        return Err(Error::TopicPaused { topic: topic.name.clone() });
    }
    let limit = topic.settings.body_limit as usize;
    for message in messages {
        message.check()?;
        let len = message.body.len();
        if len > limit {
            return Err(Error::BodyTooLarge { topic: topic.name.clone(), len, limit });
        }
    }
    Ok(())
}

/// Cuts the messages into statements of bounded rows and bytes.
fn chunks(mut messages: &[NewMessage]) -> impl Iterator<Item = &[NewMessage]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fitting = messages.iter().take(ROWS_PER_INSERT).take_while(|message| {
            bytes += packet_share(message);
            bytes <= BYTES_PER_INSERT
        });
        // One message alone is always sent: the topic's limit has bounded it.
        let n = fitting.count().max(1).min(messages.len());
        let (chunk, rest) = messages.split_at(n);
        messages = rest;
        (!chunk.is_empty()).then_some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(lens: &[usize]) -> Vec<usize> {
        let messages: Vec<_> = lens.iter().map(|len| NewMessage::new(vec![0; *len])).collect();
        chunks(&messages).map(<[NewMessage]>::len).collect()
    }

    #[test]
    fn statements_are_bounded_in_rows_and_bytes() {
        assert_eq!(sizes(&[]), Vec::<usize>::new());
        assert_eq!(sizes(&vec![10; 2500]), [1000, 1000, 500]);
        assert_eq!(sizes(&[3 << 20, 3 << 20, 10]), [1, 2]);
        assert_eq!(sizes(&[9 << 20, 1]), [1, 1]);
    }
}
