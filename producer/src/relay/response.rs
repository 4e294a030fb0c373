//! The answers to requests.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use rowmq_core::{Enqueued, Error, Fault, MsgId};
use rowmq_producer::{Destination, SendError, Sent};
use rowmq_service::process::sentence;
use serde::Serialize;

/// After how many seconds a retry is worthwhile.
const AGAIN_AFTER: &str = "1";

/// 201: the message is stored. 200: it was there already, or has replaced another; then the id is
/// that of the existing message. 202: it is in the spill journal.
#[derive(Debug)]
pub(super) struct Taken(pub(super) Sent);

#[derive(Serialize)]
struct Id {
    msg_id: MsgId,
    outcome: &'static str,
}

/// The message is not stored, or its outcome is unknown.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    reason: String,
}

#[derive(Serialize)]
struct Reason {
    error: String,
}

impl Refusal {
    pub(super) fn malformed(reason: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, reason }
    }

    pub(super) fn body(limit: usize) -> Self {
        let reason = format!(
            "The body is cut short or has more than {limit} bytes: see --body-limit of the relay"
        );
        Self { status: StatusCode::PAYLOAD_TOO_LARGE, reason }
    }

    pub(super) fn foreign() -> Self {
        let reason =
            "The relay takes no requests from browser pages, and none whose Host is not this \
             machine: send it from a program to 127.0.0.1 or localhost"
                .to_owned();
        Self { status: StatusCode::FORBIDDEN, reason }
    }

    pub(super) fn slow() -> Self {
        let reason = "The body did not come in time".to_owned();
        Self { status: StatusCode::REQUEST_TIMEOUT, reason }
    }

    pub(super) fn busy(what: &str) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, reason: format!("{what}; try again") }
    }
}

impl From<SendError> for Refusal {
    fn from(error: SendError) -> Self {
        let status = match &error {
            SendError::Refused(error) => refused(error),
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let reason = match error {
            SendError::Refused(error) => sentence(&error.into()),
            error => sentence(&error.into()),
        };
        Self { status, reason }
    }
}

fn refused(error: &Error) -> StatusCode {
    match error {
        Error::UnknownTopic { .. } => StatusCode::NOT_FOUND,
        Error::TopicPaused { .. } | Error::TopicFull { .. } => StatusCode::SERVICE_UNAVAILABLE,
        error if error.fault() == Fault::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Error::Database { .. } | Error::Connect { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_REQUEST,
    }
}

impl IntoResponse for Taken {
    fn into_response(self) -> Response {
        let (status, outcome) = match self.0.destination {
            Destination::Enqueued(enqueued @ Enqueued::Stored(_)) => {
                (StatusCode::CREATED, enqueued.word())
            }
            Destination::Enqueued(enqueued) => (StatusCode::OK, enqueued.word()),
            Destination::Spilled(_) => (StatusCode::ACCEPTED, "spilled"),
        };
        (status, Json(Id { msg_id: self.0.msg_id, outcome })).into_response()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let reason = Json(Reason { error: self.reason });
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            return (self.status, [(RETRY_AFTER, AGAIN_AFTER)], reason).into_response();
        }
        (self.status, reason).into_response()
    }
}
