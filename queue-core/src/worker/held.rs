//! The worker's memory of what it holds.

use std::collections::{BTreeSet, HashMap};

use crate::model::{ClaimNo, Delivery, RowId, TopicId};

/// The unsettled rows of each claim.
#[derive(Debug, Default)]
pub(super) struct Held(HashMap<ClaimNo, HeldClaim>);

#[derive(Debug)]
struct HeldClaim {
    topic: TopicId,
    rows: BTreeSet<RowId>,
}

impl Held {
    pub(super) fn add(&mut self, claim_no: ClaimNo, deliveries: &[Delivery]) {
        if let Some(first) = deliveries.first() {
            let rows = deliveries.iter().map(|delivery| delivery.row).collect();
            self.0.insert(claim_no, HeldClaim { topic: first.topic_id, rows });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, claim_no: ClaimNo) -> bool {
        self.0.contains_key(&claim_no)
    }

    /// The unsettled rows of a claim, if there are any.
    pub(super) fn rows(&self, claim_no: ClaimNo) -> Option<&BTreeSet<RowId>> {
        self.0.get(&claim_no).map(|claim| &claim.rows)
    }

    /// How many rows of the topic are unsettled.
    pub(super) fn running(&self, topic: TopicId) -> u32 {
        let claims = self.0.values().filter(|claim| claim.topic == topic);
        let running: usize = claims.map(|claim| claim.rows.len()).sum();
        u32::try_from(running).unwrap_or(u32::MAX)
    }

    /// How many of these rows are unsettled rows of the topic.
    pub(super) fn count(&self, topic: TopicId, rows: &[(ClaimNo, RowId)]) -> u32 {
        let is_held = |(claim_no, row): &&(ClaimNo, RowId)| {
            let claim = self.0.get(claim_no).filter(|claim| claim.topic == topic);
            claim.is_some_and(|claim| claim.rows.contains(row))
        };
        u32::try_from(rows.iter().filter(is_held).count()).unwrap_or(u32::MAX)
    }

    /// The claims.
    pub(super) fn claims(&self) -> impl Iterator<Item = ClaimNo> + '_ {
        self.0.keys().copied()
    }

    /// The claims that would have no row left once these are settled.
    pub(super) fn emptied_by(&self, rows: &[(ClaimNo, RowId)]) -> Vec<ClaimNo> {
        let mut settled: HashMap<ClaimNo, BTreeSet<RowId>> = HashMap::new();
        for (claim_no, row) in rows {
            settled.entry(*claim_no).or_default().insert(*row);
        }
        let mut emptied: Vec<_> = settled
            .into_iter()
            .filter(|(claim_no, rows)| {
                self.0.get(claim_no).is_none_or(|held| held.rows.is_subset(rows))
            })
            .map(|(claim_no, _)| claim_no)
            .collect();
        emptied.sort_unstable();
        emptied
    }

    pub(super) fn remove(&mut self, rows: &[(ClaimNo, RowId)]) {
        for (claim_no, row) in rows {
            if let Some(held) = self.0.get_mut(claim_no) {
                held.rows.remove(row);
                if held.rows.is_empty() {
                    self.0.remove(claim_no);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_emptied_only_by_its_last_row() {
        let rows = BTreeSet::from([RowId(1), RowId(2)]);
        let mut held = Held(HashMap::from([(ClaimNo(1), HeldClaim { topic: TopicId(1), rows })]));
        assert!(held.emptied_by(&[(ClaimNo(1), RowId(1))]).is_empty());
        held.remove(&[(ClaimNo(1), RowId(1))]);
        assert_eq!(held.emptied_by(&[(ClaimNo(1), RowId(2))]), [ClaimNo(1)]);
        held.remove(&[(ClaimNo(1), RowId(2))]);
        assert!(!held.has(ClaimNo(1)));
    }
}
