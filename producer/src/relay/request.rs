//! A message as an HTTP request.

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use producer::{Producer, SendError};
use queue_core::{Headers, Moment, MsgId, NewMessage, Priority, TopicName};
use serde::Deserialize;

use super::response::{Refusal, Stored};

/// A header of the request that begins so is one of the message.
const HEADER_PREFIX: &str = "queue-header-";

/// What the query may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    priority: Option<Priority>,
    key: Option<String>,
    biz_id: Option<String>,
    deliver: Option<Moment>,
    expires: Option<Moment>,
    msg_id: Option<MsgId>,
}

/// Stores the message of a request, and answers when it is stored.
pub(super) async fn take(
    State(producer): State<Producer>,
    Path(topic): Path<String>,
    parameters: Result<Query<Parameters>, QueryRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Stored, Refusal> {
    let topic = TopicName::new(topic).map_err(SendError::from)?;
    let Query(parameters) = parameters.map_err(|error| Refusal::malformed(error.body_text()))?;
    let body = body.map_err(|error| Refusal::body(error.status(), error.body_text()))?;
    let message = parameters.message(body.to_vec(), message_headers(&headers)?);
    let receipt = producer.send_async(&topic, message).await?;
    Ok(Stored { msg_id: receipt.await? })
}

impl Parameters {
    fn message(self, body: Vec<u8>, headers: Headers) -> NewMessage {
        let mut message = NewMessage::new(body).with_priority(self.priority.unwrap_or_default());
        message.msg_id = self.msg_id.unwrap_or(message.msg_id);
        message.key = self.key.map(String::into_bytes);
        message.biz_id = self.biz_id.map(String::into_bytes);
        message.headers = headers;
        (message.deliver, message.expires) = (self.deliver, self.expires);
        message
    }
}

/// HTTP has no capitals in its names, so these have none either.
fn message_headers(headers: &HeaderMap) -> Result<Headers, Refusal> {
    headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().strip_prefix(HEADER_PREFIX)?, value)))
        .map(|(name, value)| match std::str::from_utf8(value.as_bytes()) {
            Ok(value) => Ok((name.to_owned(), value.to_owned())),
            Err(_) => Err(Refusal::malformed(format!("The header '{name}' is not UTF-8"))),
        })
        .collect::<Result<Vec<_>, _>>()
        .map(Headers::from_iter)
}
