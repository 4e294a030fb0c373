//! A set of rows by id, as the shortest condition that names exactly them.

use crate::message::RowId;

/// Ids of rows within one topic and priority, ascending.
///
/// Consecutive ids become one range: no other row can lie within, so the statement never waits for
/// a row that another worker holds (history H9) and never touches one that is still running (H11).
/// Anything else becomes a list, padded to a power of two with its last id so that the texts have
/// few shapes and stay prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSet(Vec<u64>);

impl RowSet {
    /// The set of these rows.
    pub fn new(rows: impl IntoIterator<Item = RowId>) -> Self {
        let mut ids: Vec<u64> = rows.into_iter().map(|row| row.0).collect();
        ids.sort_unstable();
        ids.dedup();
        Self(ids)
    }

    /// How many rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest and the highest id.
    #[must_use]
    pub fn bounds(&self) -> Option<(RowId, RowId)> {
        Some((RowId(*self.0.first()?), RowId(*self.0.last()?)))
    }

    /// The rows.
    pub fn iter(&self) -> impl Iterator<Item = RowId> {
        self.0.iter().copied().map(RowId)
    }

    /// The condition on `id`, and its values.
    pub(super) fn condition(&self) -> (String, Vec<u64>) {
        match (self.0.first(), self.0.last()) {
            (Some(&lo), Some(&hi)) if (hi - lo) as usize + 1 == self.0.len() => {
                ("id BETWEEN ? AND ?".to_owned(), vec![lo, hi])
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

/// `?, ?, …`: `n` of them.
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
        assert_eq!(condition(&[7]), ("id BETWEEN ? AND ?".into(), vec![7, 7]));
        assert_eq!(condition(&[9, 7, 8]), ("id BETWEEN ? AND ?".into(), vec![7, 9]));
        assert_eq!(condition(&[1, 2, 4]), ("id IN (?, ?, ?, ?)".into(), vec![1, 2, 4, 4]));
        assert_eq!(condition(&[]), ("FALSE".into(), vec![]));
    }
}
