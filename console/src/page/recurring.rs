use axum::extract::{Path, State};
use axum::response::Redirect;
use maud::{Markup, html};
use rowmq_core::connection::Link;
use rowmq_core::model::{Action, Change, ScheduleName};
use rowmq_core::schedule::resume as start_again;
use rowmq_core::store::schedule::{self, ScheduleState};
use serde::Deserialize;

use super::{At, Page, layout};
use crate::asked::{Ask, Asked};
use crate::refusal::Refusal;
use crate::role::Role;
use crate::show;
use crate::state::Console;
use crate::visitor::SignedIn;

pub(crate) async fn list(State(console): At, by: SignedIn) -> Page {
    let read = console.database.read(|session| {
        Box::pin(async {
            let all = async |conn: &mut Link| schedule::all(conn).await;
            session.call("list the schedules", all).await
        })
    });
    let schedules = read.await?;
    let content = html! {
        @if schedules.is_empty() {
            (show::nothing("There is no schedule: make one with `rowmq cron set`."))
        } @else {
            (show::wide("Schedules", &html! {
                table {
                    thead { tr { th { "Schedule" } th { "Topic" } th { "Cron" } th { "Time zone" } th { "Missed" } th { "Next" } th { "Last" } th class="n" { "Messages" } th { "Change" } } }
                    tbody { @for state in &schedules { (row(&by, state)) } }
                }
            }))
        }
    };
    Ok(layout(&console, &by, "/recurring", "Recurring", &content))
}

fn row(by: &SignedIn, state: &ScheduleState) -> Markup {
    let one = &state.schedule;
    let (verb, label) = if state.paused { ("resume", "Resume") } else { ("pause", "Pause") };
    html! {
        tr {
            td { (one.name) } td { (show::topic(&one.topic)) }
            td { code { (one.recurrence.cron()) } }
            td { (one.recurrence.time_zone()) }
            td { (one.missed) }
            td { @if state.paused { (show::badge("warn", "paused")) } @else { (show::maybe_time(state.next_at)) } }
            td { (show::maybe_time(state.last_at)) }
            td class="n" { (show::number(state.ticks)) }
            td { @if by.may(Switch::NEEDS) { (show::button(&by.login, &format!("/recurring/{}/{verb}", one.name), label, "", &[])) } }
        }
    }
}

/// Stops or starts a schedule.
#[derive(Debug, Deserialize)]
pub(crate) struct Switch {}

impl Ask for Switch {
    const NEEDS: Role = Role::Operator;
}

pub(crate) async fn pause(
    State(console): At,
    Path(name): Path<String>,
    asked: Asked<Switch>,
) -> Result<Redirect, Refusal> {
    switch(&console, &asked.by, &name, Action::PauseSchedule).await
}

pub(crate) async fn resume(
    State(console): At,
    Path(name): Path<String>,
    asked: Asked<Switch>,
) -> Result<Redirect, Refusal> {
    switch(&console, &asked.by, &name, Action::ResumeSchedule).await
}

async fn switch(
    console: &Console,
    by: &SignedIn,
    name: &str,
    action: Action,
) -> Result<Redirect, Refusal> {
    let name = ScheduleName::new(name)?;
    let change = Change { actor: by.actor(), action, target: name.to_string(), detail: None };
    let work = console.database.write(move |session| {
        Box::pin(async move {
            let work = async |conn: &mut Link| match change.action {
                Action::PauseSchedule => schedule::pause(conn, &name).await,
                _ => start_again(conn, &name).await,
            };
            change.make(session, "switch the schedule", work).await
        })
    });
    work.await?;
    Ok(Redirect::to("/recurring"))
}
