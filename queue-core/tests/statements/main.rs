//! The store's statements against the schema, without a server: each function of the store is
//! called on a connection that records the statement, and every table and column that a statement
//! names must be in the Diesel schema. The conformance suite compares the schema with the server.

#![allow(clippy::unwrap_used, reason = "what cannot be set up has failed")]

mod calls;
mod functions;
mod names;
mod recorder;
mod sample;
mod schema;
mod scope;

use std::collections::BTreeSet;

use sqlparser::ast::Statement;
use sqlparser::dialect::MySqlDialect;
use sqlparser::parser::{Parser, ParserError};

use crate::recorder::Recorder;
use crate::schema::Schema;

/// How the texts begin that the parser cannot read. What they name is not checked.
const UNREAD: [&str; 2] = [
    // A procedure has no AS before its body. The text is not the store's, but its caller's.
    "CREATE PROCEDURE",
    // The same, and OR REPLACE, which only MariaDB has.
    "CREATE OR REPLACE PROCEDURE",
];

/// How many rows a statement is said to have matched: some functions go on only after the right
/// number.
const MATCHED: [usize; 3] = [0, 1, 2];

async fn recorded() -> BTreeSet<String> {
    let mut texts = BTreeSet::new();
    for matched in MATCHED {
        texts.append(&mut every_function(matched).await.texts);
    }
    texts
}

async fn every_function(matched: usize) -> Recorder {
    let mut recorder = Recorder::answering(matched);
    calls::every_function(&mut recorder).await;
    recorder
}

/// Parses a text. Two words of MySQL's that the parser does not know are replaced by others that
/// mean the same.
fn parse(text: &str) -> Result<Vec<Statement>, ParserError> {
    let text = text.replace(" LOCK IN SHARE MODE", " FOR SHARE").replace(" MOD ", " % ");
    Parser::parse_sql(&MySqlDialect {}, &text)
}

#[tokio::test]
async fn every_statement_names_only_tables_and_columns_of_the_schema() {
    let (texts, schema) = (recorded().await, Schema::read());
    let (mut wrong, mut unread) = (Vec::new(), BTreeSet::new());
    for text in &texts {
        let listed = UNREAD.iter().find(|start| text.starts_with(**start));
        match (parse(text), listed) {
            (Ok(statements), None) => {
                let names = statements.iter().flat_map(|it| names::wrong_in(it, &schema));
                wrong.extend(names.map(|name| format!("{name}, but: {text}")));
            }
            (Ok(_), Some(start)) => wrong.push(format!("`{start}` can be read: {text}")),
            (Err(error), None) => wrong.push(format!("{error}: {text}")),
            (Err(_), Some(start)) => unread.extend([*start]),
        }
    }
    let unused = UNREAD.iter().filter(|start| !unread.contains(*start));
    wrong.extend(unused.map(|start| format!("no text begins with `{start}`")));
    let count = texts.len();
    assert!(wrong.is_empty(), "{} of {count} texts:\n  {}", wrong.len(), wrong.join("\n  "));
}

#[test]
fn a_wrong_name_is_found() {
    let schema = Schema::read();
    let wrong = |text: &str| -> Vec<String> {
        let statements = parse(text).unwrap();
        statements.iter().flat_map(|it| names::wrong_in(it, &schema)).collect()
    };
    for (text, name) in [
        ("SELECT id FROM queue_mesage", "there is no table queue_mesage"),
        ("SELECT id FROM message", "there is no table message"),
        ("SELECT t.nam FROM queue_topic t", "there is no column t.nam"),
        ("INSERT INTO queue_dead (id, caus) VALUES (?, ?)", "there is no column caus"),
        ("SELECT id FROM queue_topic WHERE nam = ?", "there is no column nam"),
        ("SELECT x.id FROM queue_topic t", "there is no column x.id"),
        ("SELECT id FROM queue_dead ORDER BY died", "there is no column died"),
        ("SELECT s.no FROM (SELECT 1 AS n) s", "there is no column s.no"),
        ("SELECT s.nam FROM (SELECT nam FROM queue_topic) s", "there is no column nam"),
        ("DELETE d FROM queue_dead d WHERE d.i = ?", "there is no column d.i"),
        ("DELETE d FROM queue_dead x", "there is no table d to delete from"),
        ("UPDATE queue_topic SET nam = ?", "there is no column nam"),
        (
            "INSERT INTO queue_floor (topic_id) VALUES (?) ON DUPLICATE KEY UPDATE flor = 1",
            "there is no column flor",
        ),
        (
            "INSERT INTO queue_floor (topic_id) VALUES (?) ON DUPLICATE KEY UPDATE seq = VALUES(sq)",
            "there is no column sq",
        ),
        // A column of the table that the rows go to, but not of the one they come from.
        (
            "INSERT INTO queue_dead (topic_id, cause) SELECT topic_id, cause FROM queue_message",
            "there is no column cause",
        ),
    ] {
        assert_eq!(wrong(text), [name], "{text}");
    }
    let right = "SELECT t.id, COUNT(*) AS n FROM queue_topic t JOIN queue_dead d \
         ON d.topic_id = t.id WHERE cause = ? GROUP BY t.id ORDER BY n DESC, name";
    assert_eq!(wrong(right), [""; 0]);
}

