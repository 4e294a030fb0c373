use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use rowmq_core::handler::{Context, HandlerError};
use sha2::{Digest, Sha256};

use super::{Destination, NotTaken};
use crate::line::{Line, lines};
use crate::webhook::{WebhookError, WebhookHandler, WebhookOptions};

const TOPIC: HeaderName = HeaderName::from_static("queue-topic");
const MESSAGES: HeaderName = HeaderName::from_static("queue-messages");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A web service: a POST request for each part, its body a line of JSON for each message
/// (`application/x-ndjson`).
///
/// `Queue-Topic` and `Queue-Messages` give the topic and the number of messages. `Idempotency-Key`
/// is made of the message ids, so that a part that is sent again has the same key.
/// `Queue-Timestamp` and `Queue-Signature` are those of the [`webhook`](crate::webhook) handler,
/// with the key in place of message id and delivery number. The rules for addresses are also those
/// of that handler.
///
/// A success status confirms the messages. 400, 413, 415 and 422 concern the contents of the
/// request: dead-lettered. A 5xx status without a `Retry-After`, other than 502, 503 and 504,
/// concerns them too: retried. Every other status concerns the service, and the batch waits.
#[derive(Debug)]
pub struct Webhook(WebhookHandler);

impl Webhook {
    /// Checks the options and sets up the client; connects to nothing yet.
    ///
    /// # Errors
    /// [`WebhookError`] if no message could ever be sent.
    pub fn new(options: WebhookOptions) -> Result<Self, WebhookError> {
        WebhookHandler::new(options).map(Self)
    }
}

impl Destination for Webhook {
    fn name(&self) -> &str {
        self.0.origin()
    }

    async fn send(&self, part: &[Context]) -> Result<(), NotTaken> {
        let unready = |error: HandlerError| match error {
            HandlerError::Retry(error) => NotTaken::Unready(error, None),
            other => NotTaken::Unready(format!("{other:?}").into(), None),
        };
        let lines = lines(part.iter().map(Line::of)).map_err(|error| unready(error.into()))?;
        let key = idempotency_key(part);
        let headers = headers(part, &key).map_err(unready)?;
        let answer = self.0.post(&key, headers, lines).await.map_err(unready)?;
        let (status, wait) = (answer.status, answer.wait);
        if status.is_success() {
            return Ok(());
        }
        let error = answer.into_error(self.0.origin()).into();
        Err(match status {
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY => NotTaken::Refused { error, dead: true },
            StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => NotTaken::Unready(error, wait),
            status if status.is_server_error() && wait.is_none() => {
                NotTaken::Refused { error, dead: false }
            }
            _ => NotTaken::Unready(error, wait),
        })
    }
}

fn headers(part: &[Context], key: &str) -> Result<HeaderMap, HandlerError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(MESSAGES, HeaderValue::from(part.len()));
    headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_str(key)?);
    if let Some(first) = part.first() {
        headers.insert(TOPIC, HeaderValue::from_str(first.topic.as_str())?);
    }
    Ok(headers)
}

/// Computes a key that is the same for the same messages in the same order.
fn idempotency_key(part: &[Context]) -> String {
    let mut hash = Sha256::new();
    part.iter().for_each(|context| hash.update(context.delivery.msg_id.as_bytes()));
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
