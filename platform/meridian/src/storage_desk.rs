//! What the admin API shows of storage nodes: the desk of autorecovery as JSON.
//!
//! Must never know: how ledgers are moved.

use meridian_admin::{AdminError, BookieDesk, DeskAnswer};
use meridian_autorecovery::records::{Hopeless, Leaving, Reason, Report};
use meridian_autorecovery::{BookieLine, BookieState, Desk, DeskError, Progress};
use meridian_types::{BookieId, LedgerId};
use serde_json::{Value, json};

/// See the head of this file.
pub struct StorageDesk(Desk);

impl StorageDesk {
    /// Over a desk.
    pub fn new(desk: Desk) -> Self {
        Self(desk)
    }
}

fn refused(error: DeskError) -> AdminError {
    match &error {
        DeskError::UnknownBookie(_) => AdminError::not_found(error.to_string()),
        DeskError::TooFewLeft { .. } => AdminError::conflict(error.to_string()),
        DeskError::Metadata(error) => AdminError::by_class(error),
    }
}

fn leaving(mark: Option<Leaving>) -> Value {
    let Some(mark) = mark else { return Value::Null };
    let reason = match mark.reason {
        Reason::Lost => "lost",
        Reason::Ordered => "decommission",
    };
    json!({ "reason": reason, "sinceMs": mark.since_ms, "dueMs": mark.due_ms })
}

fn line(line: BookieLine) -> Value {
    let state = match line.state {
        BookieState::Writable => "writable",
        BookieState::ReadOnly => "read-only",
        BookieState::Missing => "missing",
        BookieState::Unknown => "unknown",
    };
    json!({
        "id": line.id.as_str(),
        "state": state,
        "region": line.location.region,
        "zone": line.location.zone,
        "ledgers": line.ledgers,
        "leaving": leaving(line.leaving),
    })
}

fn progress(progress: Progress) -> Value {
    json!({
        "leaving": leaving(progress.leaving),
        "ledgersLeft": progress.ledgers_left,
        "done": progress.is_done(),
    })
}

fn unrecoverable((ledger_id, mark): (LedgerId, Hopeless)) -> Value {
    json!({
        "ledger": ledger_id.0,
        "reason": mark.reason,
        "sinceMs": mark.since_ms,
        "triedMs": mark.tried_ms,
        "attempts": mark.attempts,
    })
}

fn report(report: Report) -> Value {
    let findings: Vec<Value> = report
        .lines
        .iter()
        .map(|line| {
            let what = if line.damaged { "damaged" } else { "missing" };
            json!({
                "ledger": line.ledger_id.0,
                "bookie": line.bookie.as_str(),
                "entry": line.entry_id.0,
                "what": what,
            })
        })
        .collect();
    json!({
        "begunMs": report.begun_ms,
        "endedMs": report.ended_ms,
        "ledgers": report.ledgers,
        "openLedgers": report.open_ledgers,
        "copies": report.copies,
        "missingCopies": report.missing_copies,
        "damagedCopies": report.damaged_copies,
        "unansweredCopies": report.unanswered_copies,
        "misplacedEnsembles": report.misplaced_ensembles,
        "mendableEnsembles": report.mendable_ensembles,
        "underReplicatedLedgers": report.under_replicated_ledgers,
        "repairsOrdered": report.repairs,
        "mendedHoldings": report.mended_holdings,
        "failedLedgers": report.failed_ledgers,
        "findings": findings,
    })
}

impl BookieDesk for StorageDesk {
    fn list(&self) -> DeskAnswer<'_> {
        Box::pin(async move { Ok(self.0.list().await.map_err(refused)?.into_iter().map(line).collect()) })
    }

    fn decommission<'a>(&'a self, bookie: &'a str, keep: usize) -> DeskAnswer<'a> {
        Box::pin(async move { self.0.decommission(&BookieId::new(bookie), keep).await.map(progress).map_err(refused) })
    }

    fn recommission<'a>(&'a self, bookie: &'a str) -> DeskAnswer<'a> {
        Box::pin(
            async move { self.0.recommission(&BookieId::new(bookie)).await.map(|()| Value::Null).map_err(refused) },
        )
    }

    fn progress<'a>(&'a self, bookie: &'a str) -> DeskAnswer<'a> {
        Box::pin(async move { self.0.progress(&BookieId::new(bookie)).await.map(progress).map_err(refused) })
    }

    fn order_audit(&self) -> DeskAnswer<'_> {
        Box::pin(async move {
            self.0.order_audit().await.map(|ordered_ms| json!({ "orderedMs": ordered_ms })).map_err(refused)
        })
    }

    fn report(&self) -> DeskAnswer<'_> {
        Box::pin(async move {
            let Some(last) = self.0.report().await.map_err(refused)? else { return Ok(Value::Null) };
            // These are of now, not of the last audit.
            let (ledgers, more) = self.0.hopeless().await.map_err(refused)?;
            let mut shown = report(last);
            shown["unrecoverable"] = ledgers.into_iter().map(unrecoverable).collect();
            shown["moreUnrecoverable"] = json!(more);
            Ok(shown)
        })
    }
}
