//! The files of the pages, as `web/` builds them; carried by the binary, so that nothing is fetched from elsewhere.

/// Path and content of every file. Empty if the pages were not built before the binary.
static FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// A file of the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asset {
    pub content: &'static [u8],
    /// Its media type.
    pub kind: &'static str,
    /// Whether its name changes with its content, so that browsers may keep it.
    pub lasting: bool,
}

/// The file at a path, such as `/index.html`.
pub(crate) fn find(path: &str) -> Option<Asset> {
    let (name, content) = FILES.iter().find(|(name, _)| *name == path)?;
    Some(Asset { content, kind: kind_of(name), lasting: name.starts_with("/assets/") })
}

fn kind_of(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_are_told_what_a_file_is() {
        assert_eq!(kind_of("/index.html"), "text/html; charset=utf-8");
        assert_eq!(kind_of("/assets/index-x.js"), "text/javascript; charset=utf-8");
        assert_eq!(kind_of("/odd"), "application/octet-stream");
    }

    #[test]
    fn nothing_is_inline_that_the_policy_would_refuse() {
        let Some(page) = find("/index.html") else { return };
        let text = std::str::from_utf8(page.content).unwrap();
        assert!(!text.contains("<style") && !text.contains(" style="), "{text}");
        for script in text.split("<script").skip(1) {
            assert!(script.split('>').next().is_some_and(|tag| tag.contains("src=\"/assets/")), "{text}");
        }
    }

    #[test]
    fn pages_stay_small() {
        let total: usize = FILES.iter().map(|(_, content)| content.len()).sum();
        assert!(total < 300 * 1024, "{total} bytes");
    }
}
