//! The audit: a change and its entry are one transaction.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::cancellation::{Attempt, Cancellation, Claims, Was};
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{Access, Action, Actor, Change, DeadCause, Settlement, TopicSettings};
use rowmq_core::store::dead::{DeadFilter, errors};
use rowmq_core::store::{audit, topic};
use rowmq_core::topic::{change_access, change_settings};
use rowmq_core::{Error, TopicName, dead, ready};
use rowmq_test::{PATIENCE, session_at, until};

use crate::scene::{Scene, all, claim_n, settle};

fn change(action: Action) -> Change {
    let actor = Actor { name: "ada".to_owned(), origin: "10.0.0.7".to_owned() };
    Change { actor, action, target: "mail".to_owned(), detail: Some("é".repeat(2000)) }
}

#[tokio::test]
async fn a_change_that_is_rolled_back_leaves_no_entry() {
    let mut scene = Scene::new().await;
    let mut session = scene.session().await;
    let unknown = TopicName::new("unknown").unwrap();
    let set = async |conn: &mut Link| {
        audit::record(conn, &change(Action::SetAccess)).await?;
        topic::set_access(conn, &unknown, Access::Denied).await
    };
    let refused = session.transaction("set the access", set).await.unwrap_err();
    assert!(matches!(refused, Error::UnknownTopic { .. }), "{refused}");
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_audit").await, 0);
}

#[tokio::test]
async fn entries_are_read_newest_first_and_page_by_page() {
    let scene = Scene::new().await;
    let mut session = scene.session().await;
    let actions = [Action::SignIn, Action::SetAccess, Action::Replay];
    let write = async |conn: &mut Link| {
        for action in actions {
            let entry = audit::record(conn, &change(action)).await?;
            audit::add(conn, entry, 2).await?;
            audit::add(conn, entry, 3).await?;
        }
        Ok(())
    };
    session.transaction("write", write).await.unwrap();
    let newest = async |conn: &mut Link| audit::latest(conn, None, 2).await;
    let newest = session.call("read", newest).await.unwrap();
    assert_eq!(
        newest.iter().map(|it| it.action.as_str()).collect::<Vec<_>>(),
        ["replay", "set-access"]
    );
    let older = async |conn: &mut Link| audit::latest(conn, Some(newest[1].no), 2).await;
    let older = session.call("read", older).await.unwrap();
    let [entry] = &older[..] else { panic!("{older:?}") };
    assert_eq!((entry.action.as_str(), entry.messages), ("sign-in", 5));
    assert_eq!((entry.actor.name.as_str(), entry.actor.origin.as_str()), ("ada", "10.0.0.7"));
    let detail = entry.detail.as_deref().unwrap();
    assert_eq!(detail, "é".repeat(512), "cut at a character, not refused");
}

/// Each transaction of a long change adds its own messages to the entry, so that an interrupted run
/// has recorded what it has changed.
#[tokio::test]
async fn a_redrive_counts_in_its_entry_what_it_has_redriven() {
    const MANY: usize = 1_100;
    let mut scene = Scene::new().await;
    scene.enqueue(MANY).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, MANY).await;
    for (some, error) in [(&got[..1000], "the server is away"), (&got[1000..], "no such address")] {
        let end = Settlement::DeadLetter { cause: DeadCause::Handler, error: error.to_owned() };
        settle(&worker, all(some, &end)).await;
    }
    worker.stop().await.unwrap();
    let mut session = scene.session().await;
    let grouped = async |conn: &mut Link| errors(conn, scene.topic.id, 10).await;
    let grouped = session.call("group", grouped).await.unwrap();
    let grouped: Vec<_> = grouped.iter().map(|it| (it.error.as_str(), it.letters)).collect();
    assert_eq!(grouped, [("the server is away", 1000), ("no such address", 100)]);
    let by = change(Action::Redrive);
    let filter = DeadFilter { error: Some("away".to_owned()), ..DeadFilter::default() };
    let redriven = dead::redrive(&mut session, &scene.topic, &filter, Some(&by), |_| {}).await;
    assert_eq!(redriven.unwrap(), 1000);
    let (by, all) = (change(Action::PurgeDead), DeadFilter::default());
    let purged = dead::purge(&mut session, scene.topic.id, &all, Some(&by), |_| {}).await;
    assert_eq!(purged.unwrap(), 100);
    assert_eq!(
        told(&mut session).await,
        [("purge-dead".to_owned(), 100), ("redrive".to_owned(), 1000)]
    );
}

