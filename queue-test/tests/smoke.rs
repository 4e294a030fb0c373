use queue_core::topic::OnDone;
use queue_core::worker::*;
use queue_core::*;
use queue_test::TestDatabase;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn smoke() {
    let db = TestDatabase::new().await;
    let t = db.topic("mail").await;
    let mut c = db.connect().await;
    println!("{:#?}", queue_core::doctor::examine(db.url()).await.unwrap());
    for strategy in [ClaimStrategy::SkipLocked, ClaimStrategy::UpdateThenSelect] {
        let msgs: Vec<_> =
            (0..10).map(|i| NewMessage::new(format!("b{i}")).with_header("a", "b")).collect();
        enqueue_all(&mut c, &t.name, &msgs).await.unwrap();
        let mut o = WorkerOptions::new(db.url().clone(), "test");
        o.strategy = strategy;
        let w = Worker::start(o).await.unwrap();
        let got = w.claim(t.id, 4).await.unwrap();
        assert_eq!(got.deliveries.len(), 4);
        assert_eq!(got.deliveries[0].body, b"b0");
        assert_eq!(got.deliveries[0].delivery_no.0, 1);
        let s = vec![
            Settled::new(&got.deliveries[0], message::Settlement::Ack, OnDone::Delete),
            Settled::new(
                &got.deliveries[1],
                message::Settlement::Retry { delay: Duration::ZERO, error: "x".into() },
                OnDone::Delete,
            ),
            Settled::new(
                &got.deliveries[2],
                message::Settlement::Discard { reason: "x".into() },
                OnDone::Delete,
            ),
            Settled::new(
                &got.deliveries[3],
                message::Settlement::DeadLetter {
                    cause: message::DeadCause::Handler,
                    error: "x".into(),
                },
                OnDone::Delete,
            ),
        ];
        let r = w.settle(s.clone()).await.unwrap();
        assert!(r.iter().all(|o| *o == SettleOutcome::Settled), "{r:?}");
        let r = w.settle(s).await.unwrap();
        assert!(r.iter().all(|o| *o == SettleOutcome::Fenced), "{r:?}");
        let got = w.claim(t.id, 100).await.unwrap();
        assert_eq!(got.deliveries.len(), 6);
        let r = w
            .settle(
                got.deliveries
                    .iter()
                    .take(3)
                    .map(|d| {
                        Settled::new(
                            d,
                            message::Settlement::Ack,
                            OnDone::Keep(Duration::from_secs(60)),
                        )
                    })
                    .collect(),
            )
            .await
            .unwrap();
        assert!(r.iter().all(|o| *o == SettleOutcome::Settled), "{r:?}");
        println!("{:?}", store::worker::alive(&mut c).await.unwrap());
        println!("{:?}", store::process_list::sight(&mut c).await.unwrap());
        println!("{:?}", store::process_list::show(&mut c).await.unwrap().len());
        w.stop().await.unwrap();
        println!("{:?}", store::inspect::depth(&mut c, t.id).await.unwrap());
        let got = store::inspect::peek(&mut c, t.id, 10).await.unwrap();
        assert_eq!(got.len(), 3);
        assert!(got.iter().all(|p| p.conn_id.is_none()));
        let due = store::scheduled::lock_due(&mut c, 10).await.unwrap();
        let first =
            store::scheduled::promote(&mut c, &due.iter().map(|d| d.row).collect()).await.unwrap();
        println!("{due:?} {first:?}");
        let w = Worker::start(WorkerOptions::new(db.url().clone(), "test")).await.unwrap();
        let got = w.claim(t.id, 100).await.unwrap();
        assert_eq!(got.deliveries.len(), 4);
        assert_eq!(got.deliveries[3].failures, 1);
        w.settle(
            got.deliveries
                .iter()
                .map(|d| Settled::new(d, message::Settlement::Ack, OnDone::Delete))
                .collect(),
        )
        .await
        .unwrap();
        w.stop().await.unwrap();
    }
}
