//! The console's settings, from its command line, environment and configuration.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::http::{HeaderMap, HeaderName};
use humantime::parse_duration;
use ipnet::IpNet;
use rowmq_core::connection::ServerUrl;
use rowmq_service::config::Settings;
use rowmq_service::location::{credential, url_in};
use rowmq_service::process;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use url::Url;

use crate::role::Role;
use crate::secret::Digested;
use crate::users::Users;

/// The systemd credential that holds the URL of the replica.
const REPLICA: &str = "rowmq-replica-url";

/// The shortest secret of a proxy: 96 bits in base64.
const SHORTEST_SECRET: usize = 16;

/// The header in which trusted proxies send their secret.
const PROXY_SECRET: HeaderName = HeaderName::from_static("queue-proxy-secret");

/// How it works.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct SettingsArgs {
    /// Where pages are served: ADDRESS:PORT, or PORT of 127.0.0.1. Without users only loopback.
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:9480")]
    #[arg(value_parser = rowmq_service::endpoint::address)]
    listen: SocketAddr,
    /// File of those who may sign in: a line each, as the command `user` prints it. Without it, the
    /// systemd credential `rowmq-users`. Without either, and without a proxy that signs people in,
    /// users sign in by a link in the console's log that works once.
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// File that holds the URL of a replica, by an account that may read: messages are searched
    /// there. Without it, the systemd credential `rowmq-replica-url`; without either, in the server
    /// itself.
    #[arg(long, value_name = "FILE")]
    replica_url_file: Option<PathBuf>,
    /// Where browsers reach the console, if a proxy stands before it: <https://rowmq.example.com>.
    #[arg(long, value_name = "URL", value_parser = origin)]
    origin: Option<Url>,
    /// How long users stay signed in.
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = parse_duration)]
    login_time: Duration,
    /// Show the bodies of messages to viewers too.
    #[arg(long, value_name = "WHETHER", action = clap::ArgAction::Set, default_value_t = false)]
    viewers_see_bodies: bool,
    /// A proxy whose headers are believed: its address, or its network, as in 10.0.0.0/8. Several
    /// may be named.
    #[arg(long, value_name = "NETWORK", value_parser = network)]
    trusted_proxy: Vec<IpNet>,
    /// The header in which trusted proxies name the user that they have signed in.
    #[arg(long, value_name = "NAME")]
    proxy_user_header: Option<HeaderName>,
    /// The header in which they name that user's role. Without it, all of their users are viewers.
    #[arg(long, value_name = "NAME")]
    proxy_role_header: Option<HeaderName>,
    /// File with a secret that trusted proxies send in the header `Queue-Proxy-Secret`. An address
    /// alone proves nothing: other programs on the proxy's machine have the same one.
    #[arg(long, value_name = "FILE")]
    proxy_secret_file: Option<PathBuf>,
    /// File with the certificate chain, in PEM, with which the console itself serves https. Read
    /// when the console starts.
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<PathBuf>,
    /// File with that certificate's key, in PEM.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Allow plain HTTP beyond loopback: passwords and cookies then cross the network unencrypted.
    /// Without it a certificate or an https origin is required there.
    #[arg(long, value_name = "WHETHER", action = clap::ArgAction::Set, default_value_t = false)]
    plain_http: bool,
}

/// Settings that cannot work together.
#[derive(Debug, thiserror::Error)]
#[error("'{name}' {reason}")]
struct Unworkable {
    name: &'static str,
    reason: String,
}

/// The settings, checked.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) listen: SocketAddr,
    pub(crate) users: Option<Users>,
    /// Where messages are searched, if not on the main server.
    pub(crate) replica: Option<ServerUrl>,
    pub(crate) proxies: Proxies,
    /// Where browsers reach the console, if not where it listens.
    pub(crate) origin: Option<Url>,
    /// Its certificate and key, if it serves https itself.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) login_time: Duration,
    viewers_see_bodies: bool,
}

/// The trusted proxies, and which of their headers are believed.
#[derive(Debug, Clone)]
pub(crate) struct Proxies {
    pub(crate) networks: Vec<IpNet>,
    pub(crate) user_header: Option<HeaderName>,
    pub(crate) role_header: Option<HeaderName>,
    secret: Option<Digested>,
}

impl Proxies {
    /// Whether this is the address of a trusted proxy.
    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// Whether a request with these headers from this address comes from a trusted proxy.
    pub(crate) fn send(&self, address: IpAddr, headers: &HeaderMap) -> bool {
        let mut said = headers.get_all(PROXY_SECRET).iter();
        let said = said.next().filter(|_| said.next().is_none());
        let said = said.and_then(|value| value.to_str().ok()).map(Digested::of);
        self.contain(address) && self.secret.is_none_or(|secret| Some(secret) == said)
    }
}

impl Rules {
    pub(crate) fn sees_bodies(&self, role: Role) -> bool {
        role > Role::Viewer || self.viewers_see_bodies
    }

