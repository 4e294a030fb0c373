//! A message as a line of JSON, which `producer send --ndjson` reads again.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use queue_core::handler::Context;
use queue_core::{Headers, MsgId};
use serde::Serialize;

/// What is no text is base64 under another name: nothing is lost on the way.
#[derive(Serialize)]
struct Line<'a> {
    msg_id: MsgId,
    topic: &'a str,
    delivery_no: u32,
    enqueued_at: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    biz_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    biz_id_base64: Option<String>,
    #[serde(skip_serializing_if = "Headers::is_empty")]
    headers: &'a Headers,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

/// The messages, a line each.
///
/// # Errors
/// None of a message that was claimed.
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
    let (key, key_base64) = text_or_base64(delivery.key.as_deref());
    let (biz_id, biz_id_base64) = text_or_base64(delivery.biz_id.as_deref());
    let (body, body_base64) = text_or_base64(Some(&delivery.body));
    Line {
        msg_id: delivery.msg_id,
        topic: context.topic.as_str(),
        delivery_no: delivery.delivery_no.0,
        enqueued_at: delivery.enqueued_at,
        key,
        key_base64,
        biz_id,
        biz_id_base64,
        headers: &delivery.headers,
        body,
        body_base64,
    }
}

fn text_or_base64(bytes: Option<&[u8]>) -> (Option<&str>, Option<String>) {
    match bytes.map(|bytes| (str::from_utf8(bytes), bytes)) {
        None => (None, None),
        Some((Ok(text), _)) => (Some(text), None),
        Some((Err(_), bytes)) => (None, Some(STANDARD.encode(bytes))),
    }
}
