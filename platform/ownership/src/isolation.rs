//! Which brokers may serve a namespace: isolation rules and anti-affinity groups.
//!
//! Invariants: I1 a namespace that a rule names is served by the rule's primary brokers while at least `min_limit` of
//! them live, then by its secondary ones, and by others only if the rule names neither; I2 brokers that a rule names as
//! primary serve other namespaces only if there is nobody else.
//! Failure: a rule whose patterns do not compile is refused.
//! Must never know: loads.

use crate::records::BrokerRecord;
use meridian_types::NamespaceName;
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What happens when primary brokers go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoFailover {
    /// `min_available`.
    pub policy_type: String,
    /// `min_limit` and `usage_threshold`.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
}

/// A rule in the words of the admin API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationData {
    /// Patterns of namespaces.
    pub namespaces: Vec<String>,
    /// Patterns of brokers, or `label=value` for brokers with that label.
    pub primary: Vec<String>,
    /// The same for the second choice.
    #[serde(default)]
    pub secondary: Vec<String>,
    /// When the second choice counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_failover_policy: Option<AutoFailover>,
    /// Which bundles move when the rule changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unload_scope: Option<String>,
}

/// A pattern of brokers.
#[derive(Debug, Clone)]
enum BrokerPattern {
    /// The host, or the whole id.
    Name(Regex),
    /// A label with that value.
    Label(String, String),
}

/// Brokers that a rule names for a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// First choice.
    Primary,
    /// Second choice.
    Secondary,
    /// The rule does not name it.
    Other,
}

/// A rule, compiled.
#[derive(Debug, Clone)]
pub struct IsolationRule {
    /// As it was given.
    pub data: IsolationData,
    namespaces: Vec<Regex>,
    primary: Vec<BrokerPattern>,
    secondary: Vec<BrokerPattern>,
}

const MAX_PATTERN_BYTES: usize = 1 << 18;

fn whole(pattern: &str) -> Result<Regex, String> {
    let built = regex::RegexBuilder::new(&format!("^(?:{pattern})$")).size_limit(MAX_PATTERN_BYTES).build();
    built.map_err(|error| format!("pattern '{pattern}': {error}"))
}

fn broker_pattern(text: &str) -> Result<BrokerPattern, String> {
    match text.split_once('=') {
        Some((label, value)) if !label.contains(['(', '[', '?']) => {
            Ok(BrokerPattern::Label(label.trim().to_owned(), value.trim().to_owned()))
        }
        _ => whole(text).map(BrokerPattern::Name),
    }
}

impl BrokerPattern {
    fn matches(&self, broker: &BrokerRecord) -> bool {
        match self {
            BrokerPattern::Label(label, value) => broker.labels.get(label) == Some(value),
            BrokerPattern::Name(pattern) => {
                let host = broker.id.rsplit_once(':').map_or(broker.id.as_str(), |(host, _)| host);
                pattern.is_match(&broker.id) || pattern.is_match(host)
            }
        }
    }
}

impl IsolationRule {
    /// Compiles a rule.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(data: IsolationData) -> Result<Self, String> {
        if data.namespaces.is_empty() || data.primary.is_empty() {
            return Err("a rule names at least one namespace and one primary broker".to_owned());
        }
        let rule = Self {
            namespaces: data.namespaces.iter().map(|text| whole(text)).collect::<Result<_, _>>()?,
            primary: data.primary.iter().map(|text| broker_pattern(text)).collect::<Result<_, _>>()?,
            secondary: data.secondary.iter().map(|text| broker_pattern(text)).collect::<Result<_, _>>()?,
            data,
        };
        Ok(rule)
    }

    /// Reads and compiles the JSON of the admin API.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(json: &str) -> Result<Self, String> {
        Self::new(serde_json::from_str(json).map_err(|error| error.to_string())?)
    }

    /// From a body of the admin API.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_value(value: Value) -> Result<Self, String> {
        Self::new(serde_json::from_value(value).map_err(|error| error.to_string())?)
    }

    /// Whether the rule names the namespace.
    pub fn concerns(&self, namespace: &NamespaceName) -> bool {
        self.namespaces.iter().any(|pattern| pattern.is_match(namespace.as_str()))
    }

    /// What the rule says of a broker.
    pub fn standing(&self, broker: &BrokerRecord) -> Standing {
        if self.primary.iter().any(|pattern| pattern.matches(broker)) {
            Standing::Primary
        } else if self.secondary.iter().any(|pattern| pattern.matches(broker)) {
            Standing::Secondary
        } else {
            Standing::Other
        }
    }

    /// Primary brokers that have to live for the second choice to stay out.
    fn min_limit(&self) -> usize {
        let limit = self.data.auto_failover_policy.as_ref().and_then(|policy| policy.parameters.get("min_limit"));
        limit.and_then(|text| text.parse().ok()).unwrap_or(1)
    }
}

