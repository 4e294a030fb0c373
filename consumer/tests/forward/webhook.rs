use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use diesel::QueryableByName;
use diesel::sql_types::Binary;
use diesel_async::RunQueryDsl;
use hmac::{Hmac, KeyInit, Mac};
use rowmq_core::MsgId;
use rowmq_core::model::{RetryPolicy, TopicSettings};
use rowmq_test::until;
use rustix::process::Signal;
use serde_json::Value;
use sha2::Sha256;
use tokio::net::TcpListener;

use crate::forward::sending::{Scene, at_least_once, ids, parsed};

/// The content of one request.
#[derive(Debug, Clone)]
struct Request {
    headers: HeaderMap,
    body: Bytes,
    lines: Vec<Value>,
    answer: StatusCode,
}

/// A web service that keeps what it has confirmed.
struct Service {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Service {
    async fn start(
        answer: impl Fn(&[Value]) -> StatusCode + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").await.expect("bound"), answer)
    }

    fn at(
        listener: TcpListener,
        answer: impl Fn(&[Value]) -> StatusCode + Clone + Send + Sync + 'static,
    ) -> Self {
        let url = format!("http://{}/in", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&requests);
        let take = move |headers: HeaderMap, body: Bytes| async move {
            let lines: Vec<_> =
                body.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()).map(parsed).collect();
            let answer = answer(&lines);
            record.lock().expect("kept").push(Request { headers, body, lines, answer });
            answer
        };
        let app = Router::new().route("/in", post(take));
        tokio::spawn(async move { axum::serve(listener, app).await.expect("served") });
        Self { url, requests }
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("kept").clone()
    }

    /// Returns the ids of the messages it has confirmed, in order.
    fn confirmed(&self) -> Vec<MsgId> {
        let requests = self.requests();
        let taken = requests.iter().filter(|request| request.answer.is_success());
        taken.flat_map(|request| ids(&request.lines)).collect()
    }
}

async fn dead_letters(scene: &Scene) -> Vec<MsgId> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Binary)]
        msg_id: Vec<u8>,
    }
    let mut conn = scene.database.connect().await;
    let query = diesel::sql_query("SELECT msg_id FROM queue_dead");
    let rows: Vec<Row> = query.load(&mut conn).await.expect("listed");
    rows.iter().map(|row| MsgId::from_bytes(&row.msg_id).expect("an id")).collect()
}

const ALLOW: [&str; 2] = ["--allow", "127.0.0.1"];

