//! How many failed sign-ins a network may have.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;

/// How long a wrong password counts.
const WINDOW: Duration = Duration::from_secs(60);

/// The most networks remembered; beyond it, the oldest is forgotten.
const MOST: usize = 100_000;

/// A size of network, and the wrong passwords that it may have within [`WINDOW`].
#[derive(Debug)]
struct Allowance {
    four: u8,
    six: u8,
    failures: u32,
}

/// The allowance of one subscriber, and that of one site.
const ALLOWANCES: [Allowance; 2] =
    [Allowance { four: 32, six: 64, failures: 5 }, Allowance { four: 24, six: 48, failures: 50 }];

/// Counts failed sign-ins by network. It does not count them by name: a stranger could then lock a
/// user out.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    failed: Mutex<HashMap<IpNet, Failed>>,
}

#[derive(Debug)]
struct Failed {
    times: u32,
    since: Instant,
}

impl Throttle {
    /// Takes one try from the address's networks, before the password is checked, so that
    /// simultaneous tries count, too. `Err`: how long to wait.
    pub(crate) fn take(&self, address: IpAddr) -> Result<(), Duration> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.retain(|_, failed| failed.since.elapsed() < WINDOW);
        let waits = ALLOWANCES.iter().filter_map(|allowance| {
            let failed = failed.get(&allowance.network(address)?)?;
            (failed.times >= allowance.failures)
                .then(|| WINDOW.saturating_sub(failed.since.elapsed()))
        });
        if let Some(wait) = waits.max() {
            return Err(wait);
        }
        while failed.len() + ALLOWANCES.len() > MOST {
            let oldest = failed.iter().min_by_key(|(_, failed)| failed.since);
            let Some(oldest) = oldest.map(|(network, _)| *network) else { break };
            failed.remove(&oldest);
        }
        for network in ALLOWANCES.iter().filter_map(|allowance| allowance.network(address)) {
            let now = Failed { times: 0, since: Instant::now() };
            failed.entry(network).or_insert(now).times += 1;
        }
        Ok(())
    }

    /// The password was right: gives the tries back to the address's own network.
    pub(crate) fn forget(&self, address: IpAddr) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut networks = ALLOWANCES.iter().filter_map(|allowance| allowance.network(address));
        let own = networks.next().and_then(|own| failed.remove(&own));
        let times = own.map_or(0, |own| own.times);
        for network in networks {
            if let Some(failed) = failed.get_mut(&network) {
                failed.times = failed.times.saturating_sub(times);
            }
        }
    }
}

impl Allowance {
    fn network(&self, address: IpAddr) -> Option<IpNet> {
        let length = if address.is_ipv4() { self.four } else { self.six };
        IpNet::new(address, length).ok().map(|network| network.trunc())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn five_wrong_passwords_a_minute_are_all_of_a_subscriber() {
        for [own, other] in
            [["10.0.0.1", "10.0.0.2"], ["2001:db8::1", "2001:db8:0:1::1"]].map(|it| it.map(address))
        {
            let throttle = Throttle::default();
            for _ in 0..5 {
                assert_eq!(throttle.take(own), Ok(()));
            }
            assert!(throttle.take(own).is_err());
            assert_eq!(throttle.take(other), Ok(()));
        }
    }

    #[test]
    fn fifty_wrong_passwords_a_minute_are_all_of_a_site() {
        let throttle = Throttle::default();
        let of = |site: u16, network: u16| IpAddr::from([0x2001, 0xdb8, site, network, 0, 0, 0, 1]);
        for network in 0..50 {
            assert_eq!(throttle.take(of(1, network)), Ok(()));
        }
        assert!(throttle.take(of(1, 50)).is_err());
        assert_eq!(throttle.take(of(2, 0)), Ok(()));
    }

    #[test]
    fn a_right_password_makes_good_for_wrong_ones() {
        let throttle = Throttle::default();
        for _ in 0..200 {
            assert_eq!(throttle.take(address("2001:db8::1")), Ok(()));
            throttle.forget(address("2001:db8::2"));
        }
    }
}
