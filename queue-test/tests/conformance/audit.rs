//! The audit: a change and its entry are one transaction.

use queue_core::audit::{Action, Actor, Change};
use queue_core::connection::Link;
use queue_core::message::{DeadCause, Settlement};
use queue_core::store::dead::{DeadFilter, errors};
use queue_core::store::{audit, topic};
use queue_core::topic::Access;
use queue_core::{Error, TopicName, dead};

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

/// Each transaction of a long change adds its own messages, so that a run which is cut off has told
/// what it has changed.
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
    let told: Vec<_> = grouped.iter().map(|it| (it.error.as_str(), it.letters)).collect();
    assert_eq!(told, [("the server is away", 1000), ("no such address", 100)]);
    let record = async |conn: &mut Link| audit::record(conn, &change(Action::Redrive)).await;
    let entry = session.transaction("write", record).await.unwrap();
    let filter = DeadFilter { error: Some("away".to_owned()), ..DeadFilter::default() };
    let redriven =
        dead::redrive_for(&mut session, &scene.topic, &filter, Some(entry), |_| {}).await;
    assert_eq!(redriven.unwrap(), 1000);
    let purged =
        dead::purge_for(&mut session, scene.topic.id, &DeadFilter::default(), None, |_| {}).await;
    assert_eq!(purged.unwrap(), 100);
    assert_eq!(scene.number("SELECT CAST(messages AS SIGNED) FROM queue_audit").await, 1000);
}
