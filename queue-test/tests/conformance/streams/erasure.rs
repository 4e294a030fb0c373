//! Messages that are erased from the log of a stream.

use std::collections::BTreeSet;
use std::time::Duration;

use rowmq_core::connection::Link;
use rowmq_core::erasure::{Erasure, ErasureError, erase};
use rowmq_core::model::{
    Action, Actor, Change, DeadCause, OffsetSpec, OnDone, Settlement, TopicSettings,
};
use rowmq_core::stream::group::{create_group, create_stream, group_settings, reset_group};
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::worker::{Settled, Worker};
use rowmq_core::{Delivery, MsgId, NewMessage, Topic, TopicName, enqueue_all, store};
use rowmq_test::until;

use super::broadcast::{member, nothing_more, read_n};
use super::{Stream, claim_n, offsets};
use crate::moves::promote;
use crate::scene::{self, all, bodies, retry, settle, text};

const HOUR: Duration = Duration::from_secs(3600);

fn by(topic: &Topic, id: MsgId) -> Change {
    let actor = Actor { name: "ada".to_owned(), origin: "here".to_owned() };
    let (target, detail) = (topic.name.to_string(), Some(id.to_string()));
    Change { actor, action: Action::Erase, target, detail }
}

fn secret(body: &str) -> NewMessage {
    NewMessage::new(body).with_key("k").with_biz_id("b").with_header("name", "secret")
}

impl Stream {
    pub(super) async fn erase(&self, id: MsgId) -> Result<Erasure, ErasureError> {
        erase_in(self, &self.topic, id).await
    }

    /// Returns how many rows of the log have a word in any column.
    async fn logged_with(&mut self, word: &str) -> i64 {
        let columns = "SELECT GROUP_CONCAT(column_name) FROM information_schema.columns \
             WHERE table_schema = DATABASE() AND table_name = 'queue_log'";
        let columns = text(&mut self.conn, columns).await;
        assert!(columns.contains("body") && columns.contains("headers"), "{columns}");
        let is_in = format!("CONCAT_WS('|', {columns}) LIKE '%{word}%'");
        self.number(&format!("SELECT COUNT(*) FROM queue_log WHERE {is_in}")).await
    }

    /// Returns what an erasure keeps of the rows of the log.
    async fn kept(&mut self) -> String {
        let kept = "SELECT GROUP_CONCAT(CONCAT_WS(' ', partition_no, offset_no, HEX(msg_id), \
             ordering_key, biz_id, enqueued_at, sequenced_at) \
             ORDER BY partition_no, offset_no) FROM queue_log";
        text(&mut self.conn, kept).await
    }
}

async fn erase_in(stream: &Stream, topic: &Topic, id: MsgId) -> Result<Erasure, ErasureError> {
    let mut session = stream.db.session().await;
    erase(&mut session, topic, id, &by(topic, id)).await
}

/// Returns where the copies are, and their states.
fn places(erasure: &Erasure) -> BTreeSet<(String, &'static str)> {
    erasure.copies.iter().map(|copy| (copy.topic.clone(), copy.state.word())).collect()
}

/// Settles what has expired as a consumer does, and acks the rest; returns the bodies of that.
async fn handle(worker: &Worker, got: &[Delivery]) -> Vec<String> {
    let (expired, live): (Vec<_>, Vec<_>) = got.iter().cloned().partition(Delivery::is_expired);
    let discard = Settlement::Discard { reason: "it had expired".to_owned() };
    worker.settle(all(&expired, &discard)).await.unwrap();
    worker.settle(all(&live, &Settlement::Ack)).await.unwrap();
    bodies(&live)
}

