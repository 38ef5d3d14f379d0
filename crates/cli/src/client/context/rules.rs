//! What stays here: the rules of `.detignore`, which are those of `.gitignore`, after some of everybody's.

use std::fs;
use std::path::Path;

use anyhow::Context;
use globset::{GlobBuilder, GlobMatcher};

/// Stays here in every folder, as with `det`: what Python compiles, what editors and version control keep.
const EVERYWHERE: &str = "\
__pycache__/
*.py[co]
*$py.class
terraform
terraform_data
terraform.tfstate*
terraform.tfvars*
.terraform*
.git/
.vscode/
.idea/
.mypy_cache/
/shared_fs
";
/// Names the rules, and stays here itself.
const FILE: &str = ".detignore";

/// Rules in the order they were written; the last that fits decides.
#[derive(Debug)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    glob: GlobMatcher,
    /// It brings back what one before it left out.
    keeps: bool,
    folders_only: bool,
}

impl Rules {
    /// The rules for a folder.
    pub(super) fn of(folder: &Path) -> anyhow::Result<Rules> {
        let path = folder.join(FILE);
        let own = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            found => found.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let mut rules = Rules::read(EVERYWHERE).map_err(anyhow::Error::msg)?;
        let own = Rules::read(&own).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        rules.0.extend(own.0);
        Ok(rules)
    }

    fn read(text: &str) -> Result<Rules, String> {
        let numbered = text.lines().enumerate();
        let rules =
            numbered.map(|(number, line)| Rule::read(line).map_err(|error| format!("line {}: {error}", number + 1)));
        Ok(Rules(rules.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()))
    }

    /// Whether something in the folder stays here; its name has slashes between folders.
    pub(super) fn ignores(&self, name: &str, is_folder: bool) -> bool {
        if name == FILE {
            return true;
        }
        let fits = |rule: &&Rule| (is_folder || !rule.folders_only) && rule.glob.is_match(name);
        self.0.iter().rev().find(fits).is_some_and(|rule| !rule.keeps)
    }
}

impl Rule {
    /// Reads one line; nothing for an empty one and a comment.
    fn read(line: &str) -> Result<Option<Rule>, String> {
        let mut pattern = without_spaces_at_the_end(line);
        if pattern.is_empty() || pattern.starts_with('#') {
            return Ok(None);
        }
        let keeps = pattern.starts_with('!');
        pattern = pattern.strip_prefix('!').unwrap_or(pattern);
        let folders_only = pattern.ends_with('/');
        pattern = pattern.trim_end_matches('/');
        // A slash inside ties a pattern to the folder; without one it fits at any depth.
        let tied = pattern.contains('/');
        pattern = pattern.strip_prefix('/').unwrap_or(pattern);
        if pattern.is_empty() {
            return Ok(None);
        }
        let whole = if tied { pattern.to_owned() } else { format!("**/{pattern}") };
        let glob = GlobBuilder::new(&whole).literal_separator(true).backslash_escape(true).build();
        let glob = glob.map_err(|error| format!("`{line}` is not a valid pattern: {}", error.kind()))?;
        Ok(Some(Rule { glob: glob.compile_matcher(), keeps, folders_only }))
    }
}

/// Spaces at the end do not count, unless the last is escaped.
fn without_spaces_at_the_end(line: &str) -> &str {
    let trimmed = line.trim_end();
    if trimmed.ends_with('\\') && trimmed.len() < line.len() { &line[..=trimmed.len()] } else { trimmed }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_to_git() {
        for (rules, name, is_folder, expected) in [
            ("*.log", "a.log", false, true),
            ("*.log", "deep/er/a.log", false, true),
            ("/a.log", "deep/a.log", false, false),
            ("/a.log", "a.log", false, true),
            ("data/", "data", true, true),
            ("data/", "data", false, false),
            ("data/", "inner/data", true, true),
            ("inner/data", "inner/data", true, true),
            ("inner/data", "x/inner/data", true, false),
            ("**/data", "x/y/data", true, true),
            ("a/**/b", "a/b", false, true),
            ("a/*", "a/b/c", false, false),
            ("*.log\n!keep.log", "keep.log", false, false),
            ("!keep.log\n*.log", "keep.log", false, true),
            ("# x", "# x", false, false),
            ("\\#x", "#x", false, true),
            ("a  ", "a", false, true),
            ("/", "a", false, false),
            ("[ab]", "b", false, true),
        ] {
            let found = Rules::read(rules).unwrap().ignores(name, is_folder);
            assert_eq!(found, expected, "{rules:?} {name:?}");
        }
        assert!(Rules::read("ok\n[a").unwrap_err().starts_with("line 2: `[a` is not a valid pattern"));
        assert!(Rules::read("").unwrap().ignores(".detignore", false));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}", name in "[a-c/]{1,9}") {
            if let Ok(rules) = Rules::read(&text) {
                let _ = rules.ignores(&name, false);
            }
        }
    }
}