#[tokio::test]
async fn a_bulk_change_that_finds_nothing_has_no_entry() {
    let mut scene = Scene::new().await;
    let other = scene.db.topic("other").await;
    let mut session = scene.session().await;
    let (topic, all) = (scene.topic.clone(), DeadFilter::default());
    for ready in [0, 3] {
        scene.enqueue(ready).await;
        let by = change(Action::Redrive);
        dead::redrive(&mut session, &topic, &all, Some(&by), |_| {}).await.unwrap();
        let by = change(Action::PurgeDead);
        dead::purge(&mut session, topic.id, &all, Some(&by), |_| {}).await.unwrap();
        let by = change(Action::Move);
        ready::relocate(&mut session, (&topic, &other), Some(&by), |_| {}).await.unwrap();
        let by = change(Action::Purge);
        ready::purge(&mut session, &other, Some(&by), |_| {}).await.unwrap();
        if ready == 0 {
            assert_eq!(told(&mut session).await, []);
        }
    }
    assert_eq!(told(&mut session).await, [("purge".to_owned(), 3), ("move".to_owned(), 3)]);
}

/// Returns what each entry says was done, and to how many messages; the newest first.
async fn told(session: &mut Session) -> Vec<(String, u64)> {
    let read = async |conn: &mut Link| audit::latest(conn, None, 10).await;
    let entries = session.call("read", read).await.unwrap();
    entries.into_iter().map(|entry| (entry.action, entry.messages)).collect()
}

#[tokio::test]
async fn a_change_of_no_message_is_none_and_one_that_fails_leaves_nothing() {
    let mut scene = Scene::new().await;
    let mut session = scene.session().await;
    let by = change(Action::Cancel);
    for changed in [0, 2] {
        let work = async |_: &mut Link| Ok(changed);
        let done = by.make_counted(&mut session, "cancel", work).await;
        assert_eq!(done.unwrap(), changed);
    }
    assert_eq!(told(&mut session).await, [("cancel".to_owned(), 2)]);
    let (name, unknown) = (scene.topic.name.clone(), TopicName::new("unknown").unwrap());
    let halfway = async |conn: &mut Link| {
        topic::set_access(conn, &name, Access::Denied).await?;
        topic::set_access(conn, &unknown, Access::Denied).await
    };
    let refused = change(Action::SetAccess).make(&mut session, "set the access", halfway).await;
    assert!(matches!(refused, Err(Error::UnknownTopic { .. })), "{refused:?}");
    assert_eq!(told(&mut session).await.len(), 1);
    assert_eq!(scene.number("SELECT CAST(claim_paused AS SIGNED) FROM queue_topic").await, 0);
}

/// A worker is asked repeatedly: the audit has one entry, from the first request on, and it counts
/// the message once it is cancelled.
#[tokio::test]
async fn a_cancelled_message_is_one_entry_however_often_its_worker_is_asked() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    let mut session = scene.session().await;
    let by = change(Action::Cancel);
    let mut fenced = Cancellation::new(&scene.topic, got[0].msg_id).by(&by);
    for _ in 0..2 {
        let asked = fenced.attempt(&mut session, Claims::Ask).await.unwrap();
        assert_eq!(asked, Attempt::Asked(worker.id()));
        assert_eq!(told(&mut session).await, [("cancel".to_owned(), 0)]);
    }
    let away = fenced.attempt(&mut session, Claims::TakeAway).await.unwrap();
    assert_eq!(away, Attempt::Cancelled(Was::Fenced));
    let one = || ("cancel".to_owned(), 1);
    assert_eq!(told(&mut session).await, [one()]);

    let mut stopped = Cancellation::new(&scene.topic, got[1].msg_id).by(&by);
    let asked = stopped.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!(asked, Attempt::Asked(worker.id()));
    let end = Settlement::Discard { reason: "it was cancelled".to_owned() };
    settle(&worker, all(&got[1..], &end)).await;
    let ended = async || {
        let attempt = stopped.attempt(&mut session, Claims::Ask).await.unwrap();
        attempt == Attempt::Cancelled(Was::Stopped)
    };
    until("its worker has stopped", ended).await;
    assert_eq!(told(&mut session).await, [one(), one()]);
    worker.stop().await.unwrap();
}

/// Repeats the change if the row was locked for too long: on a busy machine not all may be waiting
/// yet.
async fn patiently(mut change: impl AsyncFnMut() -> Result<(), Error>) {
    while let Err(error) = change().await {
        assert!(error.to_string().contains("Lock wait timeout"), "{error}");
    }
}