#[tokio::test]
async fn an_erased_message_keeps_its_offset_id_and_keys_and_nothing_of_its_content() {
    let mut stream = Stream::in_rows(2).await;
    let messages = [secret("left"), secret("secret"), secret("right")];
    let id = messages[1].msg_id;
    enqueue_all(&mut stream.conn, &stream.topic.name, &messages).await.unwrap();
    let early = stream.erase(id).await.unwrap_err();
    assert!(matches!(early, ErasureError::NoOffset(..)), "{early}");
    assert!(early.to_string().contains("repeat the command in a second"), "{early}");
    stream.sequence().await;
    let (before, secrets) = (stream.kept().await, stream.logged_with("secret").await);
    assert_eq!(secrets, 3);
    let erasure = stream.erase(id).await.unwrap();
    assert_eq!((erasure.positions.len(), erasure.erased), (1, 1));
    assert_eq!((erasure.positions[0].offset.0, erasure.copies.len()), (1, 0));
    assert_eq!(stream.kept().await, before);
    assert_eq!(stream.logged_with("secret").await, 2, "the neighbours' headers");
    let empty = "SELECT COUNT(*) FROM queue_log WHERE body = '' AND headers IS NULL \
         AND expires_at = '1970-01-01' AND offset_no = 1";
    assert_eq!(stream.number(empty).await, 1);

    let again = stream.erase(id).await.unwrap();
    assert_eq!(again, Erasure { erased: 0, ..erasure });
    let id = id.to_string();
    let entries = format!(
        "SELECT COUNT(*) FROM queue_audit WHERE action = 'erase' AND target = 's' \
         AND detail = '{id}' AND messages = 1 AND actor = 'ada'"
    );
    assert_eq!(stream.number(&entries).await, 1);
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_audit").await, 1);
}

/// A sender that had no answer, and stored it again.
#[tokio::test]
async fn a_message_that_was_enqueued_twice_is_erased_in_both_places() {
    let mut stream = Stream::in_rows(4).await;
    let id = MsgId::new();
    let messages: Vec<_> = (0..4)
        .map(|n| match n {
            1 | 2 => NewMessage::new("secret").with_msg_id(id),
            n => NewMessage::new(n.to_string()),
        })
        .collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &messages).await.unwrap();
    stream.sequence().await;
    let erasure = stream.erase(id).await.unwrap();
    let partitions: BTreeSet<_> = erasure.positions.iter().map(|at| at.partition).collect();
    assert_eq!((partitions.len(), erasure.erased), (2, 2));
    assert_eq!(stream.logged_with("secret").await, 0);
}

/// Far from the time in its id, around which `find` ends its search.
#[tokio::test]
async fn a_message_that_was_stored_again_much_later_is_erased_in_both_places() {
    let mut stream = Stream::in_rows(1).await;
    let secret = secret("secret");
    let (name, messages) = (stream.topic.name.clone(), std::slice::from_ref(&secret));
    for _ in 0..2 {
        enqueue_all(&mut stream.conn, &name, messages).await.unwrap();
        stream.sequence().await;
    }
    stream.sql("UPDATE queue_log SET offset_no = 20000 WHERE offset_no = 1").await;
    stream.sql("UPDATE queue_partition SET next_offset = 20001").await;
    assert_eq!(stream.erase(secret.msg_id).await.unwrap().erased, 2);
    assert_eq!(stream.logged_with("secret").await, 0);
}

#[tokio::test]
async fn a_group_that_has_not_read_an_erased_message_passes_over_it() {
    for ordered in [false, true] {
        let mut stream = Stream::new(1).await;
        let group = stream.group("g", ordered).await;
        let filter = vec!["type=a".parse().unwrap()].into();
        let settings = TopicSettings { filter, ..group_settings() };
        let wanting = stream.group_with("w", ordered, OffsetSpec::Earliest, &settings).await;
        let message = |n: usize| NewMessage::new(n.to_string()).with_header("type", "a");
        let messages: Vec<_> = (0..5).map(message).collect();
        enqueue_all(&mut stream.conn, &stream.topic.name, &messages).await.unwrap();
        stream.sequence().await;
        stream.erase(messages[2].msg_id).await.unwrap();
        let worker = stream.worker().await;
        let got = claim_n(&worker, &group, 5).await;
        assert_eq!(offsets(&got), [0, 1, 2, 3, 4]);
        assert!(got[2].is_expired() && got[2].body.is_empty() && got[2].headers.is_empty());
        assert_eq!(handle(&worker, &got).await, ["0", "1", "3", "4"]);
        let got = claim_n(&worker, &wanting, 4).await;
        assert_eq!(offsets(&got), [0, 1, 3, 4], "it has no headers");
        assert_eq!(handle(&worker, &got).await.len(), 4);
        let ranges = "SELECT COUNT(*) FROM queue_range";
        until("the ranges are over", async || stream.number(ranges).await == 0).await;
        // What was discarded has no content, so there is nothing to remove.
        let again = stream.erase(messages[2].msg_id).await.unwrap();
        assert_eq!((again.erased, again.copies.len()), (0, 0));
    }
}

