//! Name locks of the model, and the doorbell's statements on it. That servers do the same is tested
//! by the conformance suite.

#![allow(clippy::unwrap_used, reason = "tests: what cannot be had has failed")]

use std::time::Duration;

use rowmq_core::connection::Link;
use rowmq_core::model::{OffsetSpec, RowId, TopicId, TopicName, TopicSettings, WorkerId};
use rowmq_core::store::doorbell::{self, Heard, Kind, Listener};
use rowmq_core::store::worker::{self, Incarnation, Registration};
use rowmq_core::store::{enqueue, topic};
use rowmq_core::stream::append;
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_core::{NewMessage, Topic};
use simulation::Model;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

fn listener(n: u64) -> Listener {
    Listener { worker: WorkerId(n), instance: Uuid::from_u128(n.into()), checksum: 0 }
}

/// Starts to wait for a bell on a new connection, and returns when it has begun.
async fn wait(model: &Model, of: Listener, seconds: u32) -> JoinHandle<(Heard, Duration)> {
    let mut link = model.connect().await;
    let waiting = spawn_local(async move {
        let began = Instant::now();
        let heard = doorbell::wait(&mut link, of.instance, seconds).await.unwrap();
        (heard, began.elapsed())
    });
    sleep(Duration::from_millis(50)).await;
    waiting
}

