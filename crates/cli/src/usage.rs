//! Command lines that cannot be understood: our words for the parser's errors, with what was probably meant.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// The command that was meant, with the commands below it: `bench collectives`. Empty when the first word is none.
pub(crate) fn subcommand(program: &Command, words: &[String]) -> String {
    let mut names = Vec::new();
    let mut options = program;
    for word in words {
        let Some(found) = options.find_subcommand(word) else { break };
        options = found;
        names.push(word.as_str());
    }
    names.join(" ")
}

/// What is wrong and what to do, as `what` and a `hint:` line; `None` where the parser's own words serve.
pub(crate) fn explain(error: &Error, program: &Command, subcommand: &str) -> Option<String> {
    let names = subcommand.split_whitespace();
    let options = names.fold(program, |options, name| options.find_subcommand(name).unwrap_or(options));
    match error.kind() {
        ErrorKind::UnknownArgument => Some(unknown_option(error, options, subcommand)),
        ErrorKind::MissingRequiredArgument if matches!(subcommand, "run" | "launch") => {
            Some(format!("no script given\nhint: instep {subcommand} --nproc-per-node 2 train.py"))
        }
        ErrorKind::ValueValidation => {
            let (option, value) = (text(error, ContextKind::InvalidArg)?, text(error, ContextKind::InvalidValue)?);
            let option = option.split(' ').next().unwrap_or(option);
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            let why = match cause.as_str() {
                "invalid digit found in string" => "not a whole number",
                "invalid float literal" => "not a number",
                other => other,
            };
            Some(format!("{option} {value}: {why}\nhint: instep {subcommand} --help says what {option} takes"))
        }
        ErrorKind::InvalidValue => {
            let (option, value) = (text(error, ContextKind::InvalidArg)?, text(error, ContextKind::InvalidValue)?);
            let Some(ContextValue::Strings(choices)) = error.get(ContextKind::ValidValue) else { return None };
            let option = option.split([' ', '[', '=']).next().unwrap_or(option);
            let what = if value.is_empty() { "needs a value".to_owned() } else { format!("cannot be \"{value}\"") };
            let hint = match choices.is_empty() {
                true => format!("instep {subcommand} --help says what {option} takes"),
                false => format!("it takes {}", choices.join(", ")),
            };
            Some(format!("{option} {what}\nhint: {hint}"))
        }
        _ => None,
    }
}

fn unknown_option(error: &Error, options: &Command, subcommand: &str) -> String {
    let given = text(error, ContextKind::InvalidArg).unwrap_or_default();
    let prefix = given.split('=').next().unwrap_or(given).replace('_', "-");
    let names = options.get_arguments().filter_map(|option| option.get_long()).map(|name| format!("--{name}"));
    let meant: Vec<String> = names.filter(|name| name.starts_with(&prefix) && prefix.len() > 2).collect();
    if let [rest @ .., last] = meant.as_slice()
        && !rest.is_empty()
    {
        return format!("{given} is not one option\nhint: it could be {} or {last}", rest.join(", "));
    }
    let hint = match text(error, ContextKind::SuggestedArg) {
        Some(near) => format!("did you mean {}?", near.split(' ').next().unwrap_or(near).replace('_', "-")),
        None if matches!(subcommand, "run" | "launch") => {
            format!("options of the script go behind its name; instep {subcommand} --help lists those of the launcher")
        }
        None if subcommand.is_empty() => "options come behind the command; instep --help lists the commands".to_owned(),
        None => format!("instep {subcommand} --help lists the options"),
    };
    format!("unknown option {given}\nhint: {hint}")
}

fn text(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}
