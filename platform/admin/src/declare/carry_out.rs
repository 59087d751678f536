//! Carrying a plan out: level by level, within a level many at once, and then waiting until it is in force.
//!
//! Invariants: no step begins before all steps of the levels before it have ended well; steps that change one record stand
//! in one row and are done one after the other; work ends before the lease does.
//! Failure: the first level with failures is the last; all of its failures are told, each with its path.

use super::{Apply, actual, forward, steps};
use crate::error::AdminError;
use axum::http::StatusCode;
use meridian_declare::{Action, Facet, Group, LEASE_MS, ObjectId, Plan, Step, compare};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Rows of steps that are done at once.
const AT_ONCE: usize = 16;
/// Steps begin no later than so long before the lease ends.
const MARGIN_MS: u64 = 30_000;
/// How long what was written may take to be in force.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(15);
/// Pause between two looks whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Failures that are told one by one.
const MAX_TOLD: usize = 20;

/// What became of a plan.
pub(super) struct Outcome {
    /// What was deleted.
    pub(super) gone: BTreeSet<ObjectId>,
    pub(super) result: Result<(), AdminError>,
}

/// Carries all steps out.
pub(super) async fn all(apply: &Apply, plan: &Plan, owned: &BTreeSet<ObjectId>) -> Outcome {
    let until = Instant::now() + Duration::from_millis(LEASE_MS - MARGIN_MS);
    let mut gone = BTreeSet::new();
    let mut result = Ok(());
    for level in plan.steps.chunk_by(|left, right| level_of(left) == level_of(right)) {
        let failed = one_level(apply, level, until, &mut gone).await;
        if !failed.is_empty() {
            result = Err(told(&failed));
            break;
        }
    }
    if result.is_ok() && !plan.is_empty() {
        result = in_force(apply, owned).await;
    }
    Outcome { gone, result }
}

fn level_of(step: &Step) -> (bool, &'static str) {
    (step.action == Action::Delete, step.object.kind())
}

/// Steps of one row change one record.
fn row_of(step: &Step) -> String {
    let grants = |step: &Step| {
        step.action == Action::Delete
            || step.changes.iter().any(|change| matches!(change.facet, Facet::Of(Group::Grants, _)))
    };
    match &step.object {
        ObjectId::Namespace(name) => name.tenant().to_owned(),
        ObjectId::Topic(topic) if grants(step) => topic.namespace().to_string(),
        ObjectId::Subscription(topic, _) => topic.to_string(),
        other => other.to_string(),
    }
}

type Failure = (String, AdminError);

async fn one_level(apply: &Apply, level: &[Step], until: Instant, gone: &mut BTreeSet<ObjectId>) -> Vec<Failure> {
    let mut rows: BTreeMap<String, Vec<Step>> = BTreeMap::new();
    for step in level {
        rows.entry(row_of(step)).or_default().push(step.clone());
    }
    let queue = Arc::new(rows::Queue::new(rows.into_values()));
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (queue, state, force) = (queue.clone(), apply.state.clone(), apply.force);
        let (document, passing) = (apply.document.clone(), apply.passing.clone());
        let principal = apply.principal.clone();
        tasks.spawn(async move {
            let (mut done, mut failed) = (Vec::new(), Vec::new());
            while let Some(row) = queue.next() {
                for step in row {
                    let wanted = document.objects.get(&step.object);
                    let doing = steps::Doing { state: &state, step: &step, wanted, force, principal: &principal };
                    let outcome = match Instant::now() < until {
                        true => steps::one(&doing).await,
                        false => {
                            Err(AdminError::new(StatusCode::GATEWAY_TIMEOUT, "was not begun in time; apply again"))
                        }
                    };
                    let outcome = match outcome.as_ref().err().and_then(|error| passing.place(error)) {
                        Some(url) => forward::step(&passing, &url, &step, wanted, force).await,
                        None => outcome,
                    };
                    match outcome {
                        Ok(()) => done.push(step),
                        Err(error) => failed.push((step.object.path(), error)),
                    }
                }
            }
            (done, failed)
        });
    }
    let mut failures = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok((done, failed)) => {
                failures.extend(failed);
                gone.extend(done.into_iter().filter(|step| step.action == Action::Delete).map(|step| step.object));
            }
            Err(error) => failures.push((String::new(), AdminError::invalid(format!("a row of steps ended: {error}")))),
        }
    }
    failures.sort_by(|left, right| left.0.cmp(&right.0));
    failures
}

fn told(failures: &[Failure]) -> AdminError {
    let mut texts: Vec<_> =
        failures.iter().take(MAX_TOLD).map(|(path, error)| format!("{path}: {}", error.reason)).collect();
    if failures.len() > MAX_TOLD {
        texts.push(format!("and {} more", failures.len() - MAX_TOLD));
    }
    let first = failures.first().map(|(_, error)| error);
    let status = first.map_or(StatusCode::INTERNAL_SERVER_ERROR, |error| error.status);
    let elsewhere = first.and_then(|error| error.elsewhere.clone());
    AdminError { elsewhere, ..AdminError::new(status, texts.join("; ")) }
}

/// Waits until what is reads as what was meant (A7).
async fn in_force(apply: &Apply, owned: &BTreeSet<ObjectId>) -> Result<(), AdminError> {
    let deadline = Instant::now() + IN_FORCE_WITHIN;
    loop {
        let actual = actual::of_document(apply, owned).await?;
        let left = match compare(&apply.document, &actual, owned, apply.allowed) {
            Ok(plan) if plan.is_empty() => return Ok(()),
            Ok(plan) => plan.steps.first().map(|step| step.shown().to_string()).unwrap_or_default(),
            Err(problems) => problems.first().map(ToString::to_string).unwrap_or_default(),
        };
        if Instant::now() >= deadline {
            let text =
                format!("it is written but not in force here after {IN_FORCE_WITHIN:?}, or was changed again: {left}");
            return Err(AdminError::new(StatusCode::GATEWAY_TIMEOUT, text));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

mod rows {
    //! Rows that are taken one by one.

    use std::sync::{Mutex, PoisonError};

    pub(super) struct Queue<T>(Mutex<Vec<T>>);

    impl<T> Queue<T> {
        pub(super) fn new(rows: impl Iterator<Item = T>) -> Self {
            let mut rows: Vec<T> = rows.collect();
            rows.reverse();
            Self(Mutex::new(rows))
        }

        pub(super) fn next(&self) -> Option<T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
        }
    }
}
