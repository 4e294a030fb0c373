//! The self-test.

use rowmq_core::connection::ServerUrl;
use rowmq_core::doctor::{Report, Verdict, examine, require};
use rowmq_core::store::doctor as ask;
use rowmq_core::store::duty::{self, take_office};
use rowmq_core::store::installation::Office;
use rowmq_core::{Error, Fault};
use rowmq_test::TestDatabase;

use crate::inspect::rows_read;
use crate::middleman::Middleman;
use crate::scene::Scene;

fn verdict(report: &Report, name: &str) -> Verdict {
    let check = report.checks.iter().find(|check| check.name == name);
    check.unwrap_or_else(|| panic!("no check {name} in {report:#?}")).verdict
}

#[tokio::test]
async fn this_server_passes() {
    let mut scene = Scene::new().await;
    let report = examine(scene.db.url()).await.unwrap();
    assert_eq!(report.failures().collect::<Vec<_>>(), Vec::<&_>::new());
    for name in [
        "version",
        "writable",
        "binlog",
        "durability",
        "packet",
        "one writer",
        "no multiplexing proxy",
        "schema",
        "tables",
        "name locks",
        "skip locked",
        "process list",
    ] {
        assert_eq!(verdict(&report, name), Verdict::Ok, "{name}: {report:#?}");
    }
    let product = if scene.is_mariadb().await { "MariaDB" } else { "MySQL" };
    let version = scene.text("SELECT VERSION()").await;
    assert!(report.server.starts_with(product) && report.server.contains(&version));
    require(scene.db.url()).await.unwrap();
}

#[tokio::test]
async fn the_trial_of_skip_locked_leaves_nothing_behind() {
    let mut scene = Scene::new().await;
    for _ in 0..3 {
        examine(scene.db.url()).await.unwrap();
    }
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_duty").await, 0);
    assert!(scene.transactions().await.is_empty());
}

/// A fleet that starts at the same moment: each of its processes runs the self-test. Long runs:
/// `ROWMQ_SELF_TESTS=100 ROWMQ_SELF_TEST_ROUNDS=40`.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_self_tests_at_once_do_not_disturb_each_other() {
    let count = |name, default| std::env::var(name).map_or(default, |n| n.parse().unwrap());
    let tests: usize = count("ROWMQ_SELF_TESTS", 24);
    let rounds: usize = count("ROWMQ_SELF_TEST_ROUNDS", 3);
    let scene = Scene::new().await;
    for round in 0..rounds {
        // In the last round workers also register.
        let workers = if round + 1 == rounds { tests / 2 } else { 0 };
        let fleet = futures_util::future::join_all((0..workers).map(|_| scene.worker()));
        let reports = futures_util::future::join_all((0..tests).map(|_| judged(scene.db.url())));
        let (reports, _fleet) = tokio::join!(reports, fleet);
        for report in reports {
            assert_eq!(report.failures().collect::<Vec<_>>(), Vec::<&_>::new(), "round {round}");
        }
    }
}

/// Returns a report that judges the server: on a busy machine one may not get a connection in time,
/// or the server has none left, and then it does not judge.
async fn judged(url: &ServerUrl) -> Report {
    loop {
        match examine(url).await {
            Err(
                Error::Connect { fault: Fault::Gone | Fault::Busy, .. } | Error::Deadline { .. },
            ) => {}
            report => return report.unwrap(),
        }
    }
}

/// The trials share one small table: none may read another's rows, because a row that is read is
/// locked for a moment, and SKIP LOCKED skips it.
#[tokio::test]
async fn a_trial_of_skip_locked_touches_no_row_but_its_own() {
    let scene = Scene::new().await;
    let mut other = scene.db.connect().await;
    ask::begin(&mut other).await.unwrap();
    ask::insert_scratch(&mut other, ["a-of-another", "b-of-another"]).await.unwrap();
    // It would wait for these rows, and fail because of that.
    for _ in 0..3 {
        let report = examine(scene.db.url()).await.unwrap();
        assert_eq!(report.failures().collect::<Vec<_>>(), Vec::<&_>::new());
    }
    ask::roll_back(&mut other).await.unwrap();
}

