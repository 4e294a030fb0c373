mod authorities;
mod authority;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder, SslOpts};
use secrecy::{ExposeSecret, SecretString};

use self::authorities::Authorities;
use self::authority::Cut;
use super::hosts::{HostNo, Hosts};
use crate::model::{Error, Result};

/// How the connection to the server is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// Encrypted, with the certificate and the host name checked, against the authorities in a file
    /// with `?ca=`.
    Verified,
    /// Encrypted, without checking which server answers: `?tls=unverified`.
    Unverified,
    /// Plain: the default for sockets and loopback, elsewhere only by `?tls=disable`.
    Disabled,
}

/// The server's address, the account and the database:
/// `mysql://user:password@host:3306/database?tls=…&ca=…&socket=…`.
///
/// For a cluster it names every server, `mysql://user:password@db1:3306,db2:3306,db3/database`, and
/// each connection goes to the one that takes writes. Clones share what they learn of the hosts.
/// The password never shows in `Debug`, logs or errors.
#[derive(Clone)]
pub struct ServerUrl {
    url: SecretString,
    hosts: Arc<Hosts>,
    tls: Tls,
    authorities: Option<Authorities>,
    database: String,
}

impl ServerUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] if it is not of the form above or names no database.
    pub fn new(url: &str) -> Result<Self> {
        let cut = Cut::new(url).ok_or_else(|| invalid("it has no ://"))?;
        let mut hosts: Vec<One> = Vec::new();
        for host in cut.hosts() {
            let one = One::new(&cut.with(host))?;
            if hosts.iter().any(|other| other.place() == one.place()) {
                return Err(invalid(&format!("it names {host} twice")));
            }
            hosts.push(one);
        }
        if hosts.len() > 1 && hosts.iter().any(|host| host.opts.socket().is_some()) {
            return Err(invalid("a socket leads to one server, and it names several"));
        }
        let near = hosts.iter().all(One::is_near);
        let Some(first) = hosts.first() else { return Err(invalid("it names no host")) };
        let database = first.opts.db_name().filter(|name| !name.is_empty());
        let database = database.ok_or_else(|| invalid("it names no database"))?.to_owned();
        let tls = match first.tls.as_deref() {
            None if first.ca.is_some() => Tls::Verified,
            None if near => Tls::Disabled,
            None | Some("verified") => Tls::Verified,
            Some("unverified") => Tls::Unverified,
            Some("disable") => Tls::Disabled,
            Some(_) => return Err(invalid("tls is one of verified, unverified, disable")),
        };
        if first.ca.is_some() && tls != Tls::Verified {
            return Err(invalid("ca goes with tls=verified, which checks by it"));
        }
        let authorities = first.ca.as_deref().map(Authorities::of_file).transpose()?;
        let hosts = hosts.into_iter().map(|host| host.opts).collect();
        let (url, hosts) = (SecretString::from(url.to_owned()), Arc::new(Hosts::new(hosts)));
        Ok(Self { url, hosts, tls, authorities, database })
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

    /// Host and port, or socket, of each server, separated by commas: the name for errors and logs.
    #[must_use]
    pub fn server(&self) -> String {
        self.servers().join(", ")
    }

    /// Host and port, or socket, of each server in the order of the URL.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        self.hosts.iter().map(|(host, _)| self.hosts.name(host)).collect()
    }

    /// The URL itself, password included, for passing to a child process of the same trust.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.url.expose_secret()
    }

    /// The same servers and account, with another database.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] if the name cannot be part of a URL.
    pub fn with_database(&self, database: &str) -> Result<Self> {
        self.changed(|url| {
            url.set_path(database);
            Ok(())
        })
    }

    /// The same servers and database, with another account.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] if the URL has no place for an account.
    pub fn with_account(&self, user: &str, password: &str) -> Result<Self> {
        self.changed(|url| url.set_username(user).and_then(|()| url.set_password(Some(password))))
    }

    /// The same account and database on other hosts, each with its port if it has one.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] if they cannot be part of a URL.
    pub fn with_hosts<'h>(&self, hosts: impl IntoIterator<Item = &'h str>) -> Result<Self> {
        let hosts: Vec<&str> = hosts.into_iter().collect();
        let cut = Cut::new(self.expose()).ok_or_else(|| invalid("it has no ://"))?;
        Self::new(&cut.with(&hosts.join(",")))
    }

    /// Takes over the account and password of `other` for all later connections of this URL and its
    /// clones: passwords change while processes run.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] if `other` differs in more than that.
    pub fn renew_account(&self, other: &Self) -> Result<()> {
        let same = self.servers() == other.servers()
            && (self.database(), self.tls) == (other.database(), other.tls)
            && self.authorities == other.authorities;
        if !same {
            return Err(invalid(
                "only the account and its password can change while a process runs; restart it",
            ));
        }
        self.hosts.renew_account(&other.hosts);
        Ok(())
    }

    /// Changes the URL around its hosts, because `url::Url` cannot hold several.
    fn changed(&self, change: impl FnOnce(&mut ::url::Url) -> Result<(), ()>) -> Result<Self> {
        let cut = Cut::new(self.expose()).ok_or_else(|| invalid("it has no ://"))?;
        let first = cut.with(cut.hosts().next().unwrap_or_default());
        let mut url = ::url::Url::parse(&first).map_err(|error| invalid(&error.to_string()))?;
        change(&mut url).map_err(|()| invalid("it has no host"))?;
        let changed = Cut::new(url.as_str()).map(|new| new.with(cut.list()));
        Self::new(&changed.ok_or_else(|| invalid("it has no ://"))?)
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    pub(super) fn opts(&self, host: HostNo) -> OptsBuilder {
        let ssl = match self.tls {
            Tls::Disabled => None,
            Tls::Verified => {
                let trusted = self.authorities.as_ref().map(Authorities::trusted);
                Some(trusted.unwrap_or_default())
            }
            Tls::Unverified => Some(
                SslOpts::default()
                    .with_danger_accept_invalid_certs(true)
                    .with_danger_skip_domain_validation(true),
            ),
        };
        let (user, password) = self.hosts.account(host);
        OptsBuilder::from_opts(self.hosts.opts(host).clone())
            .user(user)
            .pass(password)
            // Left on, the driver would silently reconnect through the socket: another connection
            // id, another account, past any proxy.
            .prefer_socket(false)
            // 0 affected rows must mean fenced, even when an UPDATE writes the value that is
            // already there.
            .client_found_rows(true)
            .stmt_cache_size(0)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(u32::try_from(KEEPALIVE.as_millis()).unwrap_or(u32::MAX)))
            .ssl_opts(ssl)
    }
}

