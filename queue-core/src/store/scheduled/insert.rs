use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{Moment, NewMessage, Result, TopicId};
use crate::store::enqueue::is_kept;
use crate::store::execute;

/// PRIMARY (`due_at`, id): inserts messages that become ready later, as one statement.
///
/// # Errors
/// Headers that cannot be stored.
pub async fn insert(
    conn: &mut impl Connection,
    topic: TopicId,
    messages: &[NewMessage],
) -> Result<()> {
    tracing::trace!(step = "insert");
    let mut text = "INSERT INTO queue_scheduled (due_at, topic_id, priority, msg_id, delivery_no, \
         failures, crashes, suspicions, enqueued_at, expires_at, ordering_key, biz_id, \
         unique_key, headers, body) VALUES "
        .to_owned();
    let rows: Vec<String> = messages.iter().map(row).collect();
    text.push_str(&rows.join(", "));
    let kept = is_kept(rows.len()) && rows.windows(2).all(|two| two[0] == two[1]);
    let mut statement = Statement::new(text).once(!kept);
    for message in messages {
        statement = statement
            .number(message.deliver.map_or(0, Moment::micros))
            .number(topic.0)
            .number(message.priority.stored())
            .bytes(message.msg_id.as_bytes())
            .numbers(message.expires.map(Moment::micros))
            .maybe_bytes(message.key.as_deref())
            .maybe_bytes(message.biz_id.as_deref())
            .maybe_bytes(message.key_until_done())
            .maybe_bytes(message.headers.to_stored()?)
            .bytes(message.body.as_slice());
    }
    execute(conn, "enqueue for later", statement).await?;
    Ok(())
}

fn row(message: &NewMessage) -> String {
    let due = message.deliver.unwrap_or(Moment::After(std::time::Duration::ZERO)).due_sql();
    let expiry = message.expires.map_or("NULL", Moment::sql);
    format!("({due}, ?, ?, ?, 0, 0, 0, 0, UTC_TIMESTAMP(6), {expiry}, ?, ?, ?, ?, ?)")
}
