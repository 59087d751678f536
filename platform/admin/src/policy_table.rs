//! Policies as rows of a table: name in the path, how to read, set and unset one.
//!
//! Role: namespaces and topics have dozens of policies that differ in nothing but a field and a check; each is one row.
//! Invariants: A4 a value is checked before it is stored; unset is apart from zero.
//! Failure: 412 for values outside what is accepted, 400 for bodies of another kind.

use crate::call::Call;
use crate::error::AdminError;
use crate::explain;
use crate::reply::Reply;
use axum::http::{Method, StatusCode};
use meridian_policy::{BacklogQuota, BacklogQuotaKind, EffectivePolicies, Persistence, Retention};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Largest number that a limit may be: clients keep them in 32 bits with a sign.
const MAX_COUNT: i64 = i32::MAX as i64;

/// What a setter is given.
pub struct Input<'a> {
    /// The policy, as it is called in answers.
    pub name: &'a str,
    /// The body.
    pub value: Value,
    /// The broker's cluster, by which rates of namespaces are kept.
    pub cluster: &'a str,
}

impl Input<'_> {
    /// The value as a type; a text that holds a number is one.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, AdminError> {
        let direct = explain::read(self.name, &self.value);
        let (Err(error), Value::String(text)) = (&direct, &self.value) else { return direct };
        serde_json::from_str(text).map_err(|_| error.clone())
    }

    /// A number from 0, or unset; 412 with the text for anything below, and with the limit for anything above.
    pub fn count(&self, refusal: &str) -> Result<Option<u32>, AdminError> {
        let number: Option<i64> = self.parse().map_err(|_| {
            let (name, value) = (self.name, &self.value);
            AdminError::bad_request(format!("{name}: {value}: expected a whole number from 0 to {MAX_COUNT}"))
        })?;
        match number {
            None => Ok(None),
            Some(number) if number > MAX_COUNT => {
                Err(AdminError::invalid(format!("{} must be at most {MAX_COUNT}, not {number}", self.name)))
            }
            Some(number) => u32::try_from(number).map(Some).map_err(|_| AdminError::invalid(refusal)),
        }
    }
}

/// One policy of `P`.
pub struct Row<P: 'static> {
    /// Its name in the path.
    pub name: &'static str,
    /// Set by PUT instead of POST.
    pub by_put: bool,
    /// Status of a change.
    pub set_status: StatusCode,
    /// Reads it for a cluster; `null` = not set.
    pub read: fn(&P, &str) -> Value,
    /// Sets it.
    pub write: fn(&mut P, &Input<'_>) -> Result<(), AdminError>,
    /// Unsets it, if that has a meaning.
    pub remove: Option<fn(&mut P, &str)>,
    /// What is in force.
    pub applied: Option<fn(&EffectivePolicies) -> Value>,
    /// Status of an answer that has nothing to show.
    pub unset_status: StatusCode,
    /// Nothing in the body does not unset it, but is refused.
    pub needs_value: bool,
    /// What is unset is shown as this.
    pub shown_unset: Option<fn() -> Value>,
}

impl<P> Row<P> {
    /// A row that is set by POST and answers 204.
    pub const fn new(
        name: &'static str,
        read: fn(&P, &str) -> Value,
        write: fn(&mut P, &Input<'_>) -> Result<(), AdminError>,
    ) -> Self {
        Self {
            name,
            by_put: false,
            set_status: StatusCode::NO_CONTENT,
            read,
            write,
            remove: None,
            applied: None,
            unset_status: StatusCode::OK,
            needs_value: false,
            shown_unset: None,
        }
    }

    /// Set by PUT instead.
    #[must_use]
    pub const fn put(mut self) -> Self {
        self.by_put = true;
        self
    }

    /// Answers another status to a change.
    #[must_use]
    pub const fn answering(mut self, status: StatusCode) -> Self {
        self.set_status = status;
        self
    }

    /// Refuses a call without a value.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.needs_value = true;
        self
    }

