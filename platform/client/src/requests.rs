//! Questions to a broker: lookup, partitions, topics of a namespace, schemas.
//!
//! Invariants: an answer that carries an error is a refusal with its code and text; a redirect is decided by
//! [`follow`], which is pure.
//! Failure: [`ClientError`].
//! Must never know: which broker is asked, retries.

use crate::ClientError;
use crate::address::{BrokerAddress, Endpoint};
use crate::connection::{Connection, unexpected};
use bytes::Bytes;
use meridian_types::{NamespaceName, TopicName};
use meridian_wire::proto::base_command::Body;
use meridian_wire::proto::command_get_topics_of_namespace::Mode;
use meridian_wire::proto::command_lookup_topic_response::LookupType;
use meridian_wire::proto::{
    CommandGetOrCreateSchema, CommandGetSchema, CommandGetTopicsOfNamespace, CommandLookupTopic,
    CommandLookupTopicResponse, CommandPartitionedTopicMetadata, KeyValue, Schema, ServerError,
};
use meridian_wire::replicate::LINK_KEY;

/// What to do after the answer to a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// This broker serves the topic.
    Found(Endpoint),
    /// Ask there.
    Ask {
        /// Where.
        endpoint: Endpoint,
        /// To be passed on.
        authoritative: bool,
    },
}

/// Decides what follows the answer of `asked` to a lookup.
///
/// # Errors
/// The lookup failed, or the address is missing or not understood.
pub fn follow(asked: &Endpoint, answer: &CommandLookupTopicResponse) -> Result<Step, ClientError> {
    let kind = answer.response.and_then(|number| LookupType::try_from(number).ok());
    if !matches!(kind, Some(LookupType::Connect | LookupType::Redirect)) {
        return Err(ClientError::refused("a lookup", answer.error.unwrap_or_default(), answer.message()));
    }
    let url = if asked.address.tls { &answer.broker_service_url_tls } else { &answer.broker_service_url };
    let broker = match url.as_deref().filter(|url| !url.is_empty()) {
        Some(url) => BrokerAddress::parse(url)?,
        None if asked.address.tls => return Err(ClientError::Unsupported("TLS on the broker that serves the topic")),
        None => return Err(ClientError::Unsupported("plain connections on the broker that serves the topic")),
    };
    if broker.tls != asked.address.tls {
        return Err(ClientError::Protocol(format!("a lookup answered {broker} in the place of the other scheme")));
    }
    let endpoint = match answer.proxy_through_service_url() {
        true => Endpoint::through_proxy(asked.address.clone(), &broker),
        false => Endpoint::direct(broker),
    };
    Ok(match kind {
        Some(LookupType::Redirect) => Step::Ask { endpoint, authoritative: answer.authoritative() },
        _ => Step::Found(endpoint),
    })
}

/// A schema and its version.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionedSchema {
    /// The schema.
    pub schema: Schema,
    /// Its version at the peer.
    pub version: Bytes,
}

impl Connection {
    /// Asks this broker who serves a topic.
    ///
    /// # Errors
    /// Refused, late, or the connection ended.
    pub async fn lookup(
        &self,
        topic: &TopicName,
        authoritative: bool,
        listener: Option<&str>,
    ) -> Result<CommandLookupTopicResponse, ClientError> {
        let request_id = self.next_id();
        let command = CommandLookupTopic {
            topic: topic.as_str().to_owned(),
            request_id,
            authoritative: Some(authoritative),
            advertised_listener_name: listener.map(str::to_owned),
            // Whoever asks for a region by its address is not sent to another one.
            properties: vec![KeyValue { key: LINK_KEY.to_owned(), value: "1".to_owned() }],
            ..Default::default()
        };
        match self.request("a lookup", request_id, command).await? {
            Body::LookupTopicResponse(answer) => Ok(answer),
            other => Err(unexpected("a lookup", &other)),
        }
    }

    /// How many partitions a topic has; 0 if it is not partitioned. Unless `create` is set nothing is created.
    ///
    /// # Errors
    /// Refused (a missing topic: [`ServerError::TopicNotFound`]), late, the connection ended, or the peer would create
    /// the topic although it should not.
    pub async fn partitions(&self, topic: &TopicName, create: bool) -> Result<u32, ClientError> {
        let knows = self.facts().features.supports_get_partitioned_metadata_without_auto_creation();
        if !create && !knows {
            return Err(ClientError::Unsupported("asking for partitions without creating the topic"));
        }
        let what = "the number of partitions";
        let request_id = self.next_id();
        let command = CommandPartitionedTopicMetadata {
            topic: topic.as_str().to_owned(),
            request_id,
            metadata_auto_creation_enabled: Some(create),
            ..Default::default()
        };
        match self.request(what, request_id, command).await? {
            Body::PartitionMetadataResponse(answer) => match answer.error {
                Some(code) => Err(ClientError::refused(what, code, answer.message())),
                None => Ok(answer.partitions()),
            },
            other => Err(unexpected(what, &other)),
        }
    }