/// The kernel probes a silent peer after this time, so that the process notices a vanished server.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// The URL with only one of its hosts.
struct One {
    opts: Opts,
    tls: Option<String>,
    ca: Option<String>,
}

impl One {
    fn new(url: &str) -> Result<Self> {
        let unreadable = |error: ::url::ParseError| invalid(&error.to_string());
        let mut parsed = ::url::Url::parse(url).map_err(unreadable)?;
        if !matches!(parsed.scheme(), "mysql" | "mariadb") {
            return Err(invalid("the scheme is not mysql"));
        }
        if parsed.scheme() == "mariadb" {
            parsed = ::url::Url::parse(&url.replacen("mariadb", "mysql", 1)).map_err(unreadable)?;
        }
        let tls = take_parameter(&mut parsed, "tls");
        let ca = take_parameter(&mut parsed, "ca");
        let opts = Opts::from_url(parsed.as_str()).map_err(|error| invalid(&error.to_string()))?;
        Ok(Self { opts, tls, ca })
    }

    fn place(&self) -> (&str, u16) {
        (self.opts.ip_or_hostname(), self.opts.tcp_port())
    }

    fn is_near(&self) -> bool {
        self.opts.socket().is_some() || is_loopback(self.opts.ip_or_hostname())
    }
}

