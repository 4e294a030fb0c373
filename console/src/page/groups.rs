use axum::extract::{Path, State};
use axum::response::Redirect;
use maud::{Markup, html};
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{Action, Change, OffsetSpec};
use rowmq_core::store::stream::holding::{self, GroupClaim, Held};
use rowmq_core::store::stream::member::{self, MemberProgress};
use rowmq_core::store::stream::progress::{self, GroupProgress};
use rowmq_core::stream::broadcast::reset_members;
use rowmq_core::stream::group::{replay as handle_again, reset_group};
use rowmq_core::{Error, TopicName};
use serde::Deserialize;

use super::{At, Page, layout, topic_name, topic_of};
use crate::asked::{Ask, Asked};
use crate::refusal::Refusal;
use crate::role::Role;
use crate::sampler::GroupNow;
use crate::show::{self, spark};
use crate::state::Parts;
use crate::visitor::SignedIn;

pub(crate) async fn list(State(console): At, by: SignedIn) -> Page {
    let live = console.live.now();
    let groups: Vec<_> = live.groups.iter().collect();
    let content = html! {
        div id="groups" data-live {
            @if groups.is_empty() {
                (show::nothing("There are no groups: create one with `rowmq group create STREAM@GROUP`."))
            } @else {
                (table(&groups))
            }
        }
    };
    Ok(layout(&console, &by, "/groups", "Groups", &content))
}

#[allow(clippy::cast_precision_loss, reason = "only drawn")]
pub(super) fn table(groups: &[&GroupNow]) -> Markup {
    let lags = |group: &GroupNow| -> Vec<_> {
        group.history.iter().map(|point| (point.at, point.waiting as f64)).collect()
    };
    html! {
        (show::wide("Groups", &html! {
            table {
                thead { tr { th { "Group" } th { "Kind" } th { "Access" } th class="n" { "Lag" } th class="n" { "Oldest" } th class="n" { "Claimed" } th class="n" { "Handled" } th class="n" { "Lost" } th { "Lag of late" } } }
                tbody {
                    @for group in groups {
                        @let status = &group.status;
                        tr {
                            td { (show::topic(&status.topic.name)) }
                            td { (show::kind(&status.topic)) }
                            td { (show::access(&status.topic)) }
                            td class="n" { (show::number(status.lag)) } td class="n" { (show::maybe_age(status.lag_ms)) }
                            td class="n" { (show::number(status.claimed)) } td class="n" { (show::rate(group.handled_per_second)) }
                            td class="n" { (show::number(status.lost)) } td { (spark("Lag of late", &lags(group))) }
                        }
                    }
                }
            }
        }))
    }
}

async fn parts(session: &mut Session, name: TopicName) -> rowmq_core::Result<Parts> {
    let topic = topic_of(session, name).await?;
    match (topic.group(), topic.broadcast()) {
        (Some(group), _) => {
            let read = async |conn: &mut Link| {
                let partitions = progress::of_group(conn, group).await?;
                Ok(Parts::Claiming {
                    partitions,
                    claims: holding::claims_of_group(conn, group).await?,
                })
            };
            session.call("read how far the group has come", read).await
        }
        (None, Some(group)) => {
            let read = async |conn: &mut Link| member::progress(conn, group).await;
            let members = session.call("read how far the members have come", read).await?;
            Ok(Parts::Broadcast { members })
        }
        (None, None) => Err(Error::NoGroup { topic: topic.name }),
    }
}

pub(crate) async fn show(State(console): At, by: SignedIn, Path(name): Path<String>) -> Page {
    let name = topic_name(&name)?;
    let (live, of) = (console.live.now(), name.clone());
    let read = async || console.database.read(|session| Box::pin(parts(session, of))).await;
    let parts = console.parts.get(live.no, &name, read).await?;
    let content = html! {
        div id="group" data-live {
            @if let Some(group) = live.group(&name) { (table(&[group])) }
            @match &*parts {
                Parts::Claiming { partitions, claims } => {
                    (partition_table(partitions))
                    (claim_table(claims))
                }
                Parts::Broadcast { members } => (member_table(members)),
            }
        }
        p { a href={ "/topics/" (name) } { "Its own topic" } ": what it tries again, and its access. " a href={ "/dead/" (name) } { "Its dead letters" } }
        @if by.may(Reset::NEEDS) { (forms(&by, &name, matches!(*parts, Parts::Claiming { .. }))) }
    };
    Ok(layout(&console, &by, "/groups", &format!("Group {name}"), &content))
}

fn partition_table(partitions: &[GroupProgress]) -> Markup {
    html! {
        h2 { "Partitions" }
        (show::wide("Partitions", &html! {
            table {
                thead { tr { th class="n" { "Partition" } th class="n" { "First" } th class="n" { "End" } th class="n" { "Cursor" } th class="n" { "Mark" } th class="n" { "Lag" } th class="n" { "Oldest" } th class="n" { "Claimed" } th class="n" { "Held for" } th class="n" { "Lost" } } }
                tbody {
                    @for one in partitions {
                        tr {
                            td class="n" { (one.partition) } td class="n" { (one.first) } td class="n" { (one.end) } td class="n" { (one.cursor) } td class="n" { (one.mark) }
                            td class="n" { (show::number(one.lag)) } td class="n" { (show::maybe_age(one.lag_ms)) } td class="n" { (show::number(one.claimed)) }
                            td class="n" { (show::maybe_age(one.held_ms)) } td class="n" { (show::number(one.lost)) }
                        }
                    }
                }
            }
        }))
    }
}

