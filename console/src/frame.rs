//! The frame of pages that need no sign-in.

use axum::http::StatusCode;
use maud::{DOCTYPE, Markup, html};

use crate::assets;

/// The head of every page.
pub(crate) fn head(title: &str) -> Markup {
    html! {
        meta charset="utf-8";
        meta name="viewport" content="width=device-width, initial-scale=1";
        meta name="color-scheme" content="light dark";
        title { (title) " – queue" }
        link rel="stylesheet" href=(assets::href("console.css"));
        link rel="icon" href=(assets::href("icon.svg")) type="image/svg+xml";
    }
}

/// A page that needs no sign-in.
pub(crate) fn bare(title: &str, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head { (head(title)) }
            body class="bare" { main { h1 { (title) } (content) } }
        }
    }
}

/// The page of a refusal.
pub(crate) fn error(status: StatusCode, sentence: &str) -> Markup {
    let title = status.canonical_reason().unwrap_or("It cannot be shown");
    bare(
        title,
        &html! {
            p { (sentence) }
            p { a href="/" { "To the overview" } }
        },
    )
}