fn invalid(reason: &str) -> Error {
    Error::InvalidUrl { reason: reason.to_owned() }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Removes one of our parameters from the URL: the driver refuses those it does not know.
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
    fn the_authorities_of_a_file_are_read_at_once_and_only_with_a_check() {
        let folder = std::env::temp_dir();
        let file = folder.join(format!("rowmq-ca-{}.pem", std::process::id()));
        let path = file.to_str().expect("a path");
        let with = |more: &str| ServerUrl::new(&format!("mysql://u:p@127.0.0.1/q?ca={path}{more}"));
        let refused = |more: &str| with(more).map(|_| ()).expect_err(more).to_string();
        assert!(refused("").contains(path), "{}", refused(""));
        std::fs::write(&file, "no certificate").expect("written");
        assert!(refused("").contains("has no certificate in PEM form"));
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\n").expect("written");
        let url = with("").expect("a URL");
        assert_eq!(url.tls(), Tls::Verified, "also to a near host");
        assert!(refused("&tls=unverified").contains("ca goes with tls=verified"));
        assert!(refused("&tls=disable").contains("ca goes with tls=verified"));
        let other = with("&tls=verified").expect("a URL").with_database("r").expect("a name");
        assert_eq!(other.tls(), Tls::Verified);
        std::fs::remove_file(&file).expect("removed");
    }

    #[test]
    fn the_password_is_nowhere_to_be_read() {
        let url = ServerUrl::new("mysql://u:geheim@127.0.0.1/q");
        assert!(!format!("{url:?}").contains("geheim"));
        let error = ServerUrl::new("mysql://u:geheim@127.0.0.1").map(|_| ());
        assert!(!format!("{error:?}").contains("geheim"));
        assert!(format!("{error:?}").contains("names no database"));
    }

    #[test]
    fn several_hosts_are_one_url_with_the_same_account_and_database() {
        let url = ServerUrl::new("mysql://u:p@db1:3307,db2,[::1]:33/q?tls=unverified");
        let url = url.expect("a list");
        assert_eq!(url.servers(), ["db1:3307", "db2:3306", "[::1]:33"]);
        assert_eq!(url.server(), "db1:3307, db2:3306, [::1]:33");
        assert_eq!((url.database(), url.tls()), ("q", Tls::Unverified));
        assert_eq!(format!("{url:?}"), "ServerUrl(db1:3307, db2:3306, [::1]:33/q, tls Unverified)");
        let other = url.with_database("r").expect("a name");
        assert_eq!(other.expose(), "mysql://u:p@db1:3307,db2,[::1]:33/r?tls=unverified");
        let other = other.with_account("v", "w@").expect("an account");
        assert_eq!(other.expose(), "mysql://v:w%40@db1:3307,db2,[::1]:33/r?tls=unverified");
        let other = other.with_hosts(["127.0.0.1:5"]).expect("a host");
        assert_eq!(other.expose(), "mysql://v:w%40@127.0.0.1:5/r?tls=unverified");
    }

    #[test]
    fn tls_is_off_by_default_only_if_every_host_is_near() {
        let tls = |hosts: &str| ServerUrl::new(&format!("mysql://u:p@{hosts}/q")).map(|u| u.tls());
        assert_eq!(tls("127.0.0.1:1,[::1]:2,localhost").ok(), Some(Tls::Disabled));
        assert_eq!(tls("127.0.0.1:1,db.example").ok(), Some(Tls::Verified));
    }

    #[test]
    fn a_list_that_cannot_be_meant_is_refused() {
        for (url, reason) in [
            ("mysql://u:p@a,,b/q", "host"),
            ("mysql://u:p@a,b,/q", "host"),
            ("mysql://u:p@a:3306,a/q", "names a twice"),
            ("mysql://u:p@a,b:x/q", "port"),
            ("mysql://u:p@localhost,a/q?socket=%2Fs", "socket"),
            ("mysql://u:p@a,b", "names no database"),
            ("postgres://u:p@a,b/q", "scheme"),
        ] {
            let refused = ServerUrl::new(url).map(|_| ()).expect_err(url).to_string();
            assert!(refused.contains(reason), "{url}: {refused}");
        }
    }
}
