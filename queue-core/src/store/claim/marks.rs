use crate::connection::row;
use crate::model::{Priority, RowId};

/// The low-water marks of a topic: for each priority, an id below which this worker knows of no
/// ready row. With them a claim does not read the dead entries of settled rows: it took 2.2 s
/// instead of 30.0 s for 60 k rows behind a long reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks([RowId; 10]);

/// Where in a topic claims begin: a priority and the lowest id that may be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanPosition {
    /// The priority.
    pub priority: Priority,
    /// The worker knows of no ready row of this priority below this id.
    pub from: RowId,
}

row! { ScanPosition { priority, from } }

impl Marks {
    /// Nothing is known: every row may be ready.
    pub const START: Self = Self([RowId(0); 10]);

    /// Raises the mark of `priority`: rows below `row` are not ready any more.
    pub fn raise(&mut self, priority: Priority, row: RowId) {
        if let Some(mark) = self.0.get_mut(usize::from(priority.level())) {
            *mark = (*mark).max(row);
        }
    }

    /// Lowers the mark of `priority`: the row `row` is ready.
    pub fn lower(&mut self, priority: Priority, row: RowId) {
        if let Some(mark) = self.0.get_mut(usize::from(priority.level())) {
            *mark = (*mark).min(row);
        }
    }

    /// Sets the mark of a priority to its first ready row.
    pub fn set(&mut self, position: ScanPosition) {
        if let Some(mark) = self.0.get_mut(usize::from(position.priority.level())) {
            *mark = position.from;
        }
    }

    /// Returns where claims of `priority` begin.
    #[must_use]
    pub fn position(&self, priority: Priority) -> ScanPosition {
        let from = self.0.get(usize::from(priority.level())).copied().unwrap_or(RowId(0));
        ScanPosition { priority, from }
    }

    /// Returns where claims begin in the last priority that has ever had a row, or in the default
    /// priority if none has.
    #[must_use]
    pub fn last(&self) -> ScanPosition {
        let raised = |priority: &Priority| self.position(*priority).from > RowId(0);
        let last = Priority::all().filter(raised).last();
        self.position(last.unwrap_or_default())
    }
}