fn claim_table(claims: &[GroupClaim]) -> Markup {
    html! {
        h2 { "Members" }
        @if claims.is_empty() {
            (show::nothing("No member of the group has claimed anything at the moment."))
        } @else {
            (show::wide("Members", &html! {
                table {
                    thead { tr { th { "Worker" } th { "State" } th { "Holds" } th class="n" { "Messages" } th class="n" { "For" } } }
                    tbody {
                        @for claim in claims {
                            tr {
                                td { (claim.worker) " " small { (claim.client_id.as_deref().unwrap_or("–")) } }
                                td { (claim.state.as_deref().unwrap_or("–")) }
                                td { @match claim.held { Held::Log { partition, mark, hi } => { "partition " (partition) ", " (mark) " to " (hi) } Held::Retries => "retries" } }
                                td class="n" { (show::number(claim.messages)) } td class="n" { (show::age(claim.age_ms)) }
                            }
                        }
                    }
                }
            }))
        }
    }
}

fn member_table(members: &[MemberProgress]) -> Markup {
    html! {
        h2 { "Members with a name" }
        @if members.is_empty() {
            (show::nothing("No member of the group has a name: their positions are in their memory."))
        } @else {
            (show::wide("Members", &html! {
                table {
                    thead { tr { th { "Member" } th class="n" { "Partition" } th class="n" { "Next" } th class="n" { "Lag" } th class="n" { "Oldest" } th class="n" { "Lost" } th { "Worker" } th { "Reported" } } }
                    tbody {
                        @for one in members {
                            tr {
                                td { (one.member) } td class="n" { (one.partition) } td class="n" { (one.next) } td class="n" { (show::number(one.lag)) }
                                td class="n" { (show::maybe_age(one.lag_ms)) } td class="n" { (show::number(one.lost)) }
                                td { @match one.worker { Some(worker) => (worker), None => "–" } } td { (show::time(one.told_at)) }
                            }
                        }
                    }
                }
            }))
        }
    }
}

fn forms(by: &SignedIn, name: &TopicName, can_replay: bool) -> Markup {
    html! {
        h2 { "Elsewhere" }
        form method="post" action={ "/groups/" (name) "/reset" } class="search" {
            (show::csrf(&by.login))
            label { "Go on at" input name="to" required placeholder="earliest, latest, an offset or a time"; }
            label class="sure" { input type="checkbox" required; " sure: what its members hold is taken from them" }
            button type="submit" class="danger" { "Reset" }
        }
        @if can_replay {
            form method="post" action={ "/groups/" (name) "/replay" } class="search" {
                (show::csrf(&by.login))
                label { "Handle again from" input name="from" required placeholder="earliest, an offset or a time"; }
                label { "to" input name="to" value="latest" required; }
                button type="submit" { "Replay" }
            }
        }
    }
}

/// Moves a group to another place in its stream.
#[derive(Debug, Deserialize)]
pub(crate) struct Reset {
    to: OffsetSpec,
}

impl Ask for Reset {
    const NEEDS: Role = Role::Admin;
}

/// Has a group handle a range of its stream once more.
#[derive(Debug, Deserialize)]
pub(crate) struct Replay {
    from: OffsetSpec,
    to: OffsetSpec,
}

impl Ask for Replay {
    const NEEDS: Role = Role::Admin;
}

pub(crate) async fn reset(
    State(console): At,
    Path(name): Path<String>,
    asked: Asked<Reset>,
) -> Result<Redirect, Refusal> {
    let name = topic_name(&name)?;
    let to = asked.what.to;
    let back = Redirect::to(&format!("/groups/{name}"));
    let detail = Some(format!("to {to}"));
    let change = Change {
        actor: asked.by.actor(),
        action: Action::ResetGroup,
        target: name.to_string(),
        detail,
    };
    let of = name.clone();
    let work = console.database.write(move |session| {
        Box::pin(async move {
            let topic = topic_of(session, name).await?;
            let reset = async |conn: &mut Link| match topic.broadcast() {
                Some(_) => reset_members(conn, &topic, to).await.map(|_| ()),
                None => reset_group(conn, &topic, to).await,
            };
            change.make(session, "reset the group", reset).await
        })
    });
    work.await?;
    console.live.look_again().await;
    console.parts.forget(&of);
    Ok(back)
}

pub(crate) async fn replay(
    State(console): At,
    Path(name): Path<String>,
    asked: Asked<Replay>,
) -> Result<Redirect, Refusal> {
    let name = topic_name(&name)?;
    let Replay { from, to } = asked.what;
    let back = Redirect::to(&format!("/groups/{name}"));
    let detail = Some(format!("from {from} to {to}"));
    let change = Change {
        actor: asked.by.actor(),
        action: Action::Replay,
        target: name.to_string(),
        detail,
    };
    let of = name.clone();
    let work = console.database.write(move |session| {
        Box::pin(async move {
            let topic = topic_of(session, name).await?;
            let again = async |conn: &mut Link| {
                let messages = handle_again(conn, &topic, from, to).await?;
                Ok(usize::try_from(messages).unwrap_or(usize::MAX))
            };
            change.make_counted(session, "replay", again).await
        })
    });
    work.await?;
    console.live.look_again().await;
    console.parts.forget(&of);
    Ok(back)
}