#[tokio::test]
async fn a_broadcast_member_that_has_not_read_an_erased_message_passes_over_it() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    let sent = stream.enqueue(0..5).await;
    stream.sequence().await;
    stream.erase(sent[2].msg_id).await.unwrap();
    for named in [None, Some("a")] {
        let (worker, member) = (stream.worker().await, member(&group, named));
        let got = read_n(&worker, &member, 5).await;
        assert!(got[2].is_expired() && got[2].body.is_empty(), "{named:?}");
        assert_eq!(handle(&worker, &got).await, ["0", "1", "3", "4"], "{named:?}");
        nothing_more(&worker, &member).await;
        worker.stop().await.unwrap();
    }
    assert_eq!(stream.place().await, 5);
}

/// A member that had it in hand when it was erased, and failed.
#[tokio::test]
async fn a_copy_made_after_the_erasure_has_no_content_and_is_not_named() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    let sent = stream.enqueue(0..2).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 2).await;
    stream.erase(sent[0].msg_id).await.unwrap();
    settle(&worker, all(&got[..1], &retry(Duration::ZERO))).await;
    let empty = "SELECT COUNT(*) FROM queue_scheduled WHERE body = '' AND headers IS NULL";
    assert_eq!(stream.number(empty).await, 1);
    assert_eq!(stream.erase(sent[0].msg_id).await.unwrap().copies, []);
    promote(&mut stream.conn, 10).await;
    let again = scene::claim_n(&worker, group.id, 1).await;
    assert!(again[0].is_expired(), "{again:?}");
}

/// Brings the only message of the stream to the group once more, and settles it.
async fn once_more(stream: &mut Stream, worker: &Worker, group: &Topic, end: &Settlement) {
    reset_group(&mut stream.conn, group, OffsetSpec::Earliest).await.unwrap();
    let got = claim_n(worker, group, 1).await;
    settle(worker, all(&got, end)).await;
}

/// Has the group try it again at once, and claims that.
async fn claim_again(stream: &mut Stream, worker: &Worker, group: &Topic) -> Delivery {
    once_more(stream, worker, group, &retry(Duration::ZERO)).await;
    promote(&mut stream.conn, 10).await;
    scene::claim_n(worker, group.id, 1).await.remove(0)
}

fn dead() -> Settlement {
    Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() }
}

/// Creates a stream for dead letters, and a group of it.
async fn stream_of_dead_letters(stream: &mut Stream) -> (Topic, Topic) {
    let conn = &mut stream.conn;
    let name = TopicName::new("failed").unwrap();
    let group = TopicName::of_group(&name, "g").unwrap();
    create_stream(conn, &name, 1, &TopicSettings::default()).await.unwrap();
    create_group(conn, &group, false, OffsetSpec::Earliest, &group_settings()).await.unwrap();
    let existing = store::topic::existing(conn, &name).await.unwrap();
    (existing, store::topic::existing(conn, &group).await.unwrap())
}

/// Makes a copy in every state.
async fn copy_in_every_state(stream: &mut Stream, worker: &Worker, group: &Topic) {
    let done = claim_again(stream, worker, group).await;
    settle(worker, vec![Settled::new(&done, Settlement::Ack, OnDone::Keep(HOUR))]).await;
    claim_again(stream, worker, group).await;
    once_more(stream, worker, group, &retry(Duration::ZERO)).await;
    promote(&mut stream.conn, 10).await;
    once_more(stream, worker, group, &retry(HOUR)).await;
    once_more(stream, worker, group, &dead()).await;
    let discard = Settlement::Discard { reason: "not worth it".to_owned() };
    once_more(stream, worker, group, &discard).await;
}

