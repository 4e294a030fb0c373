use axum::extract::{Path, State};
use maud::{Markup, html};
use uuid::Uuid;

use super::{At, Page, layout};
use crate::refusal::Refusal;
use crate::runs::{Run, Stage};
use crate::show;
use crate::state::Console;
use crate::visitor::SignedIn;

pub(crate) async fn show(State(console): At, by: SignedIn, Path(id): Path<String>) -> Page {
    let run = id.parse::<Uuid>().ok().and_then(|id| console.runs.find(id));
    let unknown = "There is no such run: the console has forgotten it, or was restarted; the audit says what it has changed.";
    let run = run.ok_or_else(|| Refusal::NotFound(unknown.to_owned()))?;
    let content = html! {
        p { (run.action.word()) " of " (show::topic(&run.topic)) ", by " (run.by) }
        div id="run" data-live data-until=[run.stage().is_running().then_some("ended")] { (stage(&run)) }
        p { a href={ "/dead/" (run.topic) } { "To the dead letters" } }
    };
    Ok(layout(&console, &by, "/dead", "Run", &content))
}

fn stage(run: &Run) -> Markup {
    let about = run.about;
    html! {
        @match run.stage() {
            Stage::Running { seen, done } => {
                p role="status" { (show::number(done as u64)) " done, " (show::number(seen as u64)) " looked at of " (show::capped(about)) }
                progress max=(about.max(seen as u64).max(1)) value=(seen) { "under way" }
                p class="hint" { "It goes on whether you watch or not. Load the page again to see how far it is, if it does not do so by itself." }
            }
            Stage::Ended { done } => {
                p role="status" { (show::badge("good", "ended")) " " (show::number(done as u64)) " dead letters." }
                progress max="1" value="1" { "ended" }
            }
            Stage::Failed { done, failure } => {
                p class="failure" role="alert" { "It has stopped after " (show::number(done as u64)) ": " (failure) }
            }
        }
    }
}

/// The recent runs.
pub(super) fn list(console: &Console) -> Markup {
    let runs = console.runs.all();
    html! {
        @if !runs.is_empty() {
            h2 { "Runs" }
            (show::wide("Runs", &html! {
                table {
                    thead { tr { th { "Run" } th { "Topic" } th { "By" } th class="n" { "Letters" } th { "State" } } }
                    tbody {
                        @for run in runs {
                            @let stage = run.stage();
                            tr {
                                td { a href={ "/runs/" (run.id) } { (run.action.word()) } }
                                td { (show::topic(&run.topic)) } td { (run.by) }
                                td class="n" { (show::number(stage.done() as u64)) }
                                td { (match stage { Stage::Running { .. } => "under way", Stage::Ended { .. } => "ended", Stage::Failed { .. } => "stopped" }) }
                            }
                        }
                    }
                }
            }))
        }
    }
}
