//! The server's role in its cluster, and that of the URL's other hosts.

use super::{Check, Verdict, check};
use crate::connection::role::ServerRole;
use crate::connection::{HostNo, ServerUrl, SessionKind, connect_host};
use crate::model::{Error, Fault, Result};
use crate::store::doctor::{self as ask, Variables};

pub(super) fn writable(role: &ServerRole) -> Check {
    let detail = match &role.refusal {
        None => "writes are taken".to_owned(),
        Some(reason) => format!("{reason}: connect to the writer, or turn writes on here."),
    };
    check("writable", role.refusal.is_none(), Verdict::Failure, detail)
}

/// Whether other servers take writes besides this one.
pub(super) fn one_writer(variables: &Variables, role: &ServerRole) -> Check {
    let in_group =
        variables.get("group_replication_group_name").is_some_and(|name| !name.is_empty());
    let several = in_group && !variables.is_on("group_replication_single_primary_mode");
    let stale = in_group && variables.get("group_replication_consistency") == Some("EVENTUAL");
    let detail = if role.galera {
        "Galera: connection ids and name locks are per node, so give every process the same list of hosts, of which the first that is up is the writer; liveness is decided by beats alone."
    } else if several {
        "a group with several primaries: connection ids and name locks are per server; change it to one primary (group_replication_switch_to_single_primary_mode)."
    } else if stale {
        "group_replication_consistency is EVENTUAL: after a failover the new primary may show what was true before; set it to BEFORE_ON_PRIMARY_FAILOVER."
    } else if in_group {
        "a group with one primary"
    } else {
        "no multi-writer cluster found"
    };
    check("one writer", !(role.galera || several || stale), Verdict::Warning, detail.to_owned())
}

/// Whether this server replicates another, if the account may know.
pub(super) async fn replica(
    conn: &mut diesel_async::AsyncMysqlConnection,
    role: &ServerRole,
) -> Result<Check> {
    let source = match ask::replica_of(conn).await {
        Err(error) if error.fault() == Fault::Denied => {
            let detail = "not visible to this account (REPLICATION CLIENT or SLAVE MONITOR)";
            return Ok(check("replica", true, Verdict::Warning, detail.to_owned()));
        }
        source => source?,
    };
    // A replica that refuses writes has failed already; this one takes writes that its source does
    // not have.
    let both = source.is_some() && role.refusal.is_none();
    let detail = match source {
        None => "not a replica".to_owned(),
        Some(source) if both => format!(
            "It copies {source} and takes writes: end its replication if it is the writer now, else SET GLOBAL read_only = ON here."
        ),
        Some(source) => format!("a replica of {source}"),
    };
    Ok(check("replica", !both, Verdict::Warning, detail))
}

/// Checks each host of a URL that names several; nothing for one host.
pub(super) async fn hosts(url: &ServerUrl, connected: HostNo, role: &ServerRole) -> Option<Check> {
    if !url.hosts().is_list() {
        return None;
    }
    let (mut writers, mut missing, mut found) = (0, 0, Vec::new());
    for (host, _) in url.hosts().iter() {
        let role = match host == connected {
            true => Ok(role.clone()),
            false => connect_host(url, host, SessionKind::Plain).await.map(|(_, role)| role),
        };
        let name = url.hosts().name(host);
        found.push(match role {
            Ok(ServerRole { refusal: None, .. }) => {
                writers += 1;
                format!("{name} takes writes")
            }
            Ok(ServerRole { refusal: Some(reason), .. }) => format!("{name} takes none ({reason})"),
            Err(Error::Connect { reason, .. }) => {
                missing += 1;
                format!("{name} cannot be reached ({reason})")
            }
            Err(error) => format!("{name}: {error}"),
        });
    }
    let split = writers > 1 && !role.galera;
    let mut detail = found.join("; ");
    if split {
        detail.push_str(
            ". Several take writes: what one of them acknowledges the others do not have, so turn the former writer off or SET GLOBAL read_only = ON there.",
        );
    }
    Some(check("hosts", !split && missing == 0, Verdict::Warning, detail))
}
