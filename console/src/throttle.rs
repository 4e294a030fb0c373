//! How often somebody may be wrong.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wrong passwords of one address, or for one name, within [`WINDOW`].
const FAILURES: u32 = 5;
const WINDOW: Duration = Duration::from_secs(60);

/// The most addresses and names remembered; while there are more, nobody signs in by password.
const MOST: usize = 100_000;

/// Counts the failed sign-ins of each address, and for each name.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    failed: Mutex<HashMap<Key, Failed>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Address(IpAddr),
    Name(String),
}

#[derive(Debug)]
struct Failed {
    times: u32,
    since: Instant,
}

impl Throttle {
    /// Takes one try from both, before the password is looked at, so that tries at the same moment
    /// count, too. `Err`: how long to wait.
    pub(crate) fn take(&self, address: IpAddr, name: &str) -> Result<(), Duration> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.retain(|_, failed| failed.since.elapsed() < WINDOW);
        let keys = [Key::Address(network(address)), Key::Name(name.to_owned())];
        let wait = keys.iter().filter_map(|key| failed.get(key)?.wait()).max();
        match wait {
            Some(wait) => Err(wait),
            None if failed.len() + keys.len() > MOST => Err(WINDOW),
            None => {
                for key in keys {
                    let now = Failed { times: 0, since: Instant::now() };
                    failed.entry(key).or_insert(now).times += 1;
                }
                Ok(())
            }
        }
    }

    /// The password was right.
    pub(crate) fn forget(&self, address: IpAddr, name: &str) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.remove(&Key::Address(network(address)));
        failed.remove(&Key::Name(name.to_owned()));
    }
}

impl Failed {
    fn wait(&self) -> Option<Duration> {
        (self.times >= FAILURES).then(|| WINDOW.saturating_sub(self.since.elapsed()))
    }
}

/// Somebody has a whole /64 of IPv6 addresses.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(six) => Ipv6Addr::from(u128::from(six) & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_wrong_passwords_a_minute_are_all_of_an_address_and_for_a_name() {
        let throttle = Throttle::default();
        let here = IpAddr::from([10, 0, 0, 1]);
        for at in 0..5 {
            assert_eq!(throttle.take(here, &format!("user-{at}")), Ok(()));
        }
        assert!(throttle.take(here, "another").is_err());
        for at in 2..6 {
            assert_eq!(throttle.take(IpAddr::from([10, 0, 0, at]), "user-0"), Ok(()));
        }
        let there = IpAddr::from([10, 0, 0, 9]);
        assert!(throttle.take(there, "user-0").is_err());
        assert_eq!(throttle.take(there, "user-9"), Ok(()));
    }

    #[test]
    fn a_right_password_makes_good_for_wrong_ones() {
        let throttle = Throttle::default();
        let here: IpAddr = "2001:db8::1".parse().expect("an address");
        for _ in 0..20 {
            assert_eq!(throttle.take(here, "ada"), Ok(()));
            throttle.forget("2001:db8::2".parse().expect("an address"), "ada");
        }
    }
}
