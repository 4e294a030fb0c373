use axum::extract::{Query as Fields, State};
use maud::html;
use rowmq_core::connection::Link;
use rowmq_core::model::{AuditNo, Entry};
use rowmq_core::store::audit;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{At, Page, layout};
use crate::refusal::Refusal;
use crate::show;
use crate::state::Console;
use crate::visitor::SignedIn;

/// How many entries a page shows, the newest first.
const SHOWN: u32 = 100;

/// Where the page begins.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct From {
    /// Entries older than this one: the `no` of the last entry of the previous answer.
    before: Option<u64>,
}

pub(crate) async fn entries(console: &Console, from: &From) -> Result<Vec<Entry>, Refusal> {
    let before = from.before.map(AuditNo);
    let read = console.database.read(move |session| {
        Box::pin(async move {
            let read = async |conn: &mut Link| audit::latest(conn, before, SHOWN).await;
            session.call("read the audit", read).await
        })
    });
    Ok(read.await?)
}

pub(crate) async fn list(State(console): At, by: SignedIn, Fields(from): Fields<From>) -> Page {
    let entries = entries(&console, &from).await?;
    let last = entries.last().filter(|_| entries.len() >= SHOWN as usize);
    let content = html! {
        @if entries.is_empty() {
            (show::nothing("Nothing has been changed by hand."))
        } @else {
            (show::wide("Changes", &html! {
                table {
                    thead { tr { th { "When" } th { "Who" } th { "From" } th { "What" } th { "Of" } th { "Detail" } th class="n" { "Messages" } } }
                    tbody {
                        @for entry in &entries {
                            tr {
                                td { (show::time(entry.at)) }
                                td { (entry.actor.name) }
                                td { (entry.actor.origin) }
                                td { (entry.action) }
                                td { (entry.target) }
                                td { (entry.detail.as_deref().unwrap_or_default()) }
                                td class="n" { @if entry.messages > 0 { (show::number(entry.messages)) } }
                            }
                        }
                    }
                }
            }))
        }
        @if let Some(last) = last { p { a class="next" rel="next" href={ "?before=" (last.no.0) } { "Earlier" } } }
    };
    Ok(layout(&console, &by, "/audit", "Audit", &content))
}
