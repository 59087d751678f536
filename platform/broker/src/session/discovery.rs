//! GET_TOPICS_OF_NAMESPACE.

use super::{Session, reply};
use crate::access::Wish;
use crate::error::BrokerError;
use crate::service::ListDomain;
use crate::topic_list::{TopicPattern, hash};
use meridian_types::{NamespaceName, TopicName};
use meridian_wire::proto::command_get_topics_of_namespace::Mode;
use meridian_wire::proto::{CommandGetTopicsOfNamespace, CommandGetTopicsOfNamespaceResponse};

impl Session {
    pub(super) fn topics_of_namespace(&self, request: CommandGetTopicsOfNamespace) {
        self.spawn(|session| async move {
            match session.answer_topics(&request).await {
                Ok(response) => session.send(response),
                Err(error) => session.send(reply::refused(request.request_id, &error)),
            }
        });
    }

    async fn answer_topics(
        &self,
        request: &CommandGetTopicsOfNamespace,
    ) -> Result<CommandGetTopicsOfNamespaceResponse, BrokerError> {
        let namespace = NamespaceName::parse(&request.namespace)?;
        let _permit = self.service.lookup_permit()?;
        self.service.access().check(&self.principal(), Wish::List(&namespace))?;
        let domain = match request.mode() {
            Mode::Persistent => ListDomain::Persistent,
            Mode::NonPersistent => ListDomain::NonPersistent,
            Mode::All => ListDomain::All,
        };
        let mut topics = self.user_topics(&namespace, domain).await?;
        let max_chars = self.service.config().max_pattern_chars;
        let pattern = request.topics_pattern.as_deref().filter(|pattern| pattern.chars().count() <= max_chars);
        // A pattern that only the client understands is left to the client.
        let pattern = pattern.and_then(|pattern| TopicPattern::parse(pattern).ok());
        if let Some(pattern) = &pattern {
            topics.retain(|topic| pattern.matches(topic));
        }
        let topics_hash = hash(topics.iter().map(TopicName::as_str));
        let changed = request.topics_hash.as_deref() != Some(topics_hash.as_str());
        Ok(CommandGetTopicsOfNamespaceResponse {
            request_id: request.request_id,
            topics: if changed { topics.iter().map(ToString::to_string).collect() } else { Vec::new() },
            filtered: Some(pattern.is_some()),
            topics_hash: Some(topics_hash),
            changed: Some(changed),
        })
    }

    /// Topics of a namespace without those of the platform; an absent namespace has none.
    pub(super) async fn user_topics(
        &self,
        namespace: &NamespaceName,
        domain: ListDomain,
    ) -> Result<Vec<TopicName>, BrokerError> {
        let mut topics = self.service.list_everywhere(namespace, domain).await?;
        topics.retain(|topic| !crate::service::is_system_topic(topic));
        Ok(topics)
    }
}
