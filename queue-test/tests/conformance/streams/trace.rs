//! The trace of a message of a stream: each group's part of it.

use std::time::Duration;

use rowmq_core::model::trace::{Event, Record};
use rowmq_core::model::{GroupPart, RangeId, Sampling, Settlement};
use rowmq_core::rescue::{Why, take_range_back};
use rowmq_core::store::stream::range::zombies;
use rowmq_core::store::topic;
use rowmq_core::trace::tell;
use rowmq_core::worker::Worker;
use rowmq_core::{Delivery, MsgId};
use rowmq_test::until;

use super::{Stream, claim_n};
use crate::moves::promote;
use crate::scene::{all, retry};
use crate::trace::{event, told, traced};

impl Stream {
    async fn traced(partitions: u32) -> Self {
        let mut stream = Self::new(partitions).await;
        let name = stream.topic.name.clone();
        topic::set(&mut stream.conn, &name, &traced()).await.unwrap();
        stream.topic = topic::existing(&mut stream.conn, &name).await.unwrap();
        stream
    }

    /// Returns what a group has recorded about a message.
    async fn told_by(&mut self, group: &str, id: MsgId) -> Vec<Record> {
        let records = rowmq_core::store::trace::of_message(&mut self.conn, id).await.unwrap();
        records.into_iter().filter(|record| record.topic == group).collect()
    }

    async fn until_told(&mut self, group: &str, id: MsgId, events: usize) -> Vec<Record> {
        until("the report is told", async || self.told_by(group, id).await.len() >= events).await;
        self.told_by(group, id).await
    }
}

async fn settle(worker: &Worker, deliveries: &[Delivery], settlement: &Settlement) {
    worker.settle(all(deliveries, settlement)).await.unwrap();
}

#[tokio::test]
async fn each_group_tells_its_own_part() {
    let mut stream = Stream::traced(2).await;
    let (bill, mail) = (stream.group("bill", false).await, stream.group("mail", false).await);
    let sent = stream.enqueue(0..4).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &bill, 4).await;
    assert!(got.iter().all(|one| one.traced));
    settle(&worker, &got, &Settlement::Ack).await;
    for message in &sent {
        let records = stream.until_told("s@bill", message.msg_id, 2).await;
        let expected = [event(Event::Claimed, 1, ""), event(Event::Settled, 1, "ack")];
        assert_eq!(told(&records), expected);
        let delivery = got.iter().find(|one| one.msg_id == message.msg_id).unwrap();
        assert!(records.iter().all(|record| record.position == delivery.position));
    }
    let got = claim_n(&worker, &mail, 4).await;
    settle(&worker, &got, &retry(Duration::ZERO)).await;
    stream.until_told("s@mail", sent[0].msg_id, 2).await;
    until("it is to be tried again", async || promote(&mut stream.conn, 10).await > 0).await;
    let again = crate::scene::claim_n(&worker, mail.id, 1).await;
    settle(&worker, &again, &Settlement::Ack).await;
    let records = stream.told_by("s@mail", again[0].msg_id).await;
    let expected = [
        event(Event::Claimed, 1, ""),
        event(Event::Settled, 1, "retry"),
        event(Event::Claimed, 2, ""),
        event(Event::Settled, 2, "ack"),
    ];
    assert_eq!(told(&records), expected);
    assert_eq!(records[1].error.as_deref(), Some("not yet"));
    let enqueued = stream.told_by("s", sent[0].msg_id).await;
    assert_eq!(told(&enqueued), [event(Event::Enqueued, 0, "")]);
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn what_an_ordered_group_holds_back_and_what_a_member_gives_back_is_told() {
    let mut stream = Stream::traced(1).await;
    let group = stream.group("g", true).await;
    let sent = stream.enqueue(0..3).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 3).await;
    settle(&worker, &got[..1], &Settlement::Ack).await;
    settle(&worker, &got[1..2], &retry(Duration::from_secs(60))).await;
    let records = stream.until_told("s@g", sent[1].msg_id, 2).await;
    assert_eq!(told(&records)[1], event(Event::Settled, 1, "retry"));
    let acked = stream.told_by("s@g", sent[0].msg_id).await;
    assert_eq!(told(&acked)[1..], [event(Event::Settled, 1, "ack")]);
    worker.stop().await.unwrap();

    let other = stream.group("other", false).await;
    let worker = stream.worker().await;
    claim_n(&worker, &other, 3).await;
    worker.stop().await.unwrap();
    let given_back = stream.told_by("s@other", sent[2].msg_id).await;
    assert_eq!(told(&given_back)[1..], [event(Event::Settled, 1, "release")]);
}

