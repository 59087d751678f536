//! Which broker serves a topic, under which address.
//!
//! Any broker answers: the owner of the topic's bundle by "connect here", any other by "ask that one".

use super::BrokerService;
use crate::error::BrokerError;
use meridian_failover::PublishRule;
use meridian_ownership::Place;
use meridian_types::TopicName;

/// Answer to a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupAnswer {
    /// The broker's name; none if it belongs to another region.
    pub broker_id: Option<String>,
    /// `pulsar://host:port`.
    pub broker_url: Option<String>,
    /// `pulsar+ssl://host:port`.
    pub broker_url_tls: Option<String>,
    /// `http://host:port`.
    pub web_url: Option<String>,
    /// `https://host:port`.
    pub web_url_tls: Option<String>,
    /// This is the owner's own answer.
    pub authoritative: bool,
    /// False: ask that broker again.
    pub is_owner: bool,
    /// Stay on the service URL.
    pub proxy_through_service_url: bool,
}

impl BrokerService {
    /// Where clients of a topic have to ask that belongs to another region now; links between regions do not.
    pub fn lookup_elsewhere(&self, topic: &TopicName) -> Option<LookupAnswer> {
        let PublishRule::Moved { to } = self.publish_rule(topic) else { return None };
        let there = self.registry().cluster(&to)?;
        Some(LookupAnswer {
            broker_id: None,
            broker_url: there.broker_service_url.clone(),
            broker_url_tls: there.broker_service_url_tls.clone(),
            web_url: there.service_url.clone(),
            web_url_tls: there.service_url_tls.clone(),
            authoritative: false,
            is_owner: false,
            proxy_through_service_url: false,
        })
    }

    /// Where a topic is served. `listener` is the client's advertised listener name, empty or absent for the default.
    /// Whether the topic exists is not looked at. A bundle that nobody serves is given to somebody, whoever is asked.
    ///
    /// # Errors
    /// [`BrokerError::NotReady`] for a listener that the broker does not have, or if nobody serves it for the moment.
    pub async fn lookup(
        &self,
        topic: &TopicName,
        listener: Option<&str>,
        authoritative: bool,
    ) -> Result<LookupAnswer, BrokerError> {
        let wanted = listener.filter(|name| !name.is_empty());
        let no_such = || {
            let name = wanted.unwrap_or("internal");
            BrokerError::NotReady(format!("the broker do not have {name} listener"))
        };
        if let Place::There(broker) = self.ownership.locate(topic, authoritative).await? {
            let found = broker.listener(wanted).ok_or_else(no_such)?;
            return Ok(LookupAnswer {
                broker_id: Some(broker.id.clone()),
                broker_url: found.broker_url.clone(),
                broker_url_tls: found.broker_url_tls.clone(),
                web_url: broker.web_url.clone(),
                web_url_tls: broker.web_url_tls.clone(),
                authoritative: true,
                is_owner: false,
                proxy_through_service_url: false,
            });
        }
        let mut listeners = self.config().listeners.iter();
        let found = match wanted {
            Some(name) => listeners.find(|listener| listener.name == name),
            None => listeners.next(),
        };
        let found = found.ok_or_else(no_such)?;
        Ok(LookupAnswer {
            broker_id: Some(self.ownership.me().id.clone()),
            broker_url: found.broker_url.clone(),
            broker_url_tls: found.broker_url_tls.clone(),
            web_url: self.config().web_url.clone(),
            web_url_tls: self.config().web_url_tls.clone(),
            authoritative: true,
            is_owner: true,
            proxy_through_service_url: self.config().proxy_through_service_url,
        })
    }
}
