//! The privileges that an account holds, compared with those it needs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::grant::{Privilege, parts};
use super::{Account, Grant, Object};

/// The privileges that an account holds, from `SHOW GRANTS`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    rows: Vec<(Scope, Vec<Privilege>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Scope {
    Server,
    /// A database, or a pattern for several.
    Database(String),
    Table(String, String),
    Procedure(String, String),
}

/// The difference between the privileges that an account holds and those it needs; each as
/// `INSERT, UPDATE ON queue_log`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Shortfall {
    /// Privileges that it lacks.
    pub missing: Vec<String>,
    /// Privileges that it holds but does not need.
    pub excess: Vec<String>,
}

impl Held {
    /// Reads the lines of `SHOW GRANTS`. Lines of another form grant roles; the server lists the
    /// privileges of active roles separately.
    #[must_use]
    pub fn of_lines<'l>(lines: impl IntoIterator<Item = &'l str>) -> Self {
        let row = |line: &str| {
            let (mut privileges, object) = parts(line)?;
            if line.contains("WITH GRANT OPTION") {
                privileges.push(Privilege { name: "GRANT OPTION".to_owned(), columns: None });
            }
            for privilege in &mut privileges {
                // MariaDB's name for it.
                if privilege.name == "BINLOG MONITOR" {
                    "REPLICATION CLIENT".clone_into(&mut privilege.name);
                }
            }
            Some((Scope::of(object)?, privileges))
        };
        Self { rows: lines.into_iter().filter_map(row).collect() }
    }

    /// Compares the account's privileges with its need in the queue's `database`.
    #[must_use]
    pub fn beside(&self, account: Account, database: &str) -> Shortfall {
        let needed: Vec<_> = account.grants().collect();
        let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for grant in needed.iter().filter(|grant| !grant.is_optional) {
            for privilege in &grant.privileges {
                if !self.has(privilege, &grant.object, database) {
                    let lacking = missing.entry(grant.object.to_string()).or_default();
                    lacking.push(privilege.to_string());
                }
            }
        }
        let missing =
            missing.iter().map(|(object, names)| format!("{} ON {object}", names.join(", ")));
        Shortfall { missing: missing.collect(), excess: self.excess(&needed, database) }
    }

    fn has(&self, wanted: &Privilege, object: &Object, database: &str) -> bool {
        self.rows.iter().filter(|(scope, _)| scope.covers(object, database)).any(|(_, held)| {
            held.iter().any(|held| {
                let all = held.name == "ALL PRIVILEGES" || held.name == "ALL";
                all || held.name == wanted.name && has_columns(held, wanted)
            })
        })
    }

    fn excess(&self, needed: &[Grant], database: &str) -> Vec<String> {
        let mut excess = Vec::new();
        for (scope, privileges) in &self.rows {
            let Some(object) = scope.object(database) else { continue };
            let asked_here = |held: &Privilege| {
                let mut here = needed.iter().filter(|grant| grant.object == object);
                held.name == "USAGE"
                    || here.any(|grant| {
                        grant
                            .privileges
                            .iter()
                            .any(|asked| asked.name == held.name && has_columns(asked, held))
                    })
            };
            let names: Vec<_> = privileges
                .iter()
                .filter(|held| !asked_here(held))
                .map(Privilege::to_string)
                .collect();
            if !names.is_empty() {
                excess.push(format!("{} ON {object}", names.join(", ")));
            }
        }
        excess
    }
}

/// Whether one privilege covers all the columns of the other.
fn has_columns(held: &Privilege, wanted: &Privilege) -> bool {
    match (&held.columns, &wanted.columns) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(held), Some(wanted)) => wanted.iter().all(|column| held.contains(column)),
    }
}

impl Scope {
    /// Reads `*.*`, `` `shop`.* ``, `` `shop`.`queue_log` `` or
    /// `` PROCEDURE `shop`.`queue_send` ``.
    fn of(text: &str) -> Option<Self> {
        let (is_procedure, text) = match text.strip_prefix("PROCEDURE ") {
            Some(text) => (true, text),
            None => (false, text.strip_prefix("TABLE ").unwrap_or(text)),
        };
        let bare = text.replace(['`', '"'], "");
        let (database, name) = bare.rsplit_once('.')?;
        let (database, name) = (database.to_owned(), name.to_owned());
        Some(match (database.as_str(), name.as_str()) {
            ("*", "*") => Self::Server,
            (_, "*") => Self::Database(database),
            _ if is_procedure => Self::Procedure(database, name),
            _ => Self::Table(database, name),
        })
    }

    fn covers(&self, object: &Object, of: &str) -> bool {
        match (self, object) {
            (Self::Server, _) => true,
            (Self::Database(_), Object::Server) => false,
            (Self::Database(pattern), _) => matches(pattern, of),
            (Self::Table(database, name), Object::Table(wanted))
            | (Self::Procedure(database, name), Object::Procedure(wanted)) => {
                database == of && name.eq_ignore_ascii_case(wanted)
            }
            _ => false,
        }
    }

