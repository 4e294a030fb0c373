use axum::extract::State;
use maud::html;

use super::{At, Page, layout};
use crate::show;
use crate::visitor::SignedIn;

pub(crate) async fn list(State(console): At, by: SignedIn) -> Page {
    let live = console.live.now();
    let content = html! {
        div id="duties" data-live {
            @if live.duties.is_empty() {
                (show::nothing("No duty has run yet: start a janitor, or a consumer, which sweeps where no janitor does."))
            } @else {
                table {
                    thead { tr { th { "Duty" } th class="n" { "Ran" } th class="n" { "Runs" } th { "Performed by" } th class="n" { "Connection" } th { "Report" } } }
                    tbody {
                        @for duty in &live.duties {
                            tr {
                                td { (duty.status.name) } td class="n" { (show::age(duty.age_ms)) " ago" } td class="n" { (show::number(duty.status.runs)) }
                                td { (duty.status.holder) } td class="n" { (duty.status.conn) } td { code { (duty.status.report) } }
                            }
                        }
                    }
                }
            }
        }
    };
    Ok(layout(&console, &by, "/janitor", "Janitor", &content))
}
