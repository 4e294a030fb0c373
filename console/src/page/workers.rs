use axum::extract::State;
use maud::{Markup, html};
use rowmq_core::inspect::{Sign, WorkerStatus};

use super::{At, Page, layout};
use crate::show;
use crate::visitor::SignedIn;

pub(crate) async fn list(State(console): At, by: SignedIn) -> Page {
    let live = console.live.now();
    let content = html! {
        div id="workers" data-live {
            @if live.workers.is_empty() {
                (show::nothing("No worker is registered: start a consumer."))
            } @else {
                (show::wide("Workers", &html! {
                    table {
                        thead {
                            tr {
                                th class="n" { "Worker" } th { "Process" } th { "Version" } th { "Account" } th class="n" { "Life" } th class="n" { "Work" }
                                th class="n" { "Claims" } th class="n" { "Ranges" } th class="n" { "Last beat" } th { "Alive by" }
                            }
                        }
                        tbody { @for worker in &live.workers { (row(worker)) } }
                    }
                }))
            }
        }
        p class="hint" {
            "A worker is alive while a session of it holds its name lock, or one of its connections is in the server's process list, \
             or its beat is younger than its lease. One of them is enough; those struck out do not say so, \
             or cannot: only with the privilege PROCESS are other accounts' connections seen. Life and Work are the ids of its two connections."
        }
    };
    Ok(layout(&console, &by, "/workers", "Workers", &content))
}

fn row(worker: &WorkerStatus) -> Markup {
    let sign = |sign: Sign| {
        let kind = if worker.alive_by.contains(&sign) { "good" } else { "plain off" };
        show::badge(kind, sign.word())
    };
    html! {
        tr {
            td class="n" { (worker.id) } td { (worker.client_id) } td { (worker.version) } td { (worker.account) }
            td class="n" { (worker.life_conn_id) } td class="n" { (worker.work_conn_id) }
            td class="n" { (worker.claims) }
            td class="n" { (worker.ranges) @if worker.ranges > 0 { " (" (show::number(worker.range_messages)) ")" } }
            td class="n" { (show::age(worker.beat_age_ms)) }
            td { (sign(Sign::Lock)) " " (sign(Sign::List)) " " (sign(Sign::Beat)) @for held in &worker.members { " " (held.group) " as " (held.member) } }
        }
    }
}
