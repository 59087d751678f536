//! WATCH_TOPIC_LIST: a client is told which topics of a pattern come and go.
//!
//! One task per connection that watches; it compares events with what the client knows, so that nothing is told twice,
//! and lists anew when it has missed events. Bound: watchers per connection. While the connection may not list a namespace,
//! its watchers there are told nothing; they are told what they missed when it may again.

use super::{Session, reply};
use crate::access::Wish;
use crate::error::BrokerError;
use crate::service::{ListDomain, TopicEvent};
use crate::topic_list::{TopicPattern, hash};
use meridian_types::{Domain, NameError, NamespaceName, TopicName};
use meridian_wire::proto::{
    CommandSuccess, CommandWatchTopicList, CommandWatchTopicListClose, CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

struct Watcher {
    namespace: NamespaceName,
    pattern: TopicPattern,
    known: BTreeSet<TopicName>,
}

impl Watcher {
    fn wants(&self, topic: &TopicName) -> bool {
        topic.domain() == Domain::Persistent
            && topic.namespace() == self.namespace
            && self.pattern.matches(topic)
            && !crate::service::is_system_topic(topic)
    }

    fn hash(&self) -> String {
        hash(self.known.iter().map(TopicName::as_str))
    }

    /// What the client is to be told so that it knows `now`.
    fn learn(&mut self, watcher_id: u64, now: BTreeSet<TopicName>) -> Option<CommandWatchTopicUpdate> {
        let news = |from: &BTreeSet<TopicName>, to: &BTreeSet<TopicName>| -> Vec<String> {
            to.difference(from).map(ToString::to_string).collect()
        };
        let (new_topics, deleted_topics) = (news(&self.known, &now), news(&now, &self.known));
        self.known = now;
        let changed = !(new_topics.is_empty() && deleted_topics.is_empty());
        changed.then(|| CommandWatchTopicUpdate { watcher_id, new_topics, deleted_topics, topics_hash: self.hash() })
    }
}

/// The watchers of a connection.
#[derive(Default)]
pub struct Watchers {
    by_id: HashMap<u64, Watcher>,
    running: bool,
}

impl Watchers {
    /// Forgets all; the task ends at its next event.
    pub fn clear(&mut self) {
        self.by_id.clear();
    }
}

impl Session {
    pub(super) fn watch_topic_list(&self, request: CommandWatchTopicList) {
        self.spawn(|session| async move {
            if let Err(error) = session.start_watch(&request).await {
                session.send(reply::refused(request.request_id, &error));
            }
        });
    }

    async fn start_watch(self: &Arc<Self>, request: &CommandWatchTopicList) -> Result<(), BrokerError> {
        let config = self.service.config();
        let namespace = NamespaceName::parse(&request.namespace)?;
        if !config.topic_list_watcher {
            return Err(BrokerError::NotAllowed("Topic list watcher is disabled on this broker".to_owned()));
        }
        if request.topics_pattern.chars().count() > config.max_pattern_chars {
            let text = format!("Pattern longer than maximum: {}", config.max_pattern_chars);
            return Err(BrokerError::NotAllowed(text));
        }
        let pattern = TopicPattern::parse(&request.topics_pattern).map_err(|_| NameError {
            name: request.topics_pattern.clone(),
            rule: "the pattern is no regular expression that this broker understands",
        })?;
        let _permit = self.service.lookup_permit()?;
        self.service.access().check(&self.principal(), Wish::List(&namespace))?;
        // From now on nothing is missed, then what there is.
        let events = self.service.events();
        let topics = self.user_topics(&namespace, ListDomain::Persistent).await?;
        let known: BTreeSet<TopicName> = topics.into_iter().filter(|topic| pattern.matches(topic)).collect();
        let watcher = Watcher { namespace, pattern, known };
        let start = {
            let mut watchers = self.watchers.lock();
            let max = config.session.max_watchers_per_connection;
            if watchers.by_id.len() >= max && !watchers.by_id.contains_key(&request.watcher_id) {
                return Err(BrokerError::NotAllowed(format!("the connection has {max} watchers already")));
            }
            let topics_hash = watcher.hash();
            let same = request.topics_hash.as_deref() == Some(topics_hash.as_str());
            // Under the lock, so that the answer leaves before the first update.
            self.send(CommandWatchTopicListSuccess {
                request_id: request.request_id,
                watcher_id: request.watcher_id,
                topic: if same { Vec::new() } else { watcher.known.iter().map(ToString::to_string).collect() },
                topics_hash,
            });
            watchers.by_id.insert(request.watcher_id, watcher);
            !std::mem::replace(&mut watchers.running, true)
        };
        if start {
            tokio::spawn(follow(Arc::downgrade(self), events, self.service.grants()));
        }
        Ok(())
    }

    pub(super) fn watch_topic_list_close(&self, request: &CommandWatchTopicListClose) {
        self.watchers.lock().by_id.remove(&request.watcher_id);
        self.send(CommandSuccess { request_id: request.request_id, ..Default::default() });
    }

    fn may_list(&self, namespace: &NamespaceName) -> bool {
        self.service.access().check(&self.principal(), Wish::List(namespace)).is_ok()
    }

    fn tell_watchers(&self, event: &TopicEvent) {
        let (topic, comes) = match event {
            TopicEvent::Created(topic) => (topic, true),
            TopicEvent::Deleted(topic) => (topic, false),
            TopicEvent::Missed => return,
        };
        let mut watchers = self.watchers.lock();
        for (id, watcher) in &mut watchers.by_id {
            if !watcher.wants(topic) || watcher.known.contains(topic) == comes || !self.may_list(&watcher.namespace) {
                continue;
            }
            let mut now = watcher.known.clone();
            if comes {
                now.insert(topic.clone())
            } else {
                now.remove(topic)
            };
            if let Some(update) = watcher.learn(*id, now) {
                self.send(update);
            }
        }
    }

    /// Events were missed, or permissions have changed: everything that may be seen is listed again.
    async fn relist_watchers(&self) {
        let namespaces: BTreeSet<NamespaceName> =
            self.watchers.lock().by_id.values().map(|watcher| watcher.namespace.clone()).collect();
        for namespace in namespaces.into_iter().filter(|namespace| self.may_list(namespace)) {
            let topics = match self.user_topics(&namespace, ListDomain::Persistent).await {
                Ok(topics) => topics,
                Err(error) => {
                    tracing::warn!(%namespace, %error, "topics could not be listed for watchers; closing the connection");
                    return self.close("watched topics could not be listed");
                }
            };
            let mut watchers = self.watchers.lock();
            for (id, watcher) in watchers.by_id.iter_mut().filter(|(_, watcher)| watcher.namespace == namespace) {
                let now = topics.iter().filter(|topic| watcher.wants(topic)).cloned().collect();
                if let Some(update) = watcher.learn(*id, now) {
                    self.send(update);
                }
            }
        }
    }
}

/// Tells a connection's watchers what happens, until it has none.
async fn follow(session: Weak<Session>, mut events: Receiver<TopicEvent>, mut grants: watch::Receiver<u64>) {
    loop {
        // One task does both, so that a list is never older than what was told.
        let event = tokio::select! {
            event = events.recv() => event,
            Ok(()) = grants.changed() => Ok(TopicEvent::Missed),
        };
        let Some(session) = session.upgrade() else { return };
        {
            let mut watchers = session.watchers.lock();
            if watchers.by_id.is_empty() {
                watchers.running = false;
                return;
            }
        }
        match event {
            Ok(TopicEvent::Missed) | Err(RecvError::Lagged(_)) => session.relist_watchers().await,
            Ok(event) => session.tell_watchers(&event),
            Err(RecvError::Closed) => return,
        }
    }
}