/// Preparing takes a round trip of its own. Only an INSERT of several rows, which has a text for
/// each number of rows, may be prepared at each call.
#[tokio::test]
async fn every_statement_is_kept_prepared() {
    for matched in MATCHED {
        let mut not_kept = every_function(matched).await.not_kept;
        not_kept.retain(|text| !text.contains("), ("));
        assert!(not_kept.is_empty(), "prepared at each call: {not_kept:#?}");
    }
}

/// On MariaDB, a killed UPDATE or DELETE of one table may say that it matched nothing.
#[tokio::test]
async fn a_change_that_matches_nothing_is_run_again() {
    let mut once = every_function(0).await.once;
    once.retain(|text| {
        let of_one_table = text.starts_with("UPDATE") || text.starts_with("DELETE");
        of_one_table && !text.contains("JOIN")
    });
    assert!(once.is_empty(), "{} run once: {once:#?}", once.len());
}

#[test]
fn every_function_of_the_store_is_called() {
    let (functions, calls) = (functions::of_the_store(), functions::calls());
    assert!(!functions.is_empty());
    let missing = functions.iter().filter(|function| !function.is_in(&calls));
    let missing: Vec<String> = missing.map(ToString::to_string).collect();
    assert!(missing.is_empty(), "not called in {}:\n  {}", file!(), missing.join("\n  "));
}

/// A KILL may end MariaDB while it plans such a statement (docs/decisions/killed-statements.md).
#[tokio::test]
async fn no_statement_has_an_exists_beside_a_json_table() {
    let mut texts = recorded().await;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/procedures")).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let code: Vec<&str> = source.lines().map(|it| it.split("--").next().unwrap()).collect();
        texts.extend(code.join("\n").split(';').map(str::to_owned));
    }
    texts.retain(|text| has_exists_beside_json_table(text));
    assert!(texts.is_empty(), "join instead of EXISTS: {texts:#?}");
    for (text, is_such) in [
        ("SELECT 1 FROM JSON_TABLE(a, '$') k JOIN m WHERE m.b OR EXISTS(SELECT 1 FROM l)", true),
        ("DELETE m FROM JSON_TABLE(a, '$') k JOIN m WHERE NOT EXISTS (SELECT 1 FROM l)", true),
        ("SELECT 1 FROM m WHERE EXISTS (\nSELECT\n1 FROM JSON_TABLE(a, '$') k)", false),
        ("SELECT 1 FROM (SELECT 1 FROM JSON_TABLE(a, '$') k) n WHERE EXISTS (SELECT 1)", false),
    ] {
        assert_eq!(has_exists_beside_json_table(text), is_such, "{text}");
    }
}

/// Whether the statement, or a SELECT in it, has an EXISTS and reads a `JSON_TABLE`.
fn has_exists_beside_json_table(statement: &str) -> bool {
    // The statement and each open SELECT: the depth of parentheses at which it begins, and which of
    // the two it has.
    let mut open = vec![(0, false, false)];
    let mut depth = 0;
    for (at, letter) in statement.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        open.retain(|(begun, ..)| *begun <= depth);
        let rest = &statement[at..];
        if rest.starts_with("SELECT") && depth > 0 {
            open.push((depth, false, false));
        }
        if let Some((_, exists, table)) = open.last_mut() {
            *exists |= rest.starts_with("EXISTS(") || rest.starts_with("EXISTS (");
            *table |= rest.starts_with("JSON_TABLE(");
            if *exists && *table {
                return true;
            }
        }
    }
    false
}
