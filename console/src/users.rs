//! The users' file: one line for each user, `NAME:ROLE:HASH`, with an argon2id hash.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use rowmq_service::location::credential;
use rowmq_service::process;
use tokio::sync::Semaphore;

use crate::role::Role;

/// How many hashes are computed at once: each takes 19 MiB and some 20 ms of a core.
const AT_ONCE: usize = 2;

/// The systemd credential that holds the file.
const CREDENTIAL: &str = "rowmq-users";

/// The shortest password accepted.
const SHORTEST: usize = 8;

#[derive(Debug, Clone)]
struct User {
    role: Role,
    hash: String,
}

/// Who may sign in by password.
#[derive(Debug)]
pub(crate) struct Users {
    users: HashMap<String, User>,
    /// The hash that an unknown user's password is compared with, so that the check takes as long
    /// as for a known user.
    unknown: String,
    places: Arc<Semaphore>,
}

impl Users {
    /// Reads the users of a file, which must name at least one.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        Self::named(path)?.with_context(|| {
            let program = process::name();
            format!(
                "{} names no user: `{program} user NAME --role ROLE` prints a line for it",
                path.display()
            )
        })
    }

    /// Reads the users of the systemd credential. Where there is no users' file, the unit passes a
    /// credential that names no users.
    pub(crate) fn of_credential() -> anyhow::Result<Option<Self>> {
        credential(CREDENTIAL).map_or(Ok(None), |path| Self::named(&path))
    }

    fn named(path: &Path) -> anyhow::Result<Option<Self>> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("Cannot read the users' file {}", path.display()))?;
        let mut users = HashMap::new();
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = || format!("{}:{number}", path.display());
            let (name, user) = user_of(line).with_context(place)?;
            if users.insert(name.clone(), user).is_some() {
                bail!("{}: '{name}' stands in the file twice: remove one of the lines", place());
            }
        }
        if users.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            users,
            unknown: hash("the password of no user")?,
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }))
    }

    /// The role of this user, if the password is right.
    pub(crate) async fn verify(&self, name: &str, password: String) -> Option<Role> {
        let known = self.users.get(name);
        let hash = known.map_or(&self.unknown, |user| &user.hash).clone();
        // Never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        // The work holds the permit: a client that hangs up ends this future, but not the work.
        let is_right = tokio::task::spawn_blocking(move || {
            let _place = place;
            matches(&password, &hash)
        })
        .await;
        known.filter(|_| is_right.unwrap_or(false)).map(|user| user.role)
    }
}

fn matches(password: &str, hash: &str) -> bool {
    PasswordHash::new(hash)
        .is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
}

fn user_of(line: &str) -> anyhow::Result<(String, User)> {
    let parts = line.split_once(':').and_then(|(name, rest)| {
        let (role, hash) = rest.split_once(':')?;
        Some((name, role, hash))
    });
    let Some((name, role, hash)) = parts.filter(|(name, ..)| !name.is_empty()) else {
        let program = process::name();
        bail!("a line is NAME:ROLE:HASH, as `{program} user NAME --role ROLE` prints it");
    };
    let role = role.parse().map_err(|wrong| anyhow!("'{role}' is no role; {wrong}"))?;
    let known = PasswordHash::new(hash).ok().filter(|hash| hash.algorithm.as_str() == "argon2id");
    if known.is_none() {
        let program = process::name();
        bail!("the hash is none of argon2id: `{program} user {name} --role {role}` makes one");
    }
    Ok((name.to_owned(), User { role, hash: hash.to_owned() }))
}

fn hash(password: &str) -> anyhow::Result<String> {
    let hashed = Argon2::default().hash_password(password.as_bytes());
    hashed.map(|hash| hash.to_string()).map_err(|error| anyhow!("Cannot hash a password: {error}"))
}

/// The line of the users' file for a user with this password.
pub(crate) fn line(name: &str, role: Role, password: &str) -> anyhow::Result<String> {
    if name.is_empty() || name.contains(|c: char| c == ':' || c == '#' || c.is_control()) {
        bail!("'{name}' is no name for a user: leave out : and #");
    }
    if password.chars().count() < SHORTEST {
        bail!("The password is too short: it has {SHORTEST} characters or more");
    }
    Ok(format!("{name}:{role}:{}", hash(password)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Users> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("users");
        std::fs::write(&path, text).expect("written");
        Users::read(&path)
    }

    #[tokio::test]
    async fn a_line_lets_in_its_user_alone_by_the_password() {
        let line = line("ada", Role::Operator, "analytical engine").expect("a line");
        let users = read(&format!("# people\n\n{line}\n")).expect("read");
        let verify =
            async |name: &str, password: &str| users.verify(name, password.to_owned()).await;
        assert_eq!(verify("ada", "analytical engine").await, Some(Role::Operator));
        assert_eq!(verify("ada", "difference engine").await, None);
        assert_eq!(verify("bob", "the password of no user").await, None);
    }

    #[test]
    fn a_line_that_lets_no_user_in_is_refused_with_its_place() {
        for (text, reason) in [
            ("ada\n", "users:1: a line is NAME:ROLE:HASH"),
            ("\nada:root:x", "users:2: 'root' is no role; a role is viewer"),
            ("ada:admin:secret", "users:1: the hash is none of argon2id"),
            ("# none\n", "names no user"),
        ] {
            let error = format!("{:#}", read(text).expect_err("refused"));
            assert!(error.contains(reason), "{error}");
        }
        assert!(line("a:b", Role::Admin, "long enough").is_err());
        assert!(line("a", Role::Admin, "short").is_err());
    }
}
