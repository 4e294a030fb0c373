//! The files that pages need: in the program itself, and from nowhere else.

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::page;
use crate::server::Console;

const FILES: [(&str, &str, &str); 3] = [
    ("console.css", "text/css; charset=utf-8", include_str!("../assets/console.css")),
    ("console.js", "text/javascript; charset=utf-8", include_str!("../assets/console.js")),
    ("icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")),
];

/// The address of a file, another one with each version of the program.
pub(crate) fn href(name: &str) -> String {
    format!("/assets/{name}?{}", env!("CARGO_PKG_VERSION"))
}

pub(crate) fn routes() -> Router<Arc<Console>> {
    Router::new().route("/assets/{name}", get(file))
}

async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => {
            let headers =
                [(header::CONTENT_TYPE, *kind), (header::CACHE_CONTROL, "private, max-age=3600")];
            (headers, *text).into_response()
        }
        None => page::not_found().await.into_response(),
    }
}