/// Two users change a topic at once: both wait for its row, and neither knows yet what the other
/// has changed.
#[tokio::test]
async fn of_two_changes_at_once_each_holds_and_tells_what_it_has_changed() {
    let mut scene = Scene::new().await;
    let (name, url) = (&scene.topic.name.clone(), &scene.db.url().clone());
    let mut somebody = scene.db.connect().await;
    let lock = "BEGIN; UPDATE queue_topic SET updated_at = updated_at + INTERVAL 1 SECOND";
    somebody.batch_execute(lock).await.unwrap();
    let by = |action| Change { detail: None, ..change(action) };
    let settings = async |wanted: fn(TopicSettings) -> TopicSettings| {
        let (mut session, by) = (session_at(url, PATIENCE).await, by(Action::SetTopic));
        patiently(async || change_settings(&mut session, name, &by, wanted).await).await;
    };
    let access = async |wanted: fn(Access) -> Access| {
        let (mut session, by) = (session_at(url, PATIENCE).await, by(Action::SetAccess));
        patiently(async || change_access(&mut session, name, &by, wanted).await).await;
    };
    let release = async {
        until("all wait for the row", async || scene.lock_waits().await == 4).await;
        somebody.batch_execute("COMMIT").await
    };
    let (.., released) = tokio::join!(
        settings(|old| TopicSettings { max_attempts: 7, ..old }),
        settings(|old| TopicSettings { max_crashes: 9, ..old }),
        access(|old| old.and(Access::ReadOnly)),
        access(|old| old.and(Access::WriteOnly)),
        release,
    );
    released.unwrap();
    let now = topic::existing(&mut scene.conn, name).await.unwrap();
    assert_eq!((now.settings.max_attempts, now.settings.max_crashes), (7, 9));
    assert_eq!(now.access, Access::Denied);
    let entries = audit::latest(&mut scene.conn, None, 10).await.unwrap();
    let mut details: Vec<_> = entries.into_iter().filter_map(|entry| entry.detail).collect();
    details.sort_unstable();
    // Of the two changes that close it, the first leaves it half open, whichever that was.
    let half = details.pop().unwrap();
    assert!(half.starts_with("read-") || half.starts_with("write-"), "{half}");
    assert_eq!(details, ["denied", "max_attempts 7", "max_crashes 9"]);
}

#[tokio::test]
async fn a_change_of_nothing_has_no_detail_and_one_that_is_refused_no_entry() {
    let mut scene = Scene::new().await;
    let mut session = scene.session().await;
    let by = Change { detail: None, ..change(Action::SetTopic) };
    let name = scene.topic.name.clone();
    change_settings(&mut session, &name, &by, |old| old).await.unwrap();
    let unknown = TopicName::new("unknown").unwrap();
    let refused = change_settings(&mut session, &unknown, &by, |old| old).await;
    assert!(matches!(refused, Err(Error::UnknownTopic { .. })), "{refused:?}");
    let endless = |old| TopicSettings { dead_letter_topic: Some(name.clone()), ..old };
    let refused = change_settings(&mut session, &name, &by, endless).await;
    assert!(matches!(refused, Err(Error::Setting { .. })), "{refused:?}");
    let entries = audit::latest(&mut scene.conn, None, 10).await.unwrap();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((entry.action.as_str(), entry.detail.as_deref()), ("set-topic", None));
}

#[tokio::test]
async fn the_audit_is_pruned_of_its_oldest_entries() {
    let mut scene = Scene::new().await;
    let mut session = scene.session().await;
    for action in [Action::Purge, Action::Move, Action::Redrive, Action::SetAccess, Action::Cancel]
    {
        change(action).note(&mut session).await.unwrap();
    }
    let age = "UPDATE queue_audit SET at = at - INTERVAL 401 DAY WHERE id <= 3";
    scene.sql(age).await;
    let time = Duration::from_secs(400 * 86_400);
    for removed in [2, 1, 0] {
        assert_eq!(audit::prune(&mut scene.conn, time, 2).await.unwrap(), removed);
    }
    let left: Vec<_> = told(&mut session).await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(left, ["cancel", "set-access"]);
}

#[tokio::test]
async fn the_account_is_the_one_that_the_server_sees() {
    let mut scene = Scene::new().await;
    let account = audit::account(&mut scene.conn).await.unwrap();
    assert_eq!(account, scene.text("SELECT USER()").await);
}