#[tokio::test(start_paused = true)]
async fn a_bell_that_is_let_go_goes_at_once_to_the_session_that_waits_for_it() {
    let ringing = async {
        let (model, bells) = (Model::start(), [1, 2, 3].map(listener));
        let mut sweeper = model.connect().await;
        let mut other = model.connect().await;
        assert_eq!(doorbell::wait(&mut other, bells[0].instance, 5).await.unwrap(), Heard::Absent);
        for of in bells {
            assert!(doorbell::take(&mut sweeper, of).await.unwrap());
            assert!(doorbell::take(&mut sweeper, of).await.unwrap(), "it is not taken twice");
            assert!(!doorbell::take(&mut other, of).await.unwrap(), "the sweeper has it");
        }
        assert_eq!(doorbell::ring(&mut sweeper, &bells).await.unwrap(), None);
        let waiting = wait(&model, bells[1], 5).await;
        assert_eq!(model.lock_waits(), 1);
        assert_eq!(doorbell::ring(&mut sweeper, &bells).await.unwrap(), Some(WorkerId(2)));
        let (heard, after) = waiting.await.unwrap();
        assert!(heard == Heard::Ring && after < Duration::from_millis(100), "{after:?}");
        assert!(doorbell::take(&mut sweeper, bells[1]).await.unwrap(), "the worker let go of it");
        let (heard, after) = wait(&model, bells[2], 3).await.await.unwrap();
        assert_eq!((heard, after.as_secs()), (Heard::Nothing, 3));
    };
    LocalSet::new().run_until(ringing).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_that_waits_is_rung_and_one_that_has_left_is_not() {
    let ringing = async {
        let (model, bell) = (Model::start(), listener(1));
        let mut sweeper = model.connect().await;
        assert!(doorbell::take(&mut sweeper, bell).await.unwrap());
        let left = wait(&model, bell, 5).await;
        let first = wait(&model, bell, 5).await;
        let second = wait(&model, bell, 5).await;
        left.abort();
        sleep(Duration::from_millis(50)).await;
        assert_eq!(model.lock_waits(), 2);
        // The first lets go of it, and so the second has it as well.
        assert_eq!(doorbell::ring(&mut sweeper, &[bell]).await.unwrap(), Some(WorkerId(1)));
        for waiting in [first, second] {
            assert_eq!(waiting.await.unwrap().0, Heard::Ring);
        }
        assert!(doorbell::take(&mut sweeper, bell).await.unwrap());
        // The end of a session is a ring, too.
        let waiting = wait(&model, bell, 5).await;
        drop(sweeper);
        assert_eq!(waiting.await.unwrap().0, Heard::Ring);
    };
    LocalSet::new().run_until(ringing).await;
}

async fn number(link: &mut Link, sql: &str) -> Option<i64> {
    Model::number(link, sql).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_taken_twice_is_let_go_twice() {
    let locking = async {
        let model = Model::start();
        let (mut own, mut other) = (model.connect().await, model.connect().await);
        assert_eq!(number(&mut own, "SELECT RELEASE_LOCK('a') AS n").await, None);
        for _ in 0..2 {
            assert_eq!(number(&mut own, "SELECT GET_LOCK('a', 0) AS n").await, Some(1));
        }
        assert_eq!(number(&mut other, "SELECT RELEASE_LOCK('a') AS n").await, Some(0));
        assert_eq!(number(&mut own, "SELECT RELEASE_LOCK('a') AS n").await, Some(1));
        assert_eq!(number(&mut other, "SELECT GET_LOCK('a', 1) AS n").await, Some(0));
        assert_eq!(number(&mut own, "SELECT GET_LOCK('a', 0) AS n").await, Some(1));
        assert_eq!(number(&mut own, "SELECT GET_LOCK('b', 0) AS n").await, Some(1));
        assert_eq!(number(&mut own, "SELECT RELEASE_ALL_LOCKS() AS n").await, Some(3));
        let both = "SELECT GET_LOCK('a', 0) AND GET_LOCK('b', 0) AS n";
        assert_eq!(number(&mut other, both).await, Some(1));
        // What it took before its wait, it takes once.
        let waiting = spawn_local(async move {
            let twice = "SELECT GET_LOCK('c', 0) AND GET_LOCK('a', 5) AS n";
            let got = number(&mut own, twice).await;
            (got, number(&mut own, "SELECT RELEASE_ALL_LOCKS() AS n").await)
        });
        sleep(Duration::from_millis(50)).await;
        let handed = "SELECT RELEASE_LOCK('a') = 1 AND GET_LOCK('a', 0) = 0 AS n";
        assert_eq!(number(&mut other, handed).await, Some(1));
        assert_eq!(waiting.await.unwrap(), (Some(1), Some(2)));
    };
    LocalSet::new().run_until(locking).await;
}

async fn made(link: &mut Link, name: &TopicName) -> Topic {
    topic::existing(link, name).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_sweeper_sees_who_listens_to_what_and_where_messages_are() {
    let looking = async {
        let model = Model::start();
        let link = &mut model.connect().await;
        let who = Registration {
            instance: listener(1).instance,
            client_id: "c".into(),
            version: "1".into(),
            lease: Duration::from_secs(10),
        };
        let incarnation = Incarnation { server_uid: "model".into(), started_at: 1 };
        let id = worker::register(link, &who, &incarnation).await.unwrap();
        assert_eq!(doorbell::listeners(link).await.unwrap(), []);
        assert_eq!(doorbell::topics_of(link, id).await.unwrap(), []);
        let topics = [TopicId(3), TopicId(4)];
        assert_eq!(doorbell::listen(link, id, who.instance, &topics).await.unwrap(), 1);
        let known = doorbell::listeners(link).await.unwrap();
        assert_eq!(
            known.iter().map(|it| (it.worker, it.instance)).collect::<Vec<_>>(),
            [(id, who.instance)]
        );
        // The CRC-32 of "3,4".
        assert_eq!(known[0].checksum, 0xc1e9_1dc0);
        assert_eq!(doorbell::topics_of(link, id).await.unwrap(), topics);

        let names = ["q", "s"].map(|name| TopicName::new(name).unwrap());
        let group = TopicName::of_group(&names[1], "g").unwrap();
        let settings = TopicSettings::default();
        topic::create(link, &names[0], &settings).await.unwrap();
        create_stream(link, &names[1], 2, &settings).await.unwrap();
        create_group(link, &group, false, OffsetSpec::Earliest, &settings).await.unwrap();
        let (queue, stream) = (made(link, &names[0]).await.id, made(link, &names[1]).await.id);
        let group = made(link, &group).await.id;
        let of = |topic, stream| Kind { topic, stream, is_broadcast: false };
        let kinds = doorbell::kinds(link).await.unwrap();
        assert_eq!(kinds, [of(queue, TopicId(0)), of(group, stream)]);
        let both = [queue, group];
        assert_eq!(doorbell::ready(link, &both).await.unwrap(), []);
        enqueue::insert(link, queue, &[NewMessage::new("m"), NewMessage::new("n")]).await.unwrap();
        enqueue::insert(link, stream, &[NewMessage::new("m")]).await.unwrap();
        let arrivals = doorbell::arrivals(link, RowId(0)).await.unwrap();
        assert_eq!(arrivals.rows, [(stream, RowId(3)), (queue, RowId(2))], "the newest first");
        assert_eq!(arrivals.streams, [(stream, 0)]);
        assert_eq!(doorbell::arrivals(link, RowId(3)).await.unwrap().rows, []);
        assert_eq!(doorbell::ready(link, &both).await.unwrap(), both);
        Model::run(link, "DELETE FROM queue_message WHERE topic_id > 0").await.unwrap();
        assert_eq!(doorbell::ready(link, &both).await.unwrap(), []);
        Model::run(link, "BEGIN").await.unwrap();
        assert!(append(link, stream, &[NewMessage::new("m").with_key("k")]).await.unwrap().in_log);
        Model::run(link, "COMMIT").await.unwrap();
        assert_eq!(doorbell::arrivals(link, RowId(3)).await.unwrap().streams, [(stream, 1)]);
        assert_eq!(doorbell::ready(link, &both).await.unwrap(), [group]);
    };
    LocalSet::new().run_until(looking).await;
}
