//! Settings that change while the broker runs.
//!
//! Role: the configuration that the process was started with, and what was changed since; a change is checked, stored for
//! all brokers, put in force here at once and on other brokers when they see it.
//! Invariants: A5 a value that does not fit its key is never stored; A6 changes are put in force one after the other, each
//! from everything that is stored.
//! Failure: 412 for keys that can't change and values that don't fit.
//! Must never know: what settings do.

use crate::error::AdminError;
use meridian_broker::BrokerService;
use meridian_settings::{Settings, TABLE};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Pause before changes are watched anew, after the watch ended.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// Puts settings in force.
pub type Apply = Box<dyn Fn(&Settings) + Send + Sync>;

/// See the module.
pub struct LiveSettings {
    started: Settings,
    current: RwLock<Arc<Settings>>,
    apply: Apply,
    turn: tokio::sync::Mutex<()>,
}

impl LiveSettings {
    /// Of a process that was started with these; `apply` is called after every change.
    pub fn new(started: Settings, apply: Apply) -> Self {
        let current = RwLock::new(Arc::new(started.clone()));
        Self { started, current, apply, turn: tokio::sync::Mutex::new(()) }
    }

    /// What is in force.
    pub fn current(&self) -> Arc<Settings> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads what is stored and puts it in force (A6).
    ///
    /// # Errors
    /// What the store says.
    pub async fn reload(&self, service: &BrokerService) -> Result<(), AdminError> {
        let _turn = self.turn.lock().await;
        let (settings, refused) = self.started.with_live(&service.live_settings().await?);
        for problem in refused {
            tracing::warn!(problem, "a stored setting is passed over");
        }
        (self.apply)(&settings);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        Ok(())
    }

    /// Puts changes in force that other brokers made, until the broker ends.
    pub async fn follow(&self, service: &BrokerService) {
        while !service.is_closing() {
            match service.watch_live_settings().await {
                Ok(mut changes) => {
                    // What came before the watch.
                    self.reload_or_warn(service).await;
                    while changes.next().await {
                        self.reload_or_warn(service).await;
                    }
                }
                Err(error) => tracing::warn!(%error, "changes of settings can't be watched; trying again"),
            }
            tokio::time::sleep(WATCH_AGAIN).await;
        }
    }

    async fn reload_or_warn(&self, service: &BrokerService) {
        if let Err(error) = self.reload(service).await {
            tracing::warn!(%error, "changed settings can't be read");
        }
    }

    /// Changes a setting (A5).
    ///
    /// # Errors
    /// 412 for a key that can't change or a value that does not fit.
    pub async fn set(&self, service: &BrokerService, key: &str, value: &str) -> Result<(), AdminError> {
        require_live(key)?;
        let pair = self.started.with_live(&BTreeMap::from([(key.to_owned(), value.to_owned())]));
        if let Some(problem) = pair.1.into_iter().next() {
            return Err(AdminError::invalid(problem));
        }
        service.set_live_setting(key, value).await?;
        self.reload(service).await
    }

    /// Gives a setting back to the configuration.
    ///
    /// # Errors
    /// 412 for a key that can't change.
    pub async fn remove(&self, service: &BrokerService, key: &str) -> Result<(), AdminError> {
        require_live(key)?;
        service.remove_live_setting(key).await?;
        self.reload(service).await
    }
}

/// 412 unless the setting can change: nobody knows it, or it is read at the start only.
fn require_live(key: &str) -> Result<(), AdminError> {
    match TABLE.iter().find(|setting| setting.name == key) {
        Some(setting) if setting.reloadable => Ok(()),
        Some(_) => Err(AdminError::invalid(format!(
            "Can't update non-dynamic configuration: {key} is read at the start only, change it in the configuration file"
        ))),
        None => Err(AdminError::invalid(format!("Can't update non-dynamic configuration: {key} is not known"))),
    }
}
