//! The source tree as its rules see it: files, the packages of the workspace with their modules,
//! which module takes which name from which, how long the code is, and what `rooms.toml` allows.
//!
//! `tests/tidy.rs` checks the tree against the rules; `ops/measure` prints the figures. `ops/book`
//! builds the book of the documents.

pub mod book;
pub mod edges;
pub mod package;
pub mod prose;
pub mod rooms;
pub mod size;
pub mod tree;
pub mod walks;
