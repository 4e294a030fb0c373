//! The pages follow a fleet at work without being loaded again.

use rowmq_core::NewMessage;
use rowmq_test::until;
use serde_json::json;

use crate::browser::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn consumers_stop_when_their_topic_is_paused_and_go_on_when_it_is_resumed() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let _consumers = [place.consumer("mail"), place.consumer("mail")];
    let message = [NewMessage::new("fine")];
    place.queue.enqueue_all("mail", &message).await;
    until("they work", async || place.queue.depth("mail").await.unsettled == 0).await;
    let Some(ada) = place.signed_in().await else { return };
    ada.open("/topics/mail").await;
    ada.click("Pause consumers").await;
    ada.reads("main", "Resume consumers").await;
    // Consumers see the switch with their next look at the settings: then the count stays the same
    // ten times in a row.
    let mut left = 0;
    until("they have stopped", async || {
        place.queue.enqueue_all("mail", &message).await;
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let now = place.queue.depth("mail").await.unsettled;
        let grew = now == left + 1;
        left = now;
        grew && left >= 10
    })
    .await;
    until("the page shows what is left", async || {
        let left = place.queue.depth("mail").await.unsettled;
        left >= 10 && ada.text(".figure:nth-child(1)").await == format!("{left} ready")
    })
    .await;
    ada.click("Resume consumers").await;
    ada.reads_only(".figure:nth-child(1)", "0 ready").await;
    assert_eq!(place.queue.depth("mail").await.unsettled, 0);
    // The page also shows what another user changes.
    ada.reads("#access", "Pause consumers").await;
    place.rowmq("topic access mail write-only");
    ada.reads("#access", "Resume consumers").await;
    ada.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_killed_disappears_and_what_it_claimed_is_rescued() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let mut victim = place.consumer("mail");
    place.queue.enqueue_all("mail", &[NewMessage::new("slow")]).await;
    let Some(ada) = place.signed_in().await else { return };
    ada.open("/workers").await;
    let claims = "#workers tbody td:nth-child(7)";
    ada.reads_only(claims, "1").await;
    let signs = "return [...document.querySelectorAll('#workers .good')].map((it) => it.innerText)";
    assert_eq!(ada.script(signs, json!([])).await, json!(["lock", "list", "beat"]));
    victim.kill();
    let _janitor = place.start("rowmq-janitor", &[]);
    ada.reads("#workers", "start a consumer").await;
    // Another consumer gets it: the message is a suspect now, and is claimed alone.
    let _heir = place.consumer("mail");
    ada.reads_only(claims, "1").await;
    ada.click("Janitor").await;
    ada.reads("main", "rescue").await;
    ada.close().await;
}
