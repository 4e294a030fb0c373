//! The hosts of a URL, and what this process has learned about them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::Opts;
use secrecy::{ExposeSecret, SecretString};

/// How long a host that gave no answer is tried after all others. Long enough that not every
/// reconnect waits for it, short enough that a repaired host is soon in use again.
const DISTRUST: Duration = Duration::from_secs(30);

/// A host's place in the URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HostNo(usize);

#[cfg(feature = "simulation")]
impl HostNo {
    pub(crate) const FIRST: Self = Self(0);
}

/// The hosts in the order of the URL; shared by the clones of a URL, and so by a process.
pub(crate) struct Hosts {
    list: Vec<Opts>,
    learned: Mutex<Learned>,
    /// The account that has been [renewed](Self::renew_account).
    account: Mutex<Option<Account>>,
}

/// An account and its password, either of which a URL may leave out.
type Account = (Option<String>, Option<SecretString>);

struct Learned {
    /// The host that served last.
    served: usize,
    /// Every host takes writes (Galera). All processes use the first one that is up, so there is
    /// one writer.
    all_write: bool,
    /// Until when each host is distrusted.
    distrusted: Vec<Option<Instant>>,
}

impl Hosts {
    pub(super) fn new(list: Vec<Opts>) -> Self {
        let distrusted = vec![None; list.len()];
        let learned = Mutex::new(Learned { served: 0, all_write: false, distrusted });
        Self { list, learned, account: Mutex::new(None) }
    }

    /// Takes over the account of `other` from now on.
    pub(super) fn renew_account(&self, other: &Self) {
        let (user, password) = other.account(HostNo(0));
        let account = Some((user, password.map(SecretString::from)));
        *self.account.lock().unwrap_or_else(PoisonError::into_inner) = account;
    }

    /// The account for connections to `host`.
    pub(super) fn account(&self, host: HostNo) -> (Option<String>, Option<String>) {
        let renewed = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((user, password)) = &*renewed {
            let password = password.as_ref().map(|password| password.expose_secret().to_owned());
            return (user.clone(), password);
        }
        let opts = self.opts(host);
        (opts.user().map(str::to_owned), opts.pass().map(str::to_owned))
    }

    pub(crate) fn is_list(&self) -> bool {
        self.list.len() > 1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (HostNo, &Opts)> {
        self.list.iter().enumerate().map(|(no, opts)| (HostNo(no), opts))
    }

    pub(super) fn opts(&self, host: HostNo) -> &Opts {
        &self.list[host.0]
    }

    /// Host and port, or socket: the name for errors and logs.
    pub(crate) fn name(&self, host: HostNo) -> String {
        let opts = self.opts(host);
        match opts.socket() {
            Some(socket) => format!("the socket {socket}"),
            None => format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port()),
        }
    }

    /// Every host, in the order in which to try them now: starting with the one that served last,
    /// and with those that recently gave no answer at the end.
    pub(super) fn to_try(&self) -> Vec<HostNo> {
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, now) = (self.list.len(), Instant::now());
        let first = if learned.all_write { 0 } else { learned.served };
        let order = (0..count).map(|step| (first + step) % count);
        let is_trusted = |no: &usize| learned.distrusted[*no].is_none_or(|until| until <= now);
        let (mut order, last): (Vec<_>, Vec<_>) = order.partition(is_trusted);
        order.extend(last);
        order.into_iter().map(HostNo).collect()
    }

    /// Records that this host serves; `all_write` if the other hosts take writes too.
    pub(super) fn serves(&self, host: HostNo, all_write: bool) {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        learned.served = host.0;
        learned.all_write = all_write;
    }

    /// Records that this host gave no answer in time. It may be down, or cut off from its cluster
    /// and taking commits that never end.
    pub(super) fn distrust(&self, host: HostNo) {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        learned.distrusted[host.0] = Some(Instant::now() + DISTRUST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Hosts {
        let opts = |host| Opts::from_url(&format!("mysql://u:p@{host}/q")).expect("a URL");
        Hosts::new(["a", "b", "c"].into_iter().map(opts).collect())
    }

    fn order(hosts: &Hosts) -> Vec<usize> {
        hosts.to_try().into_iter().map(|host| host.0).collect()
    }

    #[test]
    fn the_host_that_served_last_is_tried_first() {
        let hosts = hosts();
        assert_eq!(order(&hosts), [0, 1, 2]);
        hosts.serves(HostNo(1), false);
        assert_eq!(order(&hosts), [1, 2, 0]);
    }

    #[test]
    fn where_all_take_writes_the_first_is_the_writer() {
        let hosts = hosts();
        hosts.serves(HostNo(2), true);
        assert_eq!(order(&hosts), [0, 1, 2]);
    }

    #[test]
    fn a_host_without_an_answer_is_tried_last_and_still_tried() {
        let hosts = hosts();
        hosts.serves(HostNo(1), false);
        hosts.distrust(HostNo(1));
        assert_eq!(order(&hosts), [2, 0, 1]);
        hosts.distrust(HostNo(2));
        hosts.distrust(HostNo(0));
        assert_eq!(order(&hosts), [1, 2, 0]);
    }
}
