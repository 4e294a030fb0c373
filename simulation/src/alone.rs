//! The model by itself, to compare it with real servers.

use std::rc::Rc;

use rowmq_core::connection::{Connection, Link};
use tokio::sync::mpsc;

use crate::model::{Row, Value};
use crate::server::Server;
use crate::stage::connect;

/// A model of a server, with the queue's tables, which are empty.
pub struct Model {
    server: Rc<Server>,
    connects: mpsc::UnboundedSender<crate::server::Connect>,
}

impl Model {
    /// Starts the model on the tasks of the current `LocalSet`.
    #[must_use]
    pub fn start() -> Self {
        let server = Server::new(0, None);
        let (connects, connecting) = mpsc::unbounded_channel();
        tokio::task::spawn_local(Rc::clone(&server).listen(connecting));
        Self { server, connects }
    }

    /// Opens a connection.
    ///
    /// # Panics
    /// If the model has ended.
    pub async fn connect(&self) -> Link {
        let conn = connect(&self.connects, "test").await.expect("the model listens");
        Link::Model(conn)
    }

    /// Runs a statement without values.
    ///
    /// # Errors
    /// The error that the server would return.
    pub async fn run(link: &mut Link, sql: &str) -> diesel::QueryResult<()> {
        link.batch(sql).await
    }

    /// Returns the number that a query without values answers; `None` is NULL.
    ///
    /// # Errors
    /// The error that the server would return.
    ///
    /// # Panics
    /// If the connection is not to the model, or the answer is no number.
    pub async fn number(link: &mut Link, sql: &str) -> diesel::QueryResult<Option<i64>> {
        let Link::Model(conn) = link else { panic!("a connection to the model") };
        let answer = conn.run(sql, &[]).await?;
        let bytes = answer.rows[0].values[0].as_ref();
        Ok(bytes.map(|bytes| i64::from_ne_bytes(bytes[..].try_into().expect("a number"))))
    }

    /// Returns how many sessions wait for a row or a name.
    #[must_use]
    pub fn lock_waits(&self) -> usize {
        let engine = self.server.engine.borrow();
        engine.ids().into_iter().filter(|id| engine.wait(*id).is_some()).count()
    }

    /// Returns these columns of a table's committed rows, in the order of its key.
    #[must_use]
    pub fn rows(&self, table: &str, columns: &[&str]) -> Vec<String> {
        let engine = self.server.engine.borrow();
        let table = &engine.tables[engine.table(table)];
        let show =
            |row: &Row, name: &&str| match &row[table.definition.place(name).expect("a column")] {
                Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                Value::Null => "NULL".to_owned(),
                other => other.number().to_string(),
            };
        let rows = table.slots.values().filter_map(|slot| slot.committed.as_ref());
        rows.map(|row| columns.iter().map(|name| show(row, name)).collect::<Vec<_>>().join(" "))
            .collect()
    }
}
