//! The worker's memory of what it holds.

use std::collections::{BTreeSet, HashMap};

use crate::model::{ClaimNo, Delivery, RowId};

/// The unsettled rows of each claim.
#[derive(Debug, Default)]
pub(super) struct Held(HashMap<ClaimNo, BTreeSet<RowId>>);

impl Held {
    pub(super) fn add(&mut self, claim_no: ClaimNo, deliveries: &[Delivery]) {
        if !deliveries.is_empty() {
            self.0.insert(claim_no, deliveries.iter().map(|delivery| delivery.row).collect());
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
        self.0.get(&claim_no)
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
            .filter(|(claim_no, rows)| self.0.get(claim_no).is_none_or(|held| held.is_subset(rows)))
            .map(|(claim_no, _)| claim_no)
            .collect();
        emptied.sort_unstable();
        emptied
    }

    pub(super) fn remove(&mut self, rows: &[(ClaimNo, RowId)]) {
        for (claim_no, row) in rows {
            if let Some(held) = self.0.get_mut(claim_no) {
                held.remove(row);
                if held.is_empty() {
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
        let mut held = Held(HashMap::from([(ClaimNo(1), BTreeSet::from([RowId(1), RowId(2)]))]));
        assert!(held.emptied_by(&[(ClaimNo(1), RowId(1))]).is_empty());
        held.remove(&[(ClaimNo(1), RowId(1))]);
        assert_eq!(held.emptied_by(&[(ClaimNo(1), RowId(2))]), [ClaimNo(1)]);
        held.remove(&[(ClaimNo(1), RowId(2))]);
        assert!(!held.has(ClaimNo(1)));
    }
}