    /// Whether sign-in is by link: no users are named, so access to the log is enough to sign in.
    pub(crate) fn by_link(&self) -> bool {
        self.users.is_none() && self.proxies.user_header.is_none()
    }

    /// Whether browsers are to send the cookie over https only.
    pub(crate) fn is_https(&self) -> bool {
        self.tls.is_some() || self.origin.as_ref().is_some_and(is_https)
    }
}

fn is_https(origin: &Url) -> bool {
    origin.scheme() == "https"
}

impl SettingsArgs {
    pub(crate) fn check(self, settings: &Settings) -> anyhow::Result<Rules> {
        let users = match self.users.as_deref() {
            Some(file) => Some(Users::read(file)?),
            None => Users::of_credential()?,
        };
        let replica_file = self.replica_url_file.clone().or_else(|| credential(REPLICA));
        let replica = replica_file.as_deref().map(url_in).transpose()?;
        let has_users = users.is_some();
        self.together(has_users).map_err(|error| settings.refused(error.name, error))?;
        let secret = self.proxy_secret_file.as_deref().map(secret_in).transpose()?;
        let files = self.tls_certificate.as_deref().zip(self.tls_key.as_deref());
        let tls = files.map(|(certificate, key)| tls(certificate, key)).transpose()?;
        Ok(Rules {
            listen: self.listen,
            users,
            replica,
            proxies: Proxies {
                networks: self.trusted_proxy,
                user_header: self.proxy_user_header,
                role_header: self.proxy_role_header,
                secret,
            },
            origin: self.origin,
            tls,
            login_time: self.login_time,
            viewers_see_bodies: self.viewers_see_bodies,
        })
    }

    fn together(&self, has_users: bool) -> Result<(), Unworkable> {
        let wrong = |name, reason: &str| Err(Unworkable { name, reason: reason.to_owned() });
        if self.login_time.is_zero() {
            return wrong("login_time", "is nothing: use a time such as 12h");
        }
        if self.proxy_user_header.is_some() && self.trusted_proxy.is_empty() {
            return wrong(
                "proxy_user_header",
                "is believed from no address: name the proxy's address by 'trusted_proxy'",
            );
        }
        if self.proxy_role_header.is_some() && self.proxy_user_header.is_none() {
            return wrong("proxy_role_header", "says nothing without 'proxy_user_header'");
        }
        if self.proxy_user_header.is_some() && self.proxy_secret_file.is_none() {
            return wrong(
                "proxy_user_header",
                "could be sent by any program at the proxy's address: name a 'proxy_secret_file', \
                 whose content the proxy sends as Queue-Proxy-Secret",
            );
        }
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return wrong("tls_certificate", "and 'tls_key' work only together: name both");
        }
        let without_users = !has_users && self.proxy_user_header.is_none();
        if without_users && !self.listen.ip().is_loopback() {
            let reason = format!(
                "is more than loopback, where users have to be named: name a file \
                 of 'users' (`{} user NAME --role ROLE` prints its lines), or use 127.0.0.1",
                process::name()
            );
            return wrong("listen", &reason);
        }
        let encrypted =
            self.tls_certificate.is_some() || self.origin.as_ref().is_some_and(is_https);
        if !self.listen.ip().is_loopback() && !encrypted && !self.plain_http {
            return wrong(
                "listen",
                "is more than loopback, where passwords would cross the network in plain text: name \
                 the https 'origin' of a proxy before it, or 'tls_certificate' and 'tls_key', or set \
                 'plain_http = true'",
            );
        }
        if without_users && self.origin.is_some() {
            return wrong("origin", "leads here from elsewhere: name a file of 'users' first");
        }
        Ok(())
    }
}

fn secret_in(file: &Path) -> anyhow::Result<Digested> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("Cannot read the proxy's secret from {}", file.display()))?;
    let secret = text.trim();
    if secret.len() < SHORTEST_SECRET {
        let file = file.display();
        bail!("{file} has less than {SHORTEST_SECRET} characters: put a random secret into it");
    }
    Ok(Digested::of(secret))
}

fn tls(certificate: &Path, key: &Path) -> anyhow::Result<Arc<ServerConfig>> {
    let cannot = |file: &Path| format!("Cannot serve https with {}", file.display());
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| cannot(certificate))?;
    let key_of_it = PrivateKeyDer::from_pem_file(key).with_context(|| cannot(key))?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key_of_it);
    Ok(Arc::new(config.with_context(|| cannot(certificate))?))
}

fn origin(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| {
        let is_bare = url.path() == "/" && url.query().is_none() && url.username().is_empty();
        is_bare && matches!(url.scheme(), "http" | "https") && url.has_host()
    });
    url.ok_or_else(|| "it looks like https://rowmq.example.com, without a path".to_owned())
}

fn network(text: &str) -> Result<IpNet, String> {
    let address = text.parse().map(|address: IpAddr| IpNet::from(address));
    let network = address.or_else(|_| text.parse::<IpNet>());
    network.map_err(|_| "it looks like 10.0.0.7 or 10.0.0.0/8".to_owned())
}
