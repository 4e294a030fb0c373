//! Transactional runs: the effects, the follow-ups, the ledger and the ack are one transaction.

mod failing;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::connection::ServerUrl;
use rowmq_core::handler::{Context, HandlerError, RunOutcome};
use rowmq_core::model::{OnDone, TopicSettings};
use rowmq_core::worker::{Effects, Ending, Perform, SettleOutcome, Settled, Worker};
use rowmq_core::{
    AsyncMysqlConnection, Delivery, NewMessage, TopicName, Unique, enqueue, enqueue_all, enqueue_to,
};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::until;
use tokio_util::sync::CancellationToken;

use crate::scene::{Scene, claim_n};

const HOUR: Duration = Duration::from_secs(3600);

type Result = std::result::Result<(), HandlerError>;

/// A handler built from a closure.
struct Does<F>(F);

impl<F> Perform for Does<F>
where
    F: for<'a> Fn(&'a [Context], &'a mut AsyncMysqlConnection) -> BoxFuture<'a, Result>
        + Send
        + Sync,
{
    async fn perform(&self, contexts: &[Context], tx: &mut AsyncMysqlConnection) -> RunOutcome {
        RunOutcome::Returned((self.0)(contexts, tx).await)
    }
}

fn does<F>(handler: F) -> Does<F>
where
    F: for<'a> Fn(&'a [Context], &'a mut AsyncMysqlConnection) -> BoxFuture<'a, Result>
        + Send
        + Sync,
{
    Does(handler)
}

/// How often a handler was entered.
#[derive(Default)]
struct Runs(Mutex<u32>);

impl Runs {
    /// Counts one more; returns how many came before it.
    fn begin(&self) -> u32 {
        let mut runs = self.0.lock().unwrap();
        *runs += 1;
        *runs - 1
    }

    fn count(&self) -> u32 {
        *self.0.lock().unwrap()
    }
}

/// Writes an effect for each delivery.
async fn effect(contexts: &[Context], tx: &mut AsyncMysqlConnection) -> Result {
    for context in contexts {
        let insert = format!("INSERT INTO effect (msg_id) VALUES ('{}')", context.delivery.msg_id);
        diesel::sql_query(insert).execute(tx).await?;
    }
    Ok(())
}

/// Creates a scene with a table of effects, where a message may appear twice.
async fn stage(settings: &TopicSettings) -> (Scene, Worker) {
    let mut scene = Scene::with(settings).await;
    scene.sql("CREATE TABLE effect (n INT AUTO_INCREMENT PRIMARY KEY, msg_id CHAR(36))").await;
    let worker = scene.worker().await;
    (scene, worker)
}

fn with_ledger() -> TopicSettings {
    TopicSettings { ledger_window: Some(HOUR), ..TopicSettings::default() }
}

fn contexts(scene: &Scene, deliveries: &[Delivery]) -> Vec<Context> {
    let context = |delivery: &Delivery| Context {
        topic: scene.topic.name.clone(),
        delivery: Arc::new(delivery.clone()),
        cancelled: CancellationToken::new(),
        deadline: None,
        checkpoints: rowmq_core::checkpoint::Checkpoints::default(),
    };
    deliveries.iter().map(context).collect()
}

struct Stand {
    effects: Effects,
    settings: TopicSettings,
}

impl Stand {
    fn at(url: &ServerUrl, scene: &Scene, worker: &Worker) -> Self {
        let effects = Effects::new(url.clone(), worker, 2).unwrap();
        Self { effects, settings: scene.topic.settings.clone() }
    }

    async fn run(&self, contexts: &[Context], handler: &impl Perform) -> Vec<Ending> {
        let give_up = CancellationToken::new();
        self.effects.run(contexts, &self.settings, handler, &give_up).await
    }
}

async fn effects_of(scene: &mut Scene) -> i64 {
    scene.number("SELECT COUNT(*) FROM effect").await
}

fn words(endings: &[Ending]) -> Vec<&'static str> {
    endings.iter().map(Ending::word).collect()
}

async fn forget(worker: &Worker, deliveries: &[Delivery]) {
    let rows = deliveries.iter().map(|delivery| (delivery.claim_no, delivery.row));
    worker.forget(rows.collect()).await.unwrap();
}

async fn send_with_biz_ids(scene: &mut Scene, biz_ids: &[&str]) {
    let message = |biz_id: &&str| NewMessage::new("{}").with_biz_id(*biz_id);
    let messages: Vec<_> = biz_ids.iter().map(message).collect();
    enqueue_all(&mut scene.conn, &scene.topic.name, &messages).await.unwrap();
}

