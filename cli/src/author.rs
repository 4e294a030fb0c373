use std::fmt::Display;

use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{Action, Actor, Change};
use rowmq_core::store::audit;
use rowmq_service::identity;

/// The change that this command is about to make, as the audit records it: with the user's name
/// from the environment, this machine, and the account that the server sees.
pub(crate) async fn change(
    session: &mut Session,
    action: Action,
    target: impl Display,
    detail: impl Into<Option<String>>,
) -> rowmq_core::Result<Change> {
    let read = async |conn: &mut Link| audit::account(conn).await;
    let account = session.call("read the account", read).await?;
    let origin = format!("rowmq@{} as {account}", identity::host());
    let actor = Actor { name: identity::person(), origin };
    let detail = detail.into().filter(|detail| !detail.is_empty());
    Ok(Change { actor, action, target: target.to_string(), detail })
}
