use axum::extract::State;
use maud::html;
use serde_json::Value;

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
                (show::wide("Duties", &html! {
                    table {
                        thead { tr { th { "Duty" } th class="n" { "Ran" } th class="n" { "Runs" } th { "Performed by" } th class="n" { "Connection" } th { "Report" } } }
                        tbody {
                            @for duty in &live.duties {
                                tr {
                                    td { (duty.status.name) } td class="n" { (show::age(duty.age_ms)) " ago" } td class="n" { (show::number(duty.status.runs)) }
                                    td { (duty.status.holder) } td class="n" { (duty.status.conn) } td { (report(&duty.status.report)) }
                                }
                            }
                        }
                    }
                }))
            }
        }
    };
    Ok(layout(&console, &by, "/janitor", "Janitor", &content))
}

/// A duty's report, as words instead of JSON.
fn report(counts: &Value) -> String {
    let Value::Object(counts) = counts else { return counts.to_string() };
    let words = counts.iter().map(|(name, value)| match value {
        Value::Array(list) => format!("{} {}", name.replace('_', " "), list.len()),
        value => format!("{} {value}", name.replace('_', " ")),
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_in_words() {
        let counts = json!({"declared_dead": [{"worker": 7}], "list_proved": true, "rescued": 3});
        assert_eq!(report(&counts), "declared dead 1, list proved true, rescued 3");
        assert_eq!(report(&json!("not so")), "\"not so\"");
    }
}
