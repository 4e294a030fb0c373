//! What users do in the browser: sign in, search, and repair.

use diesel::sql_query;
use diesel::sql_types::{Integer, Unsigned};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_core::NewMessage;
use rowmq_test::until;
use serde_json::json;

use crate::browser::chromium::Chromium;
use crate::browser::fixture::{Fixture, sign_in};

#[tokio::test(flavor = "multi_thread")]
async fn somebody_signs_in_searches_and_opens_a_message() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let script = "<script>window.stranger = 'here'</script>";
    let messages = [
        NewMessage::new(r#"{"to":"ada@example.org"}"#).with_biz_id("order-17"),
        NewMessage::new(script).with_biz_id("order-18").with_key(script).with_header("by", script),
    ];
    place.queue.enqueue_all("mail", &messages).await;
    let Some(ada) = Chromium::before(place.console.address()).await else { return };
    ada.open("/messages").await;
    assert_eq!(ada.path().await, "/sign-in");
    sign_in(&ada).await;
    assert_eq!(ada.path().await, "/messages", "where they wanted to go");
    until("the console has seen the topic", async || {
        ada.open("/messages").await;
        ada.text("select[name=topic]").await.contains("mail")
    })
    .await;
    ada.write("select[name=topic]", "mail").await;
    ada.write("input[name=biz_id]", "order-17").await;
    ada.click("Search").await;
    ada.reads("main", "order-17").await;
    let id = messages[0].msg_id.to_string();
    ada.click_in("tbody", &id).await;
    ada.reads("h1", "Message").await;
    ada.reads("pre.body", r#""to": "ada@example.org""#).await;
    // Text from producers is shown as text everywhere.
    ada.open(&format!("/messages/mail/{}", messages[1].msg_id)).await;
    ada.reads("pre.body", script).await;
    assert_eq!(ada.text("main").await.matches(script).count(), 3);
    place.queue.dead_letter("mail", script).await;
    for path in ["/dead/mail", "/messages?topic=mail&state=dead", "/topics/mail"] {
        ada.open(path).await;
        assert!(ada.script("return window.stranger ?? null", json!([])).await.is_null());
    }
    assert_eq!(ada.complaints().await, Vec::<String>::new());
    ada.click("Sign out").await;
    ada.reads("h1", "Sign in").await;
    ada.close().await;
}

/// Every page and its keys work without a mouse.
#[tokio::test(flavor = "multi_thread")]
async fn keys_lead_everywhere_and_times_are_the_readers_own() {
    let place = Fixture::new().await;
    let Some(ada) = place.signed_in().await else { return };
    for (key, path) in [("w", "/workers"), ("d", "/dead"), ("p", "/groups"), ("a", "/audit")] {
        ada.press(&format!("g{key}")).await;
        until(path, async || ada.path().await == path).await;
    }
    let mut shown = Vec::new();
    for zone in ["Asia/Tokyo", "America/New_York"] {
        ada.travel(zone).await;
        ada.open("/audit").await;
        let time = ada.script(
            "const it = document.querySelector('tbody time'); return [it.title, it.innerText,
               new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium',
                 timeZone: arguments[0] }).format(new Date(it.dateTime))]",
            json!([zone]),
        );
        let [exact, read, own] = serde_json::from_value(time.await).expect("three texts");
        let exact: String = exact;
        assert!(exact.ends_with(" UTC"), "{exact}");
        assert_eq!(read, own, "in {zone}");
        shown.push(read);
    }
    assert_ne!(shown[0], shown[1]);
    ada.press("?").await;
    ada.reads("dialog[open]", "g w: Workers").await;
    ada.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_dead_letters_are_redriven_and_their_progress_is_seen() {
    let place = Fixture::new().await;
    let mail = place.queue.topic("mail").await;
    let messages: Vec<_> = (0..1000).map(|n| NewMessage::new(n.to_string())).collect();
    place.queue.enqueue_all("mail", &messages).await;
    place.queue.dead_letter("mail", "the mail server is away").await;
    let Some(ada) = place.signed_in().await else { return };
    // The last one is locked, so that the run stays half-way until the lock is released.
    let mut holder = place.queue.connect().await;
    holder.batch_execute("BEGIN").await.expect("begun");
    let hold = "SELECT id FROM queue_dead WHERE topic_id = ? ORDER BY died_at DESC, id DESC LIMIT 1 FOR UPDATE";
    let hold = sql_query(hold).bind::<Unsigned<Integer>, _>(mail.id.0);
    hold.execute(&mut holder).await.expect("held");
    ada.open("/dead/mail").await;
    ada.click_in("tbody", "Redrive these").await;
    ada.reads("#run [role=status]", "500 done, 500 looked at").await;
    assert_eq!(ada.script("return document.querySelector('progress').value", json!([])).await, 500);
    holder.batch_execute("ROLLBACK").await.expect("let go");
    // It is the same page: the test does not load it again.
    ada.reads("#run [role=status]", "ended 1000 dead letters.").await;
    let depth = place.queue.depth("mail").await;
    assert_eq!((depth.unsettled, depth.dead), (1000, 0));
    ada.open("/audit").await;
    ada.reads("tbody tr", "redrive").await;
    ada.reads("tbody tr", "1000").await;
    ada.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_put_back_to_the_start_of_its_stream() {
    let place = Fixture::new().await;
    place.rowmq("topic create orders --kind stream --partitions 2");
    place.rowmq("group create orders@billing");
    let messages: Vec<_> = (0..100).map(|n| NewMessage::new(n.to_string())).collect();
    place.queue.enqueue_all("orders", &messages).await;
    let consumer = place.consumer("orders@billing");
    let Some(ada) = place.signed_in().await else { return };
    until("all have been handled", async || {
        ada.open("/groups/orders@billing").await;
        let marks = "return [...document.querySelectorAll('[aria-label=Partitions] tbody tr')]
            .reduce((sum, row) => sum + Number(row.cells[4].innerText), 0)";
        ada.script(marks, json!([])).await == 100
    })
    .await;
    drop(consumer);
    ada.reads_only("#group [aria-label=Groups] td:nth-child(4)", "0").await;
    ada.write("input[name=to]", "earliest").await;
    ada.tick("form[action$=reset] input[type=checkbox]").await;
    ada.click("Reset").await;
    ada.reads_only("#group [aria-label=Groups] td:nth-child(4)", "100").await;
    ada.open("/audit").await;
    ada.reads("tbody tr", "orders@billing").await;
    ada.reads("tbody tr", "to earliest").await;
    ada.close().await;
}
