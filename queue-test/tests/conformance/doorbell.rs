//! The doorbell's statements: what a sweeper sees of new messages, and how it wakes who waits.

use rowmq_core::model::{OffsetSpec, RowId, TopicId};
use rowmq_core::store::doorbell::{self, Heard};
use rowmq_core::stream::broadcast::create_broadcast;
use rowmq_core::stream::group::group_settings;
use rowmq_core::{TopicName, store};

use crate::scene::Scene;
use crate::streams::Stream;

#[tokio::test]
async fn who_listens_is_read_with_the_topics_and_rung_by_a_lock() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    let (conn, topics) = (&mut scene.conn, [TopicId(3), scene.topic.id]);
    assert_eq!(doorbell::listeners(conn).await.unwrap(), [], "it has not said to what");
    let (id, instance) = (worker.id(), worker.instance());
    assert_eq!(doorbell::listen(conn, id, instance, &topics).await.unwrap(), 1);
    let listeners = doorbell::listeners(conn).await.unwrap();
    assert_eq!(listeners.iter().map(|one| one.worker).collect::<Vec<_>>(), [id]);
    assert_eq!(doorbell::topics_of(conn, id).await.unwrap(), topics);
    let mut sweeper = scene.db.connect().await;
    let bell = listeners[0];
    assert_eq!(doorbell::wait(&mut scene.conn, instance, 0).await.unwrap(), Heard::Absent);
    assert!(doorbell::take(&mut sweeper, bell).await.unwrap());
    assert_eq!(doorbell::wait(&mut scene.conn, instance, 0).await.unwrap(), Heard::Nothing);
    assert_eq!(doorbell::ring(&mut sweeper, &[bell]).await.unwrap(), None, "it does not wait");
    doorbell::drop_bell(&mut sweeper, bell).await.unwrap();
    assert_eq!(doorbell::wait(&mut scene.conn, instance, 0).await.unwrap(), Heard::Absent);
    assert!(doorbell::take(&mut sweeper, bell).await.unwrap());
    doorbell::drop_all(&mut sweeper).await.unwrap();
    assert_eq!(doorbell::wait(&mut scene.conn, instance, 0).await.unwrap(), Heard::Absent);
    worker.stop().await.unwrap();
    assert_eq!(doorbell::listeners(&mut scene.conn).await.unwrap(), [], "it has ended");
}

#[tokio::test]
async fn new_rows_are_seen_by_their_ids_and_ready_ones_topic_by_topic() {
    let mut scene = Scene::new().await;
    let (topic, other) = (scene.topic.id, scene.db.topic("other").await.id);
    let both = [topic, other];
    assert_eq!(doorbell::ready(&mut scene.conn, &both).await.unwrap(), []);
    scene.enqueue(3).await;
    let arrivals = doorbell::arrivals(&mut scene.conn, RowId(0)).await.unwrap();
    let (of, newest) = arrivals.rows[0];
    assert_eq!((arrivals.rows.len(), of), (1, topic));
    let later = doorbell::arrivals(&mut scene.conn, newest).await.unwrap();
    assert_eq!(later.rows, []);
    assert_eq!(doorbell::ready(&mut scene.conn, &both).await.unwrap(), [topic]);
    let worker = scene.worker().await;
    worker.claim(topic, 10).await.unwrap();
    assert_eq!(doorbell::ready(&mut scene.conn, &both).await.unwrap(), [], "all are claimed");
    worker.stop().await.unwrap();
    assert_eq!(doorbell::ready(&mut scene.conn, &both).await.unwrap(), [topic], "given back");
    scene.sql("UPDATE queue_topic SET claim_paused = TRUE WHERE name = 't'").await;
    assert_eq!(doorbell::ready(&mut scene.conn, &both).await.unwrap(), [], "claims are paused");
}

#[tokio::test]
async fn a_group_is_ready_while_its_stream_has_what_it_has_not_claimed() {
    let mut stream = Stream::new(2).await;
    let group = stream.group("g", false).await;
    let name = TopicName::of_group(&stream.topic.name, "b").unwrap();
    let start = OffsetSpec::Earliest;
    create_broadcast(&mut stream.conn, &name, start, &group_settings()).await.unwrap();
    let cache = store::topic::existing(&mut stream.conn, &name).await.unwrap();
    let kinds = doorbell::kinds(&mut stream.conn).await.unwrap();
    let kinds: Vec<_> =
        kinds.iter().map(|kind| (kind.topic, kind.stream, kind.is_broadcast)).collect();
    let of = stream.topic.id;
    assert_eq!(kinds, [(group.id, of, false), (cache.id, of, true)], "not the stream itself");
    assert_eq!(doorbell::ready(&mut stream.conn, &[group.id]).await.unwrap(), []);
    stream.enqueue(0..3).await;
    let arrivals = doorbell::arrivals(&mut stream.conn, RowId(0)).await.unwrap();
    assert_eq!(arrivals.rows.iter().map(|(topic, _)| *topic).collect::<Vec<_>>(), [of]);
    assert_eq!(arrivals.streams, [(of, 0)]);
    assert_eq!(doorbell::ready(&mut stream.conn, &[group.id]).await.unwrap(), [group.id]);
    stream.sequence().await;
    let arrivals = doorbell::arrivals(&mut stream.conn, RowId(0)).await.unwrap();
    assert_eq!((arrivals.rows, arrivals.streams), (Vec::new(), vec![(of, 3)]));
    assert_eq!(doorbell::ready(&mut stream.conn, &[group.id]).await.unwrap(), [group.id]);
    let worker = stream.worker().await;
    let mut claimed = 0;
    while claimed < 3 {
        claimed += worker.claim_of(&group, None, 10).await.unwrap().deliveries.len();
    }
    assert_eq!(doorbell::ready(&mut stream.conn, &[group.id]).await.unwrap(), []);
    worker.stop().await.unwrap();
    assert_eq!(doorbell::ready(&mut stream.conn, &[group.id]).await.unwrap(), [group.id]);
}
