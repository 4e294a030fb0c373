//! Changes that users ask for. Every change goes through here: the user is signed in, the request
//! comes from one of our pages, and the user's role allows it.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderMap, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::refusal::Refusal;
use crate::role::Role;
use crate::state::Console;
use crate::visitor::SignedIn;

/// A form that asks for a change.
pub(crate) trait Ask: DeserializeOwned {
    /// The role that may ask for it.
    const NEEDS: Role;
}

/// A change, and the user who asked for it and may.
#[derive(Debug)]
pub(crate) struct Asked<A> {
    pub(crate) by: SignedIn,
    pub(crate) what: A,
}

#[derive(Deserialize)]
struct Token {
    csrf: String,
}

impl<A: Ask> FromRequest<Arc<Console>> for Asked<A> {
    type Rejection = Refusal;

    async fn from_request(request: Request, console: &Arc<Console>) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let by = SignedIn::from_request_parts(&mut parts, console).await?;
        let headers = parts.headers.clone();
        let body = Bytes::from_request(Request::from_parts(parts, body), console).await;
        let body =
            body.map_err(|error| Refusal::Wrong(format!("The form cannot be read: {error}.")))?;
        let token = token(&headers, &body).ok_or(Refusal::Stale)?;
        if !by.login.is_csrf(&token) {
            return Err(Refusal::Stale);
        }
        if !by.may(A::NEEDS) {
            return Err(Refusal::Forbidden { needs: A::NEEDS });
        }
        let wrong = |error: String| {
            Refusal::Wrong(format!(
                "The form does not say what to do: {}.",
                error.trim_end_matches('.')
            ))
        };
        let what = if is_json(&headers) {
            let body = if body.is_empty() { &b"{}"[..] } else { &body };
            serde_json::from_slice(body).map_err(|error| wrong(error.to_string()))?
        } else {
            serde_urlencoded::from_bytes(&body).map_err(|error| wrong(error.to_string()))?
        };
        Ok(Self { by, what })
    }
}

/// The CSRF token, which only our pages know: in a field of the form, or in a header, which no
/// foreign page can make a browser send.
fn token(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    if let Some(token) = headers.get("x-csrf-token") {
        return token.to_str().ok().map(str::to_owned);
    }
    if is_json(headers) {
        return None;
    }
    serde_urlencoded::from_bytes(body).ok().map(|token: Token| token.csrf)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
}
