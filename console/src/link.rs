//! Sign-in by a link in the console's own log, while no users are configured.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use crate::secret::{self, Digested};

/// A link that signs in once. The next link is logged as soon as this one is used.
#[derive(Debug)]
pub(crate) struct Link {
    address: SocketAddr,
    token: Mutex<Digested>,
}

impl Link {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let token = secret::new();
        let link = Self { address, token: Mutex::new(Digested::of(&token)) };
        link.log(&token);
        link
    }

    /// Whether this is the token of the link, which is invalid from then on.
    pub(crate) fn take(&self, token: &str) -> bool {
        let mut kept = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if *kept != Digested::of(token) {
            return false;
        }
        let next = secret::new();
        *kept = Digested::of(&next);
        self.log(&next);
        true
    }

    fn log(&self, token: &str) {
        tracing::info!(
            "Sign in, once, by http://{}/sign-in?token={token} (name a file of users for more).",
            self.address
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_signs_in_once() {
        let link = Link::new(SocketAddr::from(([127, 0, 0, 1], 9480)));
        assert!(!link.take(""));
        let token = secret::new();
        *link.token.lock().expect("not poisoned") = Digested::of(&token);
        assert!(link.take(&token));
        assert!(!link.take(&token));
    }
}
