//! Finding a message: in every state, with and without a lookup.

use std::time::Duration;

use rowmq_core::find::{Answer, PageToken, Query, Searched, find};
use rowmq_core::model::found::{Filter, Found, State, StateWord};
use rowmq_core::model::{DeadCause, OnDone, Settlement, TopicSettings};
use rowmq_core::store::dead::DeadFilter;
use rowmq_core::store::find::Bodies;
use rowmq_core::store::topic;
use rowmq_core::worker::{Settled, Worker};
use rowmq_core::{Delivery, MsgId, NewMessage, cancel, dead, enqueue, enqueue_all};

use crate::moves::promote;
use crate::scene::{Scene, claim_n, retry, settle};

const DAY: Duration = Duration::from_secs(86_400);

pub(crate) fn searchable() -> TopicSettings {
    TopicSettings { searchable: Some(DAY), ..TopicSettings::default() }
}

fn of(id: MsgId) -> Filter {
    Filter { msg_id: Some(id), ..Filter::default() }
}

fn of_biz(biz_id: &str) -> Filter {
    Filter { biz_id: Some(biz_id.into()), ..Filter::default() }
}

impl Scene {
    /// Returns what `filter` finds, at most `limit` messages, from `after` on.
    async fn find(&mut self, filter: &Filter, limit: usize, after: Option<PageToken>) -> Answer {
        let query = Query { filter: filter.clone(), after, limit, bodies: Bodies::Read };
        let mut session = self.session().await;
        let topic = topic::existing(&mut self.conn, &self.topic.name).await.unwrap();
        find(&mut session, &topic, &query).await.unwrap()
    }

    /// Returns the only message that matches, found by the lookup alone.
    async fn one(&mut self, filter: &Filter) -> Found {
        let answer = self.find(filter, 10, None).await;
        assert_eq!(answer.searched, [Searched::Lookup { entries: 1, whole: true }]);
        assert_eq!((answer.found.len(), &answer.next), (1, &None), "{answer:?}");
        answer.found.into_iter().next().unwrap()
    }

    async fn one_claimed(&mut self, worker: &Worker) -> Delivery {
        claim_n(worker, self.topic.id, 1).await.remove(0)
    }

    async fn end(&mut self, worker: &Worker, got: &Delivery, end: Settlement) {
        let topic = topic::existing(&mut self.conn, &self.topic.name).await.unwrap();
        settle(worker, vec![Settled::in_topic(got, end, &topic.settings)]).await;
    }
}

fn dead(error: &str) -> Settlement {
    Settlement::DeadLetter { cause: DeadCause::Handler, error: error.to_owned() }
}

