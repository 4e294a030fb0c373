//! The headers of a request: its message's facts, and its signature.

use std::fmt::Write;

use chrono::Utc;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING, UPGRADE,
};
use rowmq_core::handler::{Context, HandlerError};
use rowmq_core::model::{self, Delivery};
use secrecy::{ExposeSecret, SecretString};
use sha2::Sha256;

use super::WebhookError;

const TOPIC: HeaderName = HeaderName::from_static("queue-topic");
const MSG_ID: HeaderName = HeaderName::from_static("queue-msg-id");
const DELIVERY_NO: HeaderName = HeaderName::from_static("queue-delivery-no");
const FAILURES: HeaderName = HeaderName::from_static("queue-failures");
const TIMESTAMP: HeaderName = HeaderName::from_static("queue-timestamp");
const TRACE_PARENT: HeaderName = HeaderName::from_static(model::TRACE_PARENT);
const TRACE_STATE: HeaderName = HeaderName::from_static(model::TRACE_STATE);
const SIGNATURE: HeaderName = HeaderName::from_static("queue-signature");

/// Refuses headers that would break the request or forge what the service trusts.
pub(super) fn check_headers(headers: &HeaderMap) -> Result<(), WebhookError> {
    let is_reserved = |name: &&HeaderName| {
        name.as_str().starts_with("queue-")
            || [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE].contains(name)
    };
    match headers.keys().find(is_reserved) {
        Some(name) => Err(WebhookError::ReservedHeader { name: name.to_string() }),
        None => Ok(()),
    }
}

/// Builds the headers of one request: those of the options, and the message's.
pub(super) fn headers(
    context: &Context,
    fixed: &HeaderMap,
    secret: Option<&SecretString>,
) -> Result<HeaderMap, HandlerError> {
    let delivery = &*context.delivery;
    let mut headers = fixed.clone();
    if let Some(own) = content_type(delivery) {
        headers.insert(CONTENT_TYPE, own);
    }
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
    headers.insert(TOPIC, HeaderValue::from_str(context.topic.as_str())?);
    headers.insert(MSG_ID, HeaderValue::from_str(&delivery.msg_id.to_string())?);
    headers.insert(DELIVERY_NO, HeaderValue::from(delivery.delivery_no.0));
    headers.insert(FAILURES, HeaderValue::from(delivery.failures));
    if let Some(here) = context.traceparent() {
        headers.insert(TRACE_PARENT, HeaderValue::from_str(&here.to_string())?);
        // A value that is not valid in a header is left out, and the message is sent.
        let state = delivery.headers.tracestate().map(HeaderValue::from_str);
        headers.extend(state.and_then(Result::ok).map(|state| (TRACE_STATE, state)));
    }
    let name = format!("{}.{}", delivery.msg_id, delivery.delivery_no);
    sign(&mut headers, secret, &name, &delivery.body)?;
    Ok(headers)
}

/// Sets the time of the request, and signs it if there is a secret. In the signature, `name` stands
/// before the body.
pub(super) fn sign(
    headers: &mut HeaderMap,
    secret: Option<&SecretString>,
    name: &str,
    body: &[u8],
) -> Result<(), HandlerError> {
    // The service compares it with its own clock, so it is this machine's time, not the database's.
    let timestamp = Utc::now().timestamp();
    headers.insert(TIMESTAMP, HeaderValue::from(timestamp));
    if let Some(secret) = secret {
        let signature = signature(secret, timestamp, name, body)?;
        headers.insert(SIGNATURE, HeaderValue::from_str(&signature)?);
    }
    Ok(())
}

fn content_type(delivery: &Delivery) -> Option<HeaderValue> {
    let is_content_type = |name: &str| name.eq_ignore_ascii_case(CONTENT_TYPE.as_str());
    let (_, value) = delivery.headers.0.iter().find(|(name, _)| is_content_type(name))?;
    HeaderValue::from_str(value).ok().filter(|value| !value.is_empty())
}

/// Returns `v1=` and the HMAC-SHA256 of `timestamp "." name "." body`. The version allows another
/// scheme to be added beside it.
fn signature(
    secret: &SecretString,
    timestamp: i64,
    name: &str,
    body: &[u8],
) -> Result<String, HandlerError> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose_secret().as_bytes())?;
    mac.update(format!("{timestamp}.{name}.").as_bytes());
    mac.update(body);
    let mut text = String::from("v1=");
    for byte in mac.finalize().into_bytes() {
        write!(text, "{byte:02x}")?;
    }
    Ok(text)
}
