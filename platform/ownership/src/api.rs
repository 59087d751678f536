//! The words between ownership and the broker that hosts topics.

use crate::bundles::{BundleError, BundleRange, Bundles, topic_hash};
use crate::isolation::IsolationData;
use crate::records::{BrokerRecord, BundleFigures, BundleId, LoadRecord};
use meridian_metadata::{MetadataError, Operation};
use meridian_types::{Classify, ErrorClass, NamespaceName, TopicName};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};

/// A boxed future; none of these calls is per message.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where a topic is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// By this broker.
    Here,
    /// By that one.
    There(Arc<BrokerRecord>),
}

/// Why ownership refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OwnershipError {
    /// Not for the moment: ask again.
    #[error("{0}")]
    NotReady(String),
    /// The bundle is not this broker's.
    #[error("{0} is not served by this broker; please redo the lookup")]
    NotHere(String),
    /// No broker may serve the bundle.
    #[error("no broker may serve {0}")]
    NoBroker(String),
    /// No such broker.
    #[error("broker {0} is not alive")]
    NoSuchBroker(String),
    /// The bundles don't allow it.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A value is not accepted.
    #[error("{0}")]
    Invalid(String),
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl Classify for OwnershipError {
    fn class(&self) -> ErrorClass {
        match self {
            OwnershipError::NotReady(_) | OwnershipError::NoBroker(_) => ErrorClass::Retry,
            OwnershipError::NotHere(_) => ErrorClass::Redirect,
            OwnershipError::Bundle(_) | OwnershipError::NoSuchBroker(_) | OwnershipError::Invalid(_) => {
                ErrorClass::Caller
            }
            OwnershipError::Metadata(error) => error.class(),
        }
    }
}

/// What is known of namespaces elsewhere.
pub trait Namespaces: Send + Sync {
    /// The bundles that a namespace was made with; `None` = there is no such namespace.
    fn made_with(&self, namespace: &NamespaceName) -> Option<Bundles>;
    /// The anti-affinity group of a namespace.
    fn group(&self, _namespace: &NamespaceName) -> Option<String> {
        None
    }
    /// The failure domain of a broker that an operator set.
    fn domain(&self, _broker: &str) -> Option<String> {
        None
    }
}

/// What a loaded topic asks of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicLoad {
    /// The topic.
    pub topic: TopicName,
    /// Its figures, per second.
    pub figures: BundleFigures,
}

