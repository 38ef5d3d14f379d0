//! Command lines that cannot be understood: our words for the parser's errors, with what was probably meant.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// Commands that are proposed at most.
const MOST_SUGGESTIONS: usize = 3;

/// `-m ADDRESS` before the command, as `det` has it, put behind the command that takes it; as it was where none does.
pub(crate) fn with_master_behind_the_command(program: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let first = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let taken = words_of_master(first);
    if taken == 0 {
        return words;
    }
    let command = words.get(1 + taken).and_then(|word| program.find_subcommand(word.to_str()?));
    match command.filter(|command| command.get_arguments().any(|option| option.get_long() == Some("master"))) {
        Some(_) => {
            let mut moved = words;
            let (at, command) = (1 + taken, moved[1 + taken].clone());
            moved.remove(at);
            moved.insert(1, command);
            moved
        }
        None => words,
    }
}

/// How many words name the master from this one on; 0 if it is another option, or none.
fn words_of_master(word: &str) -> usize {
    match word {
        "-m" | "--master" => 2,
        _ if word.starts_with("--master=") => 1,
        _ if word.starts_with("-m") && !word.starts_with("--") => 1,
        _ => 0,
    }
}

/// The command that was meant, with the commands below it: `bench collectives`. Empty when the first word is none.
pub(crate) fn subcommand(program: &Command, words: &[String]) -> String {
    let mut names = Vec::new();
    let mut options = program;
    let mut rest = words;
    while let [word, after @ ..] = rest {
        // The master may be named between the words of a command.
        let taken = if names.is_empty() { 0 } else { words_of_master(word) };
        if taken > 0 {
            rest = rest.get(taken..).unwrap_or_default();
            continue;
        }
        let Some(found) = options.find_subcommand(word) else { break };
        options = found;
        names.push(word.as_str());
        rest = after;
    }
    names.join(" ")
}

/// What is wrong and what to do, as `what` and a `hint:` line; `None` where the parser's own words serve.
pub(crate) fn explain(error: &Error, program: &Command, subcommand: &str) -> Option<String> {
    let names = subcommand.split_whitespace();
    let options = names.fold(program, |options, name| options.find_subcommand(name).unwrap_or(options));
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let given = text(error, ContextKind::InvalidSubcommand)?;
            Some(unknown_command(given, options, subcommand))
        }
        ErrorKind::UnknownArgument => Some(unknown_option(error, options, subcommand)),
        ErrorKind::MissingRequiredArgument if matches!(subcommand, "run" | "launch") => {
            Some(format!("no script given\nhint: instep {subcommand} --nproc-per-node 2 train.py"))
        }
        ErrorKind::MissingRequiredArgument => {
            let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
            // One of several stands as <--days <N>|--forever>.
            let one_of = |name: &String| match name.strip_prefix("<--").and_then(|rest| rest.strip_suffix('>')) {
                Some(options) => format!("--{}", options.replace('|', " or ")),
                None => name.clone(),
            };
            let missing: Vec<String> = missing.iter().map(one_of).collect();
            let what = format!("instep {subcommand} needs {}", missing.join(" and "));
            Some(format!("{what}\nhint: `instep {subcommand} --help` describes it"))
        }
        ErrorKind::ValueValidation => {
            let (option, value) = (text(error, ContextKind::InvalidArg)?, text(error, ContextKind::InvalidValue)?);
            let option = option.split(' ').next().unwrap_or(option);
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            if let Some((noun, list)) = identified(program, subcommand, option)
                && cause == "invalid digit found in string"
            {
                return Some(format!("`{value}` is not {noun} id\nhint: `{list}` shows them"));
            }
            let range = cause.split_once(" is not in ").and_then(|(_, range)| range.split_once("..="));
            let why = match (cause.as_str(), range) {
                (_, Some((first, last))) => format!("must be {first} to {last}"),
                ("invalid digit found in string", None) => "not a whole number".to_owned(),
                ("invalid float literal", None) => "not a number".to_owned(),
                (other, None) => other.to_owned(),
            };
            Some(format!("{option} {value}: {why}\nhint: `instep {subcommand} --help` describes {option}"))
        }
        ErrorKind::InvalidValue => {
            let (option, value) = (text(error, ContextKind::InvalidArg)?, text(error, ContextKind::InvalidValue)?);
            let Some(ContextValue::Strings(choices)) = error.get(ContextKind::ValidValue) else { return None };
            let option = option.split([' ', '[', '=']).next().unwrap_or(option);
            let what = if value.is_empty() { "needs a value".to_owned() } else { format!("cannot be \"{value}\"") };
            let hint = match choices.is_empty() {
                true => format!("`instep {subcommand} --help` describes {option}"),
                false => format!("use one of {}", choices.join(", ")),
            };
            Some(format!("{option} {what}\nhint: {hint}"))
        }
        ErrorKind::ArgumentConflict => {
            let given = text(error, ContextKind::InvalidArg)?;
            let others = match error.get(ContextKind::PriorArg)? {
                ContextValue::String(other) => vec![other.clone()],
                ContextValue::Strings(others) => others.clone(),
                _ => return None,
            };
            let name = |option: &str| option.split([' ', '[', '=']).next().unwrap_or(option).to_owned();
            let what = match others.iter().any(|other| other == given) {
                true => format!("{} is given twice", name(given)),
                false => {
                    let others: Vec<String> = others.iter().map(|other| name(other)).collect();
                    format!("{} does not go with {}", name(given), others.join(" and "))
                }
            };
            Some(format!("{what}\nhint: give one; `instep {subcommand} --help` describes them"))
        }
        _ => None,
    }
}

