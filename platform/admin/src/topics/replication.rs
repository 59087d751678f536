//! Links of topics as JSON, under Pulsar's names and with what those leave out.

use crate::headers::iso_time;
use meridian_broker::replication::ReplicationFigures;
use meridian_topic::LinkStats;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// One object for each other region: what goes there and what comes from there.
pub fn replication(outbound: &[ReplicationFigures], inbound: &[LinkStats]) -> Value {
    let remotes = outbound.iter().map(|link| link.remote.as_str());
    let remotes: BTreeSet<&str> = remotes.chain(inbound.iter().map(|link| link.region.as_str())).collect();
    let of = |remote: &str| {
        let there = outbound.iter().find(|link| link.remote == remote);
        let here = inbound.iter().find(|link| link.region == remote);
        (remote.to_owned(), one(there, here))
    };
    Value::Object(remotes.into_iter().map(of).collect::<Map<_, _>>())
}

fn one(outbound: Option<&ReplicationFigures>, inbound: Option<&LinkStats>) -> Value {
    let none = ReplicationFigures { state: "not replicated there".to_owned(), ..Default::default() };
    let link = outbound.unwrap_or(&none);
    let producer = inbound.map(|link| &link.producer);
    let mut shown = json!({
        "msgRateIn": producer.map_or(0.0, |producer| producer.rate_in),
        "msgThroughputIn": producer.map_or(0.0, |producer| producer.throughput_in),
        "msgInCount": producer.map_or(0, |producer| producer.messages_in),
        "bytesInCount": producer.map_or(0, |producer| producer.bytes_in),
        "msgRateOut": link.rate_out,
        "msgThroughputOut": link.throughput_out,
        "msgOutCount": link.messages_out,
        "bytesOutCount": link.bytes_out,
        "msgRateExpired": link.rate_expired,
        "msgExpiredCount": link.expired_before_copy,
        "replicationBacklog": link.backlog,
        "connected": link.connected,
        "replicationDelayInSeconds": link.delay_s,
        "inboundConnection": producer.map(|producer| producer.address.as_str()),
        "inboundConnectedSince": producer.map(|producer| iso_time(producer.connected_since_ms)),
        "outboundConnection": link.outbound_connection,
        "outboundConnectedSince": link.outbound_since_ms.map(iso_time),
        "state": link.state,
        "restarts": link.restarts,
        "gapMessages": link.gap_messages,
        "expiredBeforeCopy": link.expired_before_copy,
        "undecodable": link.undecodable,
        "inbound": inbound.map(|link| json!({
            "incarnation": link.incarnation.to_string(),
            "pushed": link.pushed.to_string(),
            "persisted": link.persisted.to_string(),
            "waitsFor": link.refused.map(|position| position.to_string()),
            "duplicates": link.duplicates,
            "givenUp": link.given_up,
        })),
    });
    if let Some(drops) = link.drops {
        shown["msgDropRate"] = json!(drops.rate);
        shown["msgDropCount"] = json!(drops.messages);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_broker::replication::Drops;

    #[test]
    fn each_region_has_one_object_for_both_directions() {
        let east =
            ReplicationFigures { remote: "east".into(), state: "running".into(), backlog: 3, ..Default::default() };
        let shown = replication(&[east], &[]);
        assert_eq!(shown["east"]["replicationBacklog"], 3);
        assert_eq!(shown["east"]["state"], "running");
        assert!(shown["east"]["inboundConnection"].is_null());
        assert!(shown["east"].get("msgDropCount").is_none(), "a stored topic's link drops nothing");
    }

    #[test]
    fn links_of_topics_that_keep_nothing_show_what_they_dropped() {
        let drops = Some(Drops { messages: 7, rate: 0.5 });
        let shown = replication(&[ReplicationFigures { remote: "east".into(), drops, ..Default::default() }], &[]);
        assert_eq!((&shown["east"]["msgDropCount"], &shown["east"]["msgDropRate"]), (&json!(7), &json!(0.5)));
    }
}
