//! Names of topics and namespaces.
//!
//! Invariants: T1 a parsed name prints in canonical form (`persistent://tenant/namespace/local`); `local` alone means
//! `public/default`; a partition is `…-partition-N` with N in canonical decimal form.
//! Source: broker_semantics §6 (grammar), upstream topic naming rules.

use std::fmt;
use std::sync::Arc;

const PARTITION_SUFFIX: &str = "-partition-";

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

impl crate::Classify for NameError {
    fn class(&self) -> crate::ErrorClass {
        crate::ErrorClass::Caller
    }
}

/// Letters, digits, `_`, `-`, `=`, `:`, `.`.
fn is_entity(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'=' | b':' | b'.'))
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
    /// [`NameError`] unless there are two parts of allowed characters.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let refuse = |rule| NameError { name: text.to_owned(), rule };
        let (tenant, namespace) = text.split_once('/').ok_or_else(|| refuse("expected tenant/namespace"))?;
        if namespace.contains('/') {
            return Err(refuse("expected tenant/namespace"));
        }
        if !is_entity(tenant) || !is_entity(namespace) {
            return Err(refuse("tenant and namespace may hold letters, digits and any of _ - = : ."));
        }
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
            None => return Ok(Self { text: format!("persistent://public/default/{text}").into() }),
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
        if !is_entity(tenant) || !is_entity(namespace) {
            return Err(refuse("tenant and namespace may hold letters, digits and any of _ - = : ."));
        }
        Ok(Self { text: format!("{}://{tenant}/{namespace}/{local}", domain.as_str()).into() })
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
}