/// What an argument names by its number, and the command that lists those.
fn identified(program: &Command, subcommand: &str, option: &str) -> Option<(&'static str, &'static str)> {
    let command = program.find_subcommand(subcommand.split(' ').next()?)?.get_name();
    let named = option.trim_matches(['<', '>', '[', ']', '.']).to_lowercase();
    match (command, named.as_str()) {
        ("experiment", "id" | "ids") | (_, "experiment") => Some(("an experiment", "instep experiment list")),
        ("trial", "id" | "ids") => Some(("a trial", "instep trial list")),
        _ => None,
    }
}

fn unknown_command(given: &str, below: &Command, subcommand: &str) -> String {
    let program = if subcommand.is_empty() { "instep".to_owned() } else { format!("instep {subcommand}") };
    let near = nearest(given, below.get_subcommands());
    let hint = match near.as_slice() {
        _ if subcommand == "secret" && ["get", "show", "read", "describe", "cat"].contains(&given) => {
            "no command shows the value of a secret: only tasks are given it; `instep secret list` lists the names, \
             `instep secret set NAME` sets another value"
                .to_owned()
        }
        _ if subcommand.is_empty() && given == "status" => {
            "`instep experiment list` shows experiments, `instep job list` the queue, `instep agent list` machines, \
             `instep up` where the master is"
                .to_owned()
        }
        [] => format!("`{program} --help` lists the commands"),
        [one] => format!("did you mean `{program} {one}`?"),
        [rest @ .., last] => format!("did you mean `{}` or `{last}`?", rest.join("`, `")),
    };
    format!("{program} has no command `{given}`\nhint: {hint}")
}

/// The commands that somebody may have meant who wrote `given`: those that it begins, else those with the fewest slips.
fn nearest<'a>(given: &str, commands: impl Iterator<Item = &'a Command>) -> Vec<&'a str> {
    let visible = commands.filter(|command| !command.is_hide_set());
    let names: Vec<(&str, Vec<&str>)> =
        visible.map(|command| (command.get_name(), command.get_all_aliases().collect())).collect();
    let begun: Vec<&str> = names.iter().map(|(name, _)| *name).filter(|name| name.starts_with(given)).collect();
    if !begun.is_empty() && begun.len() <= MOST_SUGGESTIONS {
        return begun;
    }
    let most = given.chars().count().div_ceil(3).min(3);
    let slips_of = |(name, aliases): &(&'a str, Vec<&str>)| {
        // Of a word of one or two letters nearly everything is a slip.
        let longer = aliases.iter().copied().filter(|alias| alias.len() > 2);
        let slips = std::iter::once(*name).chain(longer).map(|word| slips(given, word)).min()?;
        (slips <= most).then_some((slips, *name))
    };
    let near: Vec<(usize, &str)> = names.iter().filter_map(slips_of).collect();
    let fewest = near.iter().map(|(slips, _)| *slips).min();
    near.into_iter().filter(|(slips, _)| Some(*slips) == fewest).map(|(_, name)| name).take(MOST_SUGGESTIONS).collect()
}