#[tokio::test]
async fn a_trial_of_skip_locked_reads_a_row_by_its_key() {
    let scene = Scene::new().await;
    let conn = &mut scene.db.connect().await;
    for names in [["a-of-another", "b-of-another"], ["one", "two"]] {
        ask::insert_scratch(conn, names).await.unwrap();
    }
    // To read what was read is a read, too.
    let before = [rows_read(conn).await, rows_read(conn).await];
    assert!(ask::lock_scratch(conn, "two").await.unwrap());
    assert_eq!(rows_read(conn).await - before[1] - (before[1] - before[0]), 1);
}

#[tokio::test]
async fn whoever_holds_a_lock_without_doing_the_work_is_named() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    assert_eq!(verdict(&examine(scene.db.url()).await.unwrap(), "locks"), Verdict::Ok);
    let mut idle = scene.db.connect().await;
    assert!(take_office(&mut idle, Office::Sweeper).await.unwrap());
    let report = examine(scene.db.url()).await.unwrap();
    let check = report.checks.iter().find(|check| check.name == "locks").unwrap();
    let conn = ask::connection_ids(&mut idle).await.unwrap().0;
    let told = format!("sweep by connection {conn} of queue@");
    assert!(check.verdict == Verdict::Warning && check.detail.contains(&told), "{check:?}");
    // A janitor on standby keeps the consumers from sweeping, although no process sweeps.
    let mut ready = scene.db.connect().await;
    assert!(take_office(&mut ready, Office::Janitor).await.unwrap());
    let report = examine(scene.db.url()).await.unwrap();
    let check = report.checks.iter().find(|check| check.name == "locks").unwrap();
    assert!(check.detail.contains("janitor by connection"), "{check:?}");
    // Once the sweeper has swept it is known, and so is any process on standby.
    duty::record(&mut idle, "rescue", "test", b"null").await.unwrap();
    assert_eq!(verdict(&examine(scene.db.url()).await.unwrap(), "locks"), Verdict::Ok);
    scene.sql("DELETE FROM queue_installation").await;
    assert_eq!(verdict(&examine(scene.db.url()).await.unwrap(), "locks"), Verdict::Failure);
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_database_without_the_tables_fails_with_what_to_do() {
    let scene = Scene::new().await;
    let bare = TestDatabase::empty_on(scene.db.url()).await;
    let report = examine(bare.url()).await.unwrap();
    assert_eq!(verdict(&report, "schema"), Verdict::Failure);
    let refused = require(bare.url()).await.unwrap_err();
    assert!(matches!(refused, Error::Schema { .. }), "{refused}");
    assert!(refused.to_string().contains("rowmq migrate"), "{refused}");
}

/// After a migration, `ROWMQ_WRITE_SHAPE=1` writes what the doctor expects.
#[tokio::test]
async fn the_tables_have_the_shape_that_the_doctor_expects() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../queue-core/src/doctor/shape.txt");
    let mut scene = Scene::new().await;
    let mut shape = ask::shape(&mut scene.conn).await.unwrap();
    shape.sort();
    let text = shape.join("\n") + "\n";
    if std::env::var_os("ROWMQ_WRITE_SHAPE").is_some() {
        std::fs::write(file, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), text);
}

