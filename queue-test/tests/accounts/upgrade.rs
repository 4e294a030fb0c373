//! What an upgrade of the procedures does to the programs that call them.

use queue_core::account::Account;
use queue_core::{migration, procedures};

use crate::callers::{ENQUEUE, place, row, run, session};

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
                WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME LIKE 'queue\\_beat\\_\\_0000%'";
    assert_eq!(row::<String>(&mut own, left).await, "queue_beat__00000002");
    assert_eq!(migration::run(database.url()).await.expect("migrated"), []);
}
