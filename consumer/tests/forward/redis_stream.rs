use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::streams::StreamRangeReply;
use redis::{Client, Connection, FromRedisValue, cmd};
use rowmq_core::{Headers, MsgId, NewMessage, enqueue};
use rowmq_test::{PATIENCE, until};
use rustix::process::Signal;

use crate::forward::sending::{Scene, at_least_once};

/// A private Redis server.
struct Redis {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the program, and fetches it if the machine has none.
fn program() -> String {
    let tool = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/lib/tools"))
        .arg("redis-server")
        .output()
        .expect("ops/lib/tools runs");
    assert!(tool.status.success(), "{}", String::from_utf8_lossy(&tool.stderr));
    String::from_utf8(tool.stdout).expect("a path").trim().to_owned()
}

impl Redis {
    fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let folder = tempfile::tempdir().expect("a folder");
        let child = Command::new(program())
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .args(["--requirepass", "secret"])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("runs");
        let url = format!("redis://:secret@127.0.0.1:{port}/0");
        let redis = Self { child, url, _folder: folder };
        drop(redis.connect());
        redis
    }

    fn connect(&self) -> Connection {
        let client = Client::open(self.url.as_str()).expect("a URL");
        let start = Instant::now();
        loop {
            match client.get_connection() {
                Ok(connection) => return connection,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the ids of the messages in the stream, in order.
    fn ids(&self, stream: &str) -> Vec<MsgId> {
        let range: StreamRangeReply = ask(&mut self.connect(), &["XRANGE", stream, "-", "+"]);
        let id = |entry: &redis::streams::StreamId| entry.get::<String>("msg_id");
        let ids = range.ids.iter().map(|entry| id(entry).and_then(|id| id.parse().ok()));
        ids.map(|id| id.expect("an id")).collect()
    }
}

fn ask<T: FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    words[1..].iter().for_each(|word| {
        command.arg(word);
    });
    command.query(connection).expect("answered")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_is_an_entry_with_all_it_has() {
    let scene = Scene::new().await;
    let redis = Redis::start();
    let mut message = NewMessage::new(vec![0xff, 0x00]).with_key("k").with_biz_id("o-1");
    message.headers = Headers::from_iter([("tenant", "7")]);
    let mut conn = scene.database.connect().await;
    enqueue(&mut conn, &scene.topic.name, &message).await.expect("enqueued");
    let _forward = scene.forward(&["redis", "work", &redis.url, "--max-len", "1000"]);
    scene.drained().await;
    let range: StreamRangeReply = ask(&mut redis.connect(), &["XRANGE", "work", "-", "+"]);
    let [entry] = &range.ids[..] else { panic!("{} entries", range.ids.len()) };
    let field = |name: &str| entry.get::<Vec<u8>>(name).expect(name);
    assert_eq!(field("msg_id"), message.msg_id.to_string().as_bytes());
    assert_eq!((field("topic"), field("delivery_no")), (b"work".to_vec(), b"1".to_vec()));
    assert_eq!((field("key"), field("biz_id")), (b"k".to_vec(), b"o-1".to_vec()));
    assert_eq!(field("headers"), br#"{"tenant":"7"}"#);
    assert_eq!(field("body"), [0xff, 0x00]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_killed_in_the_middle_loses_nothing_and_repeats_by_id() {
    let scene = Scene::new().await;
    let redis = Redis::start();
    let sent = scene.enqueue((0..20_000).map(|n| n.to_string())).await;
    let arguments = ["redis", "work", &redis.url, "--stream", "events", "--batch", "50"];
    for stop_at in [1000, 4000] {
        let forward = scene.forward(&arguments);
        let mut connection = redis.connect();
        until("in the middle", async || {
            ask::<usize>(&mut connection, &["XLEN", "events"]) >= stop_at
        })
        .await;
        forward.signal(Signal::KILL);
    }
    assert!(redis.ids("events").len() < sent.len(), "it was killed too late");
    scene.forget_crashes().await;
    let _last = scene.forward(&arguments);
    scene.drained().await;
    let again = at_least_once(&sent, &redis.ids("events"));
    println!("killed twice in the middle of 20000: {again} arrived again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_takes_nothing_is_waited_for() {
    let scene = Scene::new().await;
    let redis = Redis::start();
    let mut connection = redis.connect();
    let _ok: String = ask(&mut connection, &["SET", "work", "no stream"]);
    let sent = scene.enqueue((0..10).map(|n| n.to_string())).await;
    let mut forward = scene.forward(&["redis", "work", &redis.url]);
    until("claimed", async || scene.left().await.1 == 10).await;
    let _one: u32 = ask(&mut connection, &["DEL", "work"]);
    scene.drained().await;
    assert_eq!(redis.ids("work"), sent);
    forward.signal(Signal::TERM);
    let (_, said) = forward.ended().await;
    assert!(!said.contains("secret"), "{said}");
}
