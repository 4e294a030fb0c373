//! A worker of rowmq. It finds the server by `ROWMQ_URL`, and serves metrics and probes at
//! `ROWMQ_METRICS`.

mod visit;

use rowmq::Worker;

#[tokio::main]
async fn main() -> rowmq::Outcome {
    Worker::from_env()?.job_in_transaction(visit::CountVisit).run().await
}
