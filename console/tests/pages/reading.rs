//! What the pages show.

use std::time::Duration;

use rowmq_core::account::Account;
use rowmq_core::connection::transaction;
use rowmq_core::model::{MsgId, OffsetSpec, Sampling, TopicSettings};
use rowmq_core::stream::group::{create_group, create_stream, group_settings};
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::{NewMessage, TopicName, store};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{TestQueue, until};

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn every_page_says_what_to_do_where_there_is_nothing() {
    let place = Fixture::new().await;
    let mut viewer = place.signed_in("viewer").await;
    for (path, sentence) in [
        ("/", "There are no topics"),
        ("/topics", "rowmq topic create NAME"),
        ("/messages", "Choose a topic"),
        ("/dead", "No message is dead"),
        ("/scheduled", "No message waits for its time"),
        ("/recurring", "There is no schedule"),
        ("/groups", "There are no groups"),
        ("/workers", "start a consumer"),
        ("/janitor", "No duty has run yet"),
        ("/audit", "sign-in"),
    ] {
        let page = viewer.read(path).await;
        assert!(page.contains(sentence), "{path}: {page}");
    }
    let page = viewer.get("/topics/none").await;
    assert_eq!(page.status, 404);
    assert!(
        page.text.contains("There is no topic &#39;none&#39;")
            || page.text.contains("There is no topic 'none'"),
        "{}",
        page.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_found_by_what_is_known_of_it_and_shown_with_all_that_happened() {
    let place = Fixture::new().await;
    let settings = TopicSettings { trace: Sampling::ALL, ..TopicSettings::default() };
    place.queue.topic_with("mail", &settings).await;
    let message = NewMessage::new(r#"{"to":"ada"}"#)
        .with_key("customer-7")
        .with_biz_id("order-1")
        .with_header("tenant", "acme");
    let id = message.msg_id;
    place.queue.enqueue_all("mail", &[message, NewMessage::new("another")]).await;
    let mut operator = place.signed_in("operator").await;
    for query in ["biz_id=order-1", "key=customer-7", "header=tenant%3Dacme", &format!("id={id}")] {
        let page = operator.read(&format!("/messages?topic=mail&{query}")).await;
        assert_eq!(page.matches("href=\"/messages/mail/").count(), 1, "{query}: {page}");
        assert!(page.contains(&id.to_string()), "{query}");
    }
    let page = operator.read(&format!("/messages/mail/{id}")).await;
    for shown in ["customer-7", "order-1", "header tenant", "acme", "ready", "enqueued"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    assert!(page.contains("&quot;to&quot;: &quot;ada&quot;"), "as JSON: {page}");
    let page = operator.read(&format!("/messages/mail/{id}?as=hex")).await;
    assert!(page.contains("00000000  7b 22 74 6f"), "{page}");
    place.queue.dead_letter("mail", "the mail server said no").await;
    let page = operator.read(&format!("/messages/mail/{id}")).await;
    assert!(page.contains("the mail server said no") && page.contains("Failed runs"), "{page}");
    let alone = operator.get(&format!("/messages?id={id}")).await;
    assert_eq!(alone.header("location"), format!("/messages/mail/{id}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_goes_on_page_by_page_and_finds_each_message_once() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    place
        .queue
        .enqueue_all("mail", &(0..120).map(|n| NewMessage::new(n.to_string())).collect::<Vec<_>>())
        .await;
    let mut viewer = place.signed_in("viewer").await;
    let (mut path, mut found) = ("/messages?topic=mail&state=ready".to_owned(), Vec::new());
    loop {
        let page = viewer.read(&path).await;
        let links = page.split("href=\"/messages/mail/").skip(1);
        found.extend(links.map(|rest| rest.split('"').next().unwrap_or_default().to_owned()));
        let Some((before, _)) = page.split_once("\">Go on searching") else { break };
        path = before.rsplit_once("href=\"").expect("a link").1.replace("&amp;", "&");
    }
    assert_eq!(found.len(), 120);
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 120, "none is shown twice");
}

/// The replica is another database, so that its content shows where a page was read.
#[tokio::test(flavor = "multi_thread")]
async fn searches_are_read_from_the_replica_and_the_rest_from_the_server() {
    let replica = TestQueue::new().await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    let url = replica.database().account_of(Account::Console).await;
    std::fs::write(file.path(), url.expose()).expect("written");
    let place = Fixture::with(&["--replica-url-file", file.path().to_str().expect("text")]).await;
    let [here, there] = ["here", "there"].map(|body| NewMessage::new(body.to_owned()));
    let (id_here, id_there) = (here.msg_id, there.msg_id);
    for (queue, message) in [(&place.queue, here), (&replica, there)] {
        queue.topic("mail").await;
        queue.enqueue("mail", &message).await;
        queue.dead_letter("mail", &message.msg_id.to_string()).await;
    }
    let mut viewer = place.signed_in("viewer").await;
    for path in
        ["/messages?topic=mail&state=dead", "/api/v1/messages?topic=mail&state=dead", "/dead/mail"]
    {
        let page = viewer.read(path).await;
        let has = |id: MsgId| page.contains(&id.to_string());
        assert!(has(id_there) && !has(id_here), "{path}: {page}");
        assert!(path.starts_with("/api") || page.contains("Searched in the replica"), "{page}");
    }
    assert_eq!(viewer.get(&format!("/messages/mail/{id_here}")).await.status, 200);
    assert_eq!(viewer.get(&format!("/messages/mail/{id_there}")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_shown_in_the_order_of_its_time() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let later = |hours: u64| NewMessage::new("x").with_delay(Duration::from_secs(hours * 3600));
    let (second, first) = (later(2), later(1));
    let ids = [first.msg_id.to_string(), second.msg_id.to_string()];
    place.queue.enqueue_all("mail", &[second, first]).await;
    let page = place.signed_in("viewer").await.read("/scheduled/mail").await;
    let at = |id: &str| page.find(id).expect("shown");
    assert!(at(&ids[0]) < at(&ids[1]), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_shown_with_its_partitions_and_put_elsewhere_by_who_may() {
    let place = Fixture::new().await;
    let (stream, group) = ("orders", "orders@billing");
    let name = |text: &str| TopicName::new(text).expect("a name");
    let mut conn = place.queue.connect().await;
    transaction(&mut conn, "create", async |conn| {
        create_stream(conn, &name(stream), 2, &TopicSettings::default()).await?;
        create_group(conn, &name(group), false, OffsetSpec::Earliest, &group_settings()).await
    })
    .await
    .expect("created");
    place.queue.enqueue_all(stream, &[NewMessage::new("x")]).await;
    let log = store::topic::existing(&mut conn, &name(stream)).await.expect("it is there").id;
    sequence(&mut conn, log, 10, Contention::Wait).await.expect("sequenced");
    let mut admin = place.signed_in("admin").await;
    let page = admin.read(&format!("/groups/{group}")).await;
    assert!(page.contains("Partitions") && page.contains("No member of the group"), "{page}");
    let wrong = admin.ask(&format!("/groups/{group}/reset"), &[("to", "99")]).await;
    assert_eq!(wrong.status, 422, "{}", wrong.text);
    assert!(wrong.text.contains("lies beyond the end of a partition"), "{}", wrong.text);
    assert_eq!(admin.ask(&format!("/groups/{group}/reset"), &[("to", "latest")]).await.status, 303);
    let fields = [("from", "earliest"), ("to", "latest")];
    assert_eq!(admin.ask(&format!("/groups/{group}/replay"), &fields).await.status, 303);
    let audit = admin.read("/audit").await;
    assert!(audit.contains("reset-group") && audit.contains("replay"), "{audit}");
    assert!(audit.contains("from earliest to latest</td><td class=\"n\">1<"), "{audit}");
    assert!(admin.read("/groups").await.contains(group));
    assert!(admin.read("/topics/orders").await.contains(group));
}

/// One task queries the server for any number of viewers, so pages are also served while the server
/// does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn pages_that_are_left_open_ask_the_server_nothing() {
    let mut way = None;
    let place = Fixture::behind(&[], async |url| {
        let proxy = FaultProxy::start(&url).await;
        let through = proxy.url(&url);
        way = Some(proxy);
        through
    })
    .await;
    let proxy = way.expect("set");
    place.queue.topic("mail").await;
    let mut viewer = place.signed_in("viewer").await;
    until("it is seen", async || viewer.get("/topics/mail").await.status == 200).await;
    proxy.refuse();
    let says = "The server does not answer";
    until("the page says so", async || viewer.read("/").await.contains(says)).await;
    for path in
        ["/topics", "/topics/mail", "/groups", "/workers", "/janitor", "/dead", "/scheduled"]
    {
        let page = viewer.read(path).await;
        assert!(page.contains(says), "{path}");
    }
    assert!(viewer.read("/topics").await.contains("mail"), "what was seen last is shown");
    let search = viewer.get("/messages?topic=mail").await;
    assert_eq!(search.status, 503, "{}", search.text);
    assert!(search.text.contains("check that the server runs"), "{}", search.text);
    proxy.pass();
    until("the page is well again", async || !viewer.read("/").await.contains(says)).await;
    until("searches are, too", async || viewer.get("/messages?topic=mail").await.status == 200)
        .await;
}
