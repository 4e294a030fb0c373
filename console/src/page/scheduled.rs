use axum::extract::{Path, State};
use maud::html;
use rowmq_core::connection::Link;
use rowmq_core::store::scheduled;

use super::{At, Page, layout, topic_name, topic_of};
use crate::show;
use crate::visitor::SignedIn;

/// How many messages a page shows, the next first.
const SHOWN: u32 = 100;

pub(crate) async fn list(State(console): At, by: SignedIn) -> Page {
    let live = console.live.now();
    let topics: Vec<_> = live.topics.iter().filter(|one| one.depth.scheduled > 0).collect();
    let content = html! {
        div id="scheduled" data-live {
            @if topics.is_empty() {
                (show::nothing("No message waits for its time."))
            } @else {
                (show::wide("Topics", &html! {
                    table {
                        thead { tr { th { "Topic" } th class="n" { "Scheduled" } } }
                        tbody {
                            @for one in topics {
                                tr {
                                    td { a href={ "/scheduled/" (one.topic.name) } { (one.topic.name) } }
                                    td class="n" { (show::capped(one.depth.scheduled)) }
                                }
                            }
                        }
                    }
                }))
            }
        }
    };
    Ok(layout(&console, &by, "/scheduled", "Scheduled", &content))
}

pub(crate) async fn show(State(console): At, by: SignedIn, Path(name): Path<String>) -> Page {
    let name = topic_name(&name)?;
    let of = name.clone();
    let read = console.database.read(move |session| {
        Box::pin(async move {
            let topic = topic_of(session, of).await?;
            let list = async |conn: &mut Link| scheduled::list(conn, topic.id, SHOWN).await;
            session.call("list the scheduled messages", list).await
        })
    });
    let messages = read.await?;
    let content = html! {
        p { "Of " (show::topic(&name)) ": the next " (SHOWN) ", in the order in which they become ready." }
        @if messages.is_empty() {
            (show::nothing("No message of it waits for its time."))
        } @else {
            (show::wide("Messages", &html! {
                table {
                    thead { tr { th { "Message" } th { "Due" } th class="n" { "Failures" } th { "Enqueued" } th { "Business id" } th { "Last error" } } }
                    tbody {
                        @for message in &messages {
                            tr {
                                td { a href={ "/messages/" (name) "/" (message.msg_id) } { code { (message.msg_id) } } }
                                td { (show::time(message.due_at)) }
                                td class="n" { (message.failures) }
                                td { (show::time(message.enqueued_at)) }
                                td { (message.biz_id.as_deref().unwrap_or_default()) }
                                td class="error" { (show::beginning(message.last_error.as_deref().unwrap_or_default(), 120)) }
                            }
                        }
                    }
                }
            }))
        }
    };
    Ok(layout(&console, &by, "/scheduled", "Scheduled", &content))
}