/// A message's whole life, looked up at every step by each of its names.
#[tokio::test]
async fn a_message_is_found_wherever_it_goes_by_its_row_and_without_a_search() {
    let mut scene = Scene::with(&searchable()).await;
    let worker = scene.worker().await;
    let sent = NewMessage::new("body").with_key("k").with_biz_id("4711").with_header("a", "b");
    let sent = sent.with_delay(DAY);
    enqueue(&mut scene.conn, &scene.topic.name, &sent).await.unwrap();
    scene.enqueue(3).await;
    let filters =
        [of(sent.msg_id), of_biz("4711"), Filter { key: Some("k".into()), ..Filter::default() }];
    let mut states = Vec::new();
    let mut looked = async |scene: &mut Scene| {
        let found = scene.one(&filters[0]).await;
        for filter in &filters[1..] {
            assert_eq!(scene.one(filter).await, found);
            let filter = Filter { state: Some(found.state.word()), ..filter.clone() };
            assert_eq!(scene.one(&filter).await, found);
            let wrong = StateWord::ALL.into_iter().find(|word| *word != found.state.word());
            let none = scene.find(&Filter { state: wrong, ..filter }, 10, None).await;
            assert_eq!(none.found, []);
        }
        assert_eq!((found.key.as_deref(), found.biz_id.as_deref()), (Some("k"), Some("4711")));
        assert_eq!((found.topic.as_str(), found.msg_id), ("t", sent.msg_id));
        if let Some(trace) = &found.trace {
            assert_eq!((trace.body.as_deref(), trace.body_bytes), (Some(&b"body"[..]), 4));
            assert_eq!(trace.headers.get("a"), Some("b"));
        }
        states.push(found.state.word());
        found
    };
    let found = looked(&mut scene).await;
    assert!(matches!(found.state, State::Scheduled { .. }));
    scene.sql("UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6)").await;
    assert_eq!(promote(&mut scene.conn, 10).await, 1);
    looked(&mut scene).await;
    // The three others were enqueued before it.
    let got = claim_n(&worker, scene.topic.id, 4).await.remove(3);
    let found = looked(&mut scene).await;
    let State::Claimed { worker: by, client_id, .. } = found.state else { panic!("{found:?}") };
    assert!(by == worker.id() && client_id.starts_with("conformance"), "{client_id}");
    scene.end(&worker, &got, retry(Duration::ZERO)).await;
    let found = looked(&mut scene).await;
    let trace = found.trace.unwrap();
    assert_eq!((trace.failures, trace.error.as_deref()), (1, Some("not yet")));
    assert_eq!(trace.history.len(), 1);
    assert_eq!(promote(&mut scene.conn, 10).await, 1);
    looked(&mut scene).await;
    let got = scene.one_claimed(&worker).await;
    scene.end(&worker, &got, dead("no such order")).await;
    let found = looked(&mut scene).await;
    assert!(matches!(found.state, State::Dead { ref cause, .. } if cause == "handler"));
    let mut session = scene.session().await;
    let every = DeadFilter::default();
    assert_eq!(dead::redrive(&mut session, &scene.topic, &every, None, |_| {}).await.unwrap(), 1);
    looked(&mut scene).await;
    let got = scene.one_claimed(&worker).await;
    scene.end(&worker, &got, Settlement::Release).await;
    looked(&mut scene).await;
    let keep = TopicSettings { on_done: OnDone::Keep(DAY), ..searchable() };
    topic::set(&mut scene.conn, &scene.topic.name.clone(), &keep).await.unwrap();
    let got = scene.one_claimed(&worker).await;
    scene.end(&worker, &got, Settlement::Ack).await;
    looked(&mut scene).await;
    scene.sql("DELETE FROM queue_archive").await;
    // Now a row that the lookup does not know is searched for, and the answer says so.
    let answer = scene.find(&filters[0], 10, None).await;
    assert_eq!(answer.found[0].state, State::Gone);
    let scanned = Searched::Table {
        table: rowmq_core::store::inspect::MessageTable::Ready,
        rows: 3,
        whole: true,
    };
    assert_eq!(answer.searched, [Searched::Lookup { entries: 1, whole: true }, scanned]);
    let words: Vec<_> = states.iter().map(|word| word.word()).collect();
    let life = "scheduled ready claimed scheduled ready dead ready ready done";
    assert_eq!(words.join(" "), life);
}

#[tokio::test]
async fn what_was_not_done_says_so() {
    let mut scene = Scene::with(&searchable()).await;
    let worker = scene.worker().await;
    let sent = scene.enqueue(4).await;
    let got = claim_n(&worker, scene.topic.id, 4).await;
    scene.end(&worker, &got[0], Settlement::Ack).await;
    scene.end(&worker, &got[1], Settlement::Discard { reason: "too old".to_owned() }).await;
    scene.end(&worker, &got[2], Settlement::Repeated).await;
    scene.end(&worker, &got[3], dead("no")).await;
    let word = |answer: Answer| answer.found[0].state.word();
    for (sent, expected) in sent.iter().zip(["gone", "discarded", "gone", "dead"]) {
        let found = word(scene.find(&of(sent.msg_id), 10, None).await);
        assert_eq!(found.word(), expected);
    }
    let too_old = Filter {
        error: Some("too o".to_owned()),
        since: Some(chrono::DateTime::UNIX_EPOCH),
        ..Filter::default()
    };
    let answer = scene.find(&too_old, 10, None).await;
    assert_eq!(answer.found.len(), 1);
    assert_eq!(answer.found[0].msg_id, sent[1].msg_id);
    let unknown = scene.find(&of(MsgId::new()), 10, None).await;
    assert_eq!(unknown.found, []);
    let later = NewMessage::new("m").with_delay(DAY);
    enqueue(&mut scene.conn, &scene.topic.name, &later).await.unwrap();
    assert!(cancel(&mut scene.conn, &scene.topic.name, later.msg_id).await.unwrap());
    assert_eq!(word(scene.find(&of(later.msg_id), 10, None).await), StateWord::Gone);
}

