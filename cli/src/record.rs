use chrono::{DateTime, Utc};
use rowmq_core::model::{Delivery, LineBytes};
use rowmq_core::store::scheduled::Scheduled;
use rowmq_core::store::stored::Stored;
use rowmq_core::{Headers, MsgId, Priority, TopicName};
use serde::Serialize;

use crate::export_position::ExportPosition;

/// A message as a line of JSON that `rowmq import` and `rowmq-producer send --ndjson` read.
#[derive(Debug, Serialize)]
pub(crate) struct Record<'m> {
    msg_id: MsgId,
    topic: &'m TopicName,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
    enqueued_at: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(flatten)]
    bytes: LineBytes<'m>,
    #[serde(skip_serializing_if = "is_empty")]
    headers: &'m Headers,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<ExportPosition>,
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
            deliver: None,
            expires: stored.expires_at.map(text),
            bytes: LineBytes::new(stored.key.as_deref(), stored.biz_id.as_deref(), &stored.body),
            headers: &stored.headers,
            place: None,
        }
    }

    pub(crate) fn of_scheduled(topic: &'m TopicName, one: &'m Scheduled) -> Self {
        // A retry may be due after its message has expired. As a new delayed message it would be
        // refused, because it would never be handled. Without the delay it is discarded, as the old
        // message would be.
        let in_time = one.stored.expires_at.is_none_or(|end| one.due_at < end);
        let deliver = in_time.then(|| text(one.due_at));
        Self { deliver, ..Self::of_queue(topic, one.priority, &one.stored) }
    }

    /// Adds where the message was, so that an export can continue behind it.
    pub(crate) fn at(self, place: ExportPosition) -> Self {
        Self { place: Some(place), ..self }
    }

    pub(crate) fn of_stream(topic: &'m TopicName, delivery: &'m Delivery) -> Self {
        Self {
            msg_id: delivery.msg_id,
            topic,
            priority: None,
            enqueued_at: delivery.enqueued_at,
            deliver: None,
            expires: None,
            bytes: LineBytes::new(
                delivery.key.as_deref(),
                delivery.biz_id.as_deref(),
                &delivery.body,
            ),
            headers: &delivery.headers,
            place: None,
        }
    }
}

/// A time to the microsecond, as the server stores it.
fn text(at: DateTime<Utc>) -> String {
    at.format("%FT%T%.6fZ").to_string()
}
