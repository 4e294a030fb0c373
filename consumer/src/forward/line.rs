//! A message as a line of JSON, which `rowmq-producer send --ndjson` reads again.

use chrono::{DateTime, Utc};
use rowmq_core::handler::Context;
use rowmq_core::model::LineBytes;
use rowmq_core::{Headers, MsgId};
use serde::Serialize;

#[derive(Serialize)]
struct Line<'a> {
    msg_id: MsgId,
    topic: &'a str,
    delivery_no: u32,
    enqueued_at: DateTime<Utc>,
    #[serde(flatten)]
    bytes: LineBytes<'a>,
    #[serde(skip_serializing_if = "Headers::is_empty")]
    headers: &'a Headers,
}

/// Encodes the messages, one line each.
///
/// # Errors
/// Never for a message that was claimed.
pub(super) fn lines(part: &[Context]) -> Result<Vec<u8>, serde_json::Error> {
    let mut lines = Vec::new();
    for context in part {
        serde_json::to_writer(&mut lines, &line(context))?;
        lines.push(b'\n');
    }
    Ok(lines)
}

fn line(context: &Context) -> Line<'_> {
    let delivery = &*context.delivery;
    Line {
        msg_id: delivery.msg_id,
        topic: context.topic.as_str(),
        delivery_no: delivery.delivery_no.0,
        enqueued_at: delivery.enqueued_at,
        bytes: LineBytes::new(delivery.key.as_deref(), delivery.biz_id.as_deref(), &delivery.body),
        headers: &delivery.headers,
    }
}
