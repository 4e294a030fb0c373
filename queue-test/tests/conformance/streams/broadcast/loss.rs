//! What broadcast groups lose, and what they do not.

use std::time::Duration;

use rowmq_core::model::{OffsetSpec, Retention, Settlement};
use rowmq_core::store::stream::member;
use rowmq_core::stream::broadcast::forget_member;
use rowmq_test::proxy::FaultProxy;
use rowmq_test::until;

use super::{ack, dead, name, nothing_more, read_n};
use crate::scene::{all, retry, worker_at};
use crate::streams::retention::by_time;
use crate::streams::{Stream, offsets};

#[tokio::test]
async fn retention_waits_for_named_members_until_they_are_forgotten() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..20).await;
    let (worker, named) = (stream.worker().await, super::member(&group, Some("a")));
    ack(&worker, &read_n(&worker, &named, 5).await).await;
    stream.until_at(5).await;
    stream.age(20).await;
    stream.retain(by_time(false)).await;
    assert_eq!(stream.prune().await, 15);
    let progress = member::progress(&mut stream.conn, group.broadcast().unwrap()).await.unwrap();
    let one = &progress[0];
    assert_eq!((one.member.as_str(), one.next.0, one.lag, one.lost), ("a", 5, 15, 0));
    assert_eq!(one.worker, Some(worker.id()));
    assert!(one.lag_ms.is_some());
    forget_member(&mut stream.conn, &group, &name("a")).await.unwrap();
    assert_eq!(stream.prune().await, 0);
    // It starts over, where the group begins.
    stream.enqueue(20..22).await;
    assert_eq!(offsets(&read_n(&worker, &named, 2).await), [20, 21]);
}

#[tokio::test]
async fn what_every_named_member_has_handled_goes_at_once_if_it_may() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..20).await;
    stream.retain(Retention { handled: true, ..Retention::default() }).await;
    let (one, fast) = (stream.worker().await, super::member(&group, Some("fast")));
    let (two, slow) = (stream.worker().await, super::member(&group, Some("slow")));
    ack(&one, &read_n(&one, &fast, 20).await).await;
    ack(&two, &read_n(&two, &slow, 8).await).await;
    until("the slow one's mark is pruned up to", async || stream.prune().await == 12).await;
}

#[tokio::test]
async fn a_member_that_has_fallen_behind_retention_is_told_and_counts_it() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..20).await;
    stream.sequence().await;
    let workers = [stream.worker().await, stream.worker().await];
    let members = [super::member(&group, None), super::member(&group, Some("a"))];
    for (worker, member) in workers.iter().zip(&members) {
        let got = read_n(worker, member, 4).await;
        ack(worker, &got[..3]).await;
        worker.settle(all(&got[3..], &retry(Duration::ZERO))).await.unwrap();
    }
    stream.age(10).await;
    stream.retain(by_time(true)).await;
    assert_eq!(stream.prune().await, 10);
    for (worker, member) in workers.iter().zip(&members) {
        let (mut lost, mut got) = (0, Vec::new());
        while got.len() < 10 {
            let read = worker.read(member, 100).await.unwrap();
            lost += read.lost;
            got.extend(read.deliveries);
        }
        // Six that it had not read, and the one that it had to retry.
        assert_eq!((offsets(&got), lost), ((10..20).collect::<Vec<_>>(), 7));
        ack(worker, &got).await;
        nothing_more(worker, member).await;
    }
    stream.until_at(20).await;
    assert_eq!(stream.number("SELECT CAST(lost AS SIGNED) FROM queue_member").await, 7);
}

#[tokio::test]
async fn a_position_that_cannot_be_told_is_told_later_and_a_lost_answer_is_no_reset() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..10).await;
    let proxy = FaultProxy::start(stream.db.url()).await;
    let worker = worker_at(&proxy.url(stream.db.url())).await;
    let named = super::member(&group, Some("a"));
    let got = read_n(&worker, &named, 10).await;
    proxy.cut_before("UPDATE queue_member SET next_offset");
    ack(&worker, &got[..4]).await;
    proxy.sprung().await;
    stream.until_at(4).await;
    proxy.drop_reply_after("COMMIT");
    ack(&worker, &got[4..6]).await;
    proxy.sprung().await;
    ack(&worker, &got[6..9]).await;
    nothing_more(&worker, &named).await;
    stream.until_at(9).await;
    worker.settle(all(&got[9..], &dead("no"))).await.unwrap();
    stream.until_at(10).await;
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_dead").await, 1);
}

/// A failover to a server without the newest transactions.
#[tokio::test]
async fn a_member_goes_back_with_a_server_that_has_lost_what_it_had_told_and_read() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..10).await;
    let workers = [stream.worker().await, stream.worker().await];
    let members = [super::member(&group, None), super::member(&group, Some("a"))];
    for (worker, member) in workers.iter().zip(&members) {
        ack(worker, &read_n(worker, member, 10).await).await;
    }
    stream.until_at(10).await;
    stream.sql("DELETE FROM queue_log WHERE offset_no >= 6").await;
    stream.sql("UPDATE queue_partition SET next_offset = 6").await;
    stream.sql("UPDATE queue_member SET next_offset = 4").await;
    for (worker, member) in workers.iter().zip(&members) {
        let named = member.name().is_some();
        let got = if named { read_n(worker, member, 2).await } else { Vec::new() };
        assert_eq!(offsets(&got), if named { vec![4, 5] } else { vec![] });
        nothing_more(worker, member).await;
    }
    stream.enqueue(10..12).await;
    for (worker, member) in workers.iter().zip(&members) {
        let got = read_n(worker, member, 2).await;
        assert_eq!(offsets(&got), [6, 7]);
        worker.settle(all(&got, &Settlement::Ack)).await.unwrap();
    }
}
