//! How the pages look: each is accessible, in light, in the dark and on a phone, and the test takes
//! its picture.

use std::time::Duration;

use rowmq_core::NewMessage;
use rowmq_core::model::{Sampling, TopicSettings};
use rowmq_test::{Program, until};
use serde_json::json;

use crate::browser::chromium::{Chromium, Scheme};
use crate::browser::fixture::Fixture;

/// The errors of the dead letters, and how many dead letters have each.
const ERRORS: [(&str, usize); 3] = [
    ("550 5.1.1 <ada@example.org>: no such user", 12),
    ("452 4.2.2 mailbox full, try again later", 5),
    ("connection refused by smtp.example.org:25 (is it behind the firewall again?)", 31),
];

/// A fleet at work. It ends with the test.
struct Fleet {
    _programs: Vec<Program>,
    /// A dead letter.
    dead: String,
}

async fn fleet(place: &Fixture) -> Fleet {
    let settings = TopicSettings { trace: Sampling::ALL, ..TopicSettings::default() };
    place.queue.topic_with("mail", &settings).await;
    for line in [
        "topic create invoices",
        "topic create orders --kind stream --partitions 2",
        "group create orders@billing",
        "group create orders@caches --broadcast",
        "cron set nightly invoices --cron @daily --body report",
        "cron set heartbeat mail --cron @hourly --body fine",
    ] {
        place.rowmq(line);
    }
    let mut dead = String::new();
    for (error, count) in ERRORS {
        let body = r#"{"to":"ada@example.org","subject":"Your order is on its way","parcel":4711}"#;
        let message = || {
            NewMessage::new(body)
                .with_key("customer-7")
                .with_biz_id("order-1")
                .with_header("tenant", "acme")
        };
        let messages: Vec<_> = (0..count).map(|_| message()).collect();
        place.queue.enqueue_all("mail", &messages).await;
        place.queue.dead_letter("mail", error).await;
        dead = messages[0].msg_id.to_string();
    }
    let slow: Vec<_> = (0..8).map(|_| NewMessage::new("slow")).collect();
    place.queue.enqueue_all("mail", &slow).await;
    let hours = |n: u64| Duration::from_secs(3600 * n);
    let later: Vec<_> = (1..40).map(|n| NewMessage::new("later").with_delay(hours(n))).collect();
    place.queue.enqueue_all("invoices", &later).await;
    let waiting: Vec<_> = (0..700).map(|n| NewMessage::new(n.to_string())).collect();
    place.queue.enqueue_all("invoices", &waiting).await;
    place.queue.enqueue_all("orders", &waiting).await;
    let consumers = ["mail", "orders@billing"].map(|topic| place.consumer(topic));
    let programs = consumers.into_iter().chain([place.start("rowmq-janitor", &[])]).collect();
    Fleet { _programs: programs, dead }
}

/// Returns what is wrong with the open page.
async fn wrong(ada: &Chromium, page: &str) -> Vec<String> {
    let mut wrong = ada.violations().await;
    let wide = "const { clientWidth: width, scrollWidth } = document.documentElement;
        if (scrollWidth <= width) return [];
        return [...document.body.querySelectorAll('*')]
          .filter((it) => it.getBoundingClientRect().right > width && !it.closest('.wide'))
          .map((it) => `too wide: ${it.outerHTML.slice(0, 200)}`)";
    let wide = ada.script(wide, json!([])).await;
    wrong.extend(serde_json::from_value::<Vec<String>>(wide).expect("texts"));
    wrong.extend(ada.complaints().await);
    wrong.into_iter().map(|sentence| format!("{page}: {sentence}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_for_everybody_and_its_picture_is_taken() {
    let place = Fixture::new().await;
    let fleet = fleet(&place).await;
    let Some(ada) = Chromium::before(place.console.address()).await else { return };
    ada.open("/").await;
    let mut found = wrong(&ada, "sign-in").await;
    ada.picture("sign-in").await;
    crate::browser::fixture::sign_in(&ada).await;
    // A run, and the pages' recent figures, take a while.
    ada.open("/dead/mail?error=452").await;
    ada.click_in("main > .acts", "Redrive these").await;
    ada.reads("#run [role=status]", "ended 5 dead letters.").await;
    let run = ada.path().await;
    ada.open("/").await;
    until("plots are drawn", async || {
        ada.script("return document.querySelector('.plot .line')?.points.length ?? 0", json!([]))
            .await
            .as_u64()
            > Some(3)
    })
    .await;
    let message = format!("/messages/mail/{}", fleet.dead);
    let pages = [
        ("overview", "/"),
        ("topics", "/topics"),
        ("topic", "/topics/mail"),
        ("stream", "/topics/orders"),
        ("messages", "/messages?topic=mail&state=dead"),
        ("message", &message),
        ("dead", "/dead"),
        ("dead-letters", "/dead/mail"),
        ("run", &run),
        ("scheduled", "/scheduled"),
        ("scheduled-topic", "/scheduled/invoices"),
        ("recurring", "/recurring"),
        ("groups", "/groups"),
        ("group", "/groups/orders@billing"),
        ("members", "/groups/orders@caches"),
        ("workers", "/workers"),
        ("janitor", "/janitor"),
        ("audit", "/audit"),
        ("nowhere", "/nowhere"),
    ];
    for (scheme, is_phone) in [(Scheme::Light, false), (Scheme::Dark, false), (Scheme::Light, true)]
    {
        ada.prefer(scheme).await;
        ada.narrow(is_phone).await;
        for (name, path) in pages {
            ada.open(path).await;
            let title = match (scheme, is_phone) {
                (_, true) => format!("{name}-phone"),
                (Scheme::Dark, _) => format!("{name}-dark"),
                (Scheme::Light, _) => name.to_owned(),
            };
            ada.picture(&title).await;
            found.extend(wrong(&ada, &title).await);
        }
    }
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/console.md");
    let document = std::fs::read_to_string(document).expect("the console's page");
    let unshown =
        pages.iter().filter(|(name, _)| !document.contains(&format!("console/{name}.png")));
    found.extend(unshown.map(|(name, _)| format!("{name}: docs/console.md does not show it")));
    // The page `nowhere` does not exist, and the browser complains each time.
    found.retain(|sentence| !(sentence.starts_with("nowhere") && sentence.contains("404")));
    assert_eq!(found, Vec::<String>::new());
    ada.close().await;
}
