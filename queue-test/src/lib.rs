//! A throw-away database for each test, on a real server, and what tests ask of it.

mod database;

pub use database::TestDatabase;
