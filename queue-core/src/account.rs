//! The accounts of the queue's processes, and the privileges of each.
//!
//! The files of `ops/deploy/grants` define them: an administrator runs the files, the self-test
//! compares an account's privileges with them, and the test suite runs every process under them.

mod grant;
mod held;

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

pub use self::grant::{Grant, Object, Privilege};
pub use self::held::{Held, Shortfall};

/// The purpose of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Account {
    /// Creates and changes the tables.
    Migrator,
    /// The library that enqueues, `rowmq-producer send` and the relay.
    Producer,
    /// A program that only calls the procedures for enqueueing.
    Caller,
    /// A program that enqueues by procedures, even with unique keys, and cancels.
    Keyed,
    /// A program that claims and settles by calling procedures.
    Claimer,
    /// Claims and settles, and stands in for the janitor.
    Consumer,
    /// Performs the janitor's duties.
    Janitor,
    /// A person with `rowmq`.
    Operator,
    /// The web console.
    Console,
    /// Reads statistics, and no body.
    Dashboard,
}

impl Account {
    /// Every one of them.
    pub const ALL: [Self; 10] = [
        Self::Migrator,
        Self::Producer,
        Self::Caller,
        Self::Keyed,
        Self::Claimer,
        Self::Consumer,
        Self::Janitor,
        Self::Operator,
        Self::Console,
        Self::Dashboard,
    ];

    /// Its word on the command line and in the name of its file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Migrator => "migrator",
            Self::Producer => "producer",
            Self::Caller => "caller",
            Self::Keyed => "keyed",
            Self::Claimer => "claimer",
            Self::Consumer => "consumer",
            Self::Janitor => "janitor",
            Self::Operator => "operator",
            Self::Console => "console",
            Self::Dashboard => "dashboard",
        }
    }

    /// The account with this word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|account| account.word() == word)
    }

    /// Its file in `ops/deploy/grants`: statements for the queue's database and the account
    /// `queue_WORD@%`.
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::Migrator => include_str!("../grants/migrator.sql"),
            Self::Producer => include_str!("../grants/producer.sql"),
            Self::Caller => include_str!("../grants/caller.sql"),
            Self::Keyed => include_str!("../grants/keyed.sql"),
            Self::Claimer => include_str!("../grants/claimer.sql"),
            Self::Consumer => include_str!("../grants/consumer.sql"),
            Self::Janitor => include_str!("../grants/janitor.sql"),
            Self::Operator => include_str!("../grants/operator.sql"),
            Self::Console => include_str!("../grants/console.sql"),
            Self::Dashboard => include_str!("../grants/dashboard.sql"),
        }
    }

    /// Its file for an account with another name.
    #[must_use]
    pub fn statements(self, name: &AccountName) -> String {
        self.file().replace(&format!("'queue_{}'@'%'", self.word()), &name.to_string())
    }

    /// The grants of its file, in order.
    pub fn grants(self) -> impl Iterator<Item = Grant> {
        self.file().lines().filter_map(Grant::of_line)
    }

    /// Whether its file grants this privilege on this table or procedure.
    #[must_use]
    pub fn may(self, privilege: &str, name: &str) -> bool {
        let is_on = |grant: &Grant| match &grant.object {
            Object::Table(table) => table == name,
            Object::Procedure(procedure) => procedure == name,
            Object::Database => true,
            Object::Server => false,
        };
        self.grants().any(|grant| {
            is_on(&grant) && grant.privileges.iter().any(|held| held.name == privilege)
        })
    }

    /// Whether its file names this table, or the whole database.
    #[must_use]
    pub fn knows_table(self, name: &str) -> bool {
        ["SELECT", "INSERT"].into_iter().any(|privilege| self.may(privilege, name))
    }

    /// Whether its file names this procedure, or the whole database. One procedure has the name of
    /// a table.
    #[must_use]
    pub fn knows_procedure(self, name: &str) -> bool {
        self.may("EXECUTE", name)
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The name of an account of the server, as `'user'@'host'`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountName {
    user: String,
    host: String,
}

impl FromStr for AccountName {
    type Err = String;

    /// Reads `user@host`, with or without quotes; without a host it is `%`, every host.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bare = |part: &str| part.trim().trim_matches(['\'', '"', '`']).to_owned();
        let (user, host) = text.rsplit_once('@').unwrap_or((text, "%"));
        let (user, host) = (bare(user), bare(host));
        if user.is_empty() || host.is_empty() || text.contains(['\\', '\n', '\0']) {
            return Err("an account looks like shop@% or shop@10.0.0.%".to_owned());
        }
        Ok(Self { user, host })
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |part: &str| part.replace('\'', "''");
        write!(f, "'{}'@'{}'", quoted(&self.user), quoted(&self.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::TABLES;
    use crate::procedures;

    #[test]
    fn every_file_is_read_to_its_last_statement_and_names_only_what_there_is() {
        for account in Account::ALL {
            let statements = account.file().lines().filter(|line| line.contains("GRANT ")).count();
            let grants: Vec<_> = account.grants().collect();
            assert_eq!(grants.len(), statements, "{account}");
            for grant in grants {
                match grant.object {
                    Object::Table(name) => {
                        let known = TABLES.contains(&name.as_str());
                        assert!(known || name == "queue_schema_migration", "{account}: {name}");
                    }
                    Object::Procedure(name) => {
                        assert!(procedures::public().any(|it| it == name), "{account}: {name}");
                    }
                    Object::Database | Object::Server => {}
                }
            }
        }
    }

    #[test]
    fn callers_read_nothing_and_a_dashboard_no_body() {
        for account in [Account::Caller, Account::Keyed, Account::Claimer] {
            assert!(TABLES.iter().all(|table| !account.knows_table(table)), "{account}");
        }
        for table in ["queue_message", "queue_dead", "queue_log"] {
            let grants = Account::Dashboard.grants();
            let on = |grant: &Grant| grant.object == Object::Table(table.to_owned());
            for grant in grants.filter(on) {
                for privilege in grant.privileges {
                    let columns = privilege.columns.expect("columns are named");
                    let is_private = |column: &String| ["body", "entries"].contains(&&**column);
                    assert!(!columns.iter().any(is_private), "{table}");
                }
            }
        }
    }

    #[test]
    fn the_statements_are_for_the_account_that_was_named() {
        let name: AccountName = "o'hara@10.%".parse().expect("a name");
        let statements = Account::Caller.statements(&name);
        let granted = "ON PROCEDURE queue_send_all TO 'o''hara'@'10.%';";
        assert!(statements.contains(granted), "{statements}");
        assert_eq!("'web'@'%'".parse::<AccountName>(), "web".parse());
        assert!("@%".parse::<AccountName>().is_err());
        assert!("a\\@b".parse::<AccountName>().is_err());
    }
}
