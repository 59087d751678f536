//! Commands by kind: the type number of a body, and a body as a whole command.
//!
//! Invariants: a command made by `From` has the type of its body; [`BaseCommand::check`] holds for it.
//! Failure: [`CommandFault`].
//! Must never know: what a command does.

use crate::proto::base_command::{Body, Type};
use crate::proto::{self, BaseCommand};

/// What is wrong with a command that could be read as protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandFault {
    /// A type that this version does not know.
    #[error("unknown command type {0}")]
    UnknownType(i32),
    /// The body of the named command is missing.
    #[error("command {} has no body", .0.as_str_name())]
    NoBody(Type),
    /// The body belongs to another command.
    #[error("command {} carries the body of {}", .kind.as_str_name(), .body.as_str_name())]
    WrongBody {
        /// What the type field says.
        kind: Type,
        /// Whose body it is.
        body: Type,
    },
}

impl meridian_types::Classify for CommandFault {
    fn class(&self) -> meridian_types::ErrorClass {
        meridian_types::ErrorClass::Caller
    }
}

impl BaseCommand {
    /// The command's type, if type and body fit together.
    ///
    /// # Errors
    /// [`CommandFault`] if the type is unknown, or the body missing or another one.
    pub fn check(&self) -> Result<Type, CommandFault> {
        let kind = Type::try_from(self.r#type).map_err(|_| CommandFault::UnknownType(self.r#type))?;
        match self.body.as_ref().map(Body::kind) {
            None => Err(CommandFault::NoBody(kind)),
            Some(body) if body != kind => Err(CommandFault::WrongBody { kind, body }),
            Some(_) => Ok(kind),
        }
    }
}

impl From<Body> for BaseCommand {
    fn from(body: Body) -> Self {
        BaseCommand { r#type: body.kind() as i32, body: Some(body) }
    }
}

/// One line per command: body variant, message, type.
macro_rules! commands {
    ($($variant:ident($message:ident) = $kind:ident,)+) => {
        impl Body {
            /// The type number that belongs to this body.
            pub fn kind(&self) -> Type {
                match self {
                    $(Body::$variant(_) => Type::$kind,)+
                }
            }
        }

        $(
            impl From<proto::$message> for Body {
                fn from(message: proto::$message) -> Self {
                    Body::$variant(message)
                }
            }

            impl From<proto::$message> for BaseCommand {
                fn from(message: proto::$message) -> Self {
                    BaseCommand::from(Body::$variant(message))
                }
            }
        )+
    };
}

commands! {
    Connect(CommandConnect) = Connect,
    Connected(CommandConnected) = Connected,
    Subscribe(CommandSubscribe) = Subscribe,
    Producer(CommandProducer) = Producer,
    Send(CommandSend) = Send,
    SendReceipt(CommandSendReceipt) = SendReceipt,
    SendError(CommandSendError) = SendError,
    Message(CommandMessage) = Message,
    Ack(CommandAck) = Ack,
    Flow(CommandFlow) = Flow,
    Unsubscribe(CommandUnsubscribe) = Unsubscribe,
    Success(CommandSuccess) = Success,
    Error(CommandError) = Error,
    CloseProducer(CommandCloseProducer) = CloseProducer,
    CloseConsumer(CommandCloseConsumer) = CloseConsumer,
    ProducerSuccess(CommandProducerSuccess) = ProducerSuccess,
    Ping(CommandPing) = Ping,
    Pong(CommandPong) = Pong,
    RedeliverUnacknowledgedMessages(CommandRedeliverUnacknowledgedMessages) = RedeliverUnacknowledgedMessages,
    PartitionMetadata(CommandPartitionedTopicMetadata) = PartitionedMetadata,
    PartitionMetadataResponse(CommandPartitionedTopicMetadataResponse) = PartitionedMetadataResponse,
    LookupTopic(CommandLookupTopic) = Lookup,
    LookupTopicResponse(CommandLookupTopicResponse) = LookupResponse,
    ConsumerStats(CommandConsumerStats) = ConsumerStats,
    ConsumerStatsResponse(CommandConsumerStatsResponse) = ConsumerStatsResponse,
    ReachedEndOfTopic(CommandReachedEndOfTopic) = ReachedEndOfTopic,
    Seek(CommandSeek) = Seek,
    GetLastMessageId(CommandGetLastMessageId) = GetLastMessageId,
    GetLastMessageIdResponse(CommandGetLastMessageIdResponse) = GetLastMessageIdResponse,
    ActiveConsumerChange(CommandActiveConsumerChange) = ActiveConsumerChange,
    GetTopicsOfNamespace(CommandGetTopicsOfNamespace) = GetTopicsOfNamespace,
    GetTopicsOfNamespaceResponse(CommandGetTopicsOfNamespaceResponse) = GetTopicsOfNamespaceResponse,
    GetSchema(CommandGetSchema) = GetSchema,
    GetSchemaResponse(CommandGetSchemaResponse) = GetSchemaResponse,
    AuthChallenge(CommandAuthChallenge) = AuthChallenge,
    AuthResponse(CommandAuthResponse) = AuthResponse,
    AckResponse(CommandAckResponse) = AckResponse,
    GetOrCreateSchema(CommandGetOrCreateSchema) = GetOrCreateSchema,
    GetOrCreateSchemaResponse(CommandGetOrCreateSchemaResponse) = GetOrCreateSchemaResponse,
    NewTxn(CommandNewTxn) = NewTxn,
    NewTxnResponse(CommandNewTxnResponse) = NewTxnResponse,
    AddPartitionToTxn(CommandAddPartitionToTxn) = AddPartitionToTxn,
    AddPartitionToTxnResponse(CommandAddPartitionToTxnResponse) = AddPartitionToTxnResponse,
    AddSubscriptionToTxn(CommandAddSubscriptionToTxn) = AddSubscriptionToTxn,
    AddSubscriptionToTxnResponse(CommandAddSubscriptionToTxnResponse) = AddSubscriptionToTxnResponse,
    EndTxn(CommandEndTxn) = EndTxn,
    EndTxnResponse(CommandEndTxnResponse) = EndTxnResponse,
    EndTxnOnPartition(CommandEndTxnOnPartition) = EndTxnOnPartition,
    EndTxnOnPartitionResponse(CommandEndTxnOnPartitionResponse) = EndTxnOnPartitionResponse,
    EndTxnOnSubscription(CommandEndTxnOnSubscription) = EndTxnOnSubscription,
    EndTxnOnSubscriptionResponse(CommandEndTxnOnSubscriptionResponse) = EndTxnOnSubscriptionResponse,
    TcClientConnectRequest(CommandTcClientConnectRequest) = TcClientConnectRequest,
    TcClientConnectResponse(CommandTcClientConnectResponse) = TcClientConnectResponse,
    WatchTopicList(CommandWatchTopicList) = WatchTopicList,
    WatchTopicListSuccess(CommandWatchTopicListSuccess) = WatchTopicListSuccess,
    WatchTopicUpdate(CommandWatchTopicUpdate) = WatchTopicUpdate,
    WatchTopicListClose(CommandWatchTopicListClose) = WatchTopicListClose,
    TopicMigrated(CommandTopicMigrated) = TopicMigrated,
    ScalableTopicLookup(CommandScalableTopicLookup) = ScalableTopicLookup,
    ScalableTopicUpdate(CommandScalableTopicUpdate) = ScalableTopicUpdate,
    ScalableTopicClose(CommandScalableTopicClose) = ScalableTopicClose,
    ScalableTopicSubscribe(CommandScalableTopicSubscribe) = ScalableTopicSubscribe,
    ScalableTopicSubscribeResponse(CommandScalableTopicSubscribeResponse) = ScalableTopicSubscribeResponse,
    ScalableTopicAssignmentUpdate(CommandScalableTopicAssignmentUpdate) = ScalableTopicAssignmentUpdate,
    WatchScalableTopics(CommandWatchScalableTopics) = WatchScalableTopics,
    WatchScalableTopicsUpdate(CommandWatchScalableTopicsUpdate) = WatchScalableTopicsUpdate,
    WatchScalableTopicsClose(CommandWatchScalableTopicsClose) = WatchScalableTopicsClose,
    WatchTcAssignments(CommandWatchTcAssignments) = WatchTcAssignments,
    WatchTcAssignmentsUpdate(CommandWatchTcAssignmentsUpdate) = WatchTcAssignmentsUpdate,
    WatchTcAssignmentsClose(CommandWatchTcAssignmentsClose) = WatchTcAssignmentsClose,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{CommandPing, CommandPong};

    #[test]
    fn type_and_body_must_fit() {
        assert_eq!(BaseCommand::from(CommandPing {}).check(), Ok(Type::Ping));
        let unknown = BaseCommand { r#type: 4711, body: None };
        assert_eq!(unknown.check(), Err(CommandFault::UnknownType(4711)));
        let empty = BaseCommand { r#type: Type::Send as i32, body: None };
        assert_eq!(empty.check(), Err(CommandFault::NoBody(Type::Send)));
        let mixed = BaseCommand { r#type: Type::Send as i32, body: Some(CommandPong {}.into()) };
        assert_eq!(mixed.check(), Err(CommandFault::WrongBody { kind: Type::Send, body: Type::Pong }));
        assert_eq!(mixed.check().unwrap_err().to_string(), "command SEND carries the body of PONG");
    }
}
