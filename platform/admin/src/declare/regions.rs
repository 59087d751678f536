//! Whether other regions have what was applied here.
//!
//! Invariants: a region without a connection is not waited for, and is told as such: what it misses reaches it once it is
//! there again; nothing is waited for longer than [`WITHIN`].

use super::Apply;
use crate::state::AdminState;
use meridian_declare::{Facet, Group, Object, Plan};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// How long other regions are waited for.
const WITHIN: Duration = Duration::from_secs(10);
/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Looks in a row that have to find nothing on its way: a change is queued a moment after it is written.
const IN_A_ROW: usize = 2;

/// Other regions that namespaces of the document are replicated to.
fn named(apply: &Apply) -> BTreeSet<String> {
    let replication = Facet::Of(Group::Policies, "replication".to_owned());
    let of = |object: &Object| object.get(&replication).and_then(Value::as_array).cloned().unwrap_or_default();
    let all = apply.document.objects.values().flat_map(of);
    let mut names: BTreeSet<String> = all.filter_map(|name| name.as_str().map(str::to_owned)).collect();
    names.remove(&apply.state.service.config().cluster);
    names
}

/// By name, what each of them has: everything (`in force`), not yet (`on its way`), or that it is not connected.
pub(super) async fn wait(apply: &Apply, plan: &Plan) -> Value {
    let names = named(apply);
    if names.is_empty() || plan.is_empty() {
        return json!({});
    }
    let until = Instant::now() + WITHIN;
    let mut quiet = 0;
    loop {
        let shown = look(&apply.state, &names);
        let is_coming = |state: &Value| state == "on its way" || state == "connecting";
        quiet = if shown.values().any(is_coming) { 0 } else { quiet + 1 };
        if quiet >= IN_A_ROW || Instant::now() >= until {
            return Value::Object(shown);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn look(state: &AdminState, names: &BTreeSet<String>) -> Map<String, Value> {
    let peers = state.service.link().map(|attached| attached.link.peers()).unwrap_or_default();
    let of = |name: &String| match peers.iter().find(|peer| peer.region == *name) {
        Some(peer) if peer.state.word() != "connected" => peer.state.word(),
        Some(peer) if peer.sync.queued + peer.sync.in_flight + peer.sync.later > 0 || peer.sync.converged_ms == 0 => {
            "on its way"
        }
        Some(_) => "in force",
        None => "no link",
    };
    names.iter().map(|name| (name.clone(), json!(of(name)))).collect()
}
