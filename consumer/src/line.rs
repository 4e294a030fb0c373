//! A message as a line of JSON, which `rowmq-producer send --ndjson` reads again.

use chrono::{DateTime, Utc};
use rowmq_core::handler::Context;
use rowmq_core::model::LineBytes;
use rowmq_core::{Headers, MsgId};
use serde::Serialize;

/// The fields of the line.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    msg_id: MsgId,
    topic: &'a str,
    delivery_no: u32,
    enqueued_at: DateTime<Utc>,
    #[serde(flatten)]
    bytes: LineBytes<'a>,
    #[serde(skip_serializing_if = "Headers::is_empty")]
    headers: &'a Headers,
}

impl<'a> Line<'a> {
    pub(crate) fn of(context: &'a Context) -> Self {
        let delivery = &*context.delivery;
        let (key, biz_id) = (delivery.key.as_deref(), delivery.biz_id.as_deref());
        Self {
            msg_id: delivery.msg_id,
            topic: context.topic.as_str(),
            delivery_no: delivery.delivery_no.0,
            enqueued_at: delivery.enqueued_at,
            bytes: LineBytes::new(key, biz_id, &delivery.body),
            headers: &delivery.headers,
        }
    }
}

/// Encodes values, one line each.
///
/// # Errors
/// Never for what is made of messages that were claimed.
pub(crate) fn lines(
    values: impl IntoIterator<Item = impl Serialize>,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut lines = Vec::new();
    for value in values {
        serde_json::to_writer(&mut lines, &value)?;
        lines.push(b'\n');
    }
    Ok(lines)
}
