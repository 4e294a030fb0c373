//! Sends a POST request per message, for users whose handler is a web service.
//!
//! The body of the request is the body of the message, byte for byte. The answer decides:
//!
//! | answer | what becomes of the message |
//! |---|---|
//! | 2xx | acked |
//! | 408, 425, 429, 5xx | retried: after `Retry-After` if given, else the topic's backoff |
//! | the same with `Queue-Snooze` | comes back after this many seconds; nothing is charged |
//! | 3xx | retried: redirects are not followed, because they could lead anywhere |
//! | any other | dead-lettered at once, among them 410 |
//! | none in time, no connection, a refused address | retried after the topic's backoff |
//!
//! `Retry-After` may be seconds or a date; a wait or a snooze lasts at most 1 h. The error kept
//! with the message has the status and the first 300 bytes of the answer.
//!
//! | request header | what it holds |
//! |---|---|
//! | `Queue-Topic` | the topic's name |
//! | `Queue-Msg-Id` | the message id, the same for every delivery |
//! | `Queue-Delivery-No` | rises with every delivery; with the message id, the fencing token |
//! | `Queue-Failures` | failed handlings so far |
//! | `Queue-Timestamp` | when the request was made, in seconds since 1970 |
//! | `Queue-Signature` | `v1=` and the signature below, if there is a secret |
//! | `Content-Type` | the message's own `content-type` header, else `application/octet-stream` |
//!
//! # How to verify the signature
//!
//! It is the HMAC-SHA256, in lower-case hexadecimal digits, under the shared secret, of
//!
//! ```text
//! <Queue-Timestamp> "." <Queue-Msg-Id> "." <Queue-Delivery-No> "." <body>
//! ```
//!
//! Compute it from the headers and the raw bytes of the body *before* decoding them, compare in
//! constant time, and refuse a timestamp more than some minutes from your own clock, so that a
//! recorded request cannot be replayed for ever. In Python:
//!
//! ```python
//! signed = b".".join([h["Queue-Timestamp"].encode(), h["Queue-Msg-Id"].encode(),
//!                     h["Queue-Delivery-No"].encode(), body])
//! expected = "v1=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()
//! genuine = hmac.compare_digest(expected, h["Queue-Signature"])
//! ```
//!
//! # Where it connects to
//!
//! Only to addresses that its [`AddressPolicy`] permits, by default public ones. The address that
//! was checked is the one connected to, so a name cannot resolve differently in between. No proxy
//! is taken from the environment. For https the certificates of the platform are trusted (on Linux
//! also those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name). URLs hold credentials in many places
//! (user, password, query, even the path), so errors and logs name only scheme, host and port.

mod address;
mod client;
mod public;
mod request;
mod response;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::{Client, Response};
use rowmq_core::Delivery;
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;
use url::Url;

pub use self::address::{AddressPolicy, Allowed, InvalidAllowed};
pub(crate) use self::response::Answer;
use self::response::RunError;
pub use ipnet::IpNet;

/// How messages are sent to a web service.
#[derive(Clone)]
pub struct WebhookOptions {
    /// The service's URL: http or https. User and password are sent as basic authorization.
    pub url: Url,
    /// The secret shared with the service to sign requests. Default none: requests are not signed.
    pub secret: Option<SecretString>,
    /// The longest time from the first attempt to connect to the end of the answer. Default 60 s.
    pub timeout: Duration,
    /// The most bytes of an answer that are read. Default 64 KiB: enough for any error page, and a
    /// connection whose answer was read to its end is used again.
    pub response_limit: usize,
    /// Which addresses may be connected to. Default: public ones.
    pub allow: AddressPolicy,
    /// Headers sent with every request, such as `Authorization`.
    pub headers: HeaderMap,
}

impl WebhookOptions {
    /// Sends to this URL, with default options.
    #[must_use]
    pub fn new(url: Url) -> Self {
        Self {
            url,
            secret: None,
            timeout: Duration::from_secs(60),
            response_limit: 64 * 1024,
            allow: AddressPolicy::default(),
            headers: HeaderMap::new(),
        }
    }
}

/// Leaves out what may be secret: the URL's path and query, and the headers' values.
impl fmt::Debug for WebhookOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookOptions")
            .field("url", &origin(&self.url))
            .field("secret", &self.secret)
            .field("timeout", &self.timeout)
            .field("response_limit", &self.response_limit)
            .field("allow", &self.allow)
            .field("headers", &self.headers.keys())
            .finish()
    }
}