    /// The queue's object that it names; `None` if it is something else.
    fn object(&self, of: &str) -> Option<Object> {
        let ours = |database: &String, name: &String| database == of && name.starts_with("queue_");
        match self {
            Self::Server => Some(Object::Server),
            Self::Database(pattern) => matches(pattern, of).then_some(Object::Database),
            Self::Table(database, name) => {
                // The optional view of connections, which `process-list.sql` grants.
                let is_table = ours(database, name) && name != "queue_connection";
                is_table.then(|| Object::Table(name.clone()))
            }
            Self::Procedure(database, name) => {
                ours(database, name).then(|| Object::Procedure(name.clone()))
            }
        }
    }
}

/// Whether a database matches a grant's pattern, in which `%` and `_` are wildcards unless a
/// backslash precedes them.
fn matches(pattern: &str, name: &str) -> bool {
    let mut chars = pattern.chars();
    let Some(first) = chars.next() else { return name.is_empty() };
    let rest = chars.as_str();
    let mut named = name.chars();
    match first {
        '%' => (0..=name.len())
            .filter(|at| name.is_char_boundary(*at))
            .any(|at| matches(rest, &name[at..])),
        '_' => named.next().is_some() && matches(rest, named.as_str()),
        '\\' => {
            let literal = chars.next();
            literal.is_some() && named.next() == literal && matches(chars.as_str(), named.as_str())
        }
        _ => named.next() == Some(first) && matches(rest, named.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_file(account: Account, database: &str) -> Vec<String> {
        let of = |grant: Grant| {
            let names: Vec<_> = grant.privileges.iter().map(Privilege::to_string).collect();
            let object = match grant.object {
                Object::Server => "*.*".to_owned(),
                Object::Database => format!("`{database}`.*"),
                Object::Table(name) => format!("`{database}`.`{name}`"),
                Object::Procedure(name) => format!("PROCEDURE `{database}`.`{name}`"),
            };
            format!("GRANT {} ON {object} TO `a`@`%`", names.join(", "))
        };
        account.grants().map(of).collect()
    }

    fn beside(lines: &[String], account: Account) -> Shortfall {
        Held::of_lines(lines.iter().map(String::as_str)).beside(account, "shop")
    }

    #[test]
    fn an_account_that_holds_its_file_lacks_nothing_and_has_nothing_beyond() {
        for account in Account::ALL {
            assert_eq!(beside(&of_file(account, "shop"), account), Shortfall::default());
        }
    }

    #[test]
    fn what_is_missing_is_named_and_an_optional_grant_is_not() {
        let mut lines = of_file(Account::Consumer, "shop");
        lines.retain(|line| !line.contains("queue_floor") && !line.contains("*.*"));
        let compared = beside(&lines, Account::Consumer);
        assert_eq!(compared.missing, ["SELECT, INSERT, UPDATE ON queue_floor"]);
        assert_eq!(compared.excess, Vec::<String>::new());
    }

    #[test]
    fn what_is_held_beyond_the_need_is_named() {
        let mut lines = of_file(Account::Caller, "shop");
        lines.push("GRANT USAGE ON *.* TO `a`@`%` WITH GRANT OPTION".to_owned());
        lines.push("GRANT SELECT ON `sh%`.* TO `a`@`%`".to_owned());
        lines.push("GRANT DELETE ON `shop`.`queue_log` TO `a`@`%`".to_owned());
        lines.push("GRANT DELETE ON `shop`.`orders` TO `a`@`%`".to_owned());
        let compared = beside(&lines, Account::Caller);
        let excess = ["GRANT OPTION ON *.*", "SELECT ON the database", "DELETE ON queue_log"];
        assert_eq!(compared.excess, excess);
        assert_eq!(compared.missing, Vec::<String>::new());
    }

    #[test]
    fn everything_on_the_database_is_enough_for_all_but_the_server() {
        let all = ["GRANT ALL PRIVILEGES ON `shop`.* TO `a`@`%`".to_owned()];
        assert_eq!(beside(&all, Account::Consumer).missing, Vec::<String>::new());
        assert_eq!(beside(&all, Account::Janitor).missing, ["PROCESS ON *.*"]);
        let elsewhere = ["GRANT ALL PRIVILEGES ON `shop2`.* TO `a`@`%`".to_owned()];
        assert_ne!(beside(&elsewhere, Account::Caller).missing, Vec::<String>::new());
    }

    #[test]
    fn patterns_of_databases_are_matched_as_the_server_does() {
        for (pattern, name, is) in [
            ("shop", "shop", true),
            ("sh_p", "shop", true),
            ("sh\\_p", "shop", false),
            ("sh\\_p", "sh_p", true),
            ("%", "anything", true),
            ("a%c", "abbc", true),
            ("a%c", "abb", false),
            ("%", "", true),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }
}
