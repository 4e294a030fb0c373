//! The statements that traps are set for: a trap for a text that is never sent springs nowhere, and
//! a chaos run would not notice.

use rowmq_core::worker::ClaimStrategy;
use rowmq_test::proxy::statement;

use crate::plans::{do_everything, fill};
use crate::scene::Scene;
use crate::wire::Recorder;

#[tokio::test]
async fn every_statement_that_a_trap_is_set_for_is_sent() {
    let mut scene = Scene::new().await;
    fill(&mut scene).await;
    let recorder = Recorder::start(scene.db.url()).await;
    do_everything(&mut scene, &recorder, ClaimStrategy::default()).await;
    let sent: Vec<_> =
        recorder.distinct().into_iter().map(|run| run.sql.replace('`', "")).collect();
    let is_sent = |start: &&&str| sent.iter().any(|text| text.starts_with(**start));
    let missing: Vec<_> = statement::ALL.iter().filter(|start| !is_sent(start)).collect();
    assert!(missing.is_empty(), "never sent: {missing:?}");
}