#[tokio::test(flavor = "multi_thread")]
async fn batches_come_in_order_with_a_key_and_a_signature() {
    let scene = Scene::new().await;
    let sent = scene.enqueue((0..250).map(|n| n.to_string())).await;
    let service = Service::start(|_| StatusCode::NO_CONTENT).await;
    let secret = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(secret.path(), "secret\n").expect("written");
    let path = secret.path().to_str().expect("a plain path");
    let arguments = ["webhook", "work", &service.url, "--secret-file", path];
    let _forward = scene.forward(&[&arguments[..], &ALLOW].concat());
    scene.drained().await;
    assert_eq!(service.confirmed(), sent);
    let requests = service.requests();
    assert!(requests.len() < 50, "{} requests", requests.len());
    for request in &requests {
        let header = |name: &str| request.headers[name].to_str().expect("text");
        assert_eq!(header("queue-topic"), "work");
        assert_eq!(header("content-type"), "application/x-ndjson");
        assert_eq!(header("queue-messages"), request.lines.len().to_string());
        let mut mac = Hmac::<Sha256>::new_from_slice(b"secret").expect("a key");
        let (timestamp, key) = (header("queue-timestamp"), header("idempotency-key"));
        mac.update(format!("{timestamp}.{key}.").as_bytes());
        mac.update(&request.body);
        let hash = mac.finalize().into_bytes();
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(header("queue-signature"), format!("v1={hex}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_killed_in_the_middle_loses_nothing_and_repeats_by_id() {
    let scene = Scene::new().await;
    let sent = scene.enqueue((0..3000).map(|n| n.to_string())).await;
    let service = Service::start(|_| {
        // As slow as a real service: the kill comes while a batch is in flight.
        std::thread::sleep(Duration::from_millis(5));
        StatusCode::OK
    })
    .await;
    let arguments = [&["webhook", "work", &service.url][..], &ALLOW].concat();
    for stop_at in [800, 1700] {
        let forward = scene.forward(&arguments);
        until("in the middle", async || service.confirmed().len() >= stop_at).await;
        forward.signal(Signal::KILL);
    }
    scene.forget_crashes().await;
    let _last = scene.forward(&arguments);
    scene.drained().await;
    let again = at_least_once(&sent, &service.confirmed());
    println!("killed twice in the middle of 3000: {again} arrived again");
}

/// An outage is not the messages' fault: they wait, in order, and are not charged.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_away_or_busy_is_waited_for_and_charges_nothing() {
    let settings = TopicSettings { max_attempts: 1, ..TopicSettings::default() };
    let scene = Scene::with(&settings).await;
    let sent = scene.enqueue((0..150).map(|n| n.to_string())).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let url = format!("http://{address}/in");
    let _forward = scene.forward(&[&["webhook", "work", &url][..], &ALLOW].concat());
    until("claimed", async || scene.left().await.1 > 0).await;
    let listener = TcpListener::bind(address).await.expect("bound again");
    let busy = Arc::new(Mutex::new(
        [StatusCode::UNAUTHORIZED, StatusCode::SERVICE_UNAVAILABLE, StatusCode::FOUND].to_vec(),
    ));
    let service =
        Service::at(listener, move |_| busy.lock().expect("kept").pop().unwrap_or(StatusCode::OK));
    scene.drained().await;
    assert_eq!(service.confirmed(), sent);
    assert_eq!(service.requests().iter().filter(|r| !r.answer.is_success()).count(), 3);
    assert!(service.requests().iter().all(|r| r.lines.iter().all(|l| l["delivery_no"] == 1)));
}

/// The message is claimed repeatedly until then, and sent only when the service wants it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_longer_than_a_run_may_take_is_kept_and_charges_nothing() {
    // It is given back about half a second before the limit; on a busy machine, that may be too
    // late once.
    let max_run_time = Some(Duration::from_secs(5));
    let settings = TopicSettings { max_attempts: 2, max_run_time, ..TopicSettings::default() };
    let scene = Scene::with(&settings).await;
    let sent = scene.enqueue((0..5).map(|n| n.to_string())).await;
    let requests = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&requests);
    let take = move |body: Bytes| async move {
        let lines = body.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()).map(parsed);
        let mut requests = record.lock().expect("kept");
        requests.push(lines.collect::<Vec<_>>());
        let busy = requests.len() == 1;
        let answer = if busy { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        (answer, [("retry-after", "12")])
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let url = format!("http://{}/in", listener.local_addr().expect("an address"));
    let app = Router::new().route("/in", post(take));
    tokio::spawn(async move { axum::serve(listener, app).await.expect("served") });
    let arguments = [&["webhook", "work", &url, "--batch", "5"][..], &ALLOW].concat();
    let _forward = scene.forward(&arguments);
    scene.drained().await;
    let requests = requests.lock().expect("kept").clone();
    assert_eq!(requests.len(), 2, "once too early, and once when it was asked for");
    assert_eq!(ids(&requests[1]), sent);
    let delivery_no = requests[1][0]["delivery_no"].as_u64();
    assert!(delivery_no.is_some_and(|n| n > 1), "given back before: {delivery_no:?}");
    assert!(dead_letters(&scene).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_refused_is_alone_in_it() {
    let retry = RetryPolicy::Fixed(Duration::from_millis(10));
    let scene = Scene::with(&TopicSettings { retry, ..TopicSettings::default() }).await;
    let body = |n: usize| match n {
        17 | 180 => format!("{n} bad"),
        99 => "99 odd".to_owned(),
        n => n.to_string(),
    };
    let sent = scene.enqueue((0..200).map(body)).await;
    let odd = Arc::new(Mutex::new(20));
    let service = Service::start(move |lines| {
        let has =
            |word: &str| lines.iter().any(|l| l["body"].as_str().expect("text").contains(word));
        let mut odd = odd.lock().expect("kept");
        if has("bad") {
            return StatusCode::UNPROCESSABLE_ENTITY;
        }
        if has("odd") && *odd > 0 {
            *odd -= 1;
            return StatusCode::INTERNAL_SERVER_ERROR;
        }
        StatusCode::OK
    })
    .await;
    let _forward = scene.forward(&[&["webhook", "work", &service.url][..], &ALLOW].concat());
    scene.drained().await;
    let dead_ids = dead_letters(&scene).await;
    assert_eq!(dead_ids.len(), 2);
    assert!(dead_ids.contains(&sent[17]) && dead_ids.contains(&sent[180]));
    let confirmed = service.confirmed();
    let expected: Vec<_> = sent.iter().copied().filter(|id| !dead_ids.contains(id)).collect();
    assert_eq!(at_least_once(&expected, &confirmed), 0, "each of the others once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_that_waits_stops_at_once_and_gives_back_what_it_holds() {
    let scene = Scene::new().await;
    scene.enqueue((0..50).map(|n| n.to_string())).await;
    let service = Service::start(|_| StatusCode::SERVICE_UNAVAILABLE).await;
    let mut forward = scene.forward(&[&["webhook", "work", &service.url][..], &ALLOW].concat());
    until("waiting", async || service.requests().len() >= 2).await;
    forward.signal(Signal::TERM);
    let (status, said) = forward.ended().await;
    assert!(status.success(), "{said}");
    assert!(said.contains("The receiver takes nothing"), "{said}");
    assert_eq!(scene.left().await, (50, 0));
}
