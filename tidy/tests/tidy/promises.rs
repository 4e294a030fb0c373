//! Checks that each promise of the documents on security and on SQL has a test that uses the
//! accounts of `ops/deploy/grants`.

use std::collections::BTreeSet;

use crate::{none_of, read, sources, tests_in};

/// The documents with a section of promises.
const DOCUMENTS: [&str; 2] = ["docs/security.md", "docs/sql-contract.md"];

/// The start of that section: a table whose rows end with the names of tests.
const SECTION: &str = "\n## Promises\n";

/// The tests that run as accounts with exactly the privileges in their files.
const ACCOUNTS: &str = "queue-test/tests/accounts/";

/// Returns each promise of the section, with the names of its tests.
fn promises(document: &str) -> Vec<(&str, Vec<&str>)> {
    let section = document.split_once(SECTION).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    rows.skip(1)
        .map(|row| {
            let cells = row.trim_end().trim_end_matches('|');
            let (promise, tests) = cells.rsplit_once('|').unwrap_or((cells, ""));
            let names = tests.split('`').skip(1).step_by(2).collect();
            (promise.trim_start_matches('|').trim(), names)
        })
        .collect()
}

#[test]
fn each_promise_of_security_and_of_the_sql_contract_has_a_test_by_an_account() {
    let files = sources();
    let ours = files.iter().filter(|file| file.name().starts_with(ACCOUNTS));
    let tests: BTreeSet<String> = ours
        .flat_map(|file| tests_in(&file.text))
        .filter_map(|test| test.split(' ').next_back().map(str::to_owned))
        .collect();
    let mut violations = Vec::new();
    for document in DOCUMENTS {
        let text = read(document);
        let promises = promises(&text);
        if promises.is_empty() {
            violations.push(format!("{document} has no section of promises"));
        }
        for (promise, names) in promises {
            if names.is_empty() {
                violations.push(format!("{document}: without a test: {promise}"));
            }
            for name in names {
                if !tests.contains(name) {
                    violations.push(format!("{document}: {ACCOUNTS} has no test {name}"));
                }
            }
        }
    }
    none_of("A promise names a test that runs as an account of ops/deploy/grants", violations);
}

#[test]
fn a_promise_is_a_row_and_its_last_cell_names_the_tests() {
    let text = "# A\n\n## Promises\n\nHow.\n\n| promise | test |\n|---|---|\n| a | b | `c`, `d` |\n\
                | e | |\n\n## More\n| f | `g` |\n";
    assert_eq!(promises(text), [("a | b", vec!["c", "d"]), ("e", vec![])]);
    assert!(promises("# A\n").is_empty());
}
