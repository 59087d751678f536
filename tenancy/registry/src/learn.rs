//! Asking the store for what is not known here: another process may have made it a moment ago.
//!
//! Invariants: A1 what is said to be absent was absent in a read that began after the question, unless more was asked for
//! than [`READS_PER_WINDOW`]: then memory answers, which is behind by as much as the watch is; A2 one read per name at a
//! time; A3 what the store has is known here when the question is answered, or after [`LIMIT`] memory answers.
//! Failure: [`RegistryError::Store`] if the store does not say: who asks tries again, and nothing is said to be absent.
//! Must never know: who asks.

use crate::RegistryError;
use crate::keys::Key;
use crate::registry::Registry;
use meridian_metadata::MetadataError;
use meridian_types::{NamespaceName, TopicName};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Reads that may begin in a window; a flood of unknown names is none at the store.
const READS_PER_WINDOW: u32 = 100;
/// The window.
const WINDOW: Duration = Duration::from_millis(100);
/// How long one question may take.
const LIMIT: Duration = Duration::from_secs(1);

/// `None` while it runs; then whether the store has it, or why it did not say.
type Outcome = Option<Result<bool, MetadataError>>;

/// The reads that run, by key, and how many began in the window.
#[derive(Default)]
pub(crate) struct Reads(Mutex<State>);

#[derive(Default)]
struct State {
    running: HashMap<String, watch::Receiver<Outcome>>,
    window: Option<Instant>,
    begun: u32,
}

enum Turn {
    Read(watch::Sender<Outcome>),
    Wait(watch::Receiver<Outcome>),
    TooMany,
}

impl Reads {
    fn turn(&self, path: &str) -> Turn {
        let mut state = self.0.lock();
        if let Some(running) = state.running.get(path) {
            return Turn::Wait(running.clone());
        }
        let now = Instant::now();
        if state.window.is_none_or(|since| now - since >= WINDOW) {
            (state.window, state.begun) = (Some(now), 0);
        }
        if state.begun >= READS_PER_WINDOW {
            return Turn::TooMany;
        }
        state.begun += 1;
        let (sender, receiver) = watch::channel(None);
        state.running.insert(path.to_owned(), receiver);
        Turn::Read(sender)
    }
}

/// A read that runs; others may begin when it is dropped.
struct Running<'a> {
    reads: &'a Reads,
    path: &'a str,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.reads.0.lock().running.remove(self.path);
    }
}

impl Registry {
    /// Whether there is such a tenant, by the store if it is not known here.
    ///
    /// # Errors
    /// [`RegistryError::Store`].
    pub async fn learn_tenant(&self, name: &str) -> Result<bool, RegistryError> {
        self.learn(&Key::Tenant(name.to_owned())).await
    }

    /// Whether there is such a namespace, by the store if it is not known here.
    ///
    /// # Errors
    /// [`RegistryError::Store`].
    pub async fn learn_namespace(&self, name: &NamespaceName) -> Result<bool, RegistryError> {
        self.learn(&Key::Namespace(name.clone())).await
    }

    /// Whether there is such a partitioned topic, by the store if it is not known here.
    ///
    /// # Errors
    /// [`RegistryError::Store`].
    pub async fn learn_partitioned(&self, topic: &TopicName) -> Result<bool, RegistryError> {
        self.learn(&Key::Partitioned(topic.clone())).await
    }

    /// Whether a partitioned topic has this partition; by the store if it is not known here, for another process may just have
    /// made the topic or given it more.
    ///
    /// # Errors
    /// [`RegistryError::Store`].
    pub async fn learn_partition(&self, partition: &TopicName) -> Result<bool, RegistryError> {
        let (base, Some(number)) = (partition.base(), partition.partition()) else { return Ok(false) };
        let has = || self.partitions(&base).is_some_and(|count| number < count);
        if has() {
            return Ok(true);
        }
        let key = Key::Partitioned(base.clone());
        if !self.learn(&key).await? {
            return Ok(false);
        }
        if !has() && timeout(LIMIT, self.see_stored(&key)).await.is_err() {
            let text = format!("it was not asked for {} in {} ms", key.name(), LIMIT.as_millis());
            return if has() { Ok(true) } else { Err(MetadataError::Unavailable(text).into()) };
        }
        Ok(has())
    }

    /// What the store has of a key is known here afterwards, unless more is asked for than a window allows.
    async fn see_stored(&self, key: &Key) -> Result<(), RegistryError> {
        let path = key.path();
        match self.reads.turn(&path) {
            Turn::TooMany => Ok(()),
            Turn::Read(sender) => {
                let _running = Running { reads: &self.reads, path: &path };
                let stored = self.store.get(&path).await;
                sender.send_replace(Some(stored.clone().map(|found| found.is_some())));
                match stored? {
                    Some(found) => self.visible(found.version).await,
                    None => Ok(()),
                }
            }
            Turn::Wait(mut running) => {
                // Whoever reads lets go when it is seen here.
                while running.changed().await.is_ok() {}
                Ok(())
            }
        }
    }

    async fn learn(&self, key: &Key) -> Result<bool, RegistryError> {
        if self.cache.read().holds(key) {
            return Ok(true);
        }
        match timeout(LIMIT, self.ask_store(key)).await {
            Ok(outcome) => outcome,
            Err(_) if self.cache.read().holds(key) => Ok(true),
            Err(_) => {
                let text = format!("it was not asked for {} in {} ms", key.name(), LIMIT.as_millis());
                Err(MetadataError::Unavailable(text).into())
            }
        }
    }

    async fn ask_store(&self, key: &Key) -> Result<bool, RegistryError> {
        let path = key.path();
        // Whoever finds a read running that says "absent" does not know when it began: the next one began later (A1).
        for _ in 0..3 {
            let stored = match self.reads.turn(&path) {
                Turn::TooMany => return Ok(self.cache.read().holds(key)),
                Turn::Read(sender) => {
                    let _running = Running { reads: &self.reads, path: &path };
                    let stored = self.store.get(&path).await.map(|found| found.is_some());
                    sender.send_replace(Some(stored.clone()));
                    if !stored? {
                        return Ok(false);
                    }
                    true
                }
                Turn::Wait(mut running) => match running.wait_for(Option::is_some).await.map(|outcome| outcome.clone())
                {
                    Ok(Some(outcome)) => outcome?,
                    // Whoever read has gone.
                    _ => false,
                },
            };
            if stored {
                self.visibly_there(key).await?;
                return Ok(true);
            }
        }
        Ok(self.cache.read().holds(key))
    }
}
