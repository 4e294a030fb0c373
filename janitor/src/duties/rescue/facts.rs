//! What a sweeper knows about its own session and its server.

use std::collections::HashSet;

use rowmq_core::connection::Session;
use rowmq_core::model::Fault;
use rowmq_core::store::doctor;
use rowmq_core::store::process_list::{self, Visibility};
use rowmq_core::store::worker::{self, Incarnation};
use rowmq_core::{Error, Result};

/// What cannot change during the sweeper's session: its grants and the server's incarnation.
#[derive(Debug, Clone)]
pub(super) struct SessionFacts {
    pub(super) visibility: Visibility,
    pub(super) incarnation: Incarnation,
    /// The ids of the servers in this server's replication group, if it is in one and shows them.
    pub(super) group: Option<HashSet<String>>,
    /// Whether the view of connections shows all of them, without PROCESS.
    pub(super) has_view: bool,
    /// Whether name locks prove anything: Galera's are per node.
    pub(super) locks_count: bool,
}

impl SessionFacts {
    /// Reads them, and warns if workers of other accounts cannot be seen.
    pub(super) async fn read(session: &mut Session) -> Result<Self> {
        let facts = session
            .call("look around", async |conn| {
                let visibility = process_list::visibility(conn).await?;
                Ok((visibility, worker::incarnation(conn).await?, doctor::variables(conn).await?))
            })
            .await;
        let (visibility, incarnation, variables) = facts?;
        let mut has_view = false;
        if !visibility.process {
            let look = async |conn: &mut _| process_list::through_view(conn, &visibility).await;
            has_view = session.call("look around", look).await?.is_some();
        }
        if !visibility.process && !has_view {
            tracing::warn!(
                account = visibility.account,
                "No PROCESS privilege: workers of other accounts are rescued only after a whole \
                 lease. GRANT PROCESS ON *.* to this account, or use the consumers' account, or \
                 the view of ops/deploy/grants/process-list.sql."
            );
        }
        let locks_count = !variables.is_on("wsrep_on");
        let in_group =
            variables.get("group_replication_group_name").is_some_and(|name| !name.is_empty());
        let group = if in_group { group(session).await? } else { None };
        Ok(Self { visibility, incarnation, group, has_view, locks_count })
    }
}

async fn group(session: &mut Session) -> Result<Option<HashSet<String>>> {
    let list = async |conn: &mut _| worker::group(conn).await;
    match session.call("list the servers of the group", list).await {
        Ok(group) => Ok(Some(group.into_iter().collect())),
        Err(Error::Database { fault: Fault::Denied, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
