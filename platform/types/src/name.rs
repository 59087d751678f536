//! Names of topics and namespaces.
//!
//! Invariants: T1 a parsed name prints in canonical form (`persistent://tenant/namespace/local`); `local` alone means
//! `public/default`; a partition is `…-partition-N` with N in canonical decimal form.
//! T3 no part is longer than its limit below: all of them fit into one key of the metadata store with room for what stands
//! around them, even if every byte of a topic and of a subscription is escaped by three.
//! Source: broker_semantics §6 (grammar), upstream topic naming rules.

use std::fmt;
use std::sync::Arc;

const PARTITION_SUFFIX: &str = "-partition-";
/// Bytes of a tenant's or cluster's name at most: it stands in every topic name, key and copied message.
pub const MAX_TENANT_BYTES: usize = 128;
/// Bytes of a namespace's own name at most.
pub const MAX_NAMESPACE_BYTES: usize = 128;
/// Bytes of a topic's local name at most, without the suffix of a partition.
pub const MAX_TOPIC_BYTES: usize = 750;
/// Bytes of a subscription's name at most.
pub const MAX_SUBSCRIPTION_BYTES: usize = 500;
const TENANT_TOO_LONG: &str = "a tenant's name is at most 128 bytes long";
const NAMESPACE_TOO_LONG: &str = "a namespace's name is at most 128 bytes long";
const TOPIC_TOO_LONG: &str = "a topic's local name is at most 750 bytes long";
const SUBSCRIPTION_TOO_LONG: &str = "a subscription's name is at most 500 bytes long";
/// Characters that are told of a name that is too long.
const TOLD_CHARS: usize = 60;

/// Whether a topic keeps its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// Stored in a managed ledger.
    Persistent,
    /// Held in memory only, dropped when nobody reads.
    NonPersistent,
}

impl Domain {
    /// The scheme in front of `://`.
    pub fn as_str(self) -> &'static str {
        match self {
            Domain::Persistent => "persistent",
            Domain::NonPersistent => "non-persistent",
        }
    }
}

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Invalid topic name or namespace: '{name}': {rule}")]
pub struct NameError {
    /// The text as given.
    pub name: String,
    /// The rule that it breaks.
    pub rule: &'static str,
}

impl NameError {
    /// A name of more bytes than there may be; its end is not repeated.
    fn too_long(name: &str, rule: &'static str) -> Self {
        let shown: String = name.chars().take(TOLD_CHARS).collect();
        Self { name: format!("{shown}… ({} bytes)", name.len()), rule }
    }

    /// The characters are good, but there are too many.
    pub fn is_too_long(&self) -> bool {
        [TENANT_TOO_LONG, NAMESPACE_TOO_LONG, TOPIC_TOO_LONG, SUBSCRIPTION_TOO_LONG].contains(&self.rule)
    }
}

impl crate::Classify for NameError {
    fn class(&self) -> crate::ErrorClass {
        crate::ErrorClass::Caller
    }
}

/// Whether a tenant, namespace or cluster may be named so: letters, digits, `_`, `-`, `=`, `:`, `.`.
pub fn is_name(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'=' | b':' | b'.'))
}

fn check_lengths(text: &str, tenant: &str, namespace: &str) -> Result<(), NameError> {
    if tenant.len() > MAX_TENANT_BYTES {
        return Err(NameError::too_long(text, TENANT_TOO_LONG));
    }
    if namespace.len() > MAX_NAMESPACE_BYTES {
        return Err(NameError::too_long(text, NAMESPACE_TOO_LONG));
    }
    Ok(())
}

/// Checks the length of a subscription's name.
///
/// # Errors
/// [`NameError`] above [`MAX_SUBSCRIPTION_BYTES`].
pub fn check_subscription(name: &str) -> Result<(), NameError> {
    if name.len() > MAX_SUBSCRIPTION_BYTES {
        return Err(NameError::too_long(name, SUBSCRIPTION_TOO_LONG));
    }
    Ok(())
}

/// `tenant/namespace`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceName {
    text: Arc<str>,
    tenant_len: u32,
}