/// From a searchable topic and from an unsearchable one, to a searchable and to an unsearchable
/// one.
#[tokio::test]
async fn a_message_is_found_in_the_topic_that_it_was_dead_lettered_to() {
    for (here, there) in [(true, true), (true, false), (false, true)] {
        let settings = |on: bool| if on { searchable() } else { TopicSettings::default() };
        let mut scene = Scene::new().await;
        let other = scene.db.topic_with("other", &settings(there)).await;
        let leading =
            TopicSettings { dead_letter_topic: Some(other.name.clone()), ..settings(here) };
        let name = scene.topic.name.clone();
        topic::set(&mut scene.conn, &name, &leading).await.unwrap();
        let sent = scene.enqueue(20).await;
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 20).await;
        let settled =
            got.iter().step_by(2).map(|one| Settled::new(one, dead("no"), OnDone::Delete));
        settle(&worker, settled.collect()).await;
        for topic in [(here, scene.topic.clone()), (there, other.clone())] {
            let (true, topic) = topic else { continue };
            scene.topic = topic;
            for sent in sent.iter().step_by(2) {
                let found = scene.one(&of(sent.msg_id)).await;
                assert_eq!(
                    (found.topic.as_str(), found.state),
                    ("other", State::Ready { suspect: false })
                );
                assert!(found.trace.unwrap().headers.get("queue-dead-from").is_some());
            }
        }
        // A worker also tries it there, and gives it back.
        let worker = scene.worker().await;
        let got = claim_n(&worker, other.id, 10).await;
        for one in &got {
            settle(&worker, vec![Settled::new(one, retry(Duration::ZERO), OnDone::Delete)]).await;
        }
        assert_eq!(promote(&mut scene.conn, 100).await, 10);
        scene.topic = other;
        for sent in sent.iter().step_by(2) {
            let answer = scene.find(&of(sent.msg_id), 10, None).await;
            let found: Vec<_> = answer.found.iter().map(|one| one.state.word()).collect();
            assert_eq!(found, [StateWord::Ready]);
        }
    }
}

/// Page by page, nothing twice and nothing missing.
#[tokio::test]
async fn answers_go_on_where_they_ended() {
    for on in [true, false] {
        let settings = TopicSettings {
            on_done: OnDone::Keep(DAY),
            searchable: on.then_some(DAY),
            ..TopicSettings::default()
        };
        let mut scene = Scene::with(&settings).await;
        let messages: Vec<_> = (0..90)
            .map(|n| NewMessage::new("m").with_key(if n % 3 == 0 { "a" } else { "b" }))
            .collect();
        enqueue_all(&mut scene.conn, &scene.topic.name, &messages).await.unwrap();
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 60).await;
        for (n, one) in got[..45].iter().enumerate() {
            let end = match n % 3 {
                0 => Settlement::Ack,
                1 => dead("no"),
                _ => retry(DAY),
            };
            scene.end(&worker, one, end).await;
        }
        let a = Filter { key: Some("a".into()), ..Filter::default() };
        let every = Filter { since: Some(chrono::DateTime::UNIX_EPOCH), ..Filter::default() };
        let is_a = |n: usize| n.is_multiple_of(3);
        for (filter, wanted) in [(&a, 30), (&every, 90)] {
            for limit in [1, 7, 30, 90, 1000] {
                let (mut ids, mut after) = (Vec::new(), None);
                loop {
                    let answer = scene.find(filter, limit, after).await;
                    assert!(answer.found.len() <= limit);
                    ids.extend(answer.found.iter().map(|one| one.msg_id));
                    after = answer.next.map(|next| next.to_string().parse().unwrap());
                    if after.is_none() {
                        break;
                    }
                }
                assert_eq!(ids.len(), wanted, "by {limit}, searchable: {on}");
                ids.sort_unstable();
                let mut sent: Vec<_> = messages.iter().enumerate().collect();
                sent.retain(|(n, _)| wanted == 90 || is_a(*n));
                let mut sent: Vec<_> = sent.iter().map(|(_, sent)| sent.msg_id).collect();
                sent.sort_unstable();
                assert_eq!(ids, sent, "by {limit}, searchable: {on}");
            }
        }
        for (state, n) in
            [("ready", 30), ("claimed", 15), ("scheduled", 15), ("dead", 15), ("done", 15)]
        {
            let word = StateWord::ALL.into_iter().find(|word| word.word() == state);
            let answer = scene.find(&Filter { state: word, ..Filter::default() }, 100, None).await;
            assert_eq!(answer.found.len(), n, "{state}");
            assert!(answer.found.iter().all(|one| Some(one.state.word()) == word));
        }
    }
}

