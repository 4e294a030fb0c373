use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use rowmq_core::TopicName;
use rowmq_producer::{ProducerOptions, ResendPolicy};
use rowmq_service::args::{ServerArgs, ServiceArgs};
use rowmq_service::config::Settings;
use rowmq_service::endpoint::address;
use rowmq_service::location::Located;

use crate::encode::EncodeArgs;
use crate::spill_args::SpillArgs;

/// How often the process shows that it is alive while no request comes.
pub(super) const PULSE: Duration = Duration::from_secs(5);

/// Takes messages by HTTP: `POST /topics/TOPIC/messages` with the body as it is.
///
/// The answer is 201 with the message's id once the message is stored, 200 if it was there already,
/// and 202 once it is in the spill journal, if there is one. If none of these happens in time, the
/// answer is 503 with Retry-After. Messages that come together are stored together.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Where to listen: ADDRESS:PORT of this machine alone, or PORT of 127.0.0.1; port 0 takes a
    /// free one and logs it. There is no password, so the network is not served.
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "8099", value_parser = loopback)]
    pub(super) listen: SocketAddr,
    /// For how long a message is tried, or waits for room in the spill journal, before the answer
    /// is 503.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(super) give_up_after: Duration,
    /// Also sends NDJSON from standard input to TOPIC, as `rowmq-producer send --ndjson -` does,
    /// and ends when the input ends and everything is stored. Lines that are no message are
    /// reported, and make the exit status 1.
    #[arg(long, value_name = "TOPIC")]
    pub(super) stdin: Option<TopicName>,
    /// The largest body that is read, in bytes; the topic's own limit applies, too.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    pub(super) body_limit: usize,
    #[command(flatten)]
    pub(super) encode: EncodeArgs,
    #[command(flatten)]
    pub(super) spill: SpillArgs,
    #[command(flatten)]
    pub(super) server: ServerArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
}

impl Arguments {
    pub(crate) fn reloadable(&self) -> (&ServerArgs, &ServiceArgs) {
        (&self.server, &self.service)
    }

    /// Finds everything that can be wrong without asking a server.
    pub(super) fn prepare(&self, settings: &Settings) -> anyhow::Result<Located> {
        if self.give_up_after.is_zero() {
            return Err(settings.refused("give_up_after", Nothing("give_up_after", "10s")));
        }
        if self.body_limit == 0 {
            return Err(settings.refused("body_limit", Nothing("body_limit", "16777216")));
        }
        self.server.located()
    }

    pub(super) fn producer_options(&self) -> ProducerOptions {
        let resend = ResendPolicy { give_up_after: self.give_up_after, ..ResendPolicy::default() };
        ProducerOptions {
            resend,
            encoding: self.encode.encoding(),
            spill: self.spill.options(),
            ..ProducerOptions::default()
        }
    }
}

/// A setting that is 0, so that no message could be accepted.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is 0, so nothing would be taken: use more, such as {1}")]
struct Nothing(&'static str, &'static str);

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = address(text)?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err("it is not of this machine alone, and there is no password: use 127.0.0.1 or [::1], and a proxy of your own before it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served() {
        assert!(loopback("8099").is_ok() && loopback("[::1]:0").is_ok());
        for open in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80"] {
            assert!(loopback(open).expect_err(open).contains("no password"), "{open}");
        }
    }
}