#[expect(clippy::disallowed_methods, reason = "handlers call functions that nest their own")]
#[tokio::test]
async fn effects_follow_ups_ledger_and_ack_commit_together() {
    for on_done in [OnDone::Delete, OnDone::Keep(HOUR)] {
        let (mut scene, worker) = stage(&TopicSettings { on_done, ..with_ledger() }).await;
        let next = scene.db.topic("next").await;
        send_with_biz_ids(&mut scene, &["a", "b", "c"]).await;
        let got = claim_n(&worker, scene.topic.id, 3).await;
        let stand = Stand::at(scene.db.url(), &scene, &worker);
        let follow_up = does(|contexts, tx| {
            async move {
                // A function written for any connection nests its own transaction.
                tx.transaction::<_, HandlerError, _>(async |tx| effect(contexts, tx).await).await?;
                let name = TopicName::new("next")?;
                enqueue(tx, &name, &NewMessage::new("follow-up")).await?;
                Ok(())
            }
            .boxed()
        });
        let endings = stand.run(&contexts(&scene, &got), &follow_up).await;
        assert_eq!(words(&endings), ["ok"; 3]);
        assert_eq!(effects_of(&mut scene).await, 3);
        let query = format!("SELECT COUNT(*) FROM queue_message WHERE topic_id = {}", next.id.0);
        assert_eq!(scene.number(&query).await, 1);
        assert_eq!(scene.number("SELECT COUNT(*) FROM queue_ledger").await, 3);
        let kept = i64::from(on_done != OnDone::Delete) * 3;
        assert_eq!(scene.number("SELECT COUNT(*) FROM queue_archive").await, kept);
        // The work session has not settled them, and learns of the acks here.
        assert_eq!(scene.hot().await, (1, 0, 1));
        forget(&worker, &got).await;
        assert_eq!(scene.hot().await, (1, 0, 0));
        worker.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_handler_that_fails_or_panics_leaves_nothing_behind() {
    let (mut scene, worker) = stage(&with_ledger()).await;
    send_with_biz_ids(&mut scene, &["a"]).await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let stand = Stand::at(scene.db.url(), &scene, &worker);
    let contexts = contexts(&scene, &got);
    let fails = does(|contexts, tx| {
        async move {
            effect(contexts, tx).await?;
            enqueue(tx, &contexts[0].topic, &NewMessage::new("follow-up")).await?;
            Err(HandlerError::retry("no"))
        }
        .boxed()
    });
    assert_eq!(words(&stand.run(&contexts, &fails).await), ["error"]);
    let panics = does(|contexts, tx| {
        async move {
            effect(contexts, tx).await?;
            panic!("on purpose")
        }
        .boxed()
    });
    assert_eq!(words(&stand.run(&contexts, &panics).await), ["panic"]);
    until("rolled back", async || scene.transactions().await.is_empty()).await;
    assert_eq!(effects_of(&mut scene).await, 0);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_ledger").await, 0);
    assert_eq!(scene.hot().await, (1, 1, 1), "still the claim's own, and no follow-up");
}

/// The settle is the last statement and under the fence: rows rescued in the meantime are not
/// acked, and their effects roll back.
#[tokio::test]
async fn a_run_whose_rows_were_rescued_meanwhile_is_rolled_back() {
    for on_done in [OnDone::Delete, OnDone::Keep(HOUR)] {
        let (mut scene, worker) = stage(&TopicSettings { on_done, ..with_ledger() }).await;
        send_with_biz_ids(&mut scene, &["a"]).await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        let stand = Stand::at(scene.db.url(), &scene, &worker);
        let runs = Arc::new(Runs::default());
        let other = Arc::new(tokio::sync::Mutex::new(scene.db.connect().await));
        let rescued = does(|contexts, tx| {
            let (other, runs) = (Arc::clone(&other), Arc::clone(&runs));
            async move {
                runs.begin();
                effect(contexts, tx).await?;
                let rescue = "UPDATE queue_message SET worker_id = 0, claim_no = 0, conn_id = 0; \
                     DELETE FROM queue_claim";
                Ok(other.lock().await.batch_execute(rescue).await?)
            }
            .boxed()
        });
        let endings = stand.run(&contexts(&scene, &got), &rescued).await;
        assert_eq!(words(&endings), ["interrupted"]);
        assert_eq!(runs.count(), 1);
        assert_eq!(effects_of(&mut scene).await, 0);
        assert_eq!(scene.number("SELECT COUNT(*) FROM queue_ledger").await, 0);
        assert_eq!(scene.hot().await, (1, 0, 0), "ready again");
        // A run whose rows were rescued before is not begun.
        let endings = stand.run(&contexts(&scene, &got), &does(|_, _| panic!("begun"))).await;
        assert_eq!(words(&endings), ["interrupted"]);
    }
}

/// The worker finds out the outcome of a lost commit before it does anything else.
#[tokio::test]
async fn a_commit_without_an_answer_is_neither_repeated_nor_lost() {
    for (trap, runs_expected, word) in
        [("drop", 1, "unknown"), ("cut", 2, "ok"), ("strand", 1, "unknown")]
    {
        let (mut scene, worker) = stage(&with_ledger()).await;
        send_with_biz_ids(&mut scene, &["a"]).await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        let proxy = Arc::new(FaultProxy::start(scene.db.url()).await);
        let stand = Stand::at(&proxy.url(scene.db.url()), &scene, &worker);
        match trap {
            "drop" => proxy.drop_reply_after("COMMIT"),
            "cut" => proxy.cut_before("COMMIT"),
            _ => proxy.strand("COMMIT"),
        }
        let runs = Arc::new(Runs::default());
        let contexts = contexts(&scene, &got);
        let (count, of_run) = (Arc::clone(&runs), contexts.clone());
        let running = tokio::spawn(async move {
            let counted = does(|contexts, tx| {
                count.begin();
                effect(contexts, tx).boxed()
            });
            stand.run(&of_run, &counted).await
        });
        proxy.sprung().await;
        if trap == "strand" {
            // The old session may still commit, so the session that checks has to wait for it.
            until("somebody waits", async || scene.lock_waits().await > 0).await;
            proxy.release();
        }
        assert_eq!(words(&running.await.unwrap()), [word], "{trap}");
        assert_eq!(runs.count(), runs_expected, "{trap}");
        assert_eq!(effects_of(&mut scene).await, 1, "{trap}");
        if word == "unknown" {
            let in_doubt = got.iter().map(Settled::release).collect();
            let found = worker.release_in_doubt(in_doubt).await.unwrap();
            assert_eq!(found, [SettleOutcome::Unknown], "{trap}");
        } else {
            forget(&worker, &got).await;
        }
        assert_eq!(scene.hot().await, (0, 0, 0), "{trap}");
    }
}

#[tokio::test]
async fn a_lock_wait_in_the_handler_runs_it_again_with_nothing_kept() {
    let (mut scene, worker) = stage(&TopicSettings::default()).await;
    scene.sql("CREATE TABLE account (id INT PRIMARY KEY, n INT)").await;
    scene.sql("INSERT INTO account VALUES (1, 0)").await;
    scene.enqueue(1).await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let stand = Stand::at(scene.db.url(), &scene, &worker);
    let mut stranger = scene.db.connect().await;
    stranger.batch_execute("BEGIN; UPDATE account SET n = 5 WHERE id = 1").await.unwrap();
    let stranger = Arc::new(tokio::sync::Mutex::new(stranger));
    let runs = Arc::new(Runs::default());
    let books = does(|contexts, tx| {
        let (runs, stranger) = (Arc::clone(&runs), Arc::clone(&stranger));
        async move {
            if runs.begin() == 1 {
                stranger.lock().await.batch_execute("ROLLBACK").await?;
            }
            effect(contexts, tx).await?;
            let update = "UPDATE account SET n = n + 1 WHERE id = 1";
            let boxed: std::result::Result<usize, Box<dyn std::error::Error + Send + Sync>> =
                diesel::sql_query(update)
                    .execute(tx)
                    .await
                    .map_err(|error| error.to_string().into());
            boxed.map_err(HandlerError::retry)?;
            Ok(())
        }
        .boxed()
    });
    assert_eq!(words(&stand.run(&contexts(&scene, &got), &books).await), ["ok"]);
    assert_eq!(runs.count(), 2);
    assert_eq!(effects_of(&mut scene).await, 1);
    assert_eq!(scene.number("SELECT n FROM account").await, 1);
}

/// A producer's open transaction has locked the unique key of one message.
#[tokio::test]
async fn a_key_that_a_stranger_has_locked_is_no_failure_of_the_handler() {
    let (mut scene, worker) = stage(&TopicSettings::default()).await;
    let topic = scene.topic.clone();
    let keyed = || NewMessage::new("m").with_unique(Unique::until_done("k"));
    scene.sql("BEGIN").await;
    enqueue_to(&mut scene.conn, &topic, &[keyed(), NewMessage::new("other")]).await.unwrap();
    scene.sql("COMMIT").await;
    let got = claim_n(&worker, topic.id, 2).await;
    let mut stranger = scene.db.connect().await;
    stranger.batch_execute("BEGIN").await.unwrap();
    enqueue_to(&mut stranger, &topic, &[keyed()]).await.unwrap();
    let stand = Stand::at(scene.db.url(), &scene, &worker);
    let handler = does(|contexts, tx| effect(contexts, tx).boxed());
    let endings = stand.run(&contexts(&scene, &got), &handler).await;
    assert_eq!(words(&endings), ["interrupted", "ok"]);
    assert_eq!(effects_of(&mut scene).await, 1);
    stranger.batch_execute("ROLLBACK").await.unwrap();
    let endings = stand.run(&contexts(&scene, &got[..1]), &handler).await;
    assert_eq!(words(&endings), ["ok"]);
}

#[tokio::test]
async fn of_a_batch_that_fails_only_the_message_to_blame_fails() {
    let (mut scene, worker) = stage(&with_ledger()).await;
    send_with_biz_ids(&mut scene, &["a", "bad", "c", "a"]).await;
    let got = claim_n(&worker, scene.topic.id, 4).await;
    let stand = Stand::at(scene.db.url(), &scene, &worker);
    let sizes = Mutex::new(Vec::new());
    let picky = does(|contexts, tx| {
        sizes.lock().unwrap().push(contexts.len());
        async move {
            effect(contexts, tx).await?;
            let bad = |context: &Context| context.delivery.biz_id.as_deref() == Some(b"bad");
            if contexts.iter().any(bad) { Err(HandlerError::dead("bad")) } else { Ok(()) }
        }
        .boxed()
    });
    let endings = stand.run(&contexts(&scene, &got), &picky).await;
    // The second "a" waits until the first one is in the ledger.
    assert_eq!(words(&endings), ["ok", "error", "ok", "interrupted"]);
    assert_eq!(*sizes.lock().unwrap(), [3, 1, 1, 1]);
    assert_eq!(effects_of(&mut scene).await, 2);
    let endings = stand.run(&contexts(&scene, &got[3..]), &picky).await;
    assert_eq!(words(&endings), ["repeated"]);
    assert_eq!(sizes.lock().unwrap().len(), 4, "the handler was not entered");
}

/// Two messages with one biz id at the same time: the ledger's key decides.
#[tokio::test]
async fn of_two_runs_with_one_biz_id_one_has_effects() {
    let (mut scene, worker) = stage(&with_ledger()).await;
    send_with_biz_ids(&mut scene, &["same", "same"]).await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    let stand = Arc::new(Stand::at(scene.db.url(), &scene, &worker));
    let both = contexts(&scene, &got);
    let overtaken = does(|contexts, tx| {
        let (stand, other) = (Arc::clone(&stand), both[1].clone());
        async move {
            effect(contexts, tx).await?;
            let quick = does(|contexts, tx| effect(contexts, tx).boxed());
            assert_eq!(words(&stand.run(&[other], &quick).await), ["ok"]);
            Ok(())
        }
        .boxed()
    });
    assert_eq!(words(&stand.run(&both[..1], &overtaken).await), ["repeated"]);
    assert_eq!(effects_of(&mut scene).await, 1);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_ledger").await, 1);
}

#[tokio::test]
async fn a_biz_id_beyond_its_window_counts_no_more_even_before_it_is_pruned() {
    let (mut scene, worker) = stage(&with_ledger()).await;
    send_with_biz_ids(&mut scene, &["a", "a"]).await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    let stand = Stand::at(scene.db.url(), &scene, &worker);
    let fine = does(|contexts, tx| effect(contexts, tx).boxed());
    let both = contexts(&scene, &got);
    assert_eq!(words(&stand.run(&both[..1], &fine).await), ["ok"]);
    scene.sql("UPDATE queue_ledger SET keep_until = keep_until - INTERVAL 2 HOUR").await;
    assert_eq!(words(&stand.run(&both[1..], &fine).await), ["ok"]);
    assert_eq!(effects_of(&mut scene).await, 2);
    let live = "SELECT COUNT(*) FROM queue_ledger WHERE keep_until > UTC_TIMESTAMP(6)";
    assert_eq!(scene.number(live).await, 1, "remembered anew");
}
