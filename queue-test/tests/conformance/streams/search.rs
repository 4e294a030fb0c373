//! Finding messages in a stream's log.

use chrono::{TimeDelta, Utc};
use rowmq_core::find::{Answer, PageToken, Query, Searched, find};
use rowmq_core::model::found::{Filter, State, StateWord};
use rowmq_core::model::{Offset, PartitionNo, Position};
use rowmq_core::store::find::Bodies;
use rowmq_core::store::stream::log::{self, Stretch};
use rowmq_core::store::topic::server_time;
use rowmq_core::{Error, MsgId, NewMessage, enqueue_all, store};
use rowmq_test::PATIENCE;
use uuid::Uuid;

use super::Stream;

impl Stream {
    async fn find(&self, filter: Filter) -> Answer {
        self.find_from(filter, None, 100).await
    }

    async fn find_from(&self, filter: Filter, after: Option<PageToken>, limit: usize) -> Answer {
        let mut session = self.db.session().await;
        let query = Query { filter, after, limit, bodies: Bodies::Read };
        find(&mut session, &self.topic, &query).await.unwrap()
    }

    async fn send(&mut self, messages: &[NewMessage]) {
        enqueue_all(&mut self.conn, &self.topic.name, messages).await.unwrap();
    }
}

fn bodies(answer: &Answer) -> Vec<String> {
    let body = |found: &rowmq_core::model::found::Found| {
        let body = found.trace.as_ref().and_then(|trace| trace.body.clone()).unwrap();
        String::from_utf8(body).unwrap()
    };
    answer.found.iter().map(body).collect()
}

fn by_id(id: MsgId) -> Filter {
    Filter { msg_id: Some(id), ..Filter::default() }
}

fn at(partition: u32, offset: u64) -> Position {
    Position { partition: PartitionNo(partition), offset: Offset(offset) }
}

#[tokio::test]
async fn a_message_is_found_in_the_inbox_and_then_in_the_log() {
    let mut stream = Stream::new(4).await;
    let sent = stream.enqueue(0..8).await;
    let found = stream.find(by_id(sent[5].msg_id)).await;
    assert_eq!((bodies(&found), found.found[0].state.word()), (vec!["5".into()], StateWord::Ready));
    stream.sequence().await;
    let found = stream.find(by_id(sent[5].msg_id)).await;
    let State::Logged { position, .. } = found.found[0].state else { panic!("{found:?}") };
    assert_eq!((bodies(&found), found.found.len()), (vec!["5".to_owned()], 1));
    let found = stream.find(Filter { position: Some(position), ..Filter::default() }).await;
    assert_eq!(found.found[0].msg_id, sent[5].msg_id);
    for nowhere in [at(0, 1000), at(9, 0)] {
        let filter = Filter { position: Some(nowhere), ..Filter::default() };
        assert_eq!(stream.find(filter).await.found, []);
    }
    assert_eq!(stream.find(by_id(MsgId::new())).await.found, []);
}

#[tokio::test]
async fn keys_headers_and_states_choose_among_the_messages_of_a_log() {
    let mut stream = Stream::new(1).await;
    let tenant = |body: &str, value: &str| NewMessage::new(body).with_header("tenant", value);
    stream
        .send(&[
            tenant("a", "acme").with_key("k"),
            tenant("b", "acme\"quoted\""),
            tenant("c", "no").with_header("other", "acme").with_biz_id("z"),
            NewMessage::new("d").with_header("x", "\"tenant\":\"acme\""),
        ])
        .await;
    stream.sequence().await;
    let header = |value: &str| Some(("tenant".to_owned(), value.to_owned()));
    for (filter, expected) in [
        (Filter { header: header("acme"), ..Filter::default() }, vec!["a"]),
        (Filter { header: header("acme\"quoted\""), ..Filter::default() }, vec!["b"]),
        (Filter { key: Some(b"k".to_vec()), ..Filter::default() }, vec!["a"]),
        (Filter { biz_id: Some(b"z".to_vec()), ..Filter::default() }, vec!["c"]),
        (Filter { state: Some(StateWord::Logged), ..Filter::default() }, vec!["d", "c", "b", "a"]),
        (Filter { state: Some(StateWord::Ready), ..Filter::default() }, vec![]),
        (Filter { error: Some("e".to_owned()), ..Filter::default() }, vec![]),
    ] {
        assert_eq!(bodies(&stream.find(filter.clone()).await), expected, "{filter:?}");
    }
}

#[tokio::test]
async fn the_newest_come_first_and_an_answer_goes_on_where_it_ended() {
    let mut stream = Stream::new(2).await;
    stream.enqueue(0..50).await;
    stream.sequence().await;
    let (mut all, mut after, mut rounds) = (Vec::new(), None, 0);
    loop {
        let answer = stream.find_from(Filter::default(), after, 7).await;
        all.extend(answer.found.iter().map(|found| match found.state {
            State::Logged { position, .. } => position,
            _ => panic!("{found:?}"),
        }));
        rounds += 1;
        // As a script passes it on.
        after = answer.next.map(|place| place.to_string().parse().unwrap());
        if after.is_none() {
            break;
        }
    }
    assert!((8..=9).contains(&rounds), "{rounds}");
    let expected = (0..2).flat_map(|partition| (0..25).rev().map(move |n| at(partition, n)));
    let (mut all, mut expected): (Vec<_>, Vec<_>) = (all, expected.collect());
    assert!(
        all.chunk_by(|a, b| a.partition == b.partition)
            .all(|some| { some.windows(2).all(|two| two[0].offset > two[1].offset) })
    );
    all.sort_unstable();
    expected.sort_unstable();
    assert_eq!(all, expected);
}