#[tokio::test]
async fn a_range_that_is_rescued_tells_it_of_each_of_its_messages() {
    let mut stream = Stream::traced(1).await;
    let group = stream.group("g", false).await;
    let sent = stream.enqueue(0..3).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 3).await;
    settle(&worker, &got[..1], &Settlement::Ack).await;
    stream.until_told("s@g", sent[0].msg_id, 2).await;
    stream.sql("UPDATE queue_worker SET state = 'dead', ended_at = UTC_TIMESTAMP(6)").await;
    for zombie in zombies(&mut stream.conn, RangeId(0), 10).await.unwrap() {
        let why = Why::Crashed { rows_held: 2 };
        take_range_back(&mut stream.conn, &zombie.range, why).await.unwrap();
    }
    for message in &sent[1..] {
        let records = stream.told_by("s@g", message.msg_id).await;
        assert_eq!(told(&records)[1..], [event(Event::Rescued, 1, "ready")]);
        assert!(records[1].position.is_some());
    }
    assert_eq!(stream.told_by("s@g", sent[0].msg_id).await.len(), 2);
}

#[tokio::test]
async fn every_group_samples_the_same_messages() {
    let mut stream = Stream::new(1).await;
    let sampling = Sampling::per_million(200_000);
    let settings = rowmq_core::model::TopicSettings { trace: sampling, ..traced() };
    topic::set(&mut stream.conn, &stream.topic.name, &settings).await.unwrap();
    let groups = [stream.group("a", false).await, stream.group("b", false).await];
    stream.enqueue(0..200).await;
    let worker = stream.worker().await;
    for group in &groups {
        let got = claim_n(&worker, group, 200).await;
        assert!(got.iter().all(|one| one.traced == sampling.takes(one.msg_id)));
        settle(&worker, &got, &Settlement::Ack).await;
    }
    worker.stop().await.unwrap();
    let uneven = "SELECT COUNT(*) FROM (SELECT msg_id FROM queue_trace GROUP BY msg_id \
         HAVING COUNT(*) <> 5) u";
    assert_eq!(stream.number(uneven).await, 0);
    assert!(stream.number("SELECT COUNT(*) FROM queue_trace").await > 0);
}

#[tokio::test]
async fn the_story_says_where_it_lies_and_what_each_group_has_made_of_it() {
    let mut stream = Stream::traced(2).await;
    let [ahead, has, waits, through] = [
        stream.group("ahead", false).await,
        stream.group("has", false).await,
        stream.group("waits", false).await,
        stream.group("through", false).await,
    ];
    let id = stream.enqueue(0..1).await[0].msg_id;
    let worker = stream.worker().await;
    claim_n(&worker, &has, 1).await;
    let got = claim_n(&worker, &through, 1).await;
    settle(
        &worker,
        &got,
        &Settlement::DeadLetter {
            cause: rowmq_core::model::DeadCause::Handler,
            error: "no".to_owned(),
        },
    )
    .await;
    stream.until_told("s@through", id, 2).await;
    let given_back = stream.worker().await;
    claim_n(&given_back, &waits, 1).await;
    given_back.stop().await.unwrap();
    let mut session = stream.db.session().await;
    let message = tell(&mut session, None, id).await.unwrap();
    assert_eq!(message.topic.as_ref(), Some(&stream.topic.name));
    assert_eq!(message.position(), got[0].position);
    let part = |name| &message.groups.iter().find(|one| &one.group == name).unwrap().part;
    assert_eq!(part(&ahead.name), &GroupPart::Ahead);
    assert_eq!(part(&waits.name), &GroupPart::Waiting);
    assert_eq!(part(&through.name), &GroupPart::Passed);
    assert!(matches!(part(&has.name), GroupPart::Claimed { worker: it, .. } if *it == worker.id()));
    let places: Vec<_> =
        message.found.iter().map(|it| (it.topic.as_str(), it.state.word())).collect();
    use rowmq_core::model::found::StateWord::{Dead, Logged};
    assert_eq!(places, [("s", Logged), ("s@through", Dead)]);
    // A group gives the same answer as its stream.
    let by_group = tell(&mut session, Some(ahead), id).await.unwrap();
    assert_eq!(by_group, message);
    worker.stop().await.unwrap();
}
