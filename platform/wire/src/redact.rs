//! `Debug` of the messages that carry credentials: it says that they are there, never what they are.
//!
//! Invariant: a command may be written to a log as it is; no secret of a client appears.

use crate::proto::{AuthData, CommandConnect, CommandLookupTopic, CommandPartitionedTopicMetadata};
use std::fmt;

/// Stands for a secret of so many bytes.
struct Hidden(Option<usize>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "<{bytes} bytes hidden>"),
            None => f.write_str("None"),
        }
    }
}

impl fmt::Debug for AuthData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthData")
            .field("auth_method_name", &self.auth_method_name)
            .field("auth_data", &Hidden(self.auth_data.as_ref().map(|data| data.len())))
            .finish()
    }
}

impl fmt::Debug for CommandConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandConnect")
            .field("client_version", &self.client_version)
            .field("auth_method", &self.auth_method)
            .field("auth_method_name", &self.auth_method_name)
            .field("auth_data", &Hidden(self.auth_data.as_ref().map(|data| data.len())))
            .field("protocol_version", &self.protocol_version)
            .field("proxy_to_broker_url", &self.proxy_to_broker_url)
            .field("original_principal", &self.original_principal)
            .field("original_auth_data", &Hidden(self.original_auth_data.as_ref().map(String::len)))
            .field("original_auth_method", &self.original_auth_method)
            .field("feature_flags", &self.feature_flags)
            .field("proxy_version", &self.proxy_version)
            .finish()
    }
}

impl fmt::Debug for CommandLookupTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandLookupTopic")
            .field("topic", &self.topic)
            .field("request_id", &self.request_id)
            .field("authoritative", &self.authoritative)
            .field("original_principal", &self.original_principal)
            .field("original_auth_data", &Hidden(self.original_auth_data.as_ref().map(String::len)))
            .field("original_auth_method", &self.original_auth_method)
            .field("advertised_listener_name", &self.advertised_listener_name)
            .field("properties", &self.properties)
            .finish()
    }
}

impl fmt::Debug for CommandPartitionedTopicMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandPartitionedTopicMetadata")
            .field("topic", &self.topic)
            .field("request_id", &self.request_id)
            .field("original_principal", &self.original_principal)
            .field("original_auth_data", &Hidden(self.original_auth_data.as_ref().map(String::len)))
            .field("original_auth_method", &self.original_auth_method)
            .field("metadata_auto_creation_enabled", &self.metadata_auto_creation_enabled)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::BaseCommand;
    use bytes::Bytes;

    #[test]
    fn no_secret_is_printed() {
        let command = BaseCommand::from(CommandConnect {
            client_version: "test".into(),
            auth_method_name: Some("token".into()),
            auth_data: Some(Bytes::from_static(b"hunter2")),
            original_auth_data: Some("hunter3".into()),
            ..Default::default()
        });
        let text = format!("{command:?}");
        assert!(!text.contains("hunter"), "{text}");
        assert!(!text.contains("104, 117"), "{text}");
        assert!(text.contains("<7 bytes hidden>"), "{text}");
    }
}
