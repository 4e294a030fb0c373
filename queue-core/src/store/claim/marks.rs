use crate::connection::row;
use crate::model::{Priority, RowId};

/// The low-water marks of a topic: for each priority, an id below which this worker knows of no
/// ready row. They keep a claim from walking over the dead entries of settled rows: 2.2 s instead
/// of 30.0 s for 60 k rows behind a long reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks([RowId; 10]);

/// Where in a topic claims begin: a priority and the lowest id that may be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The priority.
    pub priority: Priority,
    /// No ready row of it is known below this.
    pub from: RowId,
}

row! { Place { priority, from } }

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

    /// The first ready row of a priority is here.
    pub fn set(&mut self, place: Place) {
        if let Some(mark) = self.0.get_mut(usize::from(place.priority.level())) {
            *mark = place.from;
        }
    }

    /// Where claims of `priority` begin.
    #[must_use]
    pub fn place(&self, priority: Priority) -> Place {
        let from = self.0.get(usize::from(priority.level())).copied().unwrap_or(RowId(0));
        Place { priority, from }
    }

    /// Where claims of the last priority begin that has ever had a row; of the default one, if
    /// none has.
    #[must_use]
    pub fn last(&self) -> Place {
        let raised = |priority: &Priority| self.place(*priority).from > RowId(0);
        let last = Priority::all().filter(raised).last();
        self.place(last.unwrap_or_default())
    }
}
