//! Whether a proxy stands in front of the server, and how it treats connections.

use super::{Check, Verdict, check};
use crate::connection::Connection;
use crate::connection::role::ServerRole;
use crate::model::Result;
use crate::store::doctor as ask;

const NAME: &str = "no multiplexing proxy";

/// Asks two sessions for their connection ids, and the first one again while the other has a
/// transaction open. A proxy that lends server connections per statement or per transaction must
/// then give the first session another connection. `role` belongs to the other session.
pub(super) async fn direct(
    conn: &mut impl Connection,
    other: &mut impl Connection,
    role: &ServerRole,
) -> Result<Check> {
    let (bare, inner) = ask::connection_ids(conn).await?;
    if bare != inner {
        let detail = format!(
            "A proxy answers CONNECTION_ID() itself ({bare}, the server says {inner}): connect to the server directly, or turn multiplexing off."
        );
        return Ok(check(NAME, false, Verdict::Failure, detail));
    }
    ask::begin(other).await?;
    let (_, of_other) = ask::connection_ids(other).await?;
    let (_, again) = ask::connection_ids(conn).await?;
    ask::roll_back(other).await?;
    let (_, after) = ask::connection_ids(other).await?;
    if inner != again || of_other != after {
        let detail = format!(
            "A proxy gives a session now one connection of the server and now another ({inner}, {again}; {of_other}, {after}): connect to the server directly, or turn multiplexing off."
        );
        return Ok(check(NAME, false, Verdict::Failure, detail));
    }
    // The greeting has only the low 32 bits of an id that may be longer.
    let is_greeters = of_other.0 & u64::from(u32::MAX) == u64::from(role.greeted_as);
    let detail = if is_greeters {
        "CONNECTION_ID() is the server's own, and that of its greeting".to_owned()
    } else {
        format!(
            "A proxy greets as connection {}, the server knows it as {of_other}: it must keep one connection of the server for each of ours, as long as ours lives (docs/servers.md, Proxies).",
            role.greeted_as
        )
    };
    Ok(check(NAME, is_greeters, Verdict::Warning, detail))
}
