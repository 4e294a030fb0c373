//! Crowds at the metrics endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::arena::Arena;

/// Clients that read the metrics as fast as they are served.
const SCRAPERS: usize = 100;

/// Clients of each endpoint that never finish their request (slowloris): more than it serves at
/// once.
const SLOW: usize = 20;

/// How long it lasts: longer than an endpoint waits for a request.
const STORM: Duration = Duration::from_secs(13);

/// The longest a scraper waits for an answer, behind slow clients that hold every place.
const PATIENCE: Duration = Duration::from_secs(12);

pub(super) async fn scrape_storm(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let everybody = arena.fleet.everybody();
    let endpoints: Vec<_> = everybody.iter().filter_map(|member| member.metrics()).collect();
    anyhow::ensure!(!endpoints.is_empty(), "no process of the fleet serves its metrics");
    let end = Instant::now() + STORM;
    let slow = endpoints.iter().flat_map(|&endpoint| (0..SLOW).map(move |_| dawdle(endpoint, end)));
    let slow: Vec<_> = slow.collect();
    let scrapers = (0..SCRAPERS)
        .map(|_| scrape(&endpoints, SmallRng::seed_from_u64(rng.random()), end))
        .collect::<Vec<_>>();
    let (served, _) = tokio::join!(join_all(scrapers), join_all(slow));
    let served: usize = served.into_iter().sum();
    tracing::info!(served, endpoints = endpoints.len(), "Metrics have been scraped.");
    Ok(())
}

/// Returns how many answers one client got. A process that ends in the meantime takes its endpoint
/// with it.
async fn scrape(endpoints: &[SocketAddr], mut rng: SmallRng, end: Instant) -> usize {
    let mut served = 0;
    while Instant::now() < end {
        let endpoint = endpoints[rng.random_range(0..endpoints.len())];
        match tokio::time::timeout(PATIENCE, get(endpoint)).await {
            Ok(Ok(1..)) => served += 1,
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
    served
}

async fn get(endpoint: SocketAddr) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(endpoint).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: queue\r\nconnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await
}

/// Sends one byte now and then.
async fn dawdle(endpoint: SocketAddr, end: Instant) {
    while Instant::now() < end {
        if let Ok(mut stream) = TcpStream::connect(endpoint).await {
            for byte in b"GET /metrics HTTP/1.1\r\nhost: queue" {
                sleep(Duration::from_millis(500)).await;
                if Instant::now() > end || stream.write_all(&[*byte]).await.is_err() {
                    break;
                }
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}
