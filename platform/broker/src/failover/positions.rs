//! How far topics are here, for regions that ask over the region link; the broker that serves a topic is asked.
//!
//! Invariants: Y1 a region is told nothing of topics that it has no part in, not even whether they are there.
//! Failure: a topic that can't be opened is answered with the reason.
//! Must never know: why they ask.

use crate::colleagues::{Ask, Said, position};
use crate::service::{BrokerService, Create};
use meridian_link::{OriginMark, PositionsHandler, TopicPositions};
use meridian_topic::api::BoxFuture;
use meridian_types::{EntryId, Incarnation, Position, RegionId, TopicName};
use std::sync::{Arc, Weak};

/// Topics that are looked at for one call.
const TOPICS_MAX: usize = 1000;

/// The topics of a broker.
pub struct TopicPositionsHere(pub Weak<BrokerService>);

async fn positions(service: &Arc<BrokerService>, from: &str, name: &str) -> Result<TopicPositions, String> {
    let topic = TopicName::parse(name).map_err(|error| error.to_string())?;
    if !service.registry().shares_topic(from, &topic) {
        return Err(format!("{topic} is not shared with region {from}"));
    }
    let Some(broker) = service.elsewhere(&topic) else { return here(service, name).await };
    match service.ask(&broker, &Ask::Positions { topic: name.to_owned() }).await? {
        Said::Positions { incarnation, last, marks } => {
            let mark = |(region, incarnation, ledger, entry): (u32, u64, i64, i64)| OriginMark {
                region: RegionId(region),
                incarnation: Incarnation(incarnation),
                position: position((ledger, entry)),
            };
            Ok(TopicPositions {
                topic: name.to_owned(),
                incarnation: Incarnation(incarnation),
                last: last.map(position),
                marks: marks.into_iter().map(mark).collect(),
                error: None,
            })
        }
        other => Err(format!("broker {} answered {other:?}", broker.id)),
    }
}

/// Of a topic of this broker.
pub(crate) async fn here(service: &Arc<BrokerService>, name: &str) -> Result<TopicPositions, String> {
    let topic = TopicName::parse(name).map_err(|error| error.to_string())?;
    let handle = service.topic(&topic, Create::Never).await.map_err(|error| error.to_string())?;
    let marks = handle.origin_marks().await.map_err(|error| error.to_string())?;
    let log = service.log_of(&topic).ok_or("the topic is closing")?;
    let last = Some(log.last_confirmed()).filter(|last| last.entry_id > EntryId::NONE);
    let mark = |(region, incarnation, position)| OriginMark { region, incarnation, position };
    Ok(TopicPositions {
        topic: name.to_owned(),
        incarnation: log.incarnation(),
        last,
        marks: marks.into_iter().map(mark).collect(),
        error: None,
    })
}

impl PositionsHandler for TopicPositionsHere {
    fn positions<'a>(&'a self, from: &'a str, topics: Vec<String>) -> BoxFuture<'a, Vec<TopicPositions>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(topics.len().min(TOPICS_MAX));
            for (nth, name) in topics.into_iter().enumerate() {
                let answer = match self.0.upgrade().filter(|_| nth < TOPICS_MAX) {
                    Some(service) => positions(&service, from, &name).await,
                    None => Err("not answered: too many topics, or the broker is ending".to_owned()),
                };
                answers.push(answer.unwrap_or_else(|error| TopicPositions {
                    topic: name,
                    incarnation: Incarnation(0),
                    last: None,
                    marks: Vec::new(),
                    error: Some(error),
                }));
            }
            answers
        })
    }
}

/// Up to where a region has stored what was first stored here; `None` = nothing of it, or it does not have the topic.
pub(super) async fn delivered(
    service: &Arc<BrokerService>,
    topic: &TopicName,
    region: &str,
) -> Result<Option<Position>, String> {
    let link = service.link().ok_or("there is no region link")?;
    let log = service.log_of(topic).ok_or("the topic is closing")?;
    let answers = link.link.positions(region, vec![topic.to_string()]).await.map_err(|error| error.to_string())?;
    let Some(answer) = answers.into_iter().next() else { return Err("the answer holds nothing".to_owned()) };
    if let Some(error) = answer.error {
        // The topic was never copied there: all of it is the tail.
        tracing::info!(%topic, region, error, "a region does not have the topic");
        return Ok(None);
    }
    let own = RegionId::of(&service.config().cluster);
    let ours = |mark: &&OriginMark| mark.region == own && mark.incarnation == log.incarnation();
    Ok(answer.marks.iter().find(ours).map(|mark| mark.position))
}
