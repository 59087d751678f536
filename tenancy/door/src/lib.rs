//! The one place where it is decided who may do what.
//!
//! Role: holds what the settings say about authorization (on or off, super users, proxies, patterns) and asks the
//! registry's policies; answers at once, from memory.
//! Invariants: D1 what is not granted is refused; D2 behind a proxy both the proxy's role and the client's must be
//! allowed; D3 only a proxy may speak for another role, and must; D4 no role of a proxy or client comes from anywhere
//! but authentication or such a proxy; D5 only super users and the roles of replicators copy into this region: what is
//! copied passes limits that were asked for where it was sent.
//! Failure: [`Denied`] with the reason, fit to be told to the client.
//! Must never know: frames, requests, credentials.
#![forbid(unsafe_code)]

use meridian_identity::Principal;
pub use meridian_policy::{AccessRules, Action, Scope};
use meridian_policy::{Grants, decide};
use meridian_registry::Registry;
use meridian_types::{Classify, ErrorClass};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Somebody who wants something: the connection's role, and the role of the client behind it if it is a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caller<'a> {
    /// As authenticated; `None` while authentication is off.
    pub role: Option<&'a str>,
    /// The client's, as a proxy says.
    pub original_role: Option<&'a str>,
}

impl<'a> From<&'a Principal> for Caller<'a> {
    fn from(principal: &'a Principal) -> Self {
        Self { role: Some(&principal.role), original_role: None }
    }
}

impl<'a> Caller<'a> {
    /// The same caller, speaking for another role.
    #[must_use]
    pub fn speaking_for(self, original_role: Option<&'a str>) -> Self {
        Self { original_role, ..self }
    }
}

/// Something was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Denied {
    /// Why.
    pub reason: String,
}

impl Classify for Denied {
    fn class(&self) -> ErrorClass {
        ErrorClass::Caller
    }
}

/// What the settings say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DoorConfig {
    /// `authorizationEnabled`; without it everybody may do everything.
    pub authorization: bool,
    /// `superUserRoles` and `authorizationAllowWildcardsMatching`.
    pub rules: AccessRules,
    /// `proxyRoles`.
    pub proxy_roles: BTreeSet<String>,
    /// `replicatorRoles`.
    pub replicator_roles: BTreeSet<String>,
    /// `authenticateOriginalAuthData`: proxies must forward their clients' credentials.
    pub original_credentials: bool,
}

/// See the crate.
pub struct Door {
    config: DoorConfig,
    registry: Arc<Registry>,
}

impl Door {
    /// A door over the policies of a registry.
    pub fn new(config: DoorConfig, registry: Arc<Registry>) -> Self {
        Self { config, registry }
    }

    /// Whether anything is refused here at all.
    pub fn authorization_enabled(&self) -> bool {
        self.config.authorization
    }

    /// Whether a role is a proxy's.
    pub fn is_proxy(&self, role: &str) -> bool {
        self.config.proxy_roles.contains(role)
    }

    /// Whether proxies must forward their clients' credentials.
    pub fn requires_original_credentials(&self) -> bool {
        self.config.original_credentials
    }

    /// Whether a role is a super user's.
    pub fn is_super_user(&self, role: &str) -> bool {
        self.config.rules.super_users.contains(role)
    }

    /// Whether roles of grants may be patterns.
    pub fn takes_patterns(&self) -> bool {
        self.config.rules.wildcards
    }

    /// Whether a caller may send what was sent in another region (D5). It needs the permission to send as well.
    ///
    /// # Errors
    /// [`Denied`] with the settings that name who may.
    pub fn admit_replicator(&self, caller: Caller<'_>) -> Result<(), Denied> {
        if !self.config.authorization {
            return Ok(());
        }
        let role = caller.original_role.or(caller.role).unwrap_or_default();
        if self.is_super_user(role) || self.config.replicator_roles.contains(role) {
            return Ok(());
        }
        let reason =
            format!("role {role} is no replicator's: superUserRoles and replicatorRoles of this region name them");
        Err(Denied { reason })
    }

    /// Whether a connection may be what it says (D3).
    ///
    /// # Errors
    /// [`Denied`] if a proxy speaks for nobody or for another proxy, or anybody else speaks for somebody.
    pub fn admit(&self, caller: Caller<'_>) -> Result<(), Denied> {
        if !self.config.authorization {
            return Ok(());
        }
        let proxy = caller.role.is_some_and(|role| self.is_proxy(role));
        let valid = match caller.original_role.filter(|role| !role.is_empty()) {
            Some(original) => proxy && !self.is_proxy(original),
            None => !proxy,
        };
        if valid { Ok(()) } else { Err(Denied { reason: "Invalid roles.".to_owned() }) }
    }

    /// Whether a caller may do something at a place.
    ///
    /// # Errors
    /// [`Denied`] with the reason.
    pub fn authorize(&self, caller: Caller<'_>, action: Action, scope: &Scope<'_>) -> Result<(), Denied> {
        if !self.config.authorization {
            return Ok(());
        }
        self.admit(caller)?;
        let tenant = scope.tenant().and_then(|tenant| self.registry.tenant(tenant));
        let namespace = scope.namespace().and_then(|namespace| self.registry.namespace(&namespace));
        let grants = Grants { tenant: tenant.as_deref(), namespace: namespace.as_deref() };
        let roles = [Some(caller.role.unwrap_or_default()), caller.original_role];
        for role in roles.into_iter().flatten() {
            decide(&self.config.rules, role, action, scope, grants)
                .map_err(|refusal| Denied { reason: refusal.to_string() })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