/// Why a web service cannot be a handler.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// A protocol other than http and https.
    #[error("the webhook's URL begins with {scheme}:, but only http and https are spoken")]
    Scheme {
        /// The scheme of the URL.
        scheme: String,
    },
    /// The URL names an address that the policy refuses.
    #[error(
        "the webhook at {origin} is refused: {address} is {}; name the host with --allow if it is meant",
        address::REFUSED
    )]
    Refused {
        /// Scheme, host and port.
        origin: String,
        /// The address.
        address: std::net::IpAddr,
    },
    /// A secret that anyone can guess.
    #[error("the webhook's secret is empty; give one, or none to send unsigned requests")]
    EmptySecret,
    /// A header that only the handler or the protocol may set.
    #[error("the header {name} cannot be set for a webhook: it is set by the consumer itself")]
    ReservedHeader {
        /// The header.
        name: String,
    },
    /// https without a single trusted certificate.
    #[error(
        "no certificate authority is trusted here, so https cannot work; install the \
         package ca-certificates or set SSL_CERT_FILE ({reason})"
    )]
    NoAuthorities {
        /// What went wrong while loading them.
        reason: String,
    },
    /// The client could not be set up.
    #[error("the webhook's HTTP client could not be set up: {reason}")]
    Client {
        /// Why.
        reason: String,
    },
}

/// Sends each message to a web service; see the [module](self) for what the answers mean.
pub struct WebhookHandler {
    client: Client,
    url: Url,
    /// How errors name the service: never by the whole URL.
    origin: String,
    secret: Option<SecretString>,
    timeout: Duration,
    response_limit: usize,
    headers: HeaderMap,
}

impl WebhookHandler {
    /// Checks the options and sets up the client; connects to nothing yet.
    ///
    /// # Errors
    /// [`WebhookError`] if no message could ever be sent.
    pub fn new(options: WebhookOptions) -> Result<Self, WebhookError> {
        request::check_headers(&options.headers)?;
        if options.secret.as_ref().is_some_and(|secret| secret.expose_secret().is_empty()) {
            return Err(WebhookError::EmptySecret);
        }
        let origin = origin(&options.url);
        let client = client::build(&options, &origin)?;
        let WebhookOptions { url, secret, timeout, response_limit, headers, .. } = options;
        Ok(Self { client, url, origin, secret, timeout, response_limit, headers })
    }
}

impl fmt::Debug for WebhookHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookHandler").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// Keeps the delivery alive while its body is sent.
struct Shared(Arc<Delivery>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0.body
    }
}

impl RawHandler for WebhookHandler {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        let headers = request::headers(context, &self.headers, self.secret.as_ref())?;
        // Not copied: a request shares the delivery.
        let body = Bytes::from_owner(Shared(Arc::clone(&context.delivery)));
        let sending = self.send(headers, body);
        let response = tokio::select! {
            biased;
            () = context.cancelled.cancelled() => return Err(self.interrupted(context)),
            answer = sending => answer?,
        };
        Answer::read(response, self.response_limit).await.verdict(&self.origin)
    }
}

impl WebhookHandler {
    /// Posts a body that is not a single message's, and reads the answer. The signature covers
    /// `name` and the body.
    pub(crate) async fn post(
        &self,
        name: &str,
        mut headers: HeaderMap,
        body: Vec<u8>,
    ) -> Result<Answer, HandlerError> {
        request::sign(&mut headers, self.secret.as_ref(), name, &body)?;
        let fixed = self.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        headers.extend(fixed);
        let response = self.send(headers, body.into()).await?;
        Ok(Answer::read(response, self.response_limit).await)
    }

    /// Returns scheme, host and port: how errors name the service.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    async fn send(&self, headers: HeaderMap, body: Bytes) -> Result<Response, RunError> {
        let request = self.client.post(self.url.clone()).headers(headers);
        let answer = request.timeout(self.timeout).body(body).send().await;
        answer.map_err(|error| self.unanswered(error))
    }

    /// Makes the error of a request that was given up; the service may have seen the request.
    fn interrupted(&self, context: &Context) -> HandlerError {
        // The consumer's own deadline for the run cancels the context too, and is a failure.
        if context.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return RunError::DeadlinePassed { origin: self.origin.clone() }.into();
        }
        HandlerError::Release
    }

    fn unanswered(&self, error: reqwest::Error) -> RunError {
        let origin = self.origin.clone();
        if error.is_timeout() {
            return RunError::NoAnswer { origin, limit: self.timeout };
        }
        RunError::Failed { origin, reason: client::root_cause(&error.without_url()) }
    }
}

/// Returns scheme, host and port: the part of a URL that may be shown.
fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}
