//! The commands in the runbooks and in the documentation of alerts exist, with these arguments.

#![allow(clippy::expect_used, reason = "a test that cannot read its documents has failed")]

use std::fs;
use std::path::Path;

use clap::Parser;
use rowmq_cli::Arguments;

/// Replacements for the reader's own values.
const STANDS_FOR: [(&str, &str); 7] = [
    ("TOPIC", "mail"),
    ("STREAM", "orders"),
    ("GROUP", "orders@mail"),
    ("OFFSET", "17"),
    ("ID", "019fc0de-0000-7000-8000-000000000001"),
    ("NAME@HOST", "shop@%"),
    ("N", "5"),
];

/// Returns the words of a command, without its comment.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in command.split("  #").next().unwrap_or_default().chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' | '\n' if !quoted => words.push(String::new()),
            c => words.last_mut().expect("one word").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    let stands_for = |word: String| {
        let found = STANDS_FOR.iter().find(|(name, _)| *name == word);
        found.map_or(word, |(_, value)| (*value).to_owned())
    };
    words.into_iter().map(stands_for).collect()
}

/// Returns every command line in a document: in blocks and in the text.
fn commands(text: &str) -> Vec<&str> {
    let in_blocks = text.lines().filter_map(|line| line.strip_prefix("$ "));
    let in_text = text.split('`').skip(1).step_by(2);
    in_blocks.chain(in_text).filter(|command| command.starts_with("rowmq ")).collect()
}

#[test]
fn every_command_of_a_runbook_is_one_that_rowmq_takes() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/runbooks"));
    let (mut wrong, mut read) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("readable").path();
        let text = fs::read_to_string(&path).expect("readable");
        // A fence of three backticks is not a quote.
        for command in commands(&text.replace("```", "")) {
            read += 1;
            if let Err(error) = Arguments::try_parse_from(words(command)) {
                let why = error.to_string();
                let why = why.lines().next().unwrap_or_default().to_owned();
                wrong.push(format!("{}: {command}: {why}", path.display()));
            }
        }
    }
    assert!(read > 80, "{read} commands were read");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn a_command_is_read_as_the_shell_would() {
    let read = words("rowmq dead redrive TOPIC --error 'no route'   # one of them");
    assert_eq!(read, ["rowmq", "dead", "redrive", "mail", "--error", "no route"]);
    assert_eq!(commands("a `rowmq stats` b\n$ rowmq access\n"), ["rowmq access", "rowmq stats"]);
}
