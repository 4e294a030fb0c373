//! What an upgrade of the procedures does to the programs that call them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use queue_core::account::Account;
use queue_core::{migration, procedures, store};

use crate::callers::{ENQUEUE, place, row, run, session};

/// A procedure is not there: for the moment in which MySQL replaces it.
const NO_SUCH_PROCEDURE: u16 = 1305;

/// How long a program waits before it calls again.
const MOMENT: Duration = Duration::from_millis(20);

/// How many upgrades and callers: `QUEUE_UPGRADES=100 QUEUE_UPGRADE_CALLERS=32` for a long run.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |number| number.parse().expect("a number"))
}

/// Diesel's migrations want a runtime of several threads.
#[tokio::test(flavor = "multi_thread")]
async fn a_procedure_that_is_missing_is_made_again_and_who_may_call_it_stays() {
    let (database, mut own) = place().await;
    let mut caller = session(&database.account_of(Account::Caller).await).await;
    let body = format!("queue_enqueue_unique__{}", procedures::checksum());
    for name in ["queue_enqueue__current", &body] {
        run(&mut own, &format!("DROP PROCEDURE {name}")).await;
        let repaired = migration::run(database.url()).await.expect("migrated");
        let names: Vec<_> = repaired.iter().map(|pending| pending.name.clone()).collect();
        assert_eq!(names, [format!("{name}()")]);
        run(&mut caller, ENQUEUE).await;
    }
    // As an earlier release has left it, beside what is older still.
    run(&mut own, "DROP PROCEDURE queue_beat__current").await;
    let stale = "CREATE PROCEDURE queue_beat__current() COMMENT 'Calls queue_beat__00000002.' DO 0";
    run(&mut own, stale).await;
    for old in ["queue_beat__00000001", "queue_beat__00000002"] {
        run(&mut own, &format!("CREATE PROCEDURE {old}() DO 0")).await;
    }
    let repaired = migration::run(database.url()).await.expect("migrated");
    assert_eq!(repaired.len(), 1, "{repaired:?}");
    let left = "SELECT GROUP_CONCAT(ROUTINE_NAME) FROM information_schema.ROUTINES \
                WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME LIKE 'queue\\_beat\\_\\_0%'";
    assert_eq!(row::<String>(&mut own, left).await, "queue_beat__00000002");
    assert_eq!(migration::run(database.url()).await.expect("migrated"), []);
}

/// One program: its calls that failed, and the longest that it waited for one.
async fn call(mut conn: Conn, in_transaction: bool, end: Arc<AtomicBool>) -> (usize, Duration) {
    let (mut failed, mut longest) = (0, Duration::ZERO);
    while !end.load(Ordering::Relaxed) {
        if in_transaction {
            run(&mut conn, "START TRANSACTION").await;
        }
        for _ in 0..3 {
            let began = Instant::now();
            while let Err(error) = conn.query_drop(ENQUEUE).await {
                let mysql_async::Error::Server(error) = error else { panic!("{error}") };
                assert_eq!(error.code, NO_SUCH_PROCEDURE, "{error}");
                failed += 1;
                tokio::time::sleep(MOMENT).await;
            }
            longest = longest.max(began.elapsed());
        }
        if in_transaction {
            run(&mut conn, "COMMIT").await;
        }
    }
    (failed, longest)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_under_load_costs_a_caller_at_most_one_call_each_time() {
    let (database, mut own) = place().await;
    let end = Arc::new(AtomicBool::new(false));
    let account = database.account_of(Account::Caller).await;
    let mut callers = Vec::new();
    for n in 0..number("QUEUE_UPGRADE_CALLERS", 8) {
        let conn = session(&account).await;
        callers.push(tokio::spawn(call(conn, n % 2 == 0, Arc::clone(&end))));
    }
    let mut conn = database.connect().await;
    let can_replace = store::procedure::can_replace(&mut conn).await.expect("read");
    let links: Vec<_> =
        procedures::wanted().into_iter().filter(|it| it.name.ends_with("__current")).collect();
    let upgrades = number("QUEUE_UPGRADES", 20);
    for _ in 0..upgrades {
        for link in &links {
            let made = store::procedure::create(&mut conn, &link.name, &link.create, can_replace);
            made.await.expect("made again");
        }
    }
    end.store(true, Ordering::Relaxed);
    let mut slowest = Duration::ZERO;
    for caller in callers {
        let (failed, longest) = caller.await.expect("a caller");
        assert!(failed <= upgrades, "{failed} calls of {upgrades} upgrades failed");
        assert!(!can_replace || failed == 0, "MariaDB replaces a procedure at once");
        slowest = slowest.max(longest);
    }
    println!("{upgrades} upgrades, the slowest call took {slowest:?}");
    assert!(row::<u64>(&mut own, "SELECT COUNT(*) FROM queue_message").await > 0);
}
