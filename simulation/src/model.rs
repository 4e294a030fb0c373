//! The model of the server: how InnoDB at READ COMMITTED executes the store's statements.

mod conditions;
mod engine;
mod eval;
mod join;
mod locks;
mod run;
mod select;
mod table;
mod value;

pub(crate) use self::engine::{Engine, Facts, Outcome, Wait};
pub(crate) use self::locks::Failure;
pub(crate) use self::table::Table;
pub(crate) use self::value::{Row, Value};
