//! Lists of topic names as clients compare and filter them.
//!
//! Role: pure. The hash is that of the clients: CRC32C over the sorted names joined by `,`, as hex of its little-endian
//! bytes. A pattern is matched whole against `tenant/namespace/topic` without scheme and partition suffix.

use meridian_types::TopicName;
use regex::{Regex, RegexBuilder};

/// Memory that a compiled pattern may take.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// The clients' hash of a list.
pub fn hash<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut sorted: Vec<&str> = names.into_iter().collect();
    sorted.sort_unstable();
    let crc = crc32c::crc32c(sorted.join(",").as_bytes());
    crc.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A pattern of topic names.
#[derive(Debug, Clone)]
pub struct TopicPattern(Regex);

impl TopicPattern {
    /// Compiles a pattern; a scheme in front of it is ignored.
    ///
    /// # Errors
    /// What the compiler says. Look-around and back references, which some clients know, are errors here.
    pub fn parse(pattern: &str) -> Result<Self, regex::Error> {
        let pattern = pattern.split_once("://").map_or(pattern, |(_, rest)| rest);
        RegexBuilder::new(&format!("^(?:{pattern})$")).size_limit(MAX_PATTERN_BYTES).build().map(Self)
    }

    /// Whether a topic is meant.
    pub fn matches(&self, topic: &TopicName) -> bool {
        let base = topic.base();
        let text = base.as_str();
        self.0.is_match(text.split_once("://").map_or(text, |(_, rest)| rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_clients() {
        // CRC32C of nothing is 0; of "123456789" it is e3069283.
        assert_eq!(hash([]), "00000000");
        assert_eq!(hash(["123456789"]), "839206e3");
        assert_eq!(hash(["b", "a"]), hash(["a", "b"]));
        assert_ne!(hash(["ab"]), hash(["a", "b"]));
    }

    #[test]
    fn patterns_match_whole_names_without_partition() {
        let pattern = TopicPattern::parse("persistent://public/default/foo-.*").unwrap();
        let name = |text: &str| TopicName::parse(text).unwrap();
        assert!(pattern.matches(&name("foo-1")));
        assert!(pattern.matches(&name("foo-1-partition-3")));
        assert!(pattern.matches(&name("non-persistent://public/default/foo-1")));
        assert!(!pattern.matches(&name("my-foo-1")));
        assert!(!pattern.matches(&name("other/default/foo-1")));
        assert!(!TopicPattern::parse("public/default/foo").unwrap().matches(&name("foo-1")));
        assert!(TopicPattern::parse("public/default/(").is_err());
        assert!(TopicPattern::parse("public/default/a{1000}{1000}").is_err());
    }
}
