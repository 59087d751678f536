//! What is done to a subscription of many topics, whichever brokers of the region serve them.
//!
//! Role: namespace-wide calls and declared documents name topics, not brokers. What is served elsewhere is asked of its
//! owner, many topics in one question.
//! Invariants: each deed may be repeated: it says how it shall be afterwards; a topic that moved meanwhile is "not now",
//! never left out.
//! Failure: [`BrokerError`] of the first topic that refuses; those before it are done.
//! Must never know: who may do it.

use super::{BrokerService, Create};
use crate::colleagues::{Ask, Said, WITHIN_LIMIT};
use crate::error::BrokerError;
use meridian_ownership::{BrokerRecord, Place};
use meridian_topic::{SeekTo, TopicErrorKind};
use meridian_types::{Classify, ErrorClass, Position, TopicName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Topics of one question to another broker.
const TOPICS_PER_QUESTION: usize = 64;
/// How long topics are looked for that are just changing their broker, and the pause between two looks.
const MOVED_WITHIN: Duration = Duration::from_secs(5);
const MOVED_AGAIN: Duration = Duration::from_millis(200);

/// How a subscription shall be afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Deed {
    /// As it is.
    Look,
    /// There.
    Ensure {
        /// A new one begins before the first message.
        earliest: bool,
        /// Whether it is replicated; `None` = as it is, a new one not.
        replicated: Option<bool>,
    },
    /// As it is, but replicated or not.
    Replicate(bool),
    /// Gone.
    Delete {
        /// Also with consumers.
        force: bool,
    },
    /// Without backlog. The only one that may mean all subscriptions of a topic.
    Skip,
}

impl BrokerService {
    /// Does it to the subscription of each topic; answers for each whether the subscription was found and is replicated.
    /// Without a name all subscriptions are meant.
    ///
    /// # Errors
    /// [`BrokerError::Busy`] with the reason of another broker that refuses, [`BrokerError::NotReady`] if one can't be asked.
    pub async fn at_subscription(
        self: &Arc<Self>,
        topics: &[TopicName],
        name: Option<&str>,
        deed: Deed,
    ) -> Result<Vec<Option<bool>>, BrokerError> {
        let mut found = vec![None; topics.len()];
        let mut left: Vec<usize> = (0..topics.len()).collect();
        let until = Instant::now() + MOVED_WITHIN;
        loop {
            let moved = self.try_subscriptions(topics, &mut left, &mut found, name, deed).await;
            match moved {
                // Topics that change their broker are there in a moment, wherever that is.
                Err(BrokerError::NotReady(_) | BrokerError::Elsewhere { .. }) if Instant::now() < until => {
                    tokio::time::sleep(MOVED_AGAIN).await;
                }
                outcome => return outcome.map(|()| found),
            }
        }
    }

    /// One round; what is done is no longer among `left`.
    async fn try_subscriptions(
        self: &Arc<Self>,
        topics: &[TopicName],
        left: &mut Vec<usize>,
        found: &mut [Option<bool>],
        name: Option<&str>,
        deed: Deed,
    ) -> Result<(), BrokerError> {
        let mut there: BTreeMap<String, (Arc<BrokerRecord>, Vec<usize>)> = BTreeMap::new();
        for number in left.clone() {
            match self.ownership.locate(&topics[number], false).await? {
                Place::Here => {
                    found[number] = self.at_own_subscription(&topics[number], name, deed).await?;
                    left.retain(|one| *one != number);
                }
                Place::There(broker) => {
                    there.entry(broker.id.clone()).or_insert_with(|| (broker, Vec::new())).1.push(number);
                }
            }
        }
        for (broker, numbers) in there.values() {
            for numbers in numbers.chunks(TOPICS_PER_QUESTION) {
                let asked = numbers.iter().map(|number| topics[*number].to_string()).collect();
                let said = self.ask_subscriptions(broker, asked, name, deed).await?;
                if said.len() != numbers.len() {
                    return Err(BrokerError::NotReady(format!("broker {} left topics out", broker.id)));
                }
                numbers.iter().zip(said).for_each(|(number, one)| found[*number] = one);
                left.retain(|one| !numbers.contains(one));
            }
        }
        Ok(())
    }

    async fn ask_subscriptions(
        &self,
        broker: &BrokerRecord,
        topics: Vec<String>,
        name: Option<&str>,
        deed: Deed,
    ) -> Result<Vec<Option<bool>>, BrokerError> {
        let ask = Ask::Subscription { topics, name: name.map(str::to_owned), deed };
        match self.colleagues.ask(broker, &ask, WITHIN_LIMIT).await {
            Ok(Said::Subscriptions(found)) => Ok(found),
            Ok(Said::Refused(why)) => Err(BrokerError::Busy(why)),
            Ok(Said::Later(why)) | Err(why) => Err(BrokerError::NotReady(why)),
            Ok(other) => Err(BrokerError::NotReady(format!("broker {} answered {other:?}", broker.id))),
        }
    }

    /// As another broker of the region asks.
    pub(super) async fn subscriptions_here(
        self: &Arc<Self>,
        topics: &[String],
        name: Option<&str>,
        deed: Deed,
    ) -> Result<Said, String> {
        let mut found = Vec::with_capacity(topics.len());
        for topic in topics {
            let topic = TopicName::parse(topic).map_err(|error| error.to_string())?;
            match self.at_own_subscription(&topic, name, deed).await {
                Ok(one) => found.push(one),
                Err(error) => {
                    let passing = matches!(error.class(), ErrorClass::Retry | ErrorClass::Redirect);
                    let text = format!("{topic}: {error}");
                    return Ok(if passing { Said::Later(text) } else { Said::Refused(text) });
                }
            }
        }
        Ok(Said::Subscriptions(found))
    }

    async fn at_own_subscription(
        self: &Arc<Self>,
        topic: &TopicName,
        name: Option<&str>,
        deed: Deed,
    ) -> Result<Option<bool>, BrokerError> {
        let handle = self.topic(topic, Create::Never).await?;
        let there = |name: &str| {
            let subscriptions = handle.stats().subscriptions.into_iter();
            subscriptions.filter(|one| one.name == name).map(|one| one.replicated).next()
        };
        let Some(name) = name else {
            if deed == Deed::Skip {
                for subscription in handle.stats().subscriptions {
                    handle.skip(subscription.name, None).await?;
                }
            }
            return Ok(None);
        };
        match deed {
            Deed::Look => {}
            Deed::Ensure { earliest, replicated } => {
                let at = SeekTo::Position(if earliest { Position::EARLIEST } else { Position::LATEST }, Vec::new());
                let marked = replicated.unwrap_or(false);
                match handle.create_subscription(name.to_owned(), at, BTreeMap::new(), marked).await {
                    Err(error) if error.kind == TopicErrorKind::Busy => {
                        if let Some(replicated) = replicated {
                            handle.set_subscription_replicated(name.to_owned(), replicated).await?;
                        }
                    }
                    outcome => outcome?,
                }
            }
            Deed::Replicate(replicated) => handle.set_subscription_replicated(name.to_owned(), replicated).await?,
            Deed::Delete { force } => match handle.delete_subscription(name.to_owned(), force).await {
                Err(error) if error.kind == TopicErrorKind::SubscriptionNotFound => {}
                outcome => outcome?,
            },
            Deed::Skip => {
                if there(name).is_some() {
                    handle.skip(name.to_owned(), None).await?;
                }
            }
        }
        Ok(there(name))
    }
}
