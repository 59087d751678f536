//! What handlers share, and the questions that all of them ask.

use crate::bookies::BookieDesk;
use crate::call::Call;
use crate::error::AdminError;
use crate::listener::{MAX_BODY_BYTES, WebRefusals};
use crate::live::LiveSettings;
use axum::http::StatusCode;
use meridian_audit::AuditLog;
use meridian_broker::access::Principal;
use meridian_broker::quotas::Forgotten;
use meridian_broker::{BrokerError, BrokerService, Create};
use meridian_door::{Action, Caller, Scope};
use meridian_policy::access::is_role_or_pattern;
use meridian_policy::quota::Place;
use meridian_registry::Registry;
use meridian_settings::{Key, Settings};
use meridian_topic::TopicHandle;
use meridian_types::{NamespaceName, TopicName};
use std::sync::Arc;

/// What handlers share; cheap to copy.
#[derive(Clone)]
pub struct AdminState {
    /// The broker.
    pub service: Arc<BrokerService>,
    /// Settings as the process was started with, and as they were changed since.
    pub live: Arc<LiveSettings>,
    /// Figures of the floors below the broker.
    pub metrics: prometheus::Registry,
    /// What ports refused.
    pub refusals: WebRefusals,
    /// Largest body of a request.
    pub body_bytes: usize,
    /// Where operators ask about storage nodes, if this process has a part in storage.
    pub desk: Option<Arc<dyn BookieDesk>>,
    /// Records changes; `None` = nothing is recorded.
    pub audit: Option<Arc<AuditLog>>,
}

impl AdminState {
    /// Over a broker, with the settings to show and the figures to add to the broker's.
    pub fn new(service: Arc<BrokerService>, settings: Settings, metrics: prometheus::Registry) -> Self {
        Self::with_live(service, LiveSettings::new(settings, Box::new(|_| {})), metrics)
    }

    /// As [`AdminState::new`], with settings whose changes are put in force.
    pub fn with_live(service: Arc<BrokerService>, live: LiveSettings, metrics: prometheus::Registry) -> Self {
        let refusals = WebRefusals::new(&metrics);
        Self { service, live: Arc::new(live), metrics, refusals, body_bytes: MAX_BODY_BYTES, audit: None, desk: None }
    }

    /// With the desk for storage nodes.
    pub fn with_desk(self, desk: Arc<dyn BookieDesk>) -> Self {
        Self { desk: Some(desk), ..self }
    }

