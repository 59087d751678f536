//! How a broker gets topics: opened, listed and deleted in storage.
//!
//! Role: the seam between the hosting of topics (single-flight, limits, sessions) and their making, so that the rules of
//! sessions can be tested against topics that only record what they are asked.
//! Must never know: connections, policies, permissions.

use crate::error::BrokerError;
use meridian_managed_ledger::{LogError, LogSettings, ManagedLedger};
use meridian_metadata::Operation;
use meridian_topic::api::BoxFuture;
use meridian_topic::{TopicHandle, TopicLimits};
use meridian_types::{NamespaceName, TopicName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a topic is opened with.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicSettings {
    /// Limits of the topic.
    pub limits: TopicLimits,
    /// Settings of its log.
    pub log: LogSettings,
}

/// Told when an open topic has lost its log.
pub type FencedListener = Arc<dyn Fn(&TopicName) + Send + Sync>;

/// Told of a topic and whether it exists now.
pub type NameListener = dyn Fn(Option<(TopicName, bool)>) + Send + Sync;

/// Asked what must hold in metadata when a topic's log is opened.
pub type OpenGuard = Arc<dyn Fn(&TopicName) -> Result<Option<Operation>, LogError> + Send + Sync>;

/// Opens, lists and deletes topics.
pub trait TopicFactory: Send + Sync {
    /// Opens a topic, creating it if it is absent.
    fn open(
        &self,
        name: TopicName,
        settings: TopicSettings,
    ) -> BoxFuture<'_, Result<Arc<dyn TopicHandle>, BrokerError>>;
    /// Whether the topic is stored. Non-persistent topics are not.
    fn exists<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<bool, BrokerError>>;
    /// Stored topics of a namespace, in name order.
    fn list<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, Result<Vec<TopicName>, BrokerError>>;
    /// Deletes a stored topic that is not open here. An absent one is no error.
    fn delete<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>>;
    /// Puts log settings in force on an open topic.
    fn set_log_settings(&self, name: &TopicName, settings: &LogSettings);
    /// Properties that an administrator gave an open topic.
    fn properties(&self, name: &TopicName) -> BTreeMap<String, String>;
    /// Replaces the properties that an administrator gave an open topic.
    fn set_properties<'a>(
        &'a self,
        name: &'a TopicName,
        properties: BTreeMap<String, String>,
    ) -> BoxFuture<'a, Result<(), BrokerError>>;
    /// The log of an open topic, for what copies it to other regions.
    fn log(&self, _name: &TopicName) -> Option<Arc<ManagedLedger>> {
        None
    }
    /// Names of a stored topic's durable cursors, whether it is open or not.
    fn cursor_names<'a>(&'a self, _name: &'a TopicName) -> BoxFuture<'a, Result<Vec<String>, BrokerError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
    /// Logs of topics are opened only under this guard from now on.
    fn guard_opens(&self, _guard: OpenGuard) {}
    /// Tells which stored topics come and go, by whichever broker; `None` when changes may have been missed. Runs as long as
    /// the store does.
    fn follow_names<'a>(&'a self, _tell: &'a NameListener) -> BoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
    /// Who is told when an open topic has lost its log and has to be unloaded.
    fn on_fenced(&self, listener: FencedListener);
    /// Figures of everything below topics, by their names as metrics.
    fn figures(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// Once a second, for everything below topics.
    fn tick(&self, now_ms: u64) -> BoxFuture<'_, ()>;
}
