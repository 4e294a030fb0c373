//! An address of the API. What it is given and what it answers is written once, in the types of its
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

/// What writes a type, or several, into the document.
type Describe<T> = fn(&mut Schemas) -> T;

/// An address of the API.
pub(super) struct Endpoint {
    /// What a client calls it.
    pub(super) name: &'static str,
    /// Below `/api/v1`.
    pub(super) path: &'static str,
    /// What it is for.
    pub(super) summary: &'static str,
    pub(super) kind: Kind,
    /// What the address is given, by its path and its query.
    pub(super) parameters: Describe<Vec<Value>>,
    pub(super) answer: Answer,
    /// What answers there.
    pub(super) router: MethodRouter<Arc<Console>>,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Read,
    Change {
        /// Who may ask for it.
        needs: Role,
        /// What a form says, or the same as JSON.
        asks: Describe<Value>,
    },
}

/// What is answered.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    Json(Describe<Value>),
    /// Server-sent events.
    Events,
}

impl Endpoint {
    /// Something that everybody who is signed in may read.
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

    /// Something that who may changes.
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

    /// Something that everybody who is signed in is told of for as long as they listen.
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

/// What an address is given besides what is asked for.
pub(super) trait Given:
    FromRequestParts<Arc<Console>, Rejection: Display + Send> + Send + 'static
{
    /// As the document has it.
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