#[tokio::test]
async fn a_search_without_a_lookup_reads_so_many_rows_and_says_so() {
    let mut scene = Scene::new().await;
    let many = "INSERT INTO queue_message (topic_id, priority, msg_id, body) \
         SELECT 1, 5 + n DIV 11000, LEFT(UNHEX(SHA2(n, 256)), 16), '' FROM (WITH RECURSIVE c (n) AS \
         (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < 21999) SELECT n FROM c) numbers";
    let deep = if scene.is_mariadb().await {
        "max_recursive_iterations"
    } else {
        "cte_max_recursion_depth"
    };
    scene.sql(&format!("SET SESSION {deep} = 30000")).await;
    scene.sql(&many.replace("SELECT 1,", &format!("SELECT {},", scene.topic.id.0))).await;
    let last = NewMessage::new("m").with_biz_id("last").with_priority(rowmq_core::Priority::LAST);
    enqueue(&mut scene.conn, &scene.topic.name, &last).await.unwrap();
    for filter in [of_biz("last"), of(last.msg_id)] {
        let (mut after, mut answers) = (None, Vec::new());
        loop {
            let answer = scene.find(&filter, 10, after).await;
            after = answer.next.clone();
            answers.push(answer);
            if after.is_none() {
                break;
            }
        }
        let rows = |answer: &Answer| {
            let one = answer.searched.iter().find_map(|one| match one {
                Searched::Table { rows, whole, .. } => Some((*rows, *whole)),
                _ => None,
            });
            (one.unwrap(), answer.found.len())
        };
        let seen: Vec<_> = answers.iter().map(rows).collect();
        assert_eq!(seen, [((10_000, false), 0), ((10_000, false), 0), ((2001, true), 1)]);
    }
}

#[tokio::test]
async fn ids_are_found_exactly_without_a_lookup_but_for_those_that_are_ready() {
    let mut scene = Scene::new().await;
    let sent = scene.enqueue(3).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    scene.end(&worker, &got[0], dead("no")).await;
    scene.end(&worker, &got[1], retry(DAY)).await;
    for (sent, state) in sent.iter().zip(["dead", "scheduled"]) {
        let answer = scene.find(&of(sent.msg_id), 10, None).await;
        assert_eq!((answer.found[0].state.word().word(), answer.next), (state, None));
        assert_eq!(answer.searched, [Searched::MsgIds]);
    }
    let answer = scene.find(&of(sent[2].msg_id), 10, None).await;
    assert_eq!((answer.found[0].state.word(), answer.searched.len()), (StateWord::Ready, 2));
}

#[tokio::test]
async fn what_has_the_id_and_not_the_rest_is_not_found() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    let sent = NewMessage::new("body").with_biz_id("4711").with_key("k");
    enqueue(&mut scene.conn, &scene.topic.name, &sent).await.unwrap();
    let id = of(sent.msg_id);
    for state in [StateWord::Ready, StateWord::Dead] {
        if state == StateWord::Dead {
            let got = scene.one_claimed(&worker).await;
            scene.end(&worker, &got, dead("no")).await;
        }
        let enqueued = scene.find(&id, 10, None).await.found[0].enqueued_at;
        let rest = [
            Filter { biz_id: Some("4711".into()), ..id.clone() },
            Filter { key: Some("k".into()), ..id.clone() },
            Filter { since: Some(enqueued), ..id.clone() },
            Filter { before: Some(enqueued + Duration::from_micros(1)), ..id.clone() },
        ];
        for filter in &rest {
            assert_eq!(scene.find(filter, 10, None).await.found.len(), 1, "{state:?} {filter:?}");
        }
        let other = [
            Filter { biz_id: Some("4712".into()), ..id.clone() },
            Filter { key: Some("l".into()), ..id.clone() },
            Filter { since: Some(enqueued + Duration::from_micros(1)), ..id.clone() },
            Filter { before: Some(enqueued), ..id.clone() },
        ];
        for filter in &other {
            assert_eq!(scene.find(filter, 10, None).await.found, [], "{state:?} {filter:?}");
        }
    }
}
