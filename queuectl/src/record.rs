use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use queue_core::message::Delivery;
use queue_core::store::ready::Stored;
use queue_core::{Headers, MsgId, Priority, TopicName};
use serde::Serialize;

/// A message as a line of JSON that `producer send --ndjson` reads. What is no text is base64 under
/// another name: nothing is lost on the way.
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
    key: Bytes<'m>,
    #[serde(skip_serializing_if = "is_empty")]
    headers: &'m Headers,
}

fn is_empty(headers: &&Headers) -> bool {
    headers.0.is_empty()
}

/// The fields that may be any bytes.
#[derive(Debug, Serialize)]
struct Bytes<'m> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'m str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    biz_id: Option<&'m str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    biz_id_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'m str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

impl<'m> Bytes<'m> {
    fn new(key: Option<&'m [u8]>, biz_id: Option<&'m [u8]>, body: &'m [u8]) -> Self {
        let (key, key_base64) = text_or_base64(key);
        let (biz_id, biz_id_base64) = text_or_base64(biz_id);
        let (body, body_base64) = text_or_base64(Some(body));
        Self { key, key_base64, biz_id, biz_id_base64, body, body_base64 }
    }
}

impl<'m> Record<'m> {
    pub(crate) fn of_queue(topic: &'m TopicName, priority: Priority, stored: &'m Stored) -> Self {
        Self {
            msg_id: stored.msg_id,
            topic,
            priority: Some(priority),
            enqueued_at: stored.enqueued_at,
            expires: stored.expires_at.map(|at| at.format("%FT%T%.6fZ").to_string()),
            key: Bytes::new(stored.key.as_deref(), stored.biz_id.as_deref(), &stored.body),
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
            key: Bytes::new(delivery.key.as_deref(), delivery.biz_id.as_deref(), &delivery.body),
            headers: &delivery.headers,
        }
    }
}

fn text_or_base64(bytes: Option<&[u8]>) -> (Option<&str>, Option<String>) {
    let Some(bytes) = bytes else { return (None, None) };
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}
