//! A message as an HTTP request.

use std::time::Duration;

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, HOST};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rowmq_core::codec;
use rowmq_core::{Headers, Moment, MsgId, NewMessage, OnConflict, Priority, TopicName, Unique};
use rowmq_producer::SendError;
use rowmq_service::http::{is_foreign, is_loopback_name};
use serde::Deserialize;
use tokio::time::timeout;

use super::response::{Refusal, Taken};
use super::{Relay, kibibytes};

/// The prefix of request headers that become message headers.
const HEADER_PREFIX: &str = "queue-header-";

/// The parameters of the query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    priority: Option<Priority>,
    key: Option<String>,
    biz_id: Option<String>,
    deliver: Option<Moment>,
    expires: Option<Moment>,
    msg_id: Option<MsgId>,
    unique: Option<String>,
    #[serde(default, with = "humantime_serde")]
    unique_for: Option<Duration>,
    on_conflict: Option<OnConflict>,
    #[serde(default, with = "humantime_serde")]
    max_wait: Option<Duration>,
}

/// Refuses requests from browser pages: the relay has no password, so any page that is open on this
/// machine could enqueue. Other programs send none of these headers.
pub(super) async fn refuse_browsers(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_foreign(headers) || !is_loopback_name(host) {
        return Refusal::foreign().into_response();
    }
    next.run(request).await
}

/// Stores the message of a request, and answers when it is stored or in the spill journal.
pub(super) async fn take(
    State(relay): State<Relay>,
    Path(topic): Path<String>,
    parameters: Result<Query<Parameters>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Taken, Refusal> {
    let topic = TopicName::new(topic).map_err(SendError::from)?;
    let Query(parameters) = parameters.map_err(|error| Refusal::malformed(error.body_text()))?;
    let place = timeout(relay.patience, relay.places.acquire()).await;
    let Ok(Ok(_place)) = place else {
        return Err(Refusal::busy("The relay has too many messages on their way"));
    };
    // The declared length, or the limit if there is none.
    let length = body.size_hint().upper().and_then(|length| usize::try_from(length).ok());
    let length = length.map_or(relay.body_limit, |length| length.min(relay.body_limit));
    let share = u32::try_from(kibibytes(length)).unwrap_or(u32::MAX);
    let memory = timeout(relay.patience, relay.memory.acquire_many(share)).await;
    let Ok(Ok(_memory)) = memory else {
        return Err(Refusal::busy("The relay has too many bytes on their way"));
    };
    let body = timeout(relay.patience, to_bytes(body, relay.body_limit)).await;
    let body = body.map_err(|_| Refusal::slow())?.map_err(|_| Refusal::body(relay.body_limit))?;
    let message = parameters.message(body.into(), message_headers(&headers)?)?;
    // Neither future holds a connection: the lanes run on a thread of their own.
    let accepted = timeout(relay.patience, relay.producer.send_async(&topic, message)).await;
    let Ok(receipt) = accepted else {
        return Err(Refusal::busy("The relay has no room for more messages, none of it is stored"));
    };
    match timeout(relay.patience * 2, receipt?).await {
        Ok(sent) => Ok(Taken(sent?)),
        Err(_) => {
            Err(Refusal::busy("The server does not answer, and whether it is stored is unknown"))
        }
    }
}

impl Parameters {
    fn message(self, body: Vec<u8>, headers: Headers) -> Result<NewMessage, SendError> {
        let mut message = NewMessage::new(body).with_priority(self.priority.unwrap_or_default());
        message.msg_id = self.msg_id.unwrap_or(message.msg_id);
        let key = self.unique.map(String::into_bytes);
        message.unique =
            Unique::from_options(key, self.unique_for, self.on_conflict, self.max_wait)?;
        message.key = self.key.map(String::into_bytes);
        message.biz_id = self.biz_id.map(String::into_bytes);
        message.headers = headers;
        (message.deliver, message.expires) = (self.deliver, self.expires);
        Ok(message)
    }
}

/// HTTP header names have no capitals, so the message's have none either. A body that the request
/// declares encoded is stored as it is, and its consumers decode it.
fn message_headers(headers: &HeaderMap) -> Result<Headers, Refusal> {
    let encoded = headers.get(CONTENT_ENCODING).map(|value| (codec::CONTENT_ENCODING, value));
    let own = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().strip_prefix(HEADER_PREFIX)?, value)));
    encoded
        .into_iter()
        .chain(own)
        .map(|(name, value)| match std::str::from_utf8(value.as_bytes()) {
            Ok(value) => Ok((name.to_owned(), value.to_owned())),
            Err(_) => Err(Refusal::malformed(format!("The header '{name}' is not UTF-8"))),
        })
        .collect::<Result<Vec<_>, _>>()
        .map(Headers::from_iter)
}