    /// The topics of a namespace, partitions as topics of their own.
    ///
    /// # Errors
    /// Refused, late, or the connection ended.
    pub async fn topics_of_namespace(&self, namespace: &NamespaceName, mode: Mode) -> Result<Vec<String>, ClientError> {
        let what = "the topics of a namespace";
        let request_id = self.next_id();
        let command = CommandGetTopicsOfNamespace {
            request_id,
            namespace: namespace.as_str().to_owned(),
            mode: Some(mode as i32),
            ..Default::default()
        };
        match self.request(what, request_id, command).await? {
            Body::GetTopicsOfNamespaceResponse(answer) => Ok(answer.topics),
            other => Err(unexpected(what, &other)),
        }
    }

    /// A topic's schema: that of a version, or the latest; `None` if there is none.
    ///
    /// # Errors
    /// Refused, late, or the connection ended.
    pub async fn schema(
        &self,
        topic: &TopicName,
        version: Option<Bytes>,
    ) -> Result<Option<VersionedSchema>, ClientError> {
        let what = "a schema";
        let request_id = self.next_id();
        let command = CommandGetSchema { request_id, topic: topic.as_str().to_owned(), schema_version: version };
        match self.request(what, request_id, command).await? {
            Body::GetSchemaResponse(answer) => match (answer.error_code, answer.schema) {
                (Some(code), _) if code == ServerError::TopicNotFound as i32 => Ok(None),
                (Some(code), _) => {
                    Err(ClientError::refused(what, code, answer.error_message.as_deref().unwrap_or_default()))
                }
                (None, None) => Ok(None),
                (None, Some(schema)) => {
                    Ok(Some(VersionedSchema { schema, version: answer.schema_version.unwrap_or_default() }))
                }
            },
            other => Err(unexpected(what, &other)),
        }
    }

    /// The version of a schema of a topic that this broker serves; registers it if it is new and compatible.
    ///
    /// # Errors
    /// Refused (not compatible: [`ServerError::IncompatibleSchema`]), late, or the connection ended.
    pub async fn get_or_create_schema(&self, topic: &TopicName, schema: Schema) -> Result<Bytes, ClientError> {
        let what = "a schema's registration";
        let request_id = self.next_id();
        let command =
            CommandGetOrCreateSchema { request_id, topic: topic.as_str().to_owned(), schema, ..Default::default() };
        match self.request(what, request_id, command).await? {
            Body::GetOrCreateSchemaResponse(answer) => match answer.error_code {
                Some(code) => {
                    Err(ClientError::refused(what, code, answer.error_message.as_deref().unwrap_or_default()))
                }
                None => Ok(answer.schema_version.unwrap_or_default()),
            },
            other => Err(unexpected(what, &other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &str) -> Endpoint {
        Endpoint::direct(BrokerAddress::parse(url).unwrap())
    }

    fn answer(kind: LookupType, plain: &str, tls: &str) -> CommandLookupTopicResponse {
        CommandLookupTopicResponse {
            response: Some(kind as i32),
            broker_service_url: Some(plain.to_owned()),
            broker_service_url_tls: Some(tls.to_owned()),
            authoritative: Some(true),
            ..Default::default()
        }
    }

    #[test]
    fn a_lookup_is_followed_in_the_scheme_of_who_was_asked() {
        let connect = answer(LookupType::Connect, "pulsar://b:1", "pulsar+ssl://b:2");
        assert_eq!(follow(&at("pulsar://a:9"), &connect).unwrap(), Step::Found(at("pulsar://b:1")));
        assert_eq!(follow(&at("pulsar+ssl://a:9"), &connect).unwrap(), Step::Found(at("pulsar+ssl://b:2")));
        let redirect = answer(LookupType::Redirect, "pulsar://b:1", "");
        let step = Step::Ask { endpoint: at("pulsar://b:1"), authoritative: true };
        assert_eq!(follow(&at("pulsar://a:9"), &redirect).unwrap(), step);
        assert!(matches!(follow(&at("pulsar+ssl://a:9"), &redirect), Err(ClientError::Unsupported(_))));
    }

    #[test]
    fn a_proxy_is_dialled_for_the_broker_behind_it() {
        let mut proxied = answer(LookupType::Connect, "pulsar://inner:1", "");
        proxied.proxy_through_service_url = Some(true);
        let found = follow(&at("pulsar://proxy:9"), &proxied).unwrap();
        let inner = BrokerAddress::parse("pulsar://inner:1").unwrap();
        assert_eq!(found, Step::Found(Endpoint::through_proxy(at("pulsar://proxy:9").address, &inner)));
    }

    #[test]
    fn a_failed_or_crooked_answer_is_an_error() {
        let mut failed = answer(LookupType::Failed, "", "");
        failed.error = Some(ServerError::ServiceNotReady as i32);
        failed.message = Some("later".to_owned());
        assert_eq!(follow(&at("pulsar://a:9"), &failed).unwrap_err().code(), Some(ServerError::ServiceNotReady));
        let crooked = answer(LookupType::Connect, "pulsar+ssl://b:1", "");
        assert!(matches!(follow(&at("pulsar://a:9"), &crooked), Err(ClientError::Protocol(_))));
        let unreadable = answer(LookupType::Connect, "http://b:1", "");
        assert!(matches!(follow(&at("pulsar://a:9"), &unreadable), Err(ClientError::Address { .. })));
        assert!(follow(&at("pulsar://a:9"), &CommandLookupTopicResponse::default()).is_err());
    }
}
