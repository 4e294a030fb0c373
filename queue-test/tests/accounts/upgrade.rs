//! What an upgrade of the procedures means for the programs that call them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use diesel_async::SimpleAsyncConnection;
use rowmq_core::account::Account;
use rowmq_core::connection::{ServerUrl, SessionKind, connect};
use rowmq_core::migration::{self, Pending};
use rowmq_core::{AsyncMysqlConnection, procedures};

use crate::callers::{ENQUEUE, place, row, run, session};

/// Diesel's migrations need a runtime with several threads.
#[tokio::test(flavor = "multi_thread")]
async fn a_procedure_that_is_missing_is_made_again_and_who_may_call_it_stays() {
    let (database, mut own) = place().await;
    // The first migration makes them, and no database keeps them.
    let former = "SELECT COUNT(*) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE() \
                  AND ROUTINE_NAME IN ('queue_enqueue', 'queue_enqueue_at', 'queue_enqueue_unique')";
    assert_eq!(row::<u64>(&mut own, former).await, 0);
    let mut caller = session(&database.account_of(Account::Caller).await).await;
    let body = format!("queue_enqueue__{}", procedures::checksum());
    run(&mut own, &format!("DROP PROCEDURE {body}")).await;
    let repaired = migration::run(database.url()).await.expect("migrated");
    assert_eq!(names(&repaired), [format!("{body}()")]);
    run(&mut caller, ENQUEUE).await;
    // An upgrade never replaces links that are in use: it creates the other ones, which are used
    // from then on.
    let all = procedures::public().count();
    for (gone, made) in [("odd", "even"), ("even", "odd"), ("odd", "even")] {
        run(&mut own, &format!("DROP PROCEDURE queue_send__{gone}")).await;
        let pending = migration::pending(database.url()).await.expect("asked");
        let repaired = migration::run(database.url()).await.expect("migrated");
        assert_eq!(repaired, pending);
        assert!(names(&repaired).contains(&format!("queue_send__{made}()")), "{repaired:?}");
        assert!(repaired.len() <= all, "{repaired:?}");
        run(&mut caller, ENQUEUE).await;
        assert_eq!(row::<String>(&mut own, "SELECT links FROM queue_installation").await, made);
    }
    // The state that an earlier release has left, beside older links.
    make_stale(&mut database.connect().await, "queue_beat").await;
    for old in ["queue_beat__00000001", "queue_beat__00000002"] {
        run(&mut own, &format!("CREATE PROCEDURE {old}() DO 0")).await;
    }
    migration::run(database.url()).await.expect("migrated");
    let left = "SELECT GROUP_CONCAT(ROUTINE_NAME) FROM information_schema.ROUTINES \
                WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME LIKE 'queue\\_beat\\_\\_0000%'";
    assert_eq!(row::<String>(&mut own, left).await, "queue_beat__00000002");
    assert_eq!(migration::run(database.url()).await.expect("migrated"), []);
}

/// How many upgrades run beside how many callers; `ROWMQ_UPGRADES=100` is the full measure of the
/// promise.
fn measure(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Makes the links look like those of another release.
async fn make_stale(conn: &mut AsyncMysqlConnection, name: &str) {
    let short = conn.batch_execute("SET SESSION lock_wait_timeout = 1").await;
    short.expect("set");
    for links in ["even", "odd"] {
        let alter = format!("ALTER PROCEDURE {name}__{links} COMMENT 'Calls {name}__00000002.'");
        while let Err(error) = conn.batch_execute(&alter).await {
            let text = error.to_string();
            if text.contains("does not exist") {
                break;
            }
            assert!(text.contains("Lock wait timeout"), "{text}");
        }
    }
}

fn names(repaired: &[Pending]) -> Vec<String> {
    repaired.iter().map(|pending| pending.name.clone()).collect()
}

/// Enqueues until it is stopped, with or without a transaction around two calls; returns the
/// longest call. Between DROP and CREATE the procedure does not exist (1305), and the call is
/// repeated.
async fn call(url: ServerUrl, in_transaction: bool, stop: Arc<AtomicBool>) -> Duration {
    let mut conn = connect(&url, SessionKind::Plain).await.expect("a session");
    let mut slowest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        if in_transaction {
            conn.batch_execute("BEGIN").await.expect("begun");
        }
        for _ in 0..2 {
            let mut missing = 0;
            loop {
                let start = Instant::now();
                let called = conn.batch_execute(ENQUEUE).await;
                slowest = slowest.max(start.elapsed());
                let Err(error) = called else { break };
                missing += 1;
                let text = error.to_string();
                assert!(text.contains("does not exist") && missing < 2, "{missing}: {text}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        if in_transaction {
            conn.batch_execute("COMMIT").await.expect("committed");
        }
    }
    slowest
}

/// The worst that SQL callers, half of them in transactions, get from an upgrade is "call again".
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_under_load_fails_no_call_for_good() {
    let (database, _own) = place().await;
    let mut own = database.connect().await;
    let (upgrades, callers) = (measure("ROWMQ_UPGRADES", 3), measure("ROWMQ_UPGRADE_CALLERS", 8));
    let url = database.account_of(Account::Caller).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..callers)
        .map(|n| tokio::spawn(call(url.clone(), n % 2 == 0, Arc::clone(&stop))))
        .collect();
    for _ in 0..upgrades {
        make_stale(&mut own, "queue_send").await;
        let repaired = migration::run(database.url()).await.expect("migrated");
        let made = names(&repaired);
        assert!(made.iter().any(|name| name.starts_with("queue_send__")), "{made:?}");
    }
    stop.store(true, Ordering::Relaxed);
    let mut slowest = Duration::ZERO;
    for caller in callers {
        slowest = slowest.max(caller.await.expect("called"));
    }
    println!("{upgrades} upgrades, slowest call {} ms", slowest.as_millis());
}
