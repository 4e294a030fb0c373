//! Handlers that end their transaction, drop their queries, or lose their connection.

use std::sync::Arc;
use std::time::Duration;

use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::FutureExt;
use rowmq_core::handler::{HandlerError, settlement_for};
use rowmq_core::model::{DeadCause, Settlement, TopicSettings};
use rowmq_core::worker::Ending;
use rowmq_test::proxy::FaultProxy;
use rowmq_test::until;

use super::{Runs, Stand, contexts, does, effect, effects_of, stage, words};
use crate::scene::{Scene, claim_n};

const ENDS: [&str; 5] =
    ["COMMIT", "ROLLBACK", "CREATE TABLE other (id INT)", "COMMIT; BEGIN", "SET autocommit = 1"];

/// How a handler continues after it has ended its transaction.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    Returns,
    Fails,
    Discards,
    Panics,
}

/// Returns the settlement of a message whose run ended so.
fn settlement(scene: &Scene, ending: Ending, of: &rowmq_core::Delivery) -> Settlement {
    let Ending::Undone(outcome) = ending else { panic!("{ending:?}") };
    settlement_for(outcome, of, &scene.topic.settings)
}

fn is_dead_for_it(settlement: &Settlement) -> bool {
    matches!(
        settlement,
        Settlement::DeadLetter { cause: DeadCause::Handler, error }
            if error.contains("ended its transaction")
    )
}

/// What a handler commits by itself cannot be undone, so no worker repeats it unasked: neither
/// after the handler has returned nor after it has failed, alone or in a batch.
#[tokio::test]
async fn a_handler_that_ends_its_transaction_is_found_out() {
    let every = [Then::Returns, Then::Fails, Then::Discards, Then::Panics];
    let with_ends = |then| ENDS.map(move |ends| (ends, then));
    for (ends, then) in every.into_iter().flat_map(with_ends) {
        for n in 1..=if ends == "COMMIT" { 2 } else { 1 } {
            let case = format!("{ends}, {then:?}, {n}");
            let (mut scene, worker) = stage(&TopicSettings::default()).await;
            scene.enqueue(n).await;
            let got = claim_n(&worker, scene.topic.id, n).await;
            let stand = Stand::at(scene.db.url(), &scene, &worker);
            let runs = Arc::new(Runs::default());
            let handler = does(|contexts, tx| {
                let runs = Arc::clone(&runs);
                async move {
                    runs.begin();
                    effect(contexts, tx).await?;
                    tx.batch_execute(ends).await?;
                    match then {
                        Then::Returns => effect(contexts, tx).await,
                        Then::Fails => Err(HandlerError::retry("no")),
                        Then::Discards => Err(HandlerError::discard("no")),
                        Then::Panics => panic!("on purpose"),
                    }
                }
                .boxed()
            });
            let endings = stand.run(&contexts(&scene, &got), &handler).await;
            for (ending, delivery) in endings.into_iter().zip(&got) {
                let settlement = settlement(&scene, ending, delivery);
                assert!(is_dead_for_it(&settlement), "{case}: {settlement:?}");
            }
            assert_eq!(runs.count(), 1, "{case}");
            until("rolled back", async || scene.transactions().await.is_empty()).await;
            // With autocommit on again, nothing after it can be rolled back.
            let after = ends == "SET autocommit = 1" && then == Then::Returns;
            let kept = i64::from(ends != "ROLLBACK") + i64::from(after);
            assert_eq!(effects_of(&mut scene).await, kept * n as i64, "{case}");
            assert_eq!(scene.hot().await.1, n as i64, "{case}: not acked");
        }
    }
}

/// H26 within a handler: it drops queries half-way and continues. With two of them, the settle
/// would read the count of one, and the commit the reply of the settle.
#[tokio::test]
async fn queries_that_a_handler_has_dropped_make_no_false_commit() {
    for dropped in [1, 2, 3] {
        let (mut scene, worker) = stage(&TopicSettings::default()).await;
        scene.enqueue(1).await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        let stand = Stand::at(scene.db.url(), &scene, &worker);
        let drops = does(|contexts, tx| {
            async move {
                effect(contexts, tx).await?;
                for n in 0..dropped {
                    // The first still waits for its reply when the others are sent.
                    let slow = if n == 0 { "SLEEP(2)" } else { "0" };
                    let update = format!("UPDATE effect SET n = n + {slow}");
                    let update = diesel::sql_query(update).execute(tx);
                    drop(tokio::time::timeout(Duration::from_millis(50), update).await);
                }
                Ok(())
            }
            .boxed()
        });
        let mut endings = stand.run(&contexts(&scene, &got), &drops).await;
        let ending = endings.remove(0);
        let sentence = format!("{ending:?}");
        let retried = settlement(&scene, ending, &got[0]);
        assert!(matches!(retried, Settlement::Retry { .. }), "{dropped}: {retried:?}");
        assert!(sentence.contains("half-way"), "{dropped}: {sentence}");
        until("over", async || scene.transactions().await.is_empty()).await;
        assert_eq!(effects_of(&mut scene).await, 0, "{dropped}");
        assert_eq!(scene.hot().await.1, 1, "{dropped}: not acked");
        // Its connection is not used again.
        let fine = does(|contexts, tx| effect(contexts, tx).boxed());
        assert_eq!(words(&stand.run(&contexts(&scene, &got), &fine).await), ["ok"]);
        assert_eq!(effects_of(&mut scene).await, 1, "{dropped}");
    }
}

