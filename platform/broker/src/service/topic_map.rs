//! The topics open here: loading once for all who ask, leaving before anything new.
//!
//! Invariants: B1 a name has one slot; a load starts only from an empty slot, a departure only from a loaded one;
//! B2 while a topic leaves (unload, delete) everyone who wants it waits until the slot is empty.
//! Must never know: how topics are opened or closed.

use crate::error::BrokerError;
use meridian_topic::TopicHandle;
use meridian_types::TopicName;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

type Outcome = Result<Arc<dyn TopicHandle>, BrokerError>;

enum Slot {
    Loading(watch::Receiver<Option<Outcome>>),
    Loaded(Arc<dyn TopicHandle>),
    Leaving(watch::Receiver<()>),
}

/// What someone who wants a topic has to do.
pub enum Claim {
    /// It is there.
    Loaded(Arc<dyn TopicHandle>),
    /// Someone loads it: wait for the outcome.
    Loading(watch::Receiver<Option<Outcome>>),
    /// It leaves: wait for the sender's end, then ask again.
    Leaving(watch::Receiver<()>),
    /// Load it and hand the outcome to the ticket.
    Load(LoadTicket),
}

/// The duty to load a topic. Dropped without an outcome, it empties the slot.
pub struct LoadTicket {
    map: Arc<TopicMap>,
    name: TopicName,
    sender: watch::Sender<Option<Outcome>>,
}

impl LoadTicket {
    /// Ends the load for all who wait.
    pub fn finish(self, outcome: Outcome) {
        {
            let mut slots = self.map.slots.write();
            match &outcome {
                Ok(handle) => slots.insert(self.name.clone(), Slot::Loaded(handle.clone())),
                Err(_) => slots.remove(&self.name),
            };
        }
        self.sender.send_replace(Some(outcome));
    }
}

impl Drop for LoadTicket {
    fn drop(&mut self) {
        if self.sender.borrow().is_none() {
            self.map.slots.write().remove(&self.name);
            let error = BrokerError::NotReady(format!("loading {} was given up", self.name));
            self.sender.send_replace(Some(Err(error)));
        }
    }
}

/// A topic on its way out. Dropped, it empties the slot; [`Departure::stay`] puts the topic back.
pub struct Departure {
    map: Arc<TopicMap>,
    handle: Arc<dyn TopicHandle>,
    _waiters: watch::Sender<()>,
    stays: bool,
}

impl Departure {
    /// The topic that leaves.
    pub fn handle(&self) -> &Arc<dyn TopicHandle> {
        &self.handle
    }

    /// It does not leave after all.
    pub fn stay(mut self) {
        self.stays = true;
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        let name = self.handle.name().clone();
        let mut slots = self.map.slots.write();
        if self.stays {
            slots.insert(name, Slot::Loaded(self.handle.clone()));
        } else {
            slots.remove(&name);
        }
    }
}

/// What someone who wants a topic gone has to do.
pub enum Leave {
    /// It is not open here.
    Absent,
    /// It is being loaded: wait for the outcome, then ask again.
    Loading(watch::Receiver<Option<Outcome>>),
    /// Someone else sends it away: wait.
    Leaving(watch::Receiver<()>),
    /// Close it, then drop the departure.
    Depart(Departure),
}

/// The topics open here.
#[derive(Default)]
pub struct TopicMap {
    slots: RwLock<HashMap<TopicName, Slot>>,
}

impl TopicMap {
    /// The topic if it is loaded.
    pub fn loaded(&self, name: &TopicName) -> Option<Arc<dyn TopicHandle>> {
        match self.slots.read().get(name) {
            Some(Slot::Loaded(handle)) => Some(handle.clone()),
            _ => None,
        }
    }

    /// All loaded topics, in no order.
    pub fn all(&self) -> Vec<Arc<dyn TopicHandle>> {
        let slots = self.slots.read();
        slots
            .values()
            .filter_map(|slot| if let Slot::Loaded(handle) = slot { Some(handle.clone()) } else { None })
            .collect()
    }

    /// Calls `each` with every loaded topic, under the lock: it must be short and ask nothing of this map.
    pub fn for_each(&self, each: impl Fn(&dyn TopicHandle)) {
        for slot in self.slots.read().values() {
            if let Slot::Loaded(handle) = slot {
                each(&**handle);
            }
        }
    }

    /// How many are loaded, loading or leaving.
    pub fn len(&self) -> usize {
        self.slots.read().len()
    }

    /// How many are being loaded.
    pub fn loading(&self) -> usize {
        self.slots.read().values().filter(|slot| matches!(slot, Slot::Loading(_))).count()
    }

    /// Asks for a topic.
    pub fn claim(self: &Arc<Self>, name: &TopicName) -> Claim {
        let mut slots = self.slots.write();
        match slots.get(name) {
            Some(Slot::Loaded(handle)) => Claim::Loaded(handle.clone()),
            Some(Slot::Loading(receiver)) => Claim::Loading(receiver.clone()),
            Some(Slot::Leaving(receiver)) => Claim::Leaving(receiver.clone()),
            None => {
                let (sender, receiver) = watch::channel(None);
                slots.insert(name.clone(), Slot::Loading(receiver));
                Claim::Load(LoadTicket { map: self.clone(), name: name.clone(), sender })
            }
        }
    }

    /// Sends a topic away.
    pub fn leave(self: &Arc<Self>, name: &TopicName) -> Leave {
        let mut slots = self.slots.write();
        let handle = match slots.get(name) {
            None => return Leave::Absent,
            Some(Slot::Loading(receiver)) => return Leave::Loading(receiver.clone()),
            Some(Slot::Leaving(receiver)) => return Leave::Leaving(receiver.clone()),
            Some(Slot::Loaded(handle)) => handle.clone(),
        };
        let (sender, receiver) = watch::channel(());
        slots.insert(name.clone(), Slot::Leaving(receiver));
        Leave::Depart(Departure { map: self.clone(), handle, _waiters: sender, stays: false })
    }
}
