//! The changes that the pages make; each is in the audit.

use rowmq_core::NewMessage;
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_test::until;

use crate::fixture::Fixture;

struct Fine;

impl RawHandler for Fine {
    async fn handle(&self, _: &Context) -> Result<(), HandlerError> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_dead_letters_are_redriven_while_their_progress_is_shown() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    place
        .queue
        .enqueue_all("mail", &(0..1000).map(|n| NewMessage::new(n.to_string())).collect::<Vec<_>>())
        .await;
    place.queue.dead_letter("mail", "the mail server is away").await;
    place.queue.enqueue_all("mail", &[NewMessage::new("another")]).await;
    place.queue.dead_letter("mail", "no such address").await;
    let mut operator = place.signed_in("operator").await;
    let page = operator.read("/dead/mail").await;
    for shown in ["the mail server is away", "no such address", "1\u{202f}000"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let nothing = operator.ask("/dead/mail/redrive", &[("error", "")]).await;
    assert_eq!(nothing.status, 422, "nothing named is not all: {}", nothing.text);
    let fields = [("error", "the mail server is away"), ("cause", "handler")];
    let begun = operator.ask("/dead/mail/redrive", &fields).await;
    let run = begun.header("location").to_owned();
    assert!(run.starts_with("/runs/"), "{begun:?}");
    assert!(operator.read(&run).await.contains("redrive of"));
    let mut now = String::new();
    until("the run has ended", async || {
        now = operator.read(&format!("/api/v1{run}")).await;
        now.contains("\"state\":\"ended\"")
    })
    .await;
    assert!(now.contains("\"done\":1000"), "{now}");
    let depth = place.queue.depth("mail").await;
    assert_eq!((depth.unsettled, depth.dead), (1000, 1));
    let audit = operator.read("/audit").await;
    let entry = audit.split("<tr>").find(|row| row.contains("redrive")).expect("an entry");
    for told in
        ["operator", "127.0.0.1", "mail", "error has the mail server is away", "1\u{202f}000"]
    {
        assert!(entry.contains(told), "{told}: {entry}");
    }
    assert!(operator.read("/dead").await.contains(&run));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_deleted_only_by_who_may_and_only_those_that_are_meant() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    for error in ["no such address", "mailbox full"] {
        place.queue.enqueue_all("mail", &[NewMessage::new("a"), NewMessage::new("b")]).await;
        place.queue.dead_letter("mail", error).await;
    }
    let mut admin = place.signed_in("admin").await;
    assert_eq!(admin.ask("/dead/mail/purge", &[("error", "no such address")]).await.status, 303);
    until("they are gone", async || place.queue.depth("mail").await.dead == 2).await;
    assert!(!admin.read("/dead/mail").await.contains("no such address"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_paused_gives_consumers_nothing_until_it_is_resumed() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let mut operator = place.signed_in("operator").await;
    let paused = operator.ask("/topics/mail/access", &[("access", "write-only")]).await;
    assert_eq!(paused.header("location"), "/topics/mail");
    let resume = "Resume consumers";
    until("seen", async || operator.read("/topics/mail").await.contains(resume)).await;
    assert_eq!(place.access("mail").await, "write-only");
    place.queue.enqueue_all("mail", &[NewMessage::new("a")]).await;
    let resumed = operator.ask("/topics/mail/access", &[("access", "read-write")]).await;
    assert_eq!(resumed.status, 303);
    assert_eq!(place.queue.drain_raw("mail", &Fine).await.acked, 1);
    let audit = operator.read("/audit").await;
    assert_eq!(audit.matches("set-access").count(), 2, "{audit}");
    let unknown = operator.ask("/topics/none/access", &[("access", "denied")]).await;
    assert_eq!(unknown.status, 404);
    assert_eq!(
        operator.read("/audit").await.matches("set-access").count(),
        2,
        "no change, no entry"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_is_redriven_delivered_now_or_cancelled_from_its_page() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let dead = NewMessage::new("dead");
    let path = format!("/messages/mail/{}", dead.msg_id);
    place.queue.enqueue_all("mail", &[dead]).await;
    place.queue.dead_letter("mail", "no").await;
    let mut admin = place.signed_in("admin").await;
    assert_eq!(admin.ask(&format!("{path}/redrive"), &[]).await.status, 303);
    assert_eq!(place.queue.depth("mail").await.unsettled, 1);
    let again = admin.ask(&format!("{path}/redrive"), &[]).await;
    assert_eq!(again.status, 422, "{}", again.text);
    let hour = std::time::Duration::from_secs(3600);
    let (now, never) =
        (NewMessage::new("now").with_delay(hour), NewMessage::new("never").with_delay(hour));
    let paths = [&now, &never].map(|message| format!("/messages/mail/{}", message.msg_id));
    place.queue.enqueue_all("mail", &[now, never]).await;
    assert_eq!(admin.ask(&format!("{}/deliver", paths[0]), &[]).await.status, 303);
    assert_eq!(admin.ask(&format!("{}/cancel", paths[1]), &[]).await.status, 303);
    assert_eq!(
        place.queue.depth("mail").await.scheduled,
        1,
        "the one that is due and not yet promoted"
    );
    let audit = admin.read("/audit").await;
    for action in ["redrive", "reschedule", "cancel"] {
        assert!(audit.contains(action), "{action}: {audit}");
    }
}