/// The candidates that may serve a namespace, best standing only (I1, I2).
pub fn permitted<'a>(
    namespace: &NamespaceName,
    candidates: &[&'a BrokerRecord],
    rules: &[&IsolationRule],
) -> Vec<&'a BrokerRecord> {
    if let Some(rule) = rules.iter().find(|rule| rule.concerns(namespace)) {
        let of = |wanted: Standing| -> Vec<&'a BrokerRecord> {
            candidates.iter().copied().filter(|broker| rule.standing(broker) == wanted).collect()
        };
        let mut found = of(Standing::Primary);
        if found.len() < rule.min_limit().max(1) {
            found.extend(of(Standing::Secondary));
        }
        return found;
    }
    let is_set_apart = |broker: &BrokerRecord| rules.iter().any(|rule| rule.standing(broker) == Standing::Primary);
    let shared: Vec<_> = candidates.iter().copied().filter(|broker| !is_set_apart(broker)).collect();
    if shared.is_empty() { candidates.to_vec() } else { shared }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn broker(id: &str, zone: &str) -> BrokerRecord {
        let labels = [("zone".to_owned(), zone.to_owned())].into();
        BrokerRecord { id: id.into(), labels, ..BrokerRecord::default() }
    }

    fn ids(found: &[&BrokerRecord]) -> Vec<String> {
        found.iter().map(|broker| broker.id.clone()).collect()
    }

    #[test]
    fn a_namespace_stays_with_its_brokers_while_enough_live() {
        let rule = IsolationRule::from_value(json!({
            "namespaces": ["pay/.*"], "primary": ["a.*"], "secondary": ["zone=z2"],
            "auto_failover_policy": { "policy_type": "min_available", "parameters": { "min_limit": "2" } },
        }))
        .unwrap();
        let (a1, a2, b, c) =
            (broker("a1:8080", "z1"), broker("a2:8080", "z1"), broker("b:1", "z2"), broker("c:1", "z3"));
        let (pay, other) = (NamespaceName::parse("pay/x").unwrap(), NamespaceName::parse("log/x").unwrap());
        assert_eq!(ids(&permitted(&pay, &[&a1, &a2, &b, &c], &[&rule])), ["a1:8080", "a2:8080"]);
        assert_eq!(ids(&permitted(&pay, &[&a1, &b, &c], &[&rule])), ["a1:8080", "b:1"]);
        assert_eq!(ids(&permitted(&pay, &[&c], &[&rule])), Vec::<String>::new());
        assert_eq!(ids(&permitted(&other, &[&a1, &b, &c], &[&rule])), ["b:1", "c:1"]);
        assert_eq!(ids(&permitted(&other, &[&a1], &[&rule])), ["a1:8080"]);
    }

    #[test]
    fn what_can_not_be_a_rule_is_refused() {
        let bad = [
            json!({ "namespaces": [], "primary": ["a"] }),
            json!({ "namespaces": ["a/b"], "primary": [] }),
            json!({ "namespaces": ["("], "primary": ["a"] }),
            json!({ "primary": ["a"] }),
        ];
        for value in bad {
            assert!(IsolationRule::from_value(value.clone()).is_err(), "{value}");
        }
    }
}
