use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder, SslOpts};
use secrecy::{ExposeSecret, SecretString};

use crate::error::{Error, Result};

/// How the connection to the server is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// Encrypted, with the certificate and the host name checked.
    Verified,
    /// Encrypted, but to whoever answers: `?tls=unverified`.
    Unverified,
    /// Plain: the default for sockets and loopback, elsewhere only by `?tls=disable`.
    Disabled,
}

/// Where the server is, as which account, and into which database:
/// `mysql://user:password@host:3306/database?tls=…&socket=…`.
///
/// The password never shows in `Debug`, logs or errors.
#[derive(Clone)]
pub struct ServerUrl {
    url: SecretString,
    opts: Opts,
    tls: Tls,
    database: String,
}

impl ServerUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] if it is not of the form above or names no database.
    pub fn new(url: &str) -> Result<Self> {
        let invalid = |reason: &str| Error::InvalidUrl { reason: reason.to_owned() };
        let mut parsed = ::url::Url::parse(url).map_err(|error| invalid(&error.to_string()))?;
        if !matches!(parsed.scheme(), "mysql" | "mariadb") {
            return Err(invalid("the scheme is not mysql"));
        }
        if parsed.scheme() == "mariadb" {
            parsed = ::url::Url::parse(&url.replacen("mariadb", "mysql", 1))
                .map_err(|error| invalid(&error.to_string()))?;
        }
        let tls_asked = take_parameter(&mut parsed, "tls");
        let opts = Opts::from_url(parsed.as_str()).map_err(|error| invalid(&error.to_string()))?;
        let database = opts.db_name().filter(|name| !name.is_empty());
        let database = database.ok_or_else(|| invalid("it names no database"))?.to_owned();
        let near = opts.socket().is_some() || is_loopback(opts.ip_or_hostname());
        let tls = match tls_asked.as_deref() {
            None if near => Tls::Disabled,
            None | Some("verified") => Tls::Verified,
            Some("unverified") => Tls::Unverified,
            Some("disable") => Tls::Disabled,
            Some(_) => return Err(invalid("tls is one of verified, unverified, disable")),
        };
        Ok(Self { url: SecretString::from(url.to_owned()), opts, tls, database })
    }

    /// The database of the URL.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// How the connection is protected.
    #[must_use]
    pub fn tls(&self) -> Tls {
        self.tls
    }

    /// Host and port, or socket: what errors and logs may show.
    #[must_use]
    pub fn server(&self) -> String {
        match self.opts.socket() {
            Some(socket) => format!("the socket {socket}"),
            None => format!("{}:{}", self.opts.ip_or_hostname(), self.opts.tcp_port()),
        }
    }

    /// The URL itself, password included, for handing it to a child of the same trust.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.url.expose_secret()
    }

    /// The same server and account, another database.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] if the name cannot stand in a URL.
    pub fn with_database(&self, database: &str) -> Result<Self> {
        let invalid = |error: ::url::ParseError| Error::InvalidUrl { reason: error.to_string() };
        let mut parsed = ::url::Url::parse(self.expose()).map_err(invalid)?;
        parsed.set_path(database);
        Self::new(parsed.as_str())
    }

    pub(super) fn opts(&self) -> OptsBuilder {
        let ssl = match self.tls {
            Tls::Disabled => None,
            Tls::Verified => Some(SslOpts::default()),
            Tls::Unverified => Some(
                SslOpts::default()
                    .with_danger_accept_invalid_certs(true)
                    .with_danger_skip_domain_validation(true),
            ),
        };
        OptsBuilder::from_opts(self.opts.clone())
            // Left on, the driver would reconnect through the socket behind our back: another
            // connection id, another account, past any proxy.
            .prefer_socket(false)
            // 0 affected rows must mean fenced, also when an UPDATE writes what is there already.
            .client_found_rows(true)
            .stmt_cache_size(0)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(u32::try_from(KEEPALIVE.as_millis()).unwrap_or(u32::MAX)))
            .ssl_opts(ssl)
    }
}

/// The kernel probes a silent peer after this time, so that a vanished server is noticed.
const KEEPALIVE: Duration = Duration::from_secs(5);

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Takes a parameter of ours out of the URL: the driver refuses those it does not know.
fn take_parameter(url: &mut ::url::Url, name: &str) -> Option<String> {
    let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    let found = pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    if found.is_some() {
        url.set_query(None);
        let rest: Vec<_> = pairs.iter().filter(|(key, _)| key != name).collect();
        if !rest.is_empty() {
            url.query_pairs_mut().extend_pairs(rest);
        }
    }
    found
}

impl FromStr for ServerUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        Self::new(url)
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerUrl({}/{}, tls {:?})", self.server(), self.database, self.tls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_on_unless_the_server_is_near_or_the_user_says_so() {
        let tls = |url: &str| ServerUrl::new(url).map(|url| url.tls());
        assert_eq!(tls("mysql://u:p@db.example/q").ok(), Some(Tls::Verified));
        assert_eq!(tls("mysql://u:p@127.0.0.1:33/q").ok(), Some(Tls::Disabled));
        assert_eq!(tls("mysql://u:p@localhost/q?socket=%2Ftmp%2Fs.sock").ok(), Some(Tls::Disabled));
        assert_eq!(tls("mysql://u:p@db.example/q?tls=disable").ok(), Some(Tls::Disabled));
        assert_eq!(tls("mysql://u:p@127.0.0.1/q?tls=unverified").ok(), Some(Tls::Unverified));
        assert!(tls("mysql://u:p@127.0.0.1/q?tls=perhaps").is_err());
    }

    #[test]
    fn the_password_is_nowhere_to_be_read() {
        let url = ServerUrl::new("mysql://u:geheim@127.0.0.1/q");
        assert!(!format!("{url:?}").contains("geheim"));
        let error = ServerUrl::new("mysql://u:geheim@127.0.0.1").map(|_| ());
        assert!(!format!("{error:?}").contains("geheim"));
        assert!(format!("{error:?}").contains("names no database"));
    }
}
