//! The answers in place of a page.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use rowmq_core::{Error, Fault};

use crate::frame;
use crate::role::Role;

/// Why a user does not get what they asked for.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The user is not signed in; they asked for the page `to`.
    SignIn { to: String },
    /// The user's role does not allow it.
    Forbidden { needs: Role },
    /// It does not exist.
    NotFound(String),
    /// It is invalid, or cannot be done now.
    Wrong(String),
    /// Too many tries; try again after this many seconds.
    TooOften { seconds: u64 },
    /// The form is not one of ours, or belongs to a login that has ended.
    Stale,
    /// The request comes from a foreign page.
    Foreign,
    /// An error of `queue-core`.
    Queue(Error),
}

/// The sentence of a refusal, which the API answers instead of the page.
#[derive(Debug, Clone)]
pub(crate) struct RefusalText(pub(crate) String);

/// The answer for an address without a page.
pub(crate) async fn no_such_page() -> Refusal {
    Refusal::NotFound("There is no such page: begin at the overview.".to_owned())
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Queue(error)
    }
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::SignIn { .. } => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } | Self::Stale | Self::Foreign => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Wrong(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::TooOften { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Queue(error) => of_queue(error),
        }
    }

    fn sentence(&self) -> String {
        match self {
            Self::SignIn { .. } => "You are not signed in: sign in first.".to_owned(),
            Self::Forbidden { needs } => format!(
                "Your role may not do this: it takes the role {needs}, which stands in the users' file."
            ),
            Self::NotFound(sentence) | Self::Wrong(sentence) => sentence.clone(),
            Self::TooOften { seconds } => {
                format!("Too many sign-ins have failed: try again in {seconds} s.")
            }
            Self::Stale => {
                "The page is of an earlier sign-in: go back, load it again and repeat what you did."
                    .to_owned()
            }
            Self::Foreign => {
                "The request does not come from a page of this console under the address that it knows: open the console by that address and repeat what you did."
                    .to_owned()
            }
            Self::Queue(error) => rowmq_service::process::sentence(&error.clone().into()),
        }
    }
}

fn of_queue(error: &Error) -> StatusCode {
    match error {
        Error::UnknownTopic { .. }
        | Error::UnknownSchedule { .. }
        | Error::NoGroup { .. }
        | Error::NoStream { .. } => StatusCode::NOT_FOUND,
        Error::InvalidName { .. }
        | Error::InvalidOffsetSpec { .. }
        | Error::InvalidTime { .. }
        | Error::OfBroadcast { .. }
        | Error::Setting { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        Error::TopicPaused { .. } => StatusCode::CONFLICT,
        error if error.fault() == Fault::Denied => StatusCode::FORBIDDEN,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, sentence) = (self.status(), self.sentence());
        if status.is_server_error() {
            tracing::warn!(%sentence, "A page could not be shown.");
        }
        let mut response = match &self {
            Self::SignIn { to } => {
                let to: String = url::form_urlencoded::byte_serialize(to.as_bytes()).collect();
                Redirect::to(&format!("/sign-in?to={to}")).into_response()
            }
            _ => (status, frame::error(status, &sentence)).into_response(),
        };
        if let Self::TooOften { seconds } = self {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(RefusalText(sentence));
        response
    }
}
