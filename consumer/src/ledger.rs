//! Looks into the ledger before a plain handler is entered.

use std::collections::HashSet;

use rowmq_core::connection::Pool;
use rowmq_core::{Delivery, Error, Topic, store};

/// Finds biz ids that were handled within the topic's window.
#[derive(Debug, Clone)]
pub(crate) struct Ledger(Pool);

impl Ledger {
    pub(crate) fn new(pool: Pool) -> Self {
        Self(pool)
    }

    /// Returns the biz id under which the ledger would hold a delivery of the topic.
    pub(crate) fn key<'d>(topic: &Topic, delivery: &'d Delivery) -> Option<&'d [u8]> {
        topic.settings.ledger_window.and(delivery.biz_id.as_deref())
    }

    /// Returns which of the biz ids were handled.
    pub(crate) async fn handled(
        &self,
        topic: &Topic,
        biz_ids: &[&[u8]],
    ) -> Result<HashSet<Vec<u8>>, Error> {
        if biz_ids.is_empty() {
            return Ok(HashSet::new());
        }
        let look = async |conn: &mut _| store::ledger::look(conn, topic.id, biz_ids).await;
        let entries = self.0.call("look into the ledger", look).await?;
        let live = entries.into_iter().filter(|entry| !entry.expired);
        Ok(live.map(|entry| entry.biz_id).collect())
    }
}
