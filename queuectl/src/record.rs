use chrono::{DateTime, Utc};
use queue_core::message::{Delivery, LineBytes};
use queue_core::store::ready::Stored;
use queue_core::{Headers, MsgId, Priority, TopicName};
use serde::Serialize;

/// A message as a line of JSON that `producer send --ndjson` reads.
#[derive(Debug, Serialize)]
pub(crate) struct Record<'m> {
    msg_id: MsgId,
    topic: &'m TopicName,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
    enqueued_at: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(flatten)]
    bytes: LineBytes<'m>,
    #[serde(skip_serializing_if = "is_empty")]
    headers: &'m Headers,
}

fn is_empty(headers: &&Headers) -> bool {
    headers.0.is_empty()
}

impl<'m> Record<'m> {
    pub(crate) fn of_queue(topic: &'m TopicName, priority: Priority, stored: &'m Stored) -> Self {
        Self {
            msg_id: stored.msg_id,
            topic,
            priority: Some(priority),
            enqueued_at: stored.enqueued_at,
            expires: stored.expires_at.map(|at| at.format("%FT%T%.6fZ").to_string()),
            bytes: LineBytes::new(stored.key.as_deref(), stored.biz_id.as_deref(), &stored.body),
            headers: &stored.headers,
        }
    }

    pub(crate) fn of_stream(topic: &'m TopicName, delivery: &'m Delivery) -> Self {
        Self {
            msg_id: delivery.msg_id,
            topic,
            priority: None,
            enqueued_at: delivery.enqueued_at,
            expires: None,
            bytes: LineBytes::new(
                delivery.key.as_deref(),
                delivery.biz_id.as_deref(),
                &delivery.body,
            ),
            headers: &delivery.headers,
        }
    }
}
