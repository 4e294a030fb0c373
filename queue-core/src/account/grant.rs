//! The content of a GRANT statement.

use std::fmt;

/// Privileges on an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The privileges.
    pub privileges: Vec<Privilege>,
    /// The object that they apply to.
    pub object: Object,
    /// Whether the account can work without it.
    pub is_optional: bool,
}

/// A privilege, in capitals.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Privilege {
    /// Its name.
    pub name: String,
    /// The columns that it is limited to.
    pub columns: Option<Vec<String>>,
}

impl fmt::Display for Privilege {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.columns {
            None => f.write_str(&self.name),
            Some(columns) => write!(f, "{} ({})", self.name, columns.join(", ")),
        }
    }
}

/// The object of privileges, as the files name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// `*.*`
    Server,
    /// `*`: the queue's database.
    Database,
    /// A table of the queue's database.
    Table(String),
    /// A procedure of the queue's database.
    Procedure(String),
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server => f.write_str("*.*"),
            Self::Database => f.write_str("the database"),
            Self::Table(name) | Self::Procedure(name) => f.write_str(name),
        }
    }
}

const OPTIONAL: &str = "-- optional: ";

impl Grant {
    /// The grant of a line of one of the files; `None` for comments.
    #[must_use]
    pub fn of_line(line: &str) -> Option<Self> {
        let is_optional = line.starts_with(OPTIONAL);
        let (privileges, rest) = parts(line.strip_prefix(OPTIONAL).unwrap_or(line))?;
        let object = match rest.strip_prefix("PROCEDURE ") {
            Some(name) => Object::Procedure(name.to_owned()),
            None if rest == "*.*" => Object::Server,
            None if rest == "*" => Object::Database,
            None => Object::Table(rest.to_owned()),
        };
        Some(Self { privileges, object, is_optional })
    }
}

/// Splits `GRANT privileges ON object TO …` into privileges and object.
pub(super) fn parts(line: &str) -> Option<(Vec<Privilege>, &str)> {
    let (privileges, rest) = line.strip_prefix("GRANT ")?.split_once(" ON ")?;
    let (object, _) = rest.rsplit_once(" TO ")?;
    Some((privileges_of(privileges), object))
}

/// Reads `SELECT (a, b), INSERT`.
fn privileges_of(text: &str) -> Vec<Privilege> {
    let mut privileges = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find([',', '(']).unwrap_or(rest.len());
        let (name, tail) = rest.split_at(end);
        let in_brackets = tail.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let columns = in_brackets.map(|(inner, _)| {
            inner.split(',').map(|column| column.trim().replace('`', "")).collect()
        });
        let name = name.trim().to_ascii_uppercase();
        if !name.is_empty() {
            privileges.push(Privilege { name, columns });
        }
        rest = in_brackets.map_or(tail, |(_, after)| after).trim_start_matches([',', ' ']);
    }
    privileges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(privileges: &[Privilege]) -> Vec<String> {
        privileges.iter().map(Privilege::to_string).collect()
    }

    #[test]
    fn a_line_is_read_with_its_columns() {
        let line = "GRANT SELECT (id, `name`), INSERT, UPDATE ON queue_topic TO 'a'@'%';";
        let grant = Grant::of_line(line).expect("a grant");
        assert_eq!(texts(&grant.privileges), ["SELECT (id, name)", "INSERT", "UPDATE"]);
        assert_eq!(grant.object, Object::Table("queue_topic".to_owned()));
        assert!(!grant.is_optional);
    }

    #[test]
    fn what_is_optional_is_read_from_comments() {
        let grant = Grant::of_line("-- optional: GRANT PROCESS ON *.* TO 'a'@'%';");
        let grant = grant.expect("a grant");
        assert!(grant.is_optional && grant.object == Object::Server);
        assert_eq!(Grant::of_line("-- GRANT PROCESS ON *.* TO 'a'@'%';"), None);
    }
}
