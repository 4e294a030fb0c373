use std::io::{Write, stdout};

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::Serialize;

/// Standard output: tables and sentences for users, or JSON for scripts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

/// A row of a table.
pub(crate) trait Row: Serialize {
    /// One text for each column.
    fn cells(&self) -> Vec<String>;
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether the output is JSON, for scripts.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints rows as a table under `header`, or as a JSON array; `none` is the sentence for no
    /// rows.
    pub(crate) fn rows<R: Row>(
        self,
        header: &[&str],
        rows: &[R],
        none: &str,
    ) -> anyhow::Result<()> {
        if self.json {
            return self.write_json(&rows);
        }
        if rows.is_empty() {
            return write_line(none);
        }
        for line in lines(header, rows) {
            write_line(&line)?;
        }
        Ok(())
    }

    /// Prints names and values, or one JSON object.
    pub(crate) fn properties<T: Serialize>(
        self,
        value: &T,
        properties: &[(&str, String)],
    ) -> anyhow::Result<()> {
        if self.json {
            return self.write_json(value);
        }
        let mut table = Table::new();
        table.load_style(NOTHING);
        for (name, value) in properties {
            table.add_row([(*name).to_owned(), printable(value)]);
        }
        write_table(&table)
    }

    /// Prints details of what was shown before, as a table for users. In JSON they are part of that
    /// object.
    pub(crate) fn more_rows<R: Row>(self, header: &[&str], rows: &[R]) -> anyhow::Result<()> {
        if self.json || rows.is_empty() {
            return Ok(());
        }
        write_line("")?;
        self.rows(header, rows, "")
    }

    /// Prints a sentence, or one JSON object.
    pub(crate) fn report<T: Serialize>(self, value: &T, sentence: &str) -> anyhow::Result<()> {
        if self.json { self.write_json(value) } else { write_line(sentence) }
    }

    /// Prints one line of JSON, for a reader that takes lines as they come.
    pub(crate) fn json_line<T: Serialize>(value: &T) -> anyhow::Result<()> {
        write_line(&serde_json::to_string(value)?)
    }

    fn write_json<T: Serialize>(self, value: &T) -> anyhow::Result<()> {
        write_line(&serde_json::to_string_pretty(value)?)
    }
}

/// Escapes what would control the terminal: bodies, keys and headers are arbitrary bytes.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || steers_direction(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Zero-width characters that reorder or hide the text beside them.
fn steers_direction(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The lines of a table, its header first.
pub(crate) fn lines<R: Row>(header: &[&str], rows: &[R]) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row.cells().iter().map(|cell| printable(cell)));
    }
    table.lines().map(|line| line.trim().to_owned()).collect()
}

fn write_table(table: &Table) -> anyhow::Result<()> {
    // The style pads every line to the table's width.
    let mut out = stdout().lock();
    for line in table.lines() {
        writeln!(out, "{}", line.trim())?;
    }
    Ok(())
}

fn write_line(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(stdout().lock(), "{line}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_steer_the_terminal_is_shown_escaped() {
        assert_eq!(printable("a\u{1b}[31m\nb\u{202e}c"), "a\\u{1b}[31m\\nb\\u{202e}c");
        assert_eq!(printable("grün 漢字"), "grün 漢字");
    }
}