#[tokio::test]
async fn a_key_or_column_that_is_missing_or_changed_is_named_with_what_brings_it_back() {
    let mut scene = Scene::new().await;
    // Additional keys and columns are allowed.
    scene.sql("ALTER TABLE queue_dead ADD COLUMN ticket INT, ADD KEY own_ticket (ticket)").await;
    assert_eq!(verdict(&examine(scene.db.url()).await.unwrap(), "tables"), Verdict::Ok);
    scene.sql("ALTER TABLE queue_message DROP KEY queue_message_id, ADD KEY own_id (id)").await;
    scene.sql("ALTER TABLE queue_dead MODIFY COLUMN failures TINYINT UNSIGNED NOT NULL").await;
    let report = examine(scene.db.url()).await.unwrap();
    let check = report.checks.iter().find(|check| check.name == "tables").unwrap();
    assert_eq!(check.verdict, Verdict::Failure, "{check:?}");
    let repair = "ALTER TABLE queue_message ADD KEY queue_message_id (id)";
    assert!(check.detail.contains(repair), "{check:?}");
    assert!(
        check.detail.contains("queue_dead lacks the column failures int unsigned"),
        "{check:?}"
    );
    scene.sql(repair).await;
    let report = examine(scene.db.url()).await.unwrap();
    let check = report.checks.iter().find(|check| check.name == "tables").unwrap();
    assert!(!check.detail.contains("queue_message"), "{check:?}");
}

#[tokio::test]
async fn a_missing_table_is_named() {
    let mut scene = Scene::new().await;
    scene.sql("DROP TABLE queue_floor; DROP PROCEDURE queue_send").await;
    let refused = require(scene.db.url()).await.unwrap_err().to_string();
    assert!(refused.contains("queue_floor") && refused.contains("queue_send"), "{refused}");
    assert!(!refused.contains("queue_worker"), "{refused}");
}

#[tokio::test]
async fn an_account_without_process_is_told_what_it_costs() {
    let scene = Scene::new().await;
    let url =
        scene.db.account(&["SELECT, INSERT, UPDATE, DELETE ON {}.*", "EXECUTE ON {}.*"]).await;
    let report = examine(&url).await.unwrap();
    assert_eq!(verdict(&report, "process list"), Verdict::Warning);
    assert_eq!(report.failures().count(), 0, "{report:#?}");
    require(&url).await.unwrap();
}

/// Returns a URL through a middleman, for an account without a password that sees everything.
async fn through(scene: &mut Scene, middleman: Middleman) -> ServerUrl {
    let account = scene.db.account(&["ALL PRIVILEGES ON *.*"]).await.expose().to_owned();
    let account = account.replacen(":test@", "@", 1);
    let user = account.trim_start_matches("mysql://").split('@').next().unwrap();
    scene.sql(&format!("ALTER USER '{user}'@'%' IDENTIFIED BY ''")).await;
    let account = ServerUrl::new(&account).unwrap();
    middleman.start(&account).await
}

/// F32: between transactions the proxy gives the client another of its server connections.
#[tokio::test]
async fn a_proxy_that_reassigns_backends_is_refused() {
    let mut scene = Scene::new().await;
    let url = through(&mut scene, Middleman::Reassigns).await;
    let refused = require(&url).await.unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("turn multiplexing off"), "{refused}");
}

/// MaxScale and the like: nothing is wrong yet, but everything depends on the proxy's settings.
#[tokio::test]
async fn a_proxy_that_speaks_for_itself_is_warned_of() {
    let mut scene = Scene::new().await;
    let url = through(&mut scene, Middleman::GreetsItself).await;
    let report = examine(&url).await.unwrap();
    let check = report.checks.iter().find(|check| check.name == "no multiplexing proxy").unwrap();
    assert_eq!(check.verdict, Verdict::Warning, "{check:?}");
    assert!(check.detail.starts_with("A proxy greets as connection "), "{check:?}");
    require(&url).await.unwrap();
}

/// F33: the server ignores SKIP LOCKED, so that a claim waits for every other one.
#[tokio::test]
async fn a_server_that_ignores_skip_locked_is_refused() {
    let mut scene = Scene::new().await;
    let url = through(&mut scene, Middleman::IgnoresSkipLocked).await;
    let refused = require(&url).await.unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("SKIP LOCKED"), "{refused}");
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_duty").await, 0, "it leaves nothing");
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_and_no_report() {
    let url = "mysql://queue:secret@127.0.0.1:1/queue".parse().unwrap();
    let error = examine(&url).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}
