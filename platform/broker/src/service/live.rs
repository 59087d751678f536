//! Settings that were changed while brokers run, as the admin API changes them.

use super::BrokerService;
use crate::error::BrokerError;
use crate::live::{self, LiveChanges};
use std::collections::BTreeMap;

impl BrokerService {
    /// All that were changed, by key.
    ///
    /// # Errors
    /// The store's.
    pub async fn live_settings(&self) -> Result<BTreeMap<String, String>, BrokerError> {
        Ok(live::load(&self.store).await?)
    }

    /// Changes of them from now on, by whichever broker.
    ///
    /// # Errors
    /// The store's.
    pub async fn watch_live_settings(&self) -> Result<LiveChanges, BrokerError> {
        Ok(LiveChanges::of(&self.store).await?)
    }

    /// Stores one for all brokers.
    ///
    /// # Errors
    /// The store's.
    pub async fn set_live_setting(&self, key: &str, value: &str) -> Result<(), BrokerError> {
        Ok(live::set(&self.store, key, value).await?)
    }

    /// Gives one back to the brokers' configurations.
    ///
    /// # Errors
    /// The store's.
    pub async fn remove_live_setting(&self, key: &str) -> Result<(), BrokerError> {
        Ok(live::remove(&self.store, key).await?)
    }
}