/// How many slips of the fingers lie between two words: a letter more, less, other, or two that changed places.
pub(crate) fn slips(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, wanted) in other.iter().enumerate() {
            let changed = rows[i][j] + usize::from(letter != wanted);
            let mut fewest = changed.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == other[j - 1] && one[i - 1] == *wanted {
                fewest = fewest.min(rows[i - 1][j - 1] + 1);
            }
            row.push(fewest);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

fn unknown_option(error: &Error, options: &Command, subcommand: &str) -> String {
    let given = text(error, ContextKind::InvalidArg).unwrap_or_default();
    if !given.starts_with('-') {
        return one_too_many(given, options, subcommand);
    }
    let prefix = given.split('=').next().unwrap_or(given).replace('_', "-");
    let names = options.get_arguments().filter_map(|option| option.get_long()).map(|name| format!("--{name}"));
    let meant: Vec<String> = names.filter(|name| name.starts_with(&prefix) && prefix.len() > 2).collect();
    if let [rest @ .., last] = meant.as_slice()
        && !rest.is_empty()
    {
        return format!("{given} is ambiguous\nhint: it could be {} or {last}", rest.join(", "));
    }
    let hint = match text(error, ContextKind::SuggestedArg) {
        Some(near) => format!("did you mean {}?", near.split(' ').next().unwrap_or(near).replace('_', "-")),
        None if matches!(subcommand, "run" | "launch") => {
            format!("script options go after its name; `instep {subcommand} --help` lists launcher options")
        }
        None if subcommand.is_empty() => "options go after the command; `instep --help` lists the commands".to_owned(),
        None => format!("`instep {subcommand} --help` lists the options"),
    };
    format!("unknown option {given}\nhint: {hint}")
}

/// A word that is no option, where the command takes none or no more.
fn one_too_many(given: &str, options: &Command, subcommand: &str) -> String {
    let hint = match subcommand {
        "drill" => "put the job's command after --: instep drill -- instep run train.py".to_owned(),
        "job-token" => {
            format!("it prints the token: install -m 600 /dev/null {given} && instep job-token > {given}")
        }
        _ => format!("`instep {subcommand} --help` shows what it takes"),
    };
    match options.get_positionals().next() {
        Some(_) if subcommand != "drill" => format!("`{given}` is one argument too many\nhint: {hint}"),
        Some(_) => format!("`{given}` is no option of instep drill\nhint: {hint}"),
        None => format!("instep {subcommand} takes no argument, but was given `{given}`\nhint: {hint}"),
    }
}

fn text(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted() {
        for (one, other, expected) in [
            ("run", "run", 0),
            ("rnu", "run", 1),
            ("lst", "list", 1),
            ("", "ab", 2),
            ("ceate", "create", 1),
            ("x", "y", 1),
        ] {
            assert_eq!(slips(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn what_was_meant_is_proposed() {
        let program = Command::new("instep")
            .subcommands(["run", "up", "experiment", "checkpoint", "preview-search"].map(Command::new));
        for (given, expected) in [
            ("rnu", vec!["run"]),
            ("exp", vec!["experiment"]),
            ("experimnt", vec!["experiment"]),
            ("chekpiont", vec!["checkpoint"]),
            ("pu", vec!["up"]),
            ("notebook", vec![]),
        ] {
            assert_eq!(nearest(given, program.get_subcommands()), expected, "{given}");
        }
    }

    #[test]
    fn who_wants_to_see_a_secret_is_told_that_nothing_shows_it() {
        let secret = Command::new("secret").subcommands(["set", "list", "delete"].map(Command::new));
        for given in ["get", "show", "cat"] {
            let said = unknown_command(given, &secret, "secret");
            assert!(said.contains(&format!("`{given}`")) && said.contains("hint: no command shows"), "{said}");
        }
        assert!(unknown_command("lst", &secret, "secret").contains("did you mean `instep secret list`?"));
    }

    #[test]
    fn wrong_numbers_are_said_in_words() {
        let id = clap::Arg::new("ids").value_parser(clap::value_parser!(u64));
        let priority = clap::Arg::new("priority").value_parser(clap::value_parser!(i64).range(1..=99));
        let describe = Command::new("describe").arg(id);
        let experiment =
            Command::new("experiment").alias("e").subcommands([describe, Command::new("set").arg(priority)]);
        let program = Command::new("instep").subcommand(experiment);
        for (words, said) in [
            ("e describe abc", "`abc` is not an experiment id\nhint: `instep experiment list` shows them"),
            ("e set 200", "[priority] 200: must be 1 to 99\nhint: "),
        ] {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let given = std::iter::once("instep".to_owned()).chain(words.clone());
            let error = program.clone().try_get_matches_from(given).unwrap_err();
            let text = explain(&error, &program, &subcommand(&program, &words)).unwrap();
            assert!(text.starts_with(said), "{text}");
        }
        assert!(unknown_command("status", &program, "").contains("hint: `instep experiment list` shows"));
    }

    #[test]
    fn a_command_below_another_is_named_whole_wherever_the_master_stands() {
        let set = Command::new("set").subcommand(Command::new("name"));
        let program = Command::new("instep").subcommand(Command::new("e").subcommand(set));
        for (words, expected) in [
            ("e set name 1", "e set name"),
            ("e -m x set name 1", "e set name"),
            ("e --master=x set --master y name 1", "e set name"),
            ("e -mx set", "e set"),
            ("e -m", "e"),
            ("-m e", ""),
        ] {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            assert_eq!(subcommand(&program, &words), expected, "{words:?}");
        }
    }

    #[test]
    fn the_master_may_be_named_before_the_command() {
        let takes = Command::new("e").arg(clap::Arg::new("master").long("master").short('m'));
        let program = Command::new("instep").subcommands([takes, Command::new("run")]);
        let moved = |words: &str| {
            let words = words.split(' ').map(OsString::from).collect();
            let moved: Vec<String> = with_master_behind_the_command(&program, words)
                .into_iter()
                .map(|word| word.into_string().unwrap())
                .collect();
            moved.join(" ")
        };
        for (given, expected) in [
            ("instep -m x e ls", "instep e -m x ls"),
            ("instep --master=x e ls", "instep e --master=x ls"),
            ("instep -mx e", "instep e -mx"),
            ("instep -m x run y", "instep -m x run y"),
            ("instep run -m x", "instep run -m x"),
            ("instep -m", "instep -m"),
        ] {
            assert_eq!(moved(given), expected);
        }
    }
}
