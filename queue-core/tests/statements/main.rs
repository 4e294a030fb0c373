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

/// MariaDB 11.8.9 ends with signal 11 if a KILL meets a SELECT of a procedure that reads a
/// `JSON_TABLE` and has a correlated EXISTS beside it (docs/decisions/killed-statements.md).
#[test]
fn a_kill_does_not_end_the_server() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/procedures");
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let code: Vec<&str> = text.lines().map(|it| it.split("--").next().unwrap()).collect();
        for statement in code.join("\n").split(';').filter(|it| tests_a_json_table(it)) {
            wrong.push(format!("{}: {statement}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "join instead of EXISTS: {}", wrong.join("\n"));
    let cursor =
        "SELECT 1 FROM JSON_TABLE(a, '$[*]') k JOIN m WHERE (m.b OR EXISTS (SELECT 1 FROM l))";
    assert!(tests_a_json_table(cursor));
}

/// Whether a SELECT of this statement has an EXISTS and, in its own FROM, a `JSON_TABLE`.
fn tests_a_json_table(statement: &str) -> bool {
    // Each open SELECT: the depth of parentheses it begins at, and which of the two it has.
    let mut selects: Vec<(i32, bool, bool)> = Vec::new();
    let mut depth = 0;
    for (at, letter) in statement.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => {
                depth -= 1;
                selects.retain(|select| select.0 <= depth);
            }
            _ => {}
        }
        let rest = &statement[at..];
        if rest.starts_with("SELECT ") {
            selects.push((depth, false, false));
        }
        if let Some((_, table, exists)) = selects.last_mut() {
            *table |= rest.starts_with("JSON_TABLE(");
            *exists |= rest.starts_with("EXISTS (");
            if *table && *exists {
                return true;
            }
        }
    }
    false
}
