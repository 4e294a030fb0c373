use diesel::QueryResult;
use diesel::mysql::Mysql;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};

/// A query of Diesel's that the connection keeps prepared by its text.
///
/// Diesel prepares every UPDATE, every upsert and every query with raw SQL again at each call,
/// because the text could differ each time. That takes two round trips instead of one. Each query
/// of the store has one fixed text, so it can stay prepared.
#[derive(Debug, Clone)]
pub(super) struct Kept<Q>(pub(super) Q);

impl<Q: QueryFragment<Mysql>> QueryFragment<Mysql> for Kept<Q> {
    fn walk_ast<'b>(&'b self, out: AstPass<'_, 'b, Mysql>) -> QueryResult<()> {
        self.0.walk_ast(out)
    }

    fn is_safe_to_cache_prepared(&self, _: &Mysql) -> QueryResult<bool> {
        Ok(true)
    }
}

impl<Q> QueryId for Kept<Q> {
    type QueryId = ();
    // The text is the key of the statement cache.
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<Q: Query> Query for Kept<Q> {
    type SqlType = Q::SqlType;
}