    /// Answers 204 while it is not set.
    #[must_use]
    pub const fn unset_is_no_content(mut self) -> Self {
        self.unset_status = StatusCode::NO_CONTENT;
        self
    }

    /// Shows a value while it is not set.
    #[must_use]
    pub const fn unset_shows(mut self, value: fn() -> Value) -> Self {
        self.shown_unset = Some(value);
        self
    }

    /// Can be unset.
    #[must_use]
    pub const fn removed_by(mut self, remove: fn(&mut P, &str)) -> Self {
        self.remove = Some(remove);
        self
    }

    /// Shows what is in force on request.
    #[must_use]
    pub const fn applied_by(mut self, applied: fn(&EffectivePolicies) -> Value) -> Self {
        self.applied = Some(applied);
        self
    }
}

impl<P> Row<P> {
    /// The row that the path names.
    ///
    /// # Errors
    /// 404.
    pub fn named(table: &'static [Self], call: &Call) -> Result<&'static Self, AdminError> {
        let name = call.param("policy");
        table.iter().find(|row| row.name == name).ok_or_else(|| AdminError::not_found("HTTP 404 Not Found"))
    }

    /// It is set by that method.
    ///
    /// # Errors
    /// 405.
    pub fn check_set_by(&self, method: &Method) -> Result<(), AdminError> {
        if (*method == Method::PUT) == self.by_put { Ok(()) } else { Err(no_such_call()) }
    }

    /// The value of a change.
    ///
    /// # Errors
    /// 400 for what is no JSON, or for nothing where something is needed.
    pub fn value(&self, call: &Call) -> Result<Value, AdminError> {
        match call.value()? {
            Value::Null if self.needs_value => {
                Err(AdminError::bad_request(format!("{}: the body is empty, expected a value", self.name)))
            }
            value => Ok(value),
        }
    }

    /// A stored value as it is answered.
    pub fn reply(&self, value: &Value) -> Reply {
        match (value, self.shown_unset) {
            (Value::Null, Some(shown)) => Reply::json(&shown()),
            (Value::Null, None) => Reply::empty(self.unset_status),
            (value, _) => Reply::json(value),
        }
    }

    /// How it is unset.
    ///
    /// # Errors
    /// 405 if it can't be.
    pub fn remover(&self) -> Result<fn(&mut P, &str), AdminError> {
        self.remove.ok_or_else(no_such_call)
    }
}

/// 405: there is such a path, but not by this method.
pub fn no_such_call() -> AdminError {
    AdminError::not_allowed("HTTP 405 Method Not Allowed")
}

/// A part of policies as JSON.
pub fn shown(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// A row whose field holds the value as it comes. `Line` is the caller's kind of row.
macro_rules! field {
    ($name:literal, $field:ident) => {
        Line::new(
            $name,
            |policies, _| shown(&policies.$field),
            |policies, input| {
                policies.$field = input.parse()?;
                Ok(())
            },
        )
        .removed_by(|policies, _| policies.$field = Default::default())
    };
}

/// A row whose field holds a number from 0.
macro_rules! count {
    ($name:literal, $field:ident, $refusal:expr) => {
        Line::new(
            $name,
            |policies, _| shown(&policies.$field),
            |policies, input| {
                policies.$field = input.count($refusal)?;
                Ok(())
            },
        )
        .removed_by(|policies, _| policies.$field = None)
    };
}

/// A row whose field holds values by cluster.
macro_rules! rate {
    ($name:literal, $field:ident) => {
        Line::new(
            $name,
            |policies, cluster| shown(&policies.$field.get(cluster)),
            |policies, input| {
                match input.parse::<Option<_>>()? {
                    Some(rate) => policies.$field.insert(input.cluster.to_owned(), rate),
                    None => policies.$field.remove(input.cluster),
                };
                Ok(())
            },
        )
        .removed_by(|policies, cluster| {
            policies.$field.remove(cluster);
        })
    };
}

/// The row of how something is stored.
macro_rules! persistence {
    ($field:ident) => {
        Line::new(
            "persistence",
            |policies, _| shown(&policies.$field),
            |policies, input| {
                let persistence: Option<meridian_policy::Persistence> = input.parse()?;
                let persistence =
                    persistence.ok_or_else(|| AdminError::bad_request("persistence policies should not be null"))?;
                $crate::policy_table::check_persistence(&persistence)?;
                policies.$field = Some(persistence);
                Ok(())
            },
        )
        .removed_by(|policies, _| policies.$field = None)
    };
}

/// The row of the retention, which has room for the backlog quotas beside it.
macro_rules! retention {
    ($field:ident, $refusal:expr) => {
        Line::new(
            "retention",
            |policies, _| shown(&policies.$field),
            |policies, input| {
                let retention: Option<meridian_policy::Retention> = input.parse()?;
                if let Some(retention) = &retention {
                    $crate::policy_table::check_retention(retention, policies.backlog_quota_map.values(), $refusal)?;
                }
                policies.$field = retention;
                Ok(())
            },
        )
        .removed_by(|policies, _| policies.$field = None)
    };
}

/// The row of the types that subscriptions may have.
macro_rules! subscription_types {
    ($field:ident) => {
        Line::new(
            "subscriptionTypesEnabled",
            |policies, _| shown(&policies.$field),
            |policies, input| {
                let types: std::collections::BTreeSet<String> = input.parse()?;
                $crate::policy_table::check_subscription_types(&types)?;
                policies.$field = types.into();
                Ok(())
            },
        )
        .required()
        .removed_by(|policies, _| policies.$field = Default::default())
    };
}

/// The row of the filters of entries: there are none to name.
macro_rules! entry_filters {
    () => {
        Line::new(
            "entryFilters",
            |policies, _| shown(&policies.entry_filters),
            |_, input| $crate::policy_table::refuse_entry_filters(input),
        )
        .removed_by(|policies, _| policies.entry_filters = None)
    };
}

/// The row of where to offload to; kept and shown, nothing is offloaded yet.
macro_rules! offload {
    () => {
        Line::new(
            "offloadPolicies",
            |policies, _| policies.offload_policies.as_ref().map(crate::offload::shown).unwrap_or_default(),
            |policies, input| {
                policies.offload_policies = Some(crate::offload::checked(&input.value)?);
                Ok(())
            },
        )
        .removed_by(|policies, _| policies.offload_policies = None)
    };
}

/// The row of a switch that a call without a value turns on.
macro_rules! pause_on_ack {
    () => {
        Line::new(
            "dispatcherPauseOnAckStatePersistent",
            |policies, _| shown(&policies.dispatcher_pause_on_ack_state_persistent_enabled),
            |policies, _| {
                policies.dispatcher_pause_on_ack_state_persistent_enabled = Some(true);
                Ok(())
            },
        )
        .removed_by(|policies, _| policies.dispatcher_pause_on_ack_state_persistent_enabled = None)
    };
}

pub(crate) use {count, entry_filters, field, offload, pause_on_ack, persistence, rate, retention, subscription_types};

/// 412 unless the types of subscriptions exist.
pub fn check_subscription_types(types: &BTreeSet<String>) -> Result<(), AdminError> {
    const KNOWN: [&str; 4] = ["Exclusive", "Shared", "Failover", "Key_Shared"];
    match types.iter().find(|name| !KNOWN.contains(&name.as_str())) {
        Some(name) => Err(AdminError::invalid(format!(
            "subscriptionTypesEnabled: '{name}' is no type of subscriptions, expected any of {}",
            KNOWN.join(", ")
        ))),
        None => Ok(()),
    }
}

/// 400 for every filter, as none is installed; nothing is left as it is.
pub fn refuse_entry_filters(input: &Input<'_>) -> Result<(), AdminError> {
    let Some(filters) = input.parse::<Option<meridian_policy::EntryFilters>>()? else { return Ok(()) };
    let first = filters.entry_filter_names.split(',').next().unwrap_or_default();
    if first.is_empty() {
        let text = "entryFilterNames can't be empty. To remove entry filters use the remove method.";
        return Err(AdminError::bad_request(text));
    }
    Err(AdminError::bad_request(format!("Entry filter '{first}' not found")))
}

/// Retention has room for every quota.
pub fn check_retention<'a>(
    retention: &Retention,
    mut quotas: impl Iterator<Item = &'a BacklogQuota>,
    refusal: &str,
) -> Result<(), AdminError> {
    retention.check().map_err(|error| AdminError::bad_request(error.to_string()))?;
    let fits = quotas.try_for_each(|quota| retention.check_against(quota));
    fits.map_err(|_| AdminError::invalid(refusal))
}

/// 400 unless the quorums fit.
pub fn check_persistence(persistence: &Persistence) -> Result<(), AdminError> {
    persistence.check().map_err(|error| AdminError::bad_request(error.to_string()))
}

/// What a call about a backlog quota asks for: which one, and its new value or none.
pub struct QuotaChange {
    kind: BacklogQuotaKind,
    quota: Option<BacklogQuota>,
}

impl QuotaChange {
    /// Sets what the body says; nothing unsets it.
    ///
    /// # Errors
    /// 404 for a quota that there is not, 400 for a body that is none.
    pub fn set(call: &Call) -> Result<Self, AdminError> {
        Ok(Self { kind: quota_kind(call)?, quota: call.json()? })
    }

