//! Pages in a format that only a newer release reads.

use rowmq_core::Error;
use rowmq_core::erasure::ErasureError;
use rowmq_core::find::{Query, find};
use rowmq_core::model::found::Filter;
use rowmq_core::model::{OffsetSpec, Settlement};
use rowmq_core::store::find::Bodies;
use rowmq_core::stream::group::group_settings;
use rowmq_test::until;

use super::Stream;
use super::broadcast::{member, read_n};
use super::filters::wanting;
use crate::scene::all;

/// A stream of two partitions; the format of the pages of the first is another one.
async fn stream_with_format(version: u16) -> (Stream, Vec<rowmq_core::NewMessage>) {
    let mut stream = Stream::new(2).await;
    let sent = stream.enqueue(0..200).await;
    stream.sequence().await;
    stream.set_format(version).await;
    (stream, sent)
}

impl Stream {
    pub(super) async fn set_format(&mut self, version: u16) {
        let crc = "LPAD(HEX(CRC32(CONCAT(LEFT(entries, 12), SUBSTRING(entries, 17)))), 8, '0')";
        for entries in [
            format!("CONCAT(UNHEX('{version:04x}'), SUBSTRING(entries, 3))"),
            format!("CONCAT(LEFT(entries, 12), UNHEX({crc}), SUBSTRING(entries, 17))"),
        ] {
            let update = "UPDATE queue_log SET entries =";
            self.sql(&format!("{update} {entries} WHERE partition_no = 0")).await;
        }
    }

    async fn messages_of(&mut self, partition: u32) -> u64 {
        let sum = "SELECT SUM(messages) FROM queue_log WHERE partition_no =";
        u64::try_from(self.number(&format!("{sum} {partition}")).await).unwrap()
    }
}

#[tokio::test]
async fn a_worker_leaves_a_page_of_a_newer_release_to_newer_workers() {
    for settings in [group_settings(), wanting(&["wanted"])] {
        let (mut stream, _) = stream_with_format(2).await;
        let group = stream.group_with("g", false, OffsetSpec::Earliest, &settings).await;
        let worker = stream.worker().await;
        let (mut found, mut filtered, mut refused) = (Vec::new(), 0, Vec::new());
        // It meets the page once, and does not come back to it with each claim.
        for _ in 0..20 {
            match worker.claim_range(group.group().unwrap(), 100).await {
                Ok(claimed) => {
                    assert_eq!(claimed.lost, 0);
                    found.extend(claimed.deliveries);
                    filtered += claimed.filtered;
                }
                Err(Error::NewerPage(page)) => refused.push((page.at.partition.0, page.version)),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(refused, [(0, 2)]);
        assert_eq!(found.len() as u64 + filtered, stream.messages_of(1).await);
        assert!(found.iter().all(|one| one.position.unwrap().partition.0 == 1));
        worker.settle(all(&found, &Settlement::Ack)).await.unwrap();
        worker.stop().await.unwrap();
        assert_eq!(stream.number("SELECT COUNT(*) FROM queue_dead").await, 0);
        assert_eq!(stream.number("SELECT SUM(lost) FROM queue_cursor").await, 0);
        stream.set_format(1).await;
        let (rest, worker) = (stream.messages_of(0).await, stream.worker().await);
        let mut read = 0;
        until("the rest is read", async || {
            let claimed = worker.claim_range(group.group().unwrap(), 100).await.unwrap();
            read += claimed.deliveries.len() as u64 + claimed.filtered;
            read == rest
        })
        .await;
    }
}

#[tokio::test]
async fn a_broadcast_member_reads_the_partitions_that_have_no_page_of_a_newer_release() {
    let (mut stream, _) = stream_with_format(2).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    let (worker, member) = (stream.worker().await, member(&group, Some("a")));
    let mut found = Vec::new();
    for _ in 0..20 {
        match worker.read(&member, 100).await {
            Ok(read) => found.extend(read.deliveries),
            Err(error) => assert!(matches!(error, Error::NewerPage(_)), "{error}"),
        }
    }
    assert_eq!(found.len() as u64, stream.messages_of(1).await);
    stream.set_format(1).await;
    let rest = stream.messages_of(0).await.try_into().unwrap();
    assert_eq!(read_n(&worker, &member, rest).await.len(), rest);
}

/// What cannot be read may hold what is looked for.
#[tokio::test]
async fn a_search_and_an_erasure_refuse_a_page_of_a_newer_release() {
    let (stream, sent) = stream_with_format(2).await;
    let filter = Filter { msg_id: Some(sent[0].msg_id), ..Filter::default() };
    let mut session = stream.db.session().await;
    let query = Query { filter, after: None, limit: 100, bodies: Bodies::Leave };
    let refused = find(&mut session, &stream.topic, &query).await.unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, Error::NewerPage(_)) && text.contains("upgrade"), "{text}");
    let refused = stream.erase(sent[0].msg_id).await.unwrap_err();
    assert!(matches!(refused, ErasureError::Failed(Error::NewerPage(_))), "{refused}");
}
