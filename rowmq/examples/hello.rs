#![allow(
    missing_docs,
    clippy::print_stdout,
    reason = "a whole program, in as few lines as it takes"
)]
use rowmq::{HandlerError, Job, Run, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(topic = "mail")]
struct Mail {
    to: String,
}

async fn send(mail: Mail, run: Run) -> Result<(), HandlerError> {
    println!("To {}, delivery {}", mail.to, run.delivery.delivery_no);
    Ok(())
}

#[tokio::main]
async fn main() -> rowmq::Outcome {
    Worker::from_env()?.job(send).run().await
}