#[tokio::test]
async fn the_copies_of_an_erased_message_are_found_in_every_state_in_every_group() {
    const STATES: [&str; 6] = ["claimed", "dead", "discarded", "done", "ready", "scheduled"];
    let mut stream = Stream::in_rows(1).await;
    let (failed, of_failed) = stream_of_dead_letters(&mut stream).await;
    let settings = TopicSettings { dead_letter_topic: Some(failed.name), ..group_settings() };
    let groups = [stream.group("a", false).await, stream.group("b", false).await];
    let other = stream.group_with("c", false, OffsetSpec::Earliest, &settings).await;
    let broadcast = stream.broadcast(OffsetSpec::Earliest).await;
    let id = stream.enqueue(0..1).await[0].msg_id;
    let worker = stream.worker().await;
    for group in &groups {
        copy_in_every_state(&mut stream, &worker, group).await;
    }
    once_more(&mut stream, &worker, &other, &dead()).await;
    sequence(&mut stream.conn, failed.id, 100, Contention::Wait).await.unwrap();
    let got = claim_n(&worker, &of_failed, 1).await;
    settle(&worker, all(&got, &retry(Duration::ZERO))).await;
    promote(&mut stream.conn, 10).await;
    let member = member(&broadcast, None);
    let got = read_n(&worker, &member, 1).await;
    worker.settle(all(&got, &dead())).await.unwrap();
    let filed = format!("SELECT COUNT(*) FROM queue_dead WHERE topic_id = {}", broadcast.id.0);
    until("it is filed", async || stream.number(&filed).await == 1).await;

    let erasure = stream.erase(id).await.unwrap();
    assert_eq!((erasure.positions.len(), erasure.erased), (1, 1));
    let in_both = ["s@a", "s@b"].into_iter().flat_map(|at| STATES.map(|state| (at, state)));
    let others = [("failed", "logged"), ("failed@g", "ready"), ("s@all", "dead")];
    let expected = in_both.chain(others);
    let mut expected: BTreeSet<_> = expected.map(|(at, state)| (at.to_owned(), state)).collect();
    assert_eq!(places(&erasure), expected);
    let kept = erasure.copies.iter().filter(|copy| copy.keep_until.is_some()).count();
    assert_eq!(kept, 4, "done and discarded, in two groups");

    // One is removed, and retention removes the message: the other copies are still named.
    let mut session = stream.db.session().await;
    let purge =
        async |conn: &mut Link| rowmq_core::dead::purge_message(conn, groups[0].id, id).await;
    assert_eq!(session.transaction("test", purge).await.unwrap(), 1);
    stream.sql("DELETE FROM queue_log").await;
    stream.sql("UPDATE queue_partition SET first_offset = next_offset").await;
    let again = stream.erase(id).await.unwrap();
    assert_eq!((again.positions.len(), again.erased), (0, 0));
    for gone in [("s@a", "dead"), ("failed", "logged")] {
        assert!(expected.remove(&(gone.0.to_owned(), gone.1)));
    }
    assert_eq!(places(&again), expected);
}

#[tokio::test]
async fn what_is_in_no_log_is_refused_and_leaves_no_entry() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.group("g", false).await;
    let queue = stream.db.topic("mail").await;
    stream.enqueue(0..3).await;
    stream.sequence().await;
    let id = MsgId::new();
    let refused = erase_in(&stream, &queue, id).await.unwrap_err();
    assert!(matches!(refused, ErasureError::OfQueue(..)), "{refused}");
    for command in ["cancel", "dead purge"] {
        assert!(refused.to_string().contains(&format!("`rowmq {command} mail {id}`")), "{refused}");
    }
    let refused = erase_in(&stream, &group, id).await.unwrap_err();
    assert!(matches!(refused, ErasureError::OfGroup(..)), "{refused}");
    assert!(refused.to_string().contains(&format!("`rowmq erase s {id}`")), "{refused}");
    let refused = stream.erase(id).await.unwrap_err();
    assert!(matches!(refused, ErasureError::Unknown(..)), "{refused}");
    let later = NewMessage::new("later").with_delay(HOUR);
    enqueue_all(&mut stream.conn, &stream.topic.name, std::slice::from_ref(&later)).await.unwrap();
    let refused = stream.erase(later.msg_id).await.unwrap_err();
    assert!(matches!(refused, ErasureError::Waits(..)), "{refused}");
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_audit").await, 0);
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_log WHERE body <> ''").await, 3);
}
