//! A list that is read once and comes back empty, because the SELECT was killed (KILL QUERY):
//! MariaDB reports no error. A list that decides something is read a second time.

use std::time::Duration;

use diesel::deserialize::FromSqlRow;
use diesel::mysql::Mysql;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::{QueryResult, debug_query};
use rowmq_core::connection::{Connection, FromRow, Selects, Statement, transaction};
use rowmq_core::model::{DeadCause, Priority, RowId, Settlement, TopicSettings};
use rowmq_core::store::claim::Fence;
use rowmq_core::store::row_set::RowSet;
use rowmq_core::store::settle::ClaimedRows;
use rowmq_core::store::{ledger, unique};
use rowmq_core::{
    AsyncMysqlConnection, Enqueued, MsgId, NewMessage, Unique, cancel, enqueue_to, stream,
};

use crate::scene::{Scene, all, bodies, claim_n, settle};
use crate::streams::Stream;

const HOUR: Duration = Duration::from_secs(3600);

/// A connection whose first SELECT with this text finds nothing.
struct KilledOnce<'c> {
    conn: &'c mut AsyncMysqlConnection,
    text: &'static str,
    killed: bool,
}

impl<'c> KilledOnce<'c> {
    fn new(conn: &'c mut AsyncMysqlConnection, text: &'static str) -> Self {
        Self { conn, text, killed: false }
    }

    fn kills(&mut self, query: &impl QueryFragment<Mysql>) -> bool {
        let kills = !self.killed && debug_query(query).to_string().contains(self.text);
        self.killed |= kills;
        kills
    }
}

impl Connection for KilledOnce<'_> {
    async fn execute<Q>(&mut self, query: Q) -> QueryResult<usize>
    where
        Q: QueryFragment<Mysql> + QueryId + Send,
    {
        Connection::execute(self.conn, query).await
    }

    async fn select<Q, T, S>(&mut self, query: Q) -> QueryResult<Vec<T>>
    where
        Q: Selects<T, S>,
        T: FromSqlRow<S, Mysql> + Send,
    {
        if self.kills(&query) { Ok(Vec::new()) } else { Connection::select(self.conn, query).await }
    }

    async fn load<T>(&mut self, statement: Statement<'_>) -> QueryResult<Vec<T>>
    where
        T: FromRow + Send,
    {
        if self.kills(&statement) {
            Ok(Vec::new())
        } else {
            Connection::load(self.conn, statement).await
        }
    }

    async fn batch(&mut self, sql: &str) -> QueryResult<()> {
        Connection::batch(self.conn, sql).await
    }
}

impl Drop for KilledOnce<'_> {
    fn drop(&mut self) {
        assert!(self.killed || std::thread::panicking(), "nothing was asked: {}", self.text);
    }
}

async fn send(scene: &mut Scene, messages: &[NewMessage]) {
    let topic = scene.topic.clone();
    let sent = async |conn: &mut AsyncMysqlConnection| enqueue_to(conn, &topic, messages).await;
    transaction(&mut scene.conn, "send", sent).await.unwrap();
}

