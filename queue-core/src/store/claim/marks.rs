use crate::message::{Priority, RowId};

/// The low-water marks of a topic: for each priority, an id below which this worker knows of no
/// ready row. They keep a claim from walking over the dead entries of settled rows: 2.2 s instead
/// of 30.0 s for 60 k rows behind a long reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks([RowId; 10]);

impl Marks {
    /// Nothing known: every row may be ready.
    pub const START: Self = Self([RowId(0); 10]);

    /// Rows of `priority` below `row` are not ready any more.
    pub fn raise(&mut self, priority: Priority, row: RowId) {
        if let Some(mark) = self.0.get_mut(usize::from(priority.level())) {
            *mark = (*mark).max(row);
        }
    }

    /// A row of `priority` is ready at `row`.
    pub fn lower(&mut self, priority: Priority, row: RowId) {
        if let Some(mark) = self.0.get_mut(usize::from(priority.level())) {
            *mark = (*mark).min(row);
        }
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        Priority::all()
            .zip(self.0)
            .flat_map(|(priority, mark)| [u64::from(priority.stored()), mark.0])
    }
}
