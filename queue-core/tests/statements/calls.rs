//! A call of every function of the store, by what it is for.

mod claiming;
mod enqueuing;
mod finding;
mod groups;
mod server;
mod settling;
mod streams;
mod topics;
mod workers;

use crate::recorder::Recorder;

/// Calls every function of the store. That a call fails is of no interest: the connection has
/// recorded its statements up to there.
pub(crate) async fn every_function(conn: &mut Recorder) {
    enqueuing::all(conn).await;
    claiming::all(conn).await;
    settling::all(conn).await;
    workers::all(conn).await;
    topics::all(conn).await;
    finding::all(conn).await;
    streams::all(conn).await;
    groups::all(conn).await;
    server::all(conn).await;
}
