use axum::Form;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use rowmq_core::model::{Action, Actor, Change};
use serde::Deserialize;

use super::At;
use crate::asked::{Ask, Asked};
use crate::frame::bare;
use crate::refusal::Refusal;
use crate::role::Role;
use crate::state::Console;
use crate::visitor::{Address, cookie, set_cookie};

/// The name of a user who signs in by a link.
const BY_LINK: &str = "console";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wish {
    to: String,
    token: String,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
pub(crate) struct Credentials {
    name: String,
    password: String,
    token: String,
    to: String,
}

pub(crate) async fn show(State(console): At, Query(wish): Query<Wish>) -> Response {
    form(&console, &wish, None).into_response()
}

fn form(console: &Console, wish: &Wish, wrong: Option<&str>) -> maud::Markup {
    bare(
        "Sign in",
        &html! {
            @if let Some(wrong) = wrong { p class="failure" role="alert" { (wrong) } }
            form method="post" action="/sign-in" class="sign-in" {
                input type="hidden" name="to" value=(wish.to);
                @if console.link.is_some() {
                    label { "Token, from the console's log" input name="token" value=(wish.token) required autocomplete="off" autofocus; }
                    button type="submit" { "Sign in" }
                } @else if console.rules.users.is_some() {
                    label { "Name" input name="name" required autocomplete="username" autofocus; }
                    label { "Password" input name="password" type="password" required autocomplete="current-password"; }
                    button type="submit" { "Sign in" }
                } @else {
                    p { "The proxy before this console signs people in: come by its address." }
                }
            }
        },
    )
}

/// Signs a user in, unless there were too many failed sign-ins recently.
pub(crate) async fn sign_in(
    State(console): At,
    Address(address): Address,
    Form(credentials): Form<Credentials>,
) -> Result<Response, Refusal> {
    let Credentials { name, password, token, to } = credentials;
    let name = if console.link.is_some() { BY_LINK.to_owned() } else { name };
    // A link's token cannot be guessed, and any program on this machine shares its owner's address:
    // counting tries would let that program lock the owner out.
    if console.link.is_none() {
        let taken = console.throttle.take(address);
        taken.map_err(|wait| Refusal::TooOften { seconds: wait.as_secs() + 1 })?;
    }
    let role = match (&console.link, &console.rules.users) {
        (Some(link), _) => link.take(&token).then_some(Role::Admin),
        (None, Some(users)) => users.verify(&name, password).await,
        (None, None) => None,
    };
    let Some(role) = role else {
        tracing::warn!(%address, "A sign-in has failed.");
        let wish = Wish { to, token: String::new() };
        let wrong = match console.link {
            Some(_) => {
                "That link was used, or is none of ours: the newest one stands in the console's log."
            }
            None => "The name or the password is wrong.",
        };
        let page = form(&console, &wish, Some(wrong));
        return Ok((StatusCode::UNAUTHORIZED, page).into_response());
    };
    console.throttle.forget(address);
    record(&console, Actor { name: name.clone(), origin: address.to_string() }).await;
    let secret = console.logins.begin(name, role);
    let set = [(header::SET_COOKIE, set_cookie(&console.rules, Some(&secret)))];
    Ok((set, Redirect::to(local(&to))).into_response())
}

/// Writes the sign-in into the audit. A failure does not prevent the sign-in: users come to see
/// the state of the database.
async fn record(console: &Console, actor: Actor) {
    let change = Change { actor, action: Action::SignIn, target: String::new(), detail: None };
    let note =
        console.database.write(move |session| Box::pin(async move { change.note(session).await }));
    if let Err(error) = note.await {
        tracing::warn!(%error, "A sign-in is missing in the audit.");
    }
}

/// The path if it leads to a page of ours, else the overview.
fn local(to: &str) -> &str {
    let is_ours =
        to.starts_with('/') && !to.starts_with("//") && !to.contains(['\\', '\r', '\n', '\t']);
    if is_ours { to } else { "/" }
}

#[derive(Debug, Deserialize)]
pub(crate) struct SignOut {}

impl Ask for SignOut {
    const NEEDS: Role = Role::Viewer;
}

pub(crate) async fn sign_out(
    State(console): At,
    headers: HeaderMap,
    _: Asked<SignOut>,
) -> Response {
    if let Some(secret) = cookie(&headers, &console.rules) {
        console.logins.end(secret);
    }
    let set = [(header::SET_COOKIE, set_cookie(&console.rules, None))];
    (set, Redirect::to("/sign-in")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signing_in_leads_to_no_other_site() {
        assert_eq!(local("/dead/mail?error=a"), "/dead/mail?error=a");
        for elsewhere in
            ["", "//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil"]
        {
            assert_eq!(local(elsewhere), "/", "{elsewhere}");
        }
    }
}