/// The broker that hosts topics, as ownership sees it.
pub trait Host: Send + Sync {
    /// Closes all open topics that this broker does not serve any more, and tells their clients where they are served
    /// ([`Ownership::destination`]). Ends when they are closed.
    fn close_moved(&self) -> BoxFuture<'_, ()>;
    /// The lease was lost or may have been: closes everything, and ends when nothing is open.
    fn close_all(&self, reason: &'static str) -> BoxFuture<'_, ()>;
    /// A bundle came. Must not block.
    fn gained(&self, bundle: BundleId);
    /// What open topics ask of the broker.
    fn loads(&self) -> Vec<TopicLoad>;
    /// Whether peers that were asked reach the metadata store.
    fn ask_peers(&self, peers: Vec<Arc<BrokerRecord>>) -> BoxFuture<'_, crate::lease::Evidence>;
    /// Whether a broker takes connections. Given up by the caller when it takes long.
    fn reaches(&self, _broker: Arc<BrokerRecord>) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
}

/// Who owns which bundle.
pub trait Ownership: Send + Sync {
    /// This broker has its region for itself, by the way it was started.
    fn is_alone(&self) -> bool {
        false
    }
    /// Whether this broker may serve anything at this moment. Asked per read of a connection: one load and a clock.
    fn in_force(&self) -> bool;
    /// Why this broker serves nothing at this moment; `None` = its lease is in force.
    fn unready(&self) -> Option<String> {
        None
    }
    /// Whether this broker serves the topic at this moment. Waits for nothing.
    fn serves(&self, topic: &TopicName) -> bool;
    /// Where the topic is served; a bundle of nobody is given to somebody. `told`: the client was sent here by another
    /// broker, which may know more than this one has seen yet.
    fn locate<'a>(&'a self, topic: &'a TopicName, told: bool) -> BoxFuture<'a, Result<Place, OwnershipError>>;
    /// Where clients of a topic that closes here shall connect.
    fn destination(&self, topic: &TopicName) -> Option<Arc<BrokerRecord>>;
    /// What must still hold in metadata when a log is opened (`None` = nothing).
    ///
    /// # Errors
    /// [`OwnershipError::NotHere`].
    fn guard(&self, topic: &TopicName) -> Result<Option<Operation>, OwnershipError>;
    /// The bundles of a namespace.
    fn bundles(&self, namespace: &NamespaceName) -> Option<Arc<Bundles>>;
    /// This broker.
    fn me(&self) -> Arc<BrokerRecord>;
    /// Brokers that live, by id.
    fn brokers(&self) -> Vec<Arc<BrokerRecord>>;
    /// Who leads.
    fn leader(&self) -> Option<Arc<BrokerRecord>>;
    /// The broker that a bundle belongs to, if one does.
    fn owner(&self, bundle: &BundleId) -> Option<Arc<BrokerRecord>>;
    /// Bundles of a broker with their epochs.
    fn owned(&self, broker: &str) -> Vec<(BundleId, u64)>;
    /// What a broker last said about its load.
    fn load(&self, broker: &str) -> Option<LoadRecord>;
    /// Moves a bundle: to the broker of that id, or to the one that suits best. If it was this broker's, ends when its
    /// topics are closed here.
    fn unload<'a>(&'a self, bundle: &'a BundleId, to: Option<&'a str>) -> BoxFuture<'a, Result<(), OwnershipError>>;
    /// Cuts a bundle at these hashes; topics stay where they are.
    fn split<'a>(
        &'a self,
        bundle: &'a BundleId,
        cuts: &'a [u32],
    ) -> BoxFuture<'a, Result<Vec<BundleId>, OwnershipError>>;
    /// Joins a bundle with its upper neighbour.
    fn merge<'a>(&'a self, bundle: &'a BundleId) -> BoxFuture<'a, Result<BundleId, OwnershipError>>;
    /// Forgets a namespace that was deleted.
    fn forget<'a>(&'a self, namespace: &'a NamespaceName) -> BoxFuture<'a, Result<(), OwnershipError>>;
    /// Isolation rules by name.
    fn isolation(&self) -> BTreeMap<String, IsolationData>;
    /// Stores an isolation rule, or deletes it.
    fn set_isolation<'a>(
        &'a self,
        name: &'a str,
        rule: Option<IsolationData>,
    ) -> BoxFuture<'a, Result<(), OwnershipError>>;
    /// Moves everything away and leaves; ends when nothing is served here any more, or at the deadline.
    fn leave(&self) -> BoxFuture<'_, ()>;
    /// Binds the broker that hosts the topics; what runs by itself begins.
    fn attach(&self, host: Weak<dyn Host>);
    /// Whether the metadata store answered lately; for peers that do not reach it.
    fn reaches_store(&self) -> bool;
    /// Counters and gauges by name and labels.
    fn figures(&self) -> Vec<Figure>;

    /// The bundle of a topic; `None` if there is no such namespace.
    fn bundle_of(&self, topic: &TopicName) -> Option<BundleId> {
        let namespace = topic.namespace();
        let range = self.bundles(&namespace)?.of(topic_hash(topic));
        Some(BundleId { namespace, range })
    }

    /// The bundles that a text of the admin API names: one of them, or all for the whole range.
    ///
    /// # Errors
    /// [`OwnershipError::Bundle`].
    fn named(&self, namespace: &NamespaceName, text: &str) -> Result<Vec<BundleId>, OwnershipError> {
        let bundles = self.bundles(namespace);
        let unknown = || OwnershipError::Bundle(BundleError::NoSuchBundle(text.to_owned()));
        let (bundles, range) = bundles.zip(BundleRange::parse(text)).ok_or_else(unknown)?;
        let of = |range| BundleId { namespace: namespace.clone(), range };
        if bundles.contains(range) {
            return Ok(vec![of(range)]);
        }
        if range == BundleRange::WHOLE {
            return Ok(bundles.ranges().map(of).collect());
        }
        Err(unknown())
    }
}

/// One figure of the metrics page.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// A label and its value.
    pub label: Option<(&'static str, String)>,
    /// Its value.
    pub value: f64,
}
