//! An address of the API. Its parameters and its answer are written once, in the types of its
//! function: the router serves that function, and the document describes those types.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, Query as Fields, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::{MethodRouter, get, post};
use futures_util::{Stream, StreamExt};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::schemas::Schemas;
use crate::asked::{Ask, Asked};
use crate::page::At;
use crate::refusal::Refusal;
use crate::role::Role;
use crate::state::Console;
use crate::visitor::SignedIn;

/// A function that writes a type, or several, into the document.
type Describe<T> = fn(&mut Schemas) -> T;

/// An address of the API.
pub(super) struct Endpoint {
    /// The name of the operation for clients.
    pub(super) name: &'static str,
    /// The path below `/api/v1`.
    pub(super) path: &'static str,
    /// What it is for.
    pub(super) summary: &'static str,
    pub(super) kind: Kind,
    /// The parameters in its path and its query.
    pub(super) parameters: Describe<Vec<Value>>,
    pub(super) answer: Answer,
    /// The route that serves it.
    pub(super) router: MethodRouter<Arc<Console>>,
}

/// Whether the address reads or changes.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Read,
    Change {
        /// The role that may ask for it.
        needs: Role,
        /// The fields of the form, or of the same as JSON.
        asks: Describe<Value>,
    },
}

/// The kind of answer.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    Json(Describe<Value>),
    /// Server-sent events.
    Events,
}

impl Endpoint {
    /// An address that every signed-in user may read.
    pub(super) fn read<F, G, A, Fut>(
        name: &'static str,
        path: &'static str,
        summary: &'static str,
        answer: F,
    ) -> Self
    where
        F: Fn(Arc<Console>, G) -> Fut + Clone + Send + Sync + 'static,
        G: Given,
        A: Serialize + JsonSchema + 'static,
        Fut: Future<Output = Result<A, Refusal>> + Send + 'static,
    {
        let handler =
            async move |State(console): At, _: SignedIn, given: Result<G, G::Rejection>| {
                answer(console, understood(given)?).await.map(Json)
            };
        Self {
            name,
            path,
            summary,
            kind: Kind::Read,
            parameters: G::parameters,
            answer: Answer::Json(Schemas::answer::<A>),
            router: get(handler),
        }
    }

    /// An address for a change, for users whose role allows it.
    pub(super) fn change<F, G, W, A, Fut>(
        name: &'static str,
        path: &'static str,
        summary: &'static str,
        answer: F,
    ) -> Self
    where
        F: Fn(Arc<Console>, G, Asked<W>) -> Fut + Clone + Send + Sync + 'static,
        G: Given,
        W: Ask + JsonSchema + Send + 'static,
        A: Serialize + JsonSchema + 'static,
        Fut: Future<Output = Result<A, Refusal>> + Send + 'static,
    {
        let handler =
            async move |State(console): At, given: Result<G, G::Rejection>, asked: Asked<W>| {
                answer(console, understood(given)?, asked).await.map(Json)
            };
        Self {
            name,
            path,
            summary,
            kind: Kind::Change { needs: W::NEEDS, asks: Schemas::given::<W> },
            parameters: G::parameters,
            answer: Answer::Json(Schemas::answer::<A>),
            router: post(handler),
        }
    }

    /// An address that streams events to a signed-in user for as long as the connection is open.
    pub(super) fn events<F, S>(
        name: &'static str,
        path: &'static str,
        summary: &'static str,
        events: F,
    ) -> Self
    where
        F: Fn(&Console) -> S + Clone + Send + Sync + 'static,
        S: Stream<Item = Event> + Send + 'static,
    {
        let handler = async move |State(console): At, _: SignedIn| {
            let ending = console.ending.clone();
            let events = events(&console).take_until(async move { ending.cancelled().await });
            Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default())
        };
        Self {
            name,
            path,
            summary,
            kind: Kind::Read,
            parameters: <()>::parameters,
            answer: Answer::Events,
            router: get(handler),
        }
    }
}

fn understood<G, E: Display>(given: Result<G, E>) -> Result<G, Refusal> {
    given.map_err(|error| {
        Refusal::Wrong(format!(
            "The address cannot be understood: {}.",
            error.to_string().trim_end_matches('.')
        ))
    })
}

/// The parameters of an address, without the fields of its form.
pub(super) trait Given:
    FromRequestParts<Arc<Console>, Rejection: Display + Send> + Send + 'static
{
    /// The parameters as the document describes them.
    fn parameters(schemas: &mut Schemas) -> Vec<Value>;
}

impl Given for () {
    fn parameters(_: &mut Schemas) -> Vec<Value> {
        Vec::new()
    }
}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> Given for Path<T> {
    fn parameters(schemas: &mut Schemas) -> Vec<Value> {
        schemas.parameters::<T>("path")
    }
}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> Given for Fields<T> {
    fn parameters(schemas: &mut Schemas) -> Vec<Value> {
        schemas.parameters::<T>("query")
    }
}
