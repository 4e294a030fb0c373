//! The commands of a program in groups, as `--help` lists them.

use clap::Command;

/// Some commands of a program, under a heading of its `--help`.
#[derive(Debug, Clone, Copy)]
pub struct CommandGroup {
    /// The heading.
    pub heading: &'static str,
    /// The names of the commands, in their order.
    pub commands: &'static [&'static str],
}

/// Makes `--help` list the commands in groups: clap supports a single heading for all of them.
/// Without groups the command line stays as it is.
pub(crate) fn in_groups(program: Command, groups: &[CommandGroup]) -> Command {
    if groups.is_empty() {
        return program;
    }
    let template = template(&program, groups);
    program.help_template(template)
}

fn template(program: &Command, groups: &[CommandGroup]) -> String {
    let style = program.get_styles().get_header();
    let names = groups.iter().flat_map(|group| group.commands);
    let width = names.map(|name| name.len()).max().unwrap_or_default();
    let heading = |words| format!("\n{style}{words}:{style:#}\n");
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for group in groups {
        text += &heading(group.heading);
        for name in group.commands {
            let about = program.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text += &format!("  {name:width$}  {about}\n");
        }
    }
    text + &heading("Options") + "{options}{after-help}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_listed_under_their_headings_and_options_below() {
        let program = Command::new("queue")
            .subcommand(Command::new("send").about("Send a message"))
            .subcommand(Command::new("receive").about("Receive one"))
            .after_help("The end.");
        let groups = [
            CommandGroup { heading: "In", commands: &["send"] },
            CommandGroup { heading: "Out", commands: &["receive"] },
        ];
        let help = in_groups(program, &groups).render_help().to_string();
        let (commands, options) = help.split_once("\nOptions:\n").expect("options");
        let listed = "In:\n  send     Send a message\n\nOut:\n  receive  Receive one\n";
        assert!(commands.ends_with(listed), "{help}");
        assert!(options.contains("--help") && options.ends_with("The end.\n"), "{help}");
    }
}
