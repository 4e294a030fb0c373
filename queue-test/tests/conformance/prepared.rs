//! A connection keeps what it has prepared: the same statement again is one round trip.

use diesel::QueryableByName;
use diesel::sql_types::Text;
use diesel_async::{AsyncMysqlConnection, RunQueryDsl};
use rowmq_core::model::{Access, RowId};
use rowmq_core::store::{cancel, switch, topic};

use crate::scene::Scene;

/// Returns how many statements this connection has prepared, with the question itself.
async fn prepared(conn: &mut AsyncMysqlConnection) -> u64 {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Text, column_name = "Value")]
        value: String,
    }
    let status = diesel::sql_query("SHOW SESSION STATUS LIKE 'Com_stmt_prepare'");
    status.get_result::<Row>(conn).await.unwrap().value.parse().unwrap()
}

/// A query, an UPDATE, an upsert and a DELETE of Diesel's.
async fn run(scene: &mut Scene) {
    let conn = &mut scene.conn;
    topic::find(conn, &scene.topic.name).await.unwrap();
    topic::set_access(conn, &scene.topic.name, Access::ReadWrite).await.unwrap();
    switch::set(conn, Access::ReadWrite).await.unwrap();
    cancel::ask(conn, RowId(1), None).await.unwrap();
    cancel::ask_no_more(conn, RowId(1)).await.unwrap();
}

#[tokio::test]
async fn a_statement_is_prepared_once_for_each_connection() {
    let mut scene = Scene::new().await;
    run(&mut scene).await;
    let before = prepared(&mut scene.conn).await;
    for _ in 0..3 {
        run(&mut scene).await;
    }
    let question = 1;
    assert_eq!(prepared(&mut scene.conn).await - before, question);
}