#[tokio::test]
async fn a_time_is_found_by_halving_and_not_by_reading() {
    let mut stream = Stream::in_rows(1).await;
    stream.enqueue(0..100).await;
    stream.sequence().await;
    // An hour apart, the last of them now.
    stream
        .sql(
            "UPDATE queue_log SET enqueued_at = UTC_TIMESTAMP(6) - INTERVAL 99 - offset_no HOUR, \
             sequenced_at = UTC_TIMESTAMP(6) - INTERVAL 99 - offset_no HOUR",
        )
        .await;
    let now = server_time(&mut stream.conn).await.unwrap().and_utc();
    let hours = |n: i64| Some(now - TimeDelta::minutes(n * 60 + 30));
    let filter = Filter { since: hours(3), ..Filter::default() };
    let answer = stream.find(filter).await;
    assert_eq!(bodies(&answer), ["99", "98", "97", "96"]);
    let read = |answer: &Answer| match answer.searched.last() {
        Some(Searched::Log { rows, whole: true }) => *rows,
        other => panic!("{other:?}"),
    };
    assert_eq!(read(&answer), 4);
    let answer = stream.find(Filter { since: hours(50), before: hours(48), ..Default::default() });
    let answer = answer.await;
    assert_eq!((bodies(&answer), read(&answer)), (vec!["50".into(), "49".to_owned()], 2));
}

/// An id that contains its time finds its message among many by that time.
#[tokio::test]
async fn an_id_leads_to_its_time_in_a_long_log() {
    let mut stream = Stream::in_rows(1).await;
    let wanted = MsgId::new();
    let made = wanted.made_at().unwrap();
    assert!((Utc::now() - made).abs() < TimeDelta::minutes(1));
    assert_eq!(MsgId(Uuid::new_v4()).made_at(), None);
    stream.send(&[NewMessage::new("wanted").with_msg_id(wanted)]).await;
    stream.sequence().await;
    let before = "INSERT INTO queue_log (topic_id, partition_no, offset_no, msg_id, enqueued_at, \
         sequenced_at, body) SELECT topic_id, 0, 1 + a.n * 150 + b.n, UNHEX(REPEAT('07', 16)), \
         enqueued_at, sequenced_at + INTERVAL 1 HOUR, 'later' FROM queue_log, \
         (WITH RECURSIVE s AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM s WHERE n < 149) \
         SELECT n FROM s) a, (WITH RECURSIVE s AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM s \
         WHERE n < 149) SELECT n FROM s) b WHERE offset_no = 0";
    stream.sql(before).await;
    stream.sql("UPDATE queue_partition SET next_offset = 22501").await;
    let answer = stream.find(by_id(wanted)).await;
    assert_eq!(bodies(&answer), ["wanted"]);
    // For an id without a time the search starts at the newest message, up to a limit.
    let given = MsgId(Uuid::new_v4());
    let id = given.0.simple();
    stream.sql(&format!("UPDATE queue_log SET msg_id = UNHEX('{id}') WHERE offset_no = 0")).await;
    let answer = stream.find(by_id(given)).await;
    assert_eq!((answer.found.len(), answer.next.is_some()), (0, true));
    let rest = stream.find_from(by_id(given), answer.next, 1).await;
    let rest = stream.find_from(by_id(given), rest.next, 1).await;
    assert_eq!(bodies(&rest), ["wanted"]);
    let whole = Stretch {
        stream: stream.topic.id,
        partition: PartitionNo(0),
        lo: Offset(0),
        hi: Offset(3),
    };
    let ids = log::msg_ids(&mut stream.conn, whole).await.unwrap();
    assert_eq!((ids.len(), ids[0]), (3, (Offset(0), given)));
}

/// Offsets come from addresses and page tokens, too.
#[tokio::test]
async fn a_search_beyond_the_end_of_the_log_finds_nothing_and_ends() {
    let mut stream = Stream::new(1).await;
    stream.enqueue(0..3).await;
    stream.sequence().await;
    for offset in [3, u64::MAX, 1 << 50] {
        let place = Filter { position: Some(at(0, offset)), ..Filter::default() };
        assert_eq!(stream.find(place).await.found.len(), 0, "{offset}");
        let after = Some(PageToken::Log(vec![at(0, offset)]));
        let search = stream.find_from(Filter::default(), after, 9);
        let answer = tokio::time::timeout(PATIENCE, search).await.expect("the search ends");
        assert_eq!(answer.found.len(), 3, "{offset}");
    }
}

#[tokio::test]
async fn a_stream_cannot_be_made_searchable() {
    let mut stream = Stream::new(1).await;
    let (name, settings) = (stream.topic.name.clone(), crate::find::searchable());
    let refused = store::topic::set(&mut stream.conn, &name, &settings).await.unwrap_err();
    assert!(matches!(refused, Error::Setting { name: "searchable", .. }), "{refused}");
}
