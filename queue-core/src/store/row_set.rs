//! A set of rows by id, as the shortest condition that names exactly them.

use crate::model::RowId;

/// The most ids of one list: from 1000 ids on, MariaDB turns a list into a derived table and reads
/// the whole topic and priority, index hint or not (*run* on 11.8).
pub(in crate::store) const LIST_LIMIT: usize = 512;

/// Ids of rows within one topic and priority, ascending.
///
/// Consecutive ids become one range: no other row can lie within, so the statement never waits for
/// a row that another worker holds (history H9) and never touches one that is still running (H11).
/// The last id is compared separately, because a locking statement reads one row beyond the end of
/// a range, and waits for it, but not beyond a full key (*run* on both servers). Anything else
/// becomes lists of at most 512, padded to a power of two with their last id so that there are few
/// statement texts and they stay prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSet(Vec<u64>);

impl RowSet {
    /// Makes the set of these rows.
    pub fn new(rows: impl IntoIterator<Item = RowId>) -> Self {
        let mut ids: Vec<u64> = rows.into_iter().map(|row| row.0).collect();
        ids.sort_unstable();
        ids.dedup();
        Self(ids)
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the lowest and the highest id.
    #[must_use]
    pub fn bounds(&self) -> Option<(RowId, RowId)> {
        Some((RowId(*self.0.first()?), RowId(*self.0.last()?)))
    }

    /// Iterates over the rows.
    pub fn iter(&self) -> impl Iterator<Item = RowId> {
        self.0.iter().copied().map(RowId)
    }

    /// Splits the rows into sets that one statement can name.
    pub(super) fn pieces(&self) -> Vec<Self> {
        if self.is_consecutive() {
            return vec![self.clone()];
        }
        self.0.chunks(LIST_LIMIT).map(|ids| Self(ids.to_vec())).collect()
    }

    fn is_consecutive(&self) -> bool {
        match (self.0.first(), self.0.last()) {
            (Some(lo), Some(hi)) => hi - lo == self.0.len() as u64 - 1,
            _ => false,
        }
    }

    /// Returns the rows as JSON, for [`KEYS`].
    pub(super) fn json(&self) -> Vec<u8> {
        let ids: Vec<_> = self.0.iter().map(u64::to_string).collect();
        format!("[{}]", ids.join(",")).into_bytes()
    }

    /// Builds the condition on `id`, and its values. The statement needs an index hint: without
    /// one, both servers scan the table when the list is longer than a third of the rows they
    /// expect in it, and then wait for unrelated rows (*run*).
    pub(super) fn condition(&self) -> (String, Vec<u64>) {
        match (self.0.first(), self.0.last()) {
            (Some(&lo), Some(&hi)) if lo == hi => ("id = ?".to_owned(), vec![lo]),
            (Some(&lo), Some(&hi)) if self.is_consecutive() => {
                ("(id BETWEEN ? AND ? OR id = ?)".to_owned(), vec![lo, hi - 1, hi])
            }
            (_, Some(&hi)) => {
                let mut ids = self.0.clone();
                ids.resize(self.0.len().next_power_of_two(), hi);
                (format!("id IN ({})", placeholders(ids.len())), ids)
            }
            _ => ("FALSE".to_owned(), Vec::new()),
        }
    }
}

impl FromIterator<RowId> for RowSet {
    fn from_iter<I: IntoIterator<Item = RowId>>(rows: I) -> Self {
        Self::new(rows)
    }
}

/// The rows of a set as a table `k` with the one column `id`, to be joined by key:
/// `DELETE t FROM {KEYS} STRAIGHT_JOIN t FORCE INDEX (…) ON t.id = k.id`, with [`RowSet::json`]
/// bound. The server then looks up each key by itself; with a list, MySQL 9.7 may read, and lock,
/// all of a small table, index hint or not (*run*).
pub(super) const KEYS: &str =
    "JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k";

/// Builds `?, ?, …`: `n` of them.
pub(super) fn placeholders(n: usize) -> String {
    let mut text = "?, ".repeat(n);
    text.truncate(text.len().saturating_sub(2));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(ids: &[u64]) -> (String, Vec<u64>) {
        RowSet::new(ids.iter().copied().map(RowId)).condition()
    }

    #[test]
    fn consecutive_rows_are_a_range_and_others_a_padded_list() {
        assert_eq!(condition(&[7]), ("id = ?".into(), vec![7]));
        let range = "(id BETWEEN ? AND ? OR id = ?)";
        assert_eq!(condition(&[9, 7, 8]), (range.into(), vec![7, 8, 9]));
        assert_eq!(condition(&[1, 2, 4]), ("id IN (?, ?, ?, ?)".into(), vec![1, 2, 4, 4]));
        assert_eq!(condition(&[]), ("FALSE".into(), vec![]));
    }

    #[test]
    fn long_lists_come_in_pieces_and_ranges_never_do() {
        let pieces = |ids: Vec<u64>| -> Vec<usize> {
            let rows = RowSet::new(ids.into_iter().map(RowId));
            rows.pieces().iter().map(RowSet::len).collect()
        };
        assert_eq!(pieces((0..5000).collect()), [5000]);
        assert_eq!(pieces((0..1100).map(|id| id * 2).collect()), [512, 512, 76]);
        assert_eq!(pieces(vec![]), Vec::<usize>::new());
    }
}