/// diesel rolls back to a savepoint that the deadlock has removed, and reports that error instead.
#[expect(clippy::disallowed_methods, reason = "handlers call functions that nest their own")]
#[tokio::test]
async fn a_deadlock_in_a_nested_transaction_runs_the_handler_again() {
    let (mut scene, worker) = stage(&TopicSettings::default()).await;
    scene.sql("CREATE TABLE account (id INT PRIMARY KEY, n INT)").await;
    let rows: Vec<_> = (1..100).map(|id| format!("({id}, 0)")).collect();
    scene.sql(&format!("INSERT INTO account VALUES {}", rows.join(", "))).await;
    scene.enqueue(1).await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let stand = Stand::at(scene.db.url(), &scene, &worker);
    let mut stranger = scene.db.connect().await;
    // The other transaction has changed more, so that the server rolls back the handler's.
    let begin = "BEGIN; UPDATE account SET n = n + 5 WHERE id > 1";
    stranger.batch_execute(begin).await.unwrap();
    let stranger = Arc::new(tokio::sync::Mutex::new(stranger));
    let runs = Arc::new(Runs::default());
    let nested = does(|contexts, tx| {
        let (runs, stranger) = (Arc::clone(&runs), Arc::clone(&stranger));
        async move {
            let first = runs.begin() == 0;
            effect(contexts, tx).await?;
            tx.transaction::<_, HandlerError, _>(async |tx| {
                tx.batch_execute("UPDATE account SET n = n + 1 WHERE id = 1").await?;
                if first {
                    let waits = "UPDATE account SET n = n + 5 WHERE id = 1; COMMIT";
                    tokio::spawn(async move { stranger.lock().await.batch_execute(waits).await });
                }
                tx.batch_execute("UPDATE account SET n = n + 1 + SLEEP(0.2) WHERE id = 3").await?;
                Ok(())
            })
            .await?;
            Ok(())
        }
        .boxed()
    });
    assert_eq!(words(&stand.run(&contexts(&scene, &got), &nested).await), ["ok"]);
    assert!(runs.count() > 1, "there was no deadlock");
    assert_eq!(effects_of(&mut scene).await, 1);
    assert_eq!(scene.number("SELECT n FROM account WHERE id = 1").await, 6);
}

/// Ways to lose a connection: it breaks, or its server has become read-only.
const LOSE: [&str; 2] = [
    "KILL CONNECTION_ID()",
    "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'The server is running with \
     the --read-only option so it cannot execute this statement'",
];

/// A server that disappears is not the message's fault, but a handler that loses every connection
/// is.
#[tokio::test]
async fn a_run_whose_connection_is_lost_is_run_again_on_a_new_one_but_not_for_ever() {
    let cases = [(1, 2, "ok"), (2, 3, "ok"), (9, 3, "error")];
    for (lose, (losses, runs_expected, word)) in
        LOSE.into_iter().flat_map(|lose| cases.map(|case| (lose, case)))
    {
        let (mut scene, worker) = stage(&TopicSettings::default()).await;
        scene.enqueue(1).await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        let stand = Stand::at(scene.db.url(), &scene, &worker);
        let runs = Arc::new(Runs::default());
        let loses = does(|contexts, tx| {
            let runs = Arc::clone(&runs);
            async move {
                let nth = runs.begin();
                effect(contexts, tx).await?;
                if nth < losses {
                    tx.batch_execute(lose).await?;
                }
                Ok(())
            }
            .boxed()
        });
        let case = format!("{losses} times {lose}");
        assert_eq!(words(&stand.run(&contexts(&scene, &got), &loses).await), [word], "{case}");
        assert_eq!(runs.count(), runs_expected, "{case}");
        until("rolled back", async || scene.transactions().await.is_empty()).await;
        assert_eq!(effects_of(&mut scene).await, i64::from(word == "ok"), "{case}");
    }
}

/// A restart: the connection breaks, and for a while no new one can be opened.
#[tokio::test]
async fn a_run_is_given_back_uncharged_while_there_is_no_server() {
    let (mut scene, worker) = stage(&TopicSettings::default()).await;
    scene.enqueue(1).await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let proxy = Arc::new(FaultProxy::start(scene.db.url()).await);
    let stand = Stand::at(&proxy.url(scene.db.url()), &scene, &worker);
    let restarts = does(|contexts, tx| {
        let proxy = Arc::clone(&proxy);
        async move {
            effect(contexts, tx).await?;
            proxy.refuse();
            effect(contexts, tx).await
        }
        .boxed()
    });
    let mut endings = stand.run(&contexts(&scene, &got), &restarts).await;
    assert_eq!(words(&endings), ["interrupted"]);
    assert_eq!(settlement(&scene, endings.remove(0), &got[0]), Settlement::Release);
    assert_eq!(effects_of(&mut scene).await, 0);
}

/// A handler's error about another server says nothing about its own connection.
#[tokio::test]
async fn a_handler_that_cannot_reach_another_server_fails() {
    let (mut scene, worker) = stage(&TopicSettings::default()).await;
    scene.enqueue(1).await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let stand = Stand::at(scene.db.url(), &scene, &worker);
    let runs = Arc::new(Runs::default());
    let calls = does(|contexts, tx| {
        let runs = Arc::clone(&runs);
        async move {
            runs.begin();
            effect(contexts, tx).await?;
            Err(HandlerError::retry("connection closed before the message was complete"))
        }
        .boxed()
    });
    assert_eq!(words(&stand.run(&contexts(&scene, &got), &calls).await), ["error"]);
    assert_eq!(runs.count(), 1);
    assert_eq!(effects_of(&mut scene).await, 0);
}