    /// Unsets it.
    ///
    /// # Errors
    /// 404 for a quota that there is not.
    pub fn unset(call: &Call) -> Result<Self, AdminError> {
        Ok(Self { kind: quota_kind(call)?, quota: None })
    }

    /// Applies it, if the quota fits the retention.
    ///
    /// # Errors
    /// 412.
    pub fn apply(
        &self,
        quotas: &mut BTreeMap<BacklogQuotaKind, BacklogQuota>,
        retention: Option<Retention>,
        namespace: &str,
    ) -> Result<(), AdminError> {
        let Some(quota) = &self.quota else {
            quotas.remove(&self.kind);
            return Ok(());
        };
        let quota = quota.normalized().map_err(|_| {
            AdminError::bad_request(format!(
                "Set namespace[{namespace}] backlog quota failed because the data validation failed. the attribute \
                 policy cannot be null"
            ))
        })?;
        let fits = retention.unwrap_or_default().check_against(&quota);
        fits.map_err(|_| {
            AdminError::invalid(
                "Backlog Quota exceeds configured retention quota for namespace. Please increase retention quota and retry",
            )
        })?;
        quotas.insert(self.kind, quota);
        Ok(())
    }
}

/// Which quota a request means; by size unless it says otherwise.
fn quota_kind(call: &Call) -> Result<BacklogQuotaKind, AdminError> {
    match call.query("backlogQuotaType") {
        None => Ok(BacklogQuotaKind::DestinationStorage),
        Some(text) => serde_json::from_value(Value::from(text))
            .map_err(|_| AdminError::not_found(format!("backlogQuotaType {text} is not known"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(value: Value) -> Input<'static> {
        Input { name: "x", value, cluster: "here" }
    }

    #[test]
    fn numbers_may_come_as_text_and_below_zero_is_refused() {
        assert_eq!(input(Value::from("7")).count("x"), Ok(Some(7)));
        assert_eq!(input(Value::from(0)).count("x"), Ok(Some(0)));
        assert_eq!(input(Value::Null).count("x"), Ok(None));
        let above = input(Value::from(1_u64 << 31)).count("below").unwrap_err();
        assert_eq!(above, AdminError::invalid("x must be at most 2147483647, not 2147483648"));
        assert_eq!(input(Value::from(-1)).count("below"), Err(AdminError::invalid("below")));
        assert_eq!(input(Value::Bool(true)).count("x").unwrap_err().status, StatusCode::BAD_REQUEST);
        assert_eq!(input(Value::from("true")).parse::<bool>(), Ok(true));
    }
}
