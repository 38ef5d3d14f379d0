//! `instep --help`: the commands by what people want to do.

use clap::builder::StyledStr;
use clap::{Command, CommandFactory};

use crate::Cli;

/// Wider lines are hard to read.
const WIDTH: usize = 100;

/// Every command that is listed, under its heading.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run jobs", &["run", "launch", "diagnose", "drill", "doctor", "bench", "store", "wrap-rank", "job-token", "demo"]),
    ("Track and search", &["experiment", "trial", "checkpoint", "model", "tensorboard", "preview-search", "template"]),
    ("Work on a cluster", &["command", "notebook", "shell", "task", "job"]),
    (
        "Run a cluster",
        &["up", "down", "master", "agent", "slot", "resource-pool", "resources", "config-policies", "import"],
    ),
    (
        "Users and workspaces",
        &["login", "logout", "whoami", "user", "token", "group", "secret", "workspace", "project"],
    ),
    ("This program", &["completion", "help"]),
];

/// The whole command line, which lists its commands in groups.
pub(crate) fn program() -> Command {
    let program = Cli::command();
    let mut built = program.clone();
    // Adds `help`.
    built.build();
    let header = program.get_styles().get_header();
    let groups = GROUPS.map(|(heading, names)| format!("{header}{heading}:{header:#}\n{}", listed(&built, names)));
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{{before-help}}{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    program.before_help(StyledStr::from(groups.join("\n"))).help_template(template)
}

/// Some of the commands, as clap lists them.
fn listed(program: &Command, names: &[&str]) -> String {
    let mut part = Command::new("instep").disable_help_subcommand(true).help_template("{subcommands}");
    part = part.max_term_width(WIDTH).styles(program.get_styles().clone());
    for (order, name) in names.iter().enumerate() {
        if let Some(command) = program.find_subcommand(name) {
            part = part.subcommand(command.clone().display_order(order));
        }
    }
    part.render_help().ansi().to_string()
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::{GROUPS, program};

    #[test]
    fn every_command_stands_once_under_a_heading() {
        let mut program = program();
        program.build();
        let mut shown: Vec<&str> = program
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(|command| command.get_name())
            .collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, shown);
        let help = program.render_help().to_string();
        for name in grouped {
            assert_eq!(help.matches(&format!("\n  {name} ")).count(), 1, "{name} in\n{help}");
        }
    }

    #[test]
    fn every_argument_of_every_command_is_described() {
        fn look(command: &Command, path: &str, silent: &mut Vec<String>) {
            let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
            for argument in arguments.filter(|argument| argument.get_help().is_none()) {
                silent.push(format!("{path} {}", argument.get_id()));
            }
            for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
                look(below, &format!("{path} {}", below.get_name()), silent);
            }
        }
        let mut program = program();
        program.build();
        let mut silent = Vec::new();
        look(&program, "instep", &mut silent);
        assert!(silent.is_empty(), "a hint may send people to their help: {silent:#?}");
    }
}
