//! The signed-in users. They are kept in the memory of this process, so a restart signs them all
//! out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rowmq_core::model::Actor;

use crate::role::Role;
use crate::secret::{self, Digested};

/// The most users signed in at once; beyond it, the earliest has to sign in again.
const MOST: usize = 10_000;

/// A signed-in user.
#[derive(Debug)]
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The CSRF token in each of the user's forms, which a foreign page cannot know.
    pub(crate) csrf: String,
    /// Whether a proxy has signed the user in. Then the user cannot sign out here.
    pub(crate) by_proxy: bool,
    began: Instant,
}

impl Login {
    fn new(name: String, role: Role, by_proxy: bool) -> Self {
        Self { name, role, csrf: secret::new(), by_proxy, began: Instant::now() }
    }

    pub(crate) fn is_csrf(&self, token: &str) -> bool {
        Digested::of(token) == Digested::of(&self.csrf)
    }

    /// The user as the audit names them.
    pub(crate) fn actor(&self, origin: String) -> Actor {
        Actor { name: self.name.clone(), origin }
    }
}

/// All signed-in users.
#[derive(Debug)]
pub(crate) struct Logins {
    time: Duration,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_cookie: HashMap<Digested, Arc<Login>>,
    by_proxy: HashMap<(String, Role), Arc<Login>>,
}

impl Logins {
    /// Each login lasts for `time`.
    pub(crate) fn new(time: Duration) -> Self {
        Self { time, open: Mutex::default() }
    }

    /// Signs a user in, and returns the secret for their cookie.
    pub(crate) fn begin(&self, name: String, role: Role) -> String {
        let cookie = secret::new();
        let login = Arc::new(Login::new(name, role, false));
        self.with(|open| {
            make_room(&mut open.by_cookie);
            open.by_cookie.insert(Digested::of(&cookie), login);
        });
        cookie
    }

    /// The login that this cookie belongs to.
    pub(crate) fn of_cookie(&self, cookie: &str) -> Option<Arc<Login>> {
        self.with(|open| open.by_cookie.get(&Digested::of(cookie)).cloned())
    }

    /// The login of a user whom a trusted proxy has signed in.
    pub(crate) fn of_proxy(&self, name: &str, role: Role) -> Arc<Login> {
        self.with(|open| {
            make_room(&mut open.by_proxy);
            let login = open.by_proxy.entry((name.to_owned(), role));
            Arc::clone(login.or_insert_with(|| Arc::new(Login::new(name.to_owned(), role, true))))
        })
    }

    pub(crate) fn end(&self, cookie: &str) {
        self.with(|open| open.by_cookie.remove(&Digested::of(cookie)));
    }

    fn with<T>(&self, work: impl FnOnce(&mut Open) -> T) -> T {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let lasts = |login: &Arc<Login>| login.began.elapsed() < self.time;
        open.by_cookie.retain(|_, login| lasts(login));
        open.by_proxy.retain(|_, login| lasts(login));
        work(&mut open)
    }
}

fn make_room<K: Clone + Eq + std::hash::Hash>(logins: &mut HashMap<K, Arc<Login>>) {
    if logins.len() >= MOST {
        let oldest = logins.iter().min_by_key(|(_, login)| login.began).map(|(key, _)| key.clone());
        oldest.map(|key| logins.remove(&key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_found_by_its_cookie_until_it_ends_or_its_time_is_over() {
        let logins = Logins::new(Duration::from_secs(3600));
        let cookie = logins.begin("ada".to_owned(), Role::Admin);
        assert_eq!(logins.of_cookie(&cookie).map(|login| login.role), Some(Role::Admin));
        assert!(logins.of_cookie("another").is_none());
        logins.end(&cookie);
        assert!(logins.of_cookie(&cookie).is_none());
        let over = Logins::new(Duration::ZERO);
        let cookie = over.begin("ada".to_owned(), Role::Admin);
        assert!(over.of_cookie(&cookie).is_none());
    }

    #[test]
    fn somebody_of_a_proxy_keeps_their_forms_from_one_request_to_the_next() {
        let logins = Logins::new(Duration::from_secs(3600));
        let first = logins.of_proxy("ada", Role::Viewer);
        assert!(logins.of_proxy("ada", Role::Viewer).is_csrf(&first.csrf));
        assert!(!logins.of_proxy("ada", Role::Admin).is_csrf(&first.csrf));
    }
}
