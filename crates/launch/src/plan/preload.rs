//! What `--preload` may say.

/// The modules named, or what is wrong with them and what to do about it.
pub(crate) fn parse(text: &str) -> Result<Vec<String>, (String, String)> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    match names.iter().find(|name| !is_module(name)) {
        None => Ok(names),
        Some(wrong) => Err((
            format!("--preload \"{text}\": \"{wrong}\" is not the name of a module"),
            "use comma-separated module names, as in import statements: --preload torch,torchvision".to_owned(),
        )),
    }
}

/// Dotted words of letters, digits and underscores; what is not ASCII is Python's to judge.
fn is_module(name: &str) -> bool {
    name.split('.').all(|word| {
        let fits = |letter: char| letter == '_' || letter.is_alphanumeric();
        word.chars().all(fits) && word.chars().next().is_some_and(|first| !first.is_numeric())
    })
}

#[cfg(test)]
mod tests {
    use super::parse;
    use proptest::prelude::*;

    #[test]
    fn names_are_those_of_modules() {
        assert_eq!(parse("torch, torch.distributed,_x9").expect("valid"), ["torch", "torch.distributed", "_x9"]);
        for wrong in ["", "torch,", "torch vision", "a..b", ".a", "9a", "a:b", "os;x", "../a", "-m"] {
            let (message, hint) = parse(wrong).expect_err(wrong);
            assert!(message.contains("is not the name of a module") && hint.contains("torch,torchvision"), "{message}");
        }
    }

    proptest! {
        /// `spare.py` takes the list apart at commas and its settings at colons.
        #[test]
        fn nothing_that_is_accepted_can_be_misread(text in "\\PC{0,40}") {
            if let Ok(names) = parse(&text) {
                prop_assert!(names.iter().all(|name| !name.is_empty() && !name.contains([',', ':', ' ', '\0', '/'])));
            }
        }
    }
}