    /// Settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.live.current()
    }

    /// Tenants, namespaces, topics.
    pub fn registry(&self) -> &Registry {
        self.service.registry()
    }

    /// Asks the door (A2).
    pub fn allow(&self, call: &Call, action: Action, scope: &Scope<'_>) -> Result<(), AdminError> {
        self.allow_principal(&call.principal, action, scope)
    }

    /// Asks the door for somebody whose call is answered apart from the handlers.
    pub fn allow_principal(&self, principal: &Principal, action: Action, scope: &Scope<'_>) -> Result<(), AdminError> {
        let caller = Caller { role: principal.role.as_deref(), original_role: principal.original.as_deref() };
        self.service.access().door.authorize(caller, action, scope).map_err(|denied| {
            let status = match (action, scope) {
                (Action::Administer, _) | (_, Scope::Namespace(_)) => StatusCode::FORBIDDEN,
                _ => StatusCode::UNAUTHORIZED,
            };
            AdminError::new(status, denied.reason)
        })
    }

    /// For super users.
    pub fn allow_operator(&self, call: &Call) -> Result<(), AdminError> {
        self.allow_operating(&call.principal)
    }

    /// As [`Self::allow_operator`], for somebody whose call is answered apart from the handlers.
    pub fn allow_operating(&self, principal: &Principal) -> Result<(), AdminError> {
        self.allow_principal(principal, Action::Operate, &Scope::Cluster).map_err(|error| {
            AdminError::new(error.status, format!("This operation requires super-user access: {}", error.reason))
        })
    }

    /// Forgets the limits at a place that was deleted and within it, if an operator deleted it; the tenant's own are gone by
    /// then.
    pub async fn forget_limits(&self, principal: &Principal, place: &Place) -> Result<(), AdminError> {
        match self.allow_operating(principal) {
            Ok(()) => Ok(self.service.forget_quotas(place, Forgotten::All).await?),
            Err(_) => Ok(()),
        }
    }

    /// A role as grants name it: where they may be patterns, one that means what it looks like.
    pub fn granted_role(&self, call: &Call) -> Result<String, AdminError> {
        let role = call.name("role");
        self.check_granted(&role)?;
        Ok(role)
    }

    /// As [`Self::granted_role`], for a role that stands elsewhere.
    pub fn check_granted(&self, role: &str) -> Result<(), AdminError> {
        match !self.service.access().door.takes_patterns() || is_role_or_pattern(role) {
            true => Ok(()),
            false => {
                Err(AdminError::invalid(format!("role {role}: a pattern has one *, at its beginning or at its end")))
            }
        }
    }

    /// The namespace of the path, for its administrators; it exists.
    pub fn administered_namespace(&self, call: &Call) -> Result<NamespaceName, AdminError> {
        let namespace = call.namespace()?;
        self.allow(call, Action::Administer, &Scope::Namespace(&namespace))?;
        self.require_namespace(&namespace)?;
        Ok(namespace)
    }

    /// The topic of the path, if the caller may do something with it; its namespace exists.
    pub fn topic_for(&self, call: &Call, action: Action) -> Result<TopicName, AdminError> {
        let topic = call.topic()?;
        self.allow(call, action, &Scope::Topic(&topic))?;
        self.require_namespace(&topic.namespace()).map_err(|error| match error.reason.as_str() {
            "Namespace does not exist" => AdminError::not_found("Namespace not found"),
            _ => error,
        })?;
        Ok(topic)
    }

    /// The namespace exists.
    pub fn require_namespace(&self, namespace: &NamespaceName) -> Result<(), AdminError> {
        match self.registry().namespace(namespace) {
            Some(_) => Ok(()),
            // Who administers a tenant is asked before there is a namespace.
            None if self.settings().switch(Key::AuthorizationEnabled)
                && self.registry().tenant(namespace.tenant()).is_none() =>
            {
                Err(AdminError::not_found("Tenant does not exist"))
            }
            None => Err(AdminError::not_found("Namespace does not exist")),
        }
    }

    /// A topic that exists, loaded.
    pub async fn load(&self, topic: &TopicName) -> Result<Arc<dyn TopicHandle>, AdminError> {
        match self.service.topic(topic, Create::Never).await {
            Err(BrokerError::TopicNotFound(_)) => Err(topic_not_found(topic)),
            // A partition that its topic does not have, or the name of a partitioned topic.
            Err(BrokerError::NotAllowed(_)) => Err(topic_not_found(topic)),
            other => Ok(other?),
        }
    }

    /// The topics that a name stands for: its partitions, or itself.
    ///
    /// # Errors
    /// 404 if there is none.
    pub async fn parts(&self, topic: &TopicName) -> Result<Vec<TopicName>, AdminError> {
        if self.registry().partitions(topic).is_none() {
            self.require_topic(topic).await?;
        }
        Ok(match self.registry().partitions(topic) {
            Some(count) => (0..count).map(|partition| topic.with_partition(partition)).collect(),
            None => vec![topic.clone()],
        })
    }

    /// The topic or partitioned topic exists.
    pub async fn require_topic(&self, topic: &TopicName) -> Result<(), AdminError> {
        let known = self.registry().partitions(topic).is_some() || self.service.topic_exists(topic).await?;
        // Another broker may have made it a moment ago.
        if known || self.registry().learn_partitioned(topic).await? { Ok(()) } else { Err(topic_not_found(topic)) }
    }

    /// The topic is no partitioned one.
    pub fn require_unpartitioned(&self, topic: &TopicName, what: &str) -> Result<(), AdminError> {
        match self.registry().partitions(topic) {
            Some(_) => Err(AdminError::not_allowed(format!("{what} a partitioned topic is not allowed"))),
            None => Ok(()),
        }
    }
}

/// 404 in words that tools look for.
pub fn topic_not_found(topic: &TopicName) -> AdminError {
    AdminError::not_found(format!("Topic {topic} not found"))
}
