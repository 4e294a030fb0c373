//! An HTTP server with limits on connections and request heads, and checks of the headers by which
//! browsers name the origin of a request.

mod foreign;

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Extension};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub use self::foreign::{is_foreign, is_loopback_name};

/// The pause after a connection could not be accepted (no file descriptor left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// The limits of a server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The most connections at once; more wait in the kernel's backlog.
    pub connections: usize,
    /// How long the head of a request may take, and the TLS handshake.
    pub head: Duration,
    /// How long a connection may live; it then serves one request. `None`: no limit.
    pub connection: Option<Duration>,
}

/// Serves `router` until `stop`, and then finishes the requests in progress. With `tls` it speaks
/// TLS only. Handlers can extract `ConnectInfo<SocketAddr>`.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let server = Server {
        tls: tls.map(TlsAcceptor::from),
        places: Arc::new(Semaphore::new(limits.connections)),
        router,
        limits,
    };
    let graceful = GracefulShutdown::new();
    loop {
        let next = async { (server.place().await, listener.accept().await) };
        let Some((place, accepted)) = stop.run_until_cancelled(next).await else { break };
        match accepted {
            Ok((stream, peer)) => {
                let (server, watcher) = (server.clone(), graceful.watcher());
                tokio::spawn(async move {
                    server.answer(stream, peer, watcher).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "A connection was not taken.");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

#[derive(Clone)]
struct Server {
    tls: Option<TlsAcceptor>,
    places: Arc<Semaphore>,
    router: Router,
    limits: Limits,
}

impl Server {
    async fn place(&self) -> OwnedSemaphorePermit {
        match Arc::clone(&self.places).acquire_owned().await {
            Ok(place) => place,
            // Never closed.
            Err(_) => pending().await,
        }
    }

    async fn answer(self, stream: TcpStream, peer: SocketAddr, watcher: Watcher) {
        let Some(tls) = &self.tls else { return self.speak(stream, peer, watcher).await };
        // A failed handshake concerns only the client.
        if let Ok(Ok(stream)) = timeout(self.limits.head, tls.accept(stream)).await {
            self.speak(stream, peer, watcher).await;
        }
    }

    async fn speak<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        peer: SocketAddr,
        watcher: Watcher,
    ) {
        let router = self.router.clone().layer(Extension(ConnectInfo(peer)));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head)
            .keep_alive(self.limits.connection.is_none())
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
        let served = watcher.watch(connection);
        // What a peer does to its own connection is not worth a log line.
        match self.limits.connection {
            Some(limit) => drop(timeout(limit, served).await),
            None => drop(served.await),
        }
    }
}