impl NamespaceName {
    /// Parses `tenant/namespace`.
    ///
    /// # Errors
    /// [`NameError`] unless there are two parts of allowed characters and lengths.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let refuse = |rule| NameError { name: text.to_owned(), rule };
        let (tenant, namespace) = text.split_once('/').ok_or_else(|| refuse("expected tenant/namespace"))?;
        if namespace.contains('/') {
            return Err(refuse("expected tenant/namespace"));
        }
        if !is_name(tenant) || !is_name(namespace) {
            return Err(refuse("tenant and namespace may hold letters, digits and any of _ - = : ."));
        }
        check_lengths(text, tenant, namespace)?;
        Ok(Self { text: text.into(), tenant_len: tenant.len() as u32 })
    }

    /// The tenant.
    pub fn tenant(&self) -> &str {
        &self.text[..self.tenant_len as usize]
    }

    /// The namespace's own name, without the tenant.
    pub fn local(&self) -> &str {
        &self.text[self.tenant_len as usize + 1..]
    }

    /// `tenant/namespace`.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A topic or one partition of a partitioned topic, in canonical form.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName {
    text: Arc<str>,
}

impl TopicName {
    /// Parses `{domain}://tenant/namespace/local`, `tenant/namespace/local` or `local`.
    ///
    /// # Errors
    /// [`NameError`] with the rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let refuse = |rule| NameError { name: text.to_owned(), rule };
        let (domain, rest) = match text.split_once("://") {
            Some(("persistent", rest)) => (Domain::Persistent, rest),
            Some(("non-persistent", rest)) => (Domain::NonPersistent, rest),
            Some(_) => return Err(refuse("the domain is persistent or non-persistent")),
            None if text.contains('/') => (Domain::Persistent, text),
            None if text.is_empty() => return Err(refuse("the name is empty")),
            None => return Self { text: format!("persistent://public/default/{text}").into() }.checked(),
        };
        let mut parts = rest.splitn(3, '/');
        let (Some(tenant), Some(namespace), Some(local)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(refuse("expected {domain}://tenant/namespace/topic"));
        };
        if local.contains('/') {
            return Err(refuse("four-part (V1) names are not served; expected {domain}://tenant/namespace/topic"));
        }
        if local.is_empty() {
            return Err(refuse("the topic's local name is empty"));
        }
        if !is_name(tenant) || !is_name(namespace) {
            return Err(refuse("tenant and namespace may hold letters, digits and any of _ - = : ."));
        }
        check_lengths(text, tenant, namespace)?;
        Self { text: format!("{}://{tenant}/{namespace}/{local}", domain.as_str()).into() }.checked()
    }

    /// Its local name is not too long; what a partition's number adds is not counted.
    fn checked(self) -> Result<Self, NameError> {
        let suffix_bytes = self.partition().map_or(0, |number| PARTITION_SUFFIX.len() + number.to_string().len());
        if self.local().len() > MAX_TOPIC_BYTES + suffix_bytes {
            return Err(NameError::too_long(&self.text, TOPIC_TOO_LONG));
        }
        Ok(self)
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Persistent or not.
    pub fn domain(&self) -> Domain {
        if self.text.starts_with("non-") { Domain::NonPersistent } else { Domain::Persistent }
    }

    fn rest(&self) -> &str {
        &self.text[self.domain().as_str().len() + 3..]
    }

    /// The tenant.
    pub fn tenant(&self) -> &str {
        self.rest().split('/').next().unwrap_or_default()
    }

    /// `tenant/namespace`.
    pub fn namespace(&self) -> NamespaceName {
        let rest = self.rest();
        let end = rest.rfind('/').unwrap_or(rest.len());
        NamespaceName { text: rest[..end].into(), tenant_len: self.tenant().len() as u32 }
    }

    /// The last part, with a partition suffix if there is one.
    pub fn local(&self) -> &str {
        let rest = self.rest();
        &rest[rest.rfind('/').map_or(0, |i| i + 1)..]
    }

    /// N of `…-partition-N`, or `None`.
    pub fn partition(&self) -> Option<u32> {
        let at = self.text.rfind(PARTITION_SUFFIX)?;
        let digits = &self.text[at + PARTITION_SUFFIX.len()..];
        let number: u32 = digits.parse().ok()?;
        (number <= i32::MAX as u32 && number.to_string() == digits).then_some(number)
    }

    /// The partitioned topic that this is a partition of, or the topic itself.
    pub fn base(&self) -> TopicName {
        match (self.partition(), self.text.rfind(PARTITION_SUFFIX)) {
            (Some(_), Some(at)) => TopicName { text: self.text[..at].into() },
            _ => self.clone(),
        }
    }

    /// Partition `index` of this topic.
    pub fn with_partition(&self, index: u32) -> TopicName {
        TopicName { text: format!("{}{PARTITION_SUFFIX}{index}", self.text).into() }
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_mean_public_default() {
        let topic = TopicName::parse("orders").unwrap();
        assert_eq!(topic.as_str(), "persistent://public/default/orders");
        assert_eq!(topic.namespace().as_str(), "public/default");
        assert_eq!(topic.tenant(), "public");
        assert_eq!(topic.local(), "orders");
    }

    #[test]
    fn partitions_are_canonical_decimals() {
        let topic = TopicName::parse("non-persistent://a/b/c-partition-12").unwrap();
        assert_eq!(topic.partition(), Some(12));
        assert_eq!(topic.base().as_str(), "non-persistent://a/b/c");
        assert_eq!(topic.base().with_partition(12), topic);
        assert_eq!(TopicName::parse("c-partition-012").unwrap().partition(), None);
        assert_eq!(TopicName::parse("c-partition-").unwrap().partition(), None);
    }

    #[test]
    fn bad_names_say_which_rule() {
        for bad in ["", "a/b", "x://a/b/c", "persistent://a/b", "persistent://a/b/c/d", "persistent://a b/c/d", "a/b/"]
        {
            assert!(TopicName::parse(bad).is_err(), "{bad}");
        }
        assert!(NamespaceName::parse("a").is_err());
        assert!(NamespaceName::parse("a/b/c").is_err());
    }

    #[test]
    fn names_of_the_greatest_length_are_names_and_longer_ones_say_so() {
        let of = |tenant, namespace, topic| {
            TopicName::parse(&format!("t{}/n{}/x{}", "a".repeat(tenant), "b".repeat(namespace), "c".repeat(topic)))
        };
        let longest = of(MAX_TENANT_BYTES - 1, MAX_NAMESPACE_BYTES - 1, MAX_TOPIC_BYTES - 1).unwrap();
        let part = longest.with_partition(7);
        assert_eq!(TopicName::parse(part.as_str()).unwrap(), part);
        for (tenant, namespace, topic, rule) in [
            (MAX_TENANT_BYTES, 0, 0, TENANT_TOO_LONG),
            (0, MAX_NAMESPACE_BYTES, 0, NAMESPACE_TOO_LONG),
            (0, 0, MAX_TOPIC_BYTES, TOPIC_TOO_LONG),
        ] {
            let refused = of(tenant, namespace, topic).unwrap_err();
            assert_eq!(refused.rule, rule);
            assert!(refused.is_too_long() && refused.name.len() < 100 && refused.name.ends_with(" bytes)"));
        }
        assert!(TopicName::parse(&"ä".repeat(MAX_TOPIC_BYTES / 2 + 1)).unwrap_err().is_too_long(), "bytes count");
        assert!(NamespaceName::parse(&format!("t/{}", "n".repeat(MAX_NAMESPACE_BYTES + 1))).unwrap_err().is_too_long());
        assert!(check_subscription(&"s".repeat(MAX_SUBSCRIPTION_BYTES)).is_ok());
        assert_eq!(check_subscription(&"s".repeat(501)).unwrap_err().rule, SUBSCRIPTION_TOO_LONG);
        assert!(!TopicName::parse("a b/c/d").unwrap_err().is_too_long());
    }

    /// The rules are written with their numbers.
    #[test]
    fn rules_name_the_limits() {
        for (rule, limit) in [
            (TENANT_TOO_LONG, MAX_TENANT_BYTES),
            (NAMESPACE_TOO_LONG, MAX_NAMESPACE_BYTES),
            (TOPIC_TOO_LONG, MAX_TOPIC_BYTES),
            (SUBSCRIPTION_TOO_LONG, MAX_SUBSCRIPTION_BYTES),
        ] {
            assert!(rule.contains(&format!("at most {limit} bytes")), "{rule}");
        }
    }
}