#[tokio::test]
async fn given_ids_stay_one_message_each() {
    let settings = TopicSettings { dedupe_window: Some(HOUR), ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    let given = ["a", "b"].map(|body| NewMessage::new(body).with_msg_id(MsgId::new()));
    for (round, text) in [(1, ""), (2, "FROM queue_dedupe")] {
        let topic = scene.topic.clone();
        let sent = transaction(&mut scene.conn, "send", async |conn| {
            if text.is_empty() {
                return enqueue_to(conn, &topic, &given).await;
            }
            enqueue_to(&mut KilledOnce::new(conn, text), &topic, &given).await
        });
        let stored = matches!(sent.await.unwrap()[0], Enqueued::Stored(_));
        assert_eq!(stored, round == 1);
        assert_eq!(scene.hot().await.0, 2, "round {round}");
    }
}

#[tokio::test]
async fn unique_keys_keep_their_holders() {
    let mut scene = Scene::new().await;
    for text in ["", "FROM queue_unique"] {
        let keyed = ["k", "l"].map(|key| NewMessage::new("m").with_unique(Unique::until_done(key)));
        let topic = scene.topic.clone();
        let sent = transaction(&mut scene.conn, "send", async |conn| {
            if text.is_empty() {
                return enqueue_to(conn, &topic, &keyed).await;
            }
            enqueue_to(&mut KilledOnce::new(conn, text), &topic, &keyed).await
        });
        sent.await.unwrap();
        assert_eq!(scene.hot().await.0, 2, "one message a key");
    }
}

#[tokio::test]
async fn the_ledger_forgets_no_biz_id() {
    let settings = TopicSettings { ledger_window: Some(HOUR), ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    let messages = ["a", "b"].map(|id| NewMessage::new("m").with_biz_id(id));
    enqueue_to(&mut scene.conn, &scene.topic, &messages).await.unwrap();
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    let acked =
        |one| rowmq_core::worker::Settled::in_topic(one, Settlement::Ack, &scene.topic.settings);
    settle(&worker, got.iter().map(acked).collect()).await;
    let mut killed = KilledOnce::new(&mut scene.conn, "FROM queue_ledger");
    let known = ledger::look(&mut killed, scene.topic.id, &[b"a", b"b"]).await.unwrap();
    assert_eq!(known.len(), 2);
}

/// History H15 again.
#[tokio::test]
async fn a_direct_batch_comes_behind_what_waits_in_the_inbox() {
    let mut stream = Stream::new(1).await;
    stream.enqueue(0..2).await;
    let id = stream.topic.id;
    let append = async |conn: &mut AsyncMysqlConnection| {
        let mut killed = KilledOnce::new(conn, "AS partition_no");
        stream::append(&mut killed, id, &[NewMessage::new("later")]).await
    };
    let appended = transaction(&mut stream.conn, "test", append).await.unwrap();
    assert_eq!((appended.in_log, appended.sequenced), (true, 3));
    assert_eq!(bodies(&stream.logged().await), ["0", "1", "later"]);
}

/// For a moment each partition may be locked, one after the other. If one such batch went into the
/// inbox, every later one would follow it.
#[tokio::test]
async fn a_direct_batch_tries_again_if_it_finds_no_partition_free() {
    let mut stream = Stream::new(1).await;
    let id = stream.topic.id;
    let append = async |conn: &mut AsyncMysqlConnection| {
        let mut killed = KilledOnce::new(conn, "FOR UPDATE SKIP LOCKED");
        stream::append(&mut killed, id, &[NewMessage::new("m")]).await
    };
    let appended = transaction(&mut stream.conn, "test", append).await.unwrap();
    assert_eq!((appended.in_log, appended.sequenced), (true, 1));
}

#[tokio::test]
async fn a_row_whose_key_is_locked_is_not_taken_for_one_without_a_key() {
    let mut scene = Scene::new().await;
    let keyed = ["k", "l"].map(|key| NewMessage::new("m").with_unique(Unique::until_done(key)));
    send(&mut scene, &keyed).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    let claimed = ClaimedRows {
        fence: Fence { worker: worker.id(), claim_no: got[0].claim_no },
        topic: scene.topic.id,
        priority: Priority::default(),
        rows: got.iter().map(|one| one.row).collect(),
    };
    let mut killed = KilledOnce::new(&mut scene.conn, "JOIN queue_unique");
    let holding = unique::holding(&mut killed, &claimed).await.unwrap();
    assert_eq!(holding.len(), 2);
}

#[tokio::test]
async fn a_redriven_message_has_its_key_again() {
    let mut scene = Scene::new().await;
    let keyed = NewMessage::new("m").with_unique(Unique::until_done("k"));
    send(&mut scene, &[keyed]).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() };
    settle(&worker, all(&got, &dead)).await;
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_unique").await, 0);
    let row = scene.number("SELECT id FROM queue_dead").await.unsigned_abs();
    let rows = RowSet::new(vec![RowId(row)]);
    let mut killed = KilledOnce::new(&mut scene.conn, "FROM queue_dead");
    unique::take_again(&mut killed, scene.topic.id, &rows).await.unwrap();
    drop(killed);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_unique").await, 1);
}

#[tokio::test]
async fn a_message_that_waits_is_cancelled() {
    let mut scene = Scene::new().await;
    let later = NewMessage::new("m").with_delay(HOUR);
    enqueue_to(&mut scene.conn, &scene.topic, std::slice::from_ref(&later)).await.unwrap();
    let mut killed = KilledOnce::new(&mut scene.conn, "FROM queue_scheduled");
    assert!(cancel(&mut killed, &scene.topic.name, later.msg_id).await.unwrap());
    drop(killed);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_scheduled").await, 0);
}
