use diesel::QueryResult;
use diesel::result::{DatabaseErrorKind, Error};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::connection::simulation::{Answer, StandIn, Value};
use tokio::sync::{mpsc, oneshot};

/// A statement on its way to the server.
pub(super) struct Request {
    pub(super) text: String,
    pub(super) values: Vec<Value>,
    pub(super) reply: oneshot::Sender<QueryResult<Answer>>,
}

/// A client's end of a connection. Dropped, it closes the connection.
pub(super) struct Client(mpsc::UnboundedSender<Request>);

impl Client {
    pub(super) fn new(requests: mpsc::UnboundedSender<Request>) -> Self {
        Self(requests)
    }
}

fn gone(text: &str) -> Error {
    Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(text.to_owned()))
}

impl StandIn for Client {
    fn run<'c>(
        &'c mut self,
        text: &'c str,
        values: &'c [Value],
    ) -> BoxFuture<'c, QueryResult<Answer>> {
        async move {
            let (reply, answer) = oneshot::channel();
            let request = Request { text: text.to_owned(), values: values.to_vec(), reply };
            let closed = || gone("Driver error: `Connection to the server is closed.'");
            self.0.send(request).map_err(|_| closed())?;
            answer.await.map_err(|_| gone("Input/output error: connection reset by peer"))?
        }
        .boxed()
    }
}
