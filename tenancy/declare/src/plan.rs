//! From what is to what is meant: steps in order.
//!
//! Invariants: D1, D2, D3 of the crate; a step stands after all that it needs: regions, tenants, namespaces, topics,
//! subscriptions, then deletions the other way round.
//! Failure: what can't be reached is a [`Problem`] at its path, and nothing is done then.

use crate::document::Document;
use crate::object::{Facet, Object, ObjectId};
use crate::walk::{Problem, join};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What is, as far as the document and its owner are concerned.
pub type Actual = BTreeMap<ObjectId, Object>;

/// What a step does to its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Makes it.
    Create,
    /// Changes it.
    Update,
    /// Deletes it.
    Delete,
}

impl Action {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Create => "create",
            Action::Update => "update",
            Action::Delete => "delete",
        }
    }
}

/// One facet that changes; `null` = not set.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Which.
    pub facet: Facet,
    /// What it is.
    pub from: Value,
    /// What it is to be.
    pub to: Value,
}

/// What is done to one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// What.
    pub action: Action,
    /// To which.
    pub object: ObjectId,
    /// The facets.
    pub changes: Vec<Change>,
}

impl Step {
    /// As it is shown: secrets are not.
    pub fn shown(&self) -> Value {
        let hide = |change: &Change, value: &Value| match value {
            Value::Null => Value::Null,
            _ if change.facet.is_secret() => json!("(secret)"),
            value => value.clone(),
        };
        let fields = self.changes.iter().map(|change| {
            json!({ "field": change.facet.path(), "from": hide(change, &change.from), "to": hide(change, &change.to) })
        });
        json!({
            "action": self.action.as_str(),
            "object": self.object.to_string(),
            "path": self.object.path(),
            "fields": fields.collect::<Vec<_>>(),
        })
    }
}

/// All steps, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// The steps.
    pub steps: Vec<Step>,
    /// What the owner named before, does not name any more, and that is not deleted because nobody asked for it.
    pub left: Vec<ObjectId>,
    /// Namespaces whose active region is another one than the document says, and that nobody asked to switch.
    pub elsewhere: Vec<Step>,
}

impl Plan {
    /// There is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

/// What may be done beyond creating and changing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowed {
    /// Deleting what the owner does not name any more.
    pub prune: bool,
    /// Switching namespaces to the region that the document names.
    pub switch: bool,
}

/// Compares.
///
/// # Errors
/// What can't be reached from what is.
pub fn compare(
    document: &Document,
    actual: &Actual,
    owned: &BTreeSet<ObjectId>,
    allowed: Allowed,
) -> Result<Plan, Vec<Problem>> {
    let (mut plan, mut problems) = (Plan::default(), Vec::new());
    for (id, wanted) in &document.objects {
        match actual.get(id) {
            None => plan.steps.push(created(id, wanted)),
            Some(found) => {
                let mut changes = changed(wanted, found);
                changes.retain(|change| match impossible(id, change) {
                    Some(problem) => {
                        problems.push(problem);
                        false
                    }
                    None => true,
                });
                let held = take_switch(&mut changes, allowed.switch);
                plan.elsewhere.extend(held.map(|change| Step {
                    action: Action::Update,
                    object: id.clone(),
                    changes: vec![change],
                }));
                if !changes.is_empty() {
                    plan.steps.push(Step { action: Action::Update, object: id.clone(), changes });
                }
            }
        }
    }
    let gone = owned.iter().rev().filter(|id| !document.objects.contains_key(id) && actual.contains_key(id));
    if allowed.prune {
        let delete = |id: &ObjectId| Step { action: Action::Delete, object: id.clone(), changes: Vec::new() };
        plan.steps.extend(gone.map(delete));
    } else {
        plan.left.extend(gone.cloned());
    }
    if problems.is_empty() { Ok(plan) } else { Err(problems) }
}

fn created(id: &ObjectId, wanted: &Object) -> Step {
    let changes = wanted
        .facets
        .iter()
        .map(|(facet, value)| Change { facet: facet.clone(), from: Value::Null, to: value.clone() })
        .collect();
    Step { action: Action::Create, object: id.clone(), changes }
}

fn changed(wanted: &Object, found: &Object) -> Vec<Change> {
    let mut changes = Vec::new();
    for (facet, to) in wanted.facets.iter().filter(|(facet, _)| !facet.is_of_creation()) {
        let from = found.get(facet).cloned().unwrap_or_default();
        if from != *to {
            changes.push(Change { facet: facet.clone(), from, to: to.clone() });
        }
    }
    for (facet, from) in &found.facets {
        let Facet::Of(group, _) = facet else { continue };
        if wanted.groups.contains(group) && !wanted.facets.contains_key(facet) {
            changes.push(Change { facet: facet.clone(), from: from.clone(), to: Value::Null });
        }
    }
    changes
}

/// A switch is taken out of the changes unless it is asked for.
fn take_switch(changes: &mut Vec<Change>, allowed: bool) -> Option<Change> {
    let is_switch = |change: &Change| change.facet == Facet::Field("failover") && !change.from.is_null();
    let at = changes.iter().position(is_switch).filter(|_| !allowed)?;
    Some(changes.remove(at))
}

/// Why a change can't be made.
fn impossible(id: &ObjectId, change: &Change) -> Option<Problem> {
    let refuse = |problem: String| Some(Problem::at(join(&id.path(), &change.facet.path()), problem));
    match change.facet {
        Facet::Field("bundles") => {
            refuse(format!("is {}, expected {}: bundles are set when the namespace is made", change.to, change.from))
        }
        Facet::Field("partitions") => {
            let (from, to) = (change.from.as_u64().unwrap_or(0), change.to.as_u64().unwrap_or(0));
            match (from, to) {
                (0, _) => refuse(format!("is {to}, but the topic is there without partitions: delete it first")),
                (_, 0) => refuse(format!("is 0, but the topic is there with {from} partitions: delete it first")),
                (from, to) if to < from => refuse(format!("is {to}, expected at least {from}: partitions only grow")),
                _ => None,
            }
        }
        _ => None,
    }
}
