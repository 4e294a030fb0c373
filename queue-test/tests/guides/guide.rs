//! What a guide asks its reader to do.
//!
//! * A block `console`: each line after `$ ` is typed, `> ` continues it, and the other lines are
//!   what is printed. `…` stands for anything.
//! * A block `sql` is sent to the database.
//! * Any block right below a line that is only a file's name, `` `send-mail`: ``, is that file.

use std::path::Path;

/// The steps of a guide, in their order.
pub(crate) struct Guide {
    pub(crate) steps: Vec<Step>,
}

pub(crate) enum Step {
    File { name: String, text: String },
    Command { line: usize, command: String, output: Vec<String> },
    Sql { line: usize, text: String },
}

impl Guide {
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut steps = Vec::new();
        let mut above = "";
        let mut lines = (1..).zip(text.lines());
        while let Some((no, line)) = lines.next() {
            if let Some(language) = line.strip_prefix("```") {
                let block: Vec<_> = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|line| *line != "```")
                    .collect();
                match (file_name(above), language) {
                    (Some(name), "console" | "sql") => panic!("{name}:{no} is no file"),
                    (Some(name), _) => {
                        steps.push(Step::File {
                            name: name.to_owned(),
                            text: block.join("\n") + "\n",
                        });
                    }
                    (None, "console") => steps.extend(commands(no, &block)),
                    (None, "sql") => steps.push(Step::Sql { line: no, text: block.join("\n") }),
                    (None, _) => {}
                }
                above = "";
            } else if !line.is_empty() {
                above = line;
            }
        }
        assert!(steps.iter().any(|step| matches!(step, Step::Command { .. })), "no command");
        Self { steps }
    }
}

fn file_name(line: &str) -> Option<&str> {
    line.strip_prefix('`')?.strip_suffix("`:").filter(|name| !name.contains(['`', ' ']))
}

fn commands(first: usize, block: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (no, text) in (first + 1..).zip(block) {
        if let Some(typed) = text.strip_prefix("$ ") {
            let command = typed.to_owned();
            steps.push(Step::Command { line: no, command, output: Vec::new() });
            continue;
        }
        let Some(Step::Command { command, output, .. }) = steps.last_mut() else {
            panic!("line {no}: a block `console` begins with a command");
        };
        match text.strip_prefix("> ") {
            Some(more) => *command += &format!("\n{more}"),
            None => output.push((*text).to_owned()),
        }
    }
    steps
}
