//! Which workers hold what of streams.

use std::time::Duration;

use rowmq_core::connection::Connection;
use rowmq_core::model::{Offset, OffsetSpec, PartitionNo};
use rowmq_core::store::stream::holding::{Held, claims_of_group, names_held, ranges_held};
use rowmq_core::store::stream::progress::of_group;

use super::broadcast::{member, name, read_n};
use super::{Stream, claim_n};
use crate::scene::{all, retry};

#[tokio::test]
async fn what_each_worker_holds_of_streams_is_told() {
    let mut stream = Stream::new(1).await;
    let (group, other) = (stream.group("g", false).await, stream.group("o", true).await);
    stream.enqueue(0..30).await;
    let (one, two, idle) = (stream.worker().await, stream.worker().await, stream.worker().await);
    let got = claim_n(&one, &group, 10).await;
    claim_n(&one, &other, 3).await;
    claim_n(&two, &group, 7).await;
    one.settle(all(&got[..4], &retry(Duration::from_secs(60)))).await.unwrap();
    let held = ranges_held(&mut stream.conn).await.unwrap();
    let held: Vec<_> = held.iter().map(|one| (one.worker, one.ranges, one.messages)).collect();
    assert_eq!(held, [(one.id(), 2, 9), (two.id(), 1, 7)], "nothing of {}", idle.id());
    for worker in [&one, &two] {
        worker.stop().await.unwrap();
    }
    assert_eq!(ranges_held(&mut stream.conn).await.unwrap(), [], "ranges that nobody has");
}

#[tokio::test]
async fn the_claims_of_a_group_are_those_of_the_log_and_of_what_it_tries_again() {
    let mut stream = Stream::new(1).await;
    let (group, other) = (stream.group("g", false).await, stream.group("o", false).await);
    let of = group.group().unwrap();
    stream.enqueue(0..20).await;
    let (one, two) = (stream.worker().await, stream.worker().await);
    assert_eq!(claims_of_group(&mut stream.conn, of).await.unwrap(), []);
    assert_eq!(of_group(&mut stream.conn, of).await.unwrap()[0].held_ms, None);
    let failed = claim_n(&one, &group, 2).await;
    one.settle(all(&failed, &retry(Duration::ZERO))).await.unwrap();
    let due = "UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6)";
    stream.sql(due).await;
    assert_eq!(crate::moves::promote(&mut stream.conn, 10).await, 2);
    claim_n(&one, &group, 8).await;
    claim_n(&one, &other, 5).await;
    assert_eq!(two.claim(group.id, 10).await.unwrap().deliveries.len(), 2);
    let claims = claims_of_group(&mut stream.conn, of).await.unwrap();
    let log = Held::Log { partition: PartitionNo(0), mark: Offset(2), hi: Offset(10) };
    let told: Vec<_> = claims.iter().map(|one| (one.worker, one.held, one.messages)).collect();
    assert_eq!(told, [(one.id(), log, 8), (two.id(), Held::Retries, 2)], "the oldest first");
    assert!(claims.iter().all(|one| one.state.as_deref() == Some("alive")));
    assert!(claims[0].client_id.as_ref().is_some_and(|id| id.starts_with("conformance")));

    // Claimed an hour ago, and none of it has ended.
    stream.sql("UPDATE queue_range SET claimed_at = claimed_at - INTERVAL 1 HOUR").await;
    let old = claims_of_group(&mut stream.conn, of).await.unwrap();
    assert!(old[0].age_ms >= 3_600_000 && old[1].age_ms < 3_600_000, "{old:?}");
    let progress = of_group(&mut stream.conn, of).await.unwrap()[0];
    assert!(progress.held().is_some_and(|held| held >= Duration::from_secs(3600)), "{progress:?}");
    // A range without a worker is not held, whenever it was claimed.
    one.stop().await.unwrap();
    assert_eq!(of_group(&mut stream.conn, of).await.unwrap()[0].held_ms, None);
    assert_eq!(claims_of_group(&mut stream.conn, of).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_claim_whose_worker_is_gone_is_shown_until_it_is_taken_back() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    let of = group.group().unwrap();
    stream.enqueue(0..3).await;
    let worker = stream.worker().await;
    claim_n(&worker, &group, 3).await;
    stream.conn.batch("UPDATE queue_worker SET state = 'dead'").await.unwrap();
    let claims = claims_of_group(&mut stream.conn, of).await.unwrap();
    assert_eq!(claims[0].state.as_deref(), Some("dead"));
    stream.conn.batch("DELETE FROM queue_worker").await.unwrap();
    let claims = claims_of_group(&mut stream.conn, of).await.unwrap();
    assert_eq!((claims[0].worker, &claims[0].client_id), (worker.id(), &None));
}

#[tokio::test]
async fn the_names_that_living_workers_have_are_told() {
    let mut stream = Stream::new(2).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..10).await;
    stream.sequence().await;
    let (one, two, nobody) = (stream.worker().await, stream.worker().await, stream.worker().await);
    let (a, b) = (member(&group, Some("a")), member(&group, Some("b")));
    let got = read_n(&one, &a, 10).await;
    assert_eq!(got.len(), 10);
    read_n(&one, &b, 10).await;
    read_n(&two, &member(&group, None), 10).await;
    let names = names_held(&mut stream.conn).await.unwrap();
    let told: Vec<_> = names.iter().map(|held| (held.worker, held.member.clone())).collect();
    // Once each, for any number of partitions; members without a name are not listed.
    assert_eq!(told, [(one.id(), name("a")), (one.id(), name("b"))], "{nobody:?}");
    assert!(names.iter().all(|held| held.group == group.name));
    one.stop().await.unwrap();
    assert_eq!(names_held(&mut stream.conn).await.unwrap(), []);
}
